//! Gradients of X, Y and W in one pass over the entries of a row, the sender. The warps of a row each have the channels
//! of 32 lanes. X and its gradient stay in registers: no scatter and no atomics. The output's gradient, Y and W of an
//! entry are in shared memory. Copies for later entries overlap the products. The gradient of Y is a sum over channels.

use super::entries::Entries;
use super::path::{each_path, gradients};
use super::{COMPONENTS, Lane, Part, channel_of, each_component, load, positions};
use crate::device::lanes::reduce_each;
use crate::device::prelude::*;
use crate::families::tensor::abi::*;

/// The warps that share a row.
#[derive(Clone, Copy)]
struct Team {
    /// Number of warps, and the index of this one.
    warps: u32,
    warp: u32,
    /// Index of the team in the thread block.
    number: u32,
}

impl<const CHANNELS: usize, F: EquivariantForm> Equivariant<true, CHANNELS, F> {
    /// Components of Y, rounded up to a power of two.
    const SUMMED: u32 = if F::LARGEST == 1 { 4 } else { 16 };
    /// Bytes of shared memory before the sums over channels.
    const BEFORE_SUMS: u32 =
        EdgeRows::of(true, F::LARGEST as usize, F::ODD, CHANNELS as u32).shared_bytes();

    #[inline(always)]
    pub(super) fn backward<E: Elem>(p: &EquivariantParams) {
        let chunks = p.width.div_ceil(32 * CHANNELS as u32);
        let all = equivariant_warps(CHANNELS as u32);
        let warps = chunks.clamp(1, all);
        let teams = if warps < 3 { all / warps } else { 1 };
        let warp = gpu::thread() / 32;
        let team = Team { warps, warp: warp % warps, number: warp / warps };
        let row = gpu::block_x() * teams + team.number;
        if team.number >= teams || row >= p.rows {
            return;
        }
        let mut chunk = team.warp;
        let mut batch = 0;
        while chunk - team.warp < chunks {
            warp::nounroll();
            let channel = (chunk * 32 + gpu::thread() % 32) * CHANNELS as u32;
            let lane = Lane { row, channel, inside: channel < p.width };
            let again = chunk >= warps || p.flags & FLAG_ADD_DY != 0;
            Self::chunk::<E>(p, lane, team, again, &mut batch);
            chunk += warps;
        }
    }

    /// Processes a warp's channels of a row. `again`: the gradient of Y already has sums of other channels. `batch`:
    /// alternates between 0 and 1 for the batches of sums.
    #[inline(always)]
    fn chunk<E: Elem>(p: &EquivariantParams, lane: Lane, team: Team, again: bool, batch: &mut u32) {
        let [first, end] = positions(p, lane.row);
        let mut x = [[E::ZERO; COMPONENTS]; CHANNELS];
        let from = channel_of::<E>(p, 0, lane.row, lane.channel);
        each_component::<E, F>(p, 0, from, |i, at| {
            unroll!(c < CHANNELS, { x[c][i] = load::<E>(at.at(c as u32), lane.inside) });
        });
        let mut dx = [[E::ZERO; COMPONENTS]; CHANNELS];
        let to_dx = channel_of::<E>(p, 4, lane.row, lane.channel);
        if p.dx != 0 && p.flags & FLAG_ADD_DX != 0 {
            each_component::<E, F>(p, 2, to_dx, |i, at| {
                unroll!(c < CHANNELS, { dx[c][i] = load::<E>(at.at(c as u32), lane.inside) });
            });
        }
        let mut entries = Entries::<true, CHANNELS, F>::new::<E>(
            p,
            [first, end],
            lane.channel - gpu::thread() % 32 * CHANNELS as u32,
        );
        // If one warp has the whole row, it adds to the stored gradient of Y. That load overlaps the products.
        let lanes = 32 / Self::SUMMED;
        let (own_dy, has) = place_of_dy::<E>(p, gpu::thread() % 32 / lanes);
        let writes =
            has && team.warps == 1 && p.dy != 0 && (gpu::thread() % 32).is_multiple_of(lanes);
        while entries.any() {
            warp::nounroll();
            let edge = entries.entry(entries.at);
            let to_dy = p.dy::<E>().row(edge, p.item_bytes[5]).bytes(own_dy);
            let before = load::<E>(to_dy, writes && again);
            let mut y = [E::ZERO; COMPONENTS];
            let mut dy = [E::ZERO; COMPONENTS];
            let to = channel_of::<E>(p, 6, edge, lane.channel);
            let mut ahead = ([[E::ZERO; 7]; CHANNELS], [E::ZERO; CHANNELS]);
            let wanted = p.dw != 0 && lane.inside;
            each_path!(Self::PATHS, A B C number, {
                let first = const { Self::PATHS.below(C) };
                let part = const { C.saturating_sub(F::ODD as usize) };
                let row = number - first;
                if row == 0 {
                    if part > 0 {
                        entries.replace::<E>(p, part - 1);
                    }
                    entries.wait();
                    if part == 0 {
                        y = entries.y::<E>();
                    }
                    ahead = entries.path::<E>(part, 0, const { 2 * C + 1 });
                }
                let (g, w) = ahead;
                if const { Self::PATHS.number([A, B, C]) + 1 < Self::PATHS.below(C + 1) } {
                    ahead = entries.path::<E>(part, row + 1, const { 2 * C + 1 });
                }
                if p.wanted >> number & 1 != 0 {
                    let mut wx = [[E::ZERO; 7]; CHANNELS];
                    unroll!(c < CHANNELS, {
                        unroll!(i < 2 * A + 1, { wx[c][i] = E::mul(w[c], x[c][A * A + i]) });
                    });
                    let of_x = gradients::<E, A, B, C, CHANNELS>(&wx, &y, &g, &mut dy);
                    let mut dw = [E::ZERO; CHANNELS];
                    unroll!(c < CHANNELS, {
                        unroll!(i < 2 * A + 1, {
                            dw[c] = E::fma(of_x[c][i], x[c][A * A + i], dw[c]);
                            dx[c][A * A + i] = E::fma(w[c], of_x[c][i], dx[c][A * A + i]);
                        });
                    });
                    if wanted {
                        Self::store::<E>(p, to.bytes(p.paths[number][2]), &dw);
                    }
                }
            });
            entries.replace::<E>(p, const { F::LARGEST as usize - F::ODD as usize });
            if p.dy != 0 {
                // Shared memory is uninitialized for channels past the width.
                if !lane.inside {
                    dy = [E::ZERO; COMPONENTS];
                }
                let sum = Self::over_channels::<E>(dy);
                if team.warps > 1 {
                    Self::deliver::<E>(p, team, &entries, (sum, again), batch);
                } else if writes {
                    to_dy.st_rounded(&[E::add(sum, before)]);
                }
            }
            entries.turn(p);
        }
        if p.dx != 0 && lane.inside {
            each_component::<E, F>(p, 2, to_dx, |i, at| {
                let mut own = [E::ZERO; CHANNELS];
                unroll!(c < CHANNELS, { own[c] = dx[c][i] });
                Self::store::<E>(p, at, &own);
            });
        }
    }

