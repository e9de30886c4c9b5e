//! The gradients of X, Y and W in one pass over the entries of a sender, whose X and gradient stay in registers: no
//! scatter and no atomics. The gradient of Y is a sum over channels.

use super::path::{Component, each_path, gradients};
use super::{
    COMPONENTS, Lane, Part, ask_ahead, channel_of, each_component, entry, load, load_w, load_x,
    load_y, next_row, positions,
};
use crate::device::prelude::*;
use crate::families::tensor::abi::*;

impl<const LARGEST: u32, const ODD: bool, const BLOCKS: u32>
    EquivariantBackward<LARGEST, ODD, BLOCKS>
{
    const PATHS: Paths = Paths::of(LARGEST as usize, ODD);
    /// Paths whose rows are asked for ahead of their products: all, if registers hold them.
    const AHEAD: usize = match LARGEST {
        1 => Self::PATHS.count,
        2 => 8,
        _ => 3,
    };
}

/// Paths that are asked for ahead at the most.
const MOST_AHEAD: usize = 8;

/// The warps that share a row.
#[derive(Clone, Copy)]
struct Team {
    /// How many, and which this one is.
    warps: u32,
    warp: u32,
    /// Its number in the thread block.
    number: u32,
}

impl<W: WalkInfo, E: Elem, const LARGEST: u32, const ODD: bool, const BLOCKS: u32>
    Kernel<W, E, EquivariantParams> for EquivariantBackward<LARGEST, ODD, BLOCKS>
{
    #[inline(always)]
    unsafe fn run(p: &EquivariantParams, _: u64) {
        let chunks = p.width.div_ceil(32);
        let warps = chunks.clamp(1, EQUIVARIANT_WARPS);
        let teams = if warps < 3 {
            EQUIVARIANT_WARPS / warps
        } else {
            1
        };
        let warp = gpu::thread() / 32;
        let team = Team {
            warps,
            warp: warp % warps,
            number: warp / warps,
        };
        let row = gpu::block_x() * teams + team.number;
        if team.number >= teams || row >= p.rows {
            return;
        }
        let mut chunk = team.warp;
        while chunk - team.warp < chunks {
            warp::stay_rolled();
            let channel = chunk * 32 + gpu::thread() % 32;
            let lane = Lane {
                row,
                channel,
                inside: channel < p.width,
            };
            let again = chunk >= warps || p.flags & FLAG_ADD_DY != 0;
            Self::chunk::<E>(p, lane, team, again);
            chunk += warps;
        }
    }
}

impl<const LARGEST: u32, const ODD: bool, const BLOCKS: u32>
    EquivariantBackward<LARGEST, ODD, BLOCKS>
{
    /// 32 channels of a row. `again`: the gradient of Y has sums of other channels.
    #[inline(always)]
    fn chunk<E: Elem>(p: &EquivariantParams, lane: Lane, team: Team, again: bool) {
        let [first, end] = positions(p, lane.row);
        let x = load_x::<E, LARGEST>(
            p,
            channel_of::<E>(p, 0, lane.row, lane.channel),
            lane.inside,
        );
        let mut dx = [E::ZERO; COMPONENTS];
        let to_dx = channel_of::<E>(p, 4, lane.row, lane.channel);
        if p.dx != 0 && p.flags & FLAG_ADD_DX != 0 {
            each_component::<LARGEST>(p, 2, to_dx, |i, at| dx[i] = load::<E>(at, lane.inside));
        }
        let mut at = first;
        let mut next = entry(p, at, at < end);
        while at < end {
            warp::stay_rolled();
            let [edge, other] = next;
            next = entry(p, at + 1, at + 1 < end);
            ask_ahead::<E>(p, next[0], lane.channel, at + 1 < end);
            let from = channel_of::<E>(p, 2, edge, lane.channel);
            let mut w = [E::ZERO; MOST_PATHS];
            load_w::<E>(p, from, [0, Self::PATHS.count], &mut w, lane.inside);
            let y = load_y::<E, LARGEST>(p, edge);
            let mut dy = [E::ZERO; COMPONENTS];
            let from = channel_of::<E>(p, 3, other, lane.channel);
            let to = channel_of::<E>(p, 6, edge, lane.channel);
            let mut ahead = [[E::ZERO; 7]; MOST_AHEAD];
            unroll!(number < Self::AHEAD, {
                ahead[number] = Self::load_g::<E>(p, from, number, lane.inside);
            });
            let wanted = p.dw != 0 && lane.inside;
            each_path!(A B C, {
                if const { Self::PATHS.number([A, B, C]) < Self::PATHS.count } {
                    let number = const { Self::PATHS.number([A, B, C]) };
                    let slot = const { Self::PATHS.number([A, B, C]) % Self::AHEAD };
                    let g = ahead[slot];
                    ahead[slot] = Self::load_g::<E>(p, from, number + Self::AHEAD, lane.inside);
                    if p.wanted >> number & 1 != 0 {
                        let [of_x, of_y] = gradients::<E, A, B, C>(&x, &y, &g);
                        let mut dw = E::ZERO;
                        unroll!(i < 2 * A + 1, {
                            dw = E::fma(of_x[i], x[A * A + i], dw);
                            dx[A * A + i] = E::fma(w[number], of_x[i], dx[A * A + i]);
                        });
                        unroll!(j < 2 * B + 1, {
                            dy[B * B + j] = E::fma(w[number], of_y[j], dy[B * B + j]);
                        });
                        if wanted {
                            E::store::<1>(to + p.paths[number][2] as u64, &[dw]);
                        }
                    }
                }
            });
            if p.dy != 0 {
                let sum = over_channels::<E>(dy);
                deliver::<E>(p, team, [first, at, end], sum, again);
            }
            at += 1;
        }
        if p.dx != 0 && lane.inside {
            each_component::<LARGEST>(p, 2, to_dx, |i, at| E::store::<1>(at, &[dx[i]]));
        }
    }

    /// A path's rows of the output's gradient; none past the last path.
    #[inline(always)]
    fn load_g<E: Elem>(p: &EquivariantParams, from: u64, number: usize, ok: bool) -> Component<E> {
        let mut g = [E::ZERO; 7];
        if number < Self::PATHS.count {
            let mut at = from + p.paths[number][0] as u64;
            let ok = ok && p.wanted >> number & 1 != 0;
            unroll!(k < 7, {
                if k < 2 * Self::PATHS.all[number][2] + 1 {
                    g[k] = load::<E>(at, ok);
                    at = next_row(at, p.row_bytes[1]);
                }
            });
        }
        g
    }
}

/// The sums over a warp's channels: of component `lane / 2`, in both lanes. Each step exchanges half of the components
/// with the lane that keeps them.
#[inline(always)]
fn over_channels<E: Elem>(mut all: Part<E>) -> E::Acc {
    let lane = gpu::thread() % 32;
    macro_rules! halve {
        ($($bit:literal $half:literal),+) => {$(
            let upper = lane & $bit != 0;
            unroll!(i < $half, {
                let [low, high] = [all[i], all[i + $half]];
                let (keep, give) = if upper { (high, low) } else { (low, high) };
                all[i] = E::add(keep, E::exchange(give, $bit));
            });
        )+};
    }
    halve!(16 8, 8 4, 4 2, 2 1);
    E::add(all[0], E::exchange(all[0], 1))
}

/// Adds up the sums of an entry over the warps of its row, and writes them: a warp alone at once, several after
/// [`EQUIVARIANT_BATCH`] entries, or after the last. `first`, `at`, `end`: positions of the row, and of the entry.
#[inline(always)]
fn deliver<E: Elem>(
    p: &EquivariantParams,
    team: Team,
    [first, at, end]: [u32; 3],
    sum: E::Acc,
    again: bool,
) {
    let lane = gpu::thread() % 32;
    if team.warps == 1 {
        let [edge, _] = entry(p, at, lane % 2 == 0);
        write_dy::<E>(p, edge, lane / 2, sum, lane % 2 == 0, again);
        return;
    }
    let threads = team.warps * 32;
    let row = COMPONENTS as u32 * E::ACC_BYTES;
    let arena = copy::arena() + team.number * team.warps * EQUIVARIANT_BATCH * row;
    let place = |slot: u32, warp: u32, component: u32| {
        arena + (slot * team.warps + warp) * row + component * E::ACC_BYTES
    };
    let slot = (at - first) % EQUIVARIANT_BATCH;
    E::store_shared(place(slot, team.warp, lane / 2), sum);
    if slot + 1 < EQUIVARIANT_BATCH && at + 1 < end {
        return;
    }
    barrier::sync_named(1 + team.number, threads);
    let mut own = team.warp * 32 + lane;
    while own < (slot + 1) * COMPONENTS as u32 {
        warp::stay_rolled();
        let (of, component) = (own / COMPONENTS as u32, own % COMPONENTS as u32);
        let mut total = E::load_shared(place(of, 0, component));
        let mut warp = 1;
        while warp < team.warps {
            total = E::add(total, E::load_shared(place(of, warp, component)));
            warp += 1;
        }
        let [edge, _] = entry(p, at - slot + of, true);
        write_dy::<E>(p, edge, component, total, true, again);
        own += threads;
    }
    barrier::sync_named(1 + team.number, threads);
}

/// Writes a component of an entry's gradient of Y, where Y has it.
#[inline(always)]
fn write_dy<E: Elem>(
    p: &EquivariantParams,
    entry: u32,
    component: u32,
    sum: E::Acc,
    ok: bool,
    again: bool,
) {
    let (degree, bytes) = match component {
        0 => (0, p.parts[1][0]),
        1..4 => (1, p.parts[1][1]),
        4..9 => (2, p.parts[1][2]),
        _ => (3, p.parts[1][3]),
    };
    let own = bytes + (component - degree * degree) * E::BYTES;
    let to = p.dy + entry as u64 * p.item_bytes[5] + own as u64;
    if ok && p.degrees >> (DEGREES as u32 + degree) & 1 != 0 {
        let sum = match again {
            true => E::add(sum, E::get(&E::load_own::<1>(to, true), 0)),
            false => sum,
        };
        E::store::<1>(to, &[sum]);
    }
}