    /// Stores this lane's channels of a row of the gradient of X or W.
    #[inline(always)]
    fn store<E: Elem>(p: &EquivariantParams, at: Global<E, ReadWrite>, own: &[E::Acc; CHANNELS]) {
        if CHANNELS == 1 || p.flags & FLAG_EVEN_GRADIENTS != 0 {
            at.st_rounded(own);
        } else {
            unroll!(c < CHANNELS, { at.at(c as u32).st_rounded(&[own[c]]) });
        }
    }

    /// Sums over a warp's channels: component `lane * SUMMED / 32`, in all lanes of that component.
    #[inline(always)]
    fn over_channels<E: Elem>(all: Part<E>) -> E::Acc {
        reduce_each(all, Self::SUMMED as usize, 32, |keep, give, distance| {
            E::add(keep, E::shfl_xor(give, distance))
        })
    }

    /// Adds up the sums of an entry over the warps of its row. It stores them after [`EQUIVARIANT_BATCH`] entries, or
    /// after the last one. While some warps add up a batch, others may write the sums of the next batch.
    #[inline(always)]
    fn deliver<E: Elem>(
        p: &EquivariantParams,
        team: Team,
        entries: &Entries<true, CHANNELS, F>,
        (sum, again): (E::Acc, bool),
        batch: &mut u32,
    ) {
        let lane = gpu::thread() % 32;
        let threads = team.warps * 32;
        let count = Self::SUMMED;
        let row = count * E::ACC_BYTES;
        const { assert!(2 * Self::SUMMED * E::ACC_BYTES <= EQUIVARIANT_SUMS) };
        // SAFETY: `SHARED_BYTES` of the tile ends with the sums.
        let sums = unsafe { Shared::<E::Acc>::dynamic(Self::BEFORE_SUMS) };
        let sums = sums.bytes((team.number * 2 + *batch) * team.warps * EQUIVARIANT_BATCH * row);
        let place = |slot: u32, warp: u32, component: u32| {
            sums.bytes((slot * team.warps + warp) * row).at(component)
        };
        let slot = entries.slot_of(EQUIVARIANT_BATCH);
        place(slot, team.warp, lane / (32 / count)).st(sum);
        if slot + 1 < EQUIVARIANT_BATCH && !entries.is_last() {
            return;
        }
        // The barrier numbers are constants: with a runtime number a thread block reserves 16 of the 64 barriers of an
        // SM.
        if CHANNELS == 2 || team.number == 0 {
            barrier::sync_named(1, threads);
        } else {
            barrier::sync_named(2, threads);
        }
        *batch ^= 1;
        let mut first = team.warp * 32;
        while first < (slot + 1) * count {
            warp::nounroll();
            let own = first + lane;
            let (of, component) = (own / count, own % count);
            let edge = entries.entry(entries.at - slot + of);
            let (bytes, ok) = place_of_dy::<E>(p, component);
            let ok = ok && of <= slot;
            let to = p.dy::<E>().row(edge, p.item_bytes[5]).bytes(bytes);
            let before = load::<E>(to, ok && again);
            let mut total = place(of, 0, component).ld();
            let mut warp = 1;
            while warp < team.warps {
                total = E::add(total, place(of, warp, component).ld());
                warp += 1;
            }
            if ok {
                to.st_rounded(&[E::add(total, before)]);
            }
            first += threads;
        }
    }
}

/// Byte offset of a component in an entry's gradient of Y, and whether Y has it.
#[inline(always)]
fn place_of_dy<E: Elem>(p: &EquivariantParams, component: u32) -> (u32, bool) {
    let (degree, bytes) = match component {
        0 => (0, p.parts[1][0]),
        1..4 => (1, p.parts[1][1]),
        4..9 => (2, p.parts[1][2]),
        _ => (3, p.parts[1][3]),
    };
    let bytes = bytes + (component - degree * degree) * E::BYTES;
    (bytes, p.degrees >> (DEGREES as u32 + degree) & 1 != 0)
}
