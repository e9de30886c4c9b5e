//! Product of at most 64 rows with an A whose columns are mostly empty. Each thread block finds the nonempty columns of
//! its part of k (`scan`), gathers the matching rows of B into a ring of stages by copies of 16 bytes, and multiplies.
//! The parts of a tile are added in the cluster (`out`) or in global memory (`parts`). Only listed rows of B are read.

mod out;
mod parts;
mod scan;

use crate::device::mma::MmaElem;
use crate::device::prelude::*;
use crate::families::gather_gemm::abi::*;
use scan::Taken;

buffers! {
    // `PitFewLaunch` checks the alignment of the operands, its callers their shapes
    // (`host/core/families/gather_gemm/offers/pit`, `host/core/offer/run.rs`). It allocates the sums of all parts of all
    // tiles, and a counter for each tile.
    unsafe PitFewParams {
        a: u16, Fresh;
        b: u16, ReadWrite;
        c<E: Elem>: E, ReadWrite;
        partial: [u32; 4], Fresh;
        counters: u32, Fresh;
    }
}

/// Accumulators of a warp: atoms of 16 rows, then of 8 columns. Only as many atoms of rows are used as the tile has.
type Sums = [[[f32; 4]; 4]; 4];

/// Rows of B that all threads copy at once.
const ROWS: u32 = 8;

/// Copies of a thread in eight rows of B, and addresses of the operands that it multiplies.
#[derive(Clone, Copy)]
struct PerThread {
    /// This thread's row of the eight, and whether B has its columns.
    row: u32,
    inside: bool,
    /// Address of its columns in row 0 of B, and their offset in a stage.
    from: Global<u16, ReadWrite>,
    to: u32,
    /// Offsets of fragments: of A from the first value of a step, of B in a stage.
    a: u32,
    b: [u32; 2],
}

impl<const MT: usize, const WARPS: usize, const TOGETHER: bool> FewRows<MT, WARPS, TOGETHER> {
    /// Computes the addresses of this thread. Called while loads of A are in flight, not before they are issued.
    #[inline(always)]
    fn places(p: &PitFewParams) -> PerThread {
        let thread = gpu::opaque_thread();
        let (warp, lane) = (thread / 32, thread % 32);
        let across = WARPS as u32 * 4;
        let (row, chunk) = (thread / across, thread % across);
        let column = Self::tile(p) * Self::COLUMNS + chunk * 8;
        let (deep, eight) = frag::ldmatrix_x4_columns(lane);
        let (of_step, half) = frag::ldmatrix_x4(lane);
        let wide = Self::ROW_BYTES as u32;
        // The swizzle is the same eight and sixteen rows further.
        PerThread {
            row,
            inside: column < p.n,
            from: p.b().at(column),
            to: frag::swizzle(row, chunk, wide),
            a: deep * Self::A_ROW as u32 + eight * 16,
            b: [0, 2].map(|h| frag::swizzle(of_step, warp * 4 + h + half, wide)),
        }
    }

    #[inline(always)]
    fn own() -> (u32, u32) {
        (gpu::thread() / 32, gpu::thread() % 32)
    }

    /// Divides a number of thread blocks by the parts of a tile, a power of two with clusters.
    #[inline(always)]
    fn by_parts(p: &PitFewParams, blocks: u32) -> u32 {
        if TOGETHER {
            blocks >> p.parts.trailing_zeros()
        } else {
            blocks.checked_div(p.parts).unwrap_or(0)
        }
    }

    /// Returns the number of this thread block's tile.
    #[inline(always)]
    fn tile(p: &PitFewParams) -> u32 {
        Self::by_parts(p, gpu::block_x())
    }

    /// Returns the number of this thread block's part of its tile.
    #[inline(always)]
    fn part(p: &PitFewParams) -> u32 {
        if TOGETHER { cluster::rank() } else { gpu::block_x() - Self::tile(p) * p.parts }
    }

    /// Returns the address of a column of A in the list.
    #[inline(always)]
    fn entry(place: u32) -> Shared<u32> {
        // SAFETY: `SHARED_BYTES` of the tile includes a list of `ROOM` columns, which bounds `place`.
        unsafe { Shared::<u32>::dynamic(Self::LIST as u32) }.at(place)
    }

    /// Returns the address of the values of a listed column.
    #[inline(always)]
    fn values(place: u32) -> Shared<[u32; 4]> {
        // SAFETY: as for the list.
        unsafe { Shared::<[u32; 4]>::dynamic(Self::VALUES as u32) }
            .bytes(place * Self::A_ROW as u32)
    }

    #[inline(always)]
    fn stage(slot: u32) -> Shared<u8> {
        // SAFETY: `SHARED_BYTES` of the tile includes all stages.
        unsafe { Shared::<u8>::dynamic(0) }.bytes(slot * Self::STAGE as u32)
    }

    /// Starts the copies of a stage, if it exists: eight rows of B at a time, 16 bytes of each by a thread. Rows past
    /// the last listed column are zero, up to a k-step: zeros of A times a NaN would be NaN.
    #[inline(always)]
    fn start(p: &PitFewParams, own: PerThread, listed: u32, s: u32, slot: u32) {
        let end = if own.inside { listed } else { 0 };
        let last = listed.saturating_sub(1);
        let first = s * FEW_DEPTH + own.row;
        let to = Self::stage(slot).bytes(own.to).cast::<[u32; 4]>();
        // All four are loaded before the first copy, since later loads would wait for it.
        let lines = [0, 1, 2, 3].map(|i| {
            let place = (first + i * ROWS).min(last);
            Self::entry(place).ld()
        });
        unroll!(i < 4, {
            let down = i as u32 * ROWS;
            let from = own.from.row(lines[i], p.ldb_bytes);
            let to = to.bytes(down * Self::ROW_BYTES as u32);
            from.cp_async_16_if(to, u32::from(first + down < end));
        });
        // One group for each stage, even if it is empty.
        copy::cp_async_commit();
        if (s + 1) * FEW_DEPTH > listed {
            unroll!(i < 4, {
                let down = i as u32 * ROWS;
                let place = first + down;
                if place >= listed && place < listed.next_multiple_of(16) {
                    to.bytes(down * Self::ROW_BYTES as u32).st([0; 4]);
                }
            });
        }
    }

    /// Multiplies a stage: all rows by this warp's 32 columns.
    #[inline(always)]
    fn multiply<E: MmaElem>(own: PerThread, listed: u32, s: u32, slot: u32, sums: &mut Sums) {
        let stage = Self::stage(slot);
        let values = Self::values(s * FEW_DEPTH).bytes(own.a);
        unroll!(step < 2, {
            let step = step as u32 * 16;
            if s * FEW_DEPTH + step < listed {
                let mut b = [[0; 2]; 4];
                unroll!(h < 2, {
                    let from = stage.bytes(own.b[h]).bytes(step * Self::ROW_BYTES as u32);
                    let [w, x, y, z] = from.ldmatrix_trans();
                    b[2 * h] = [w, x];
                    b[2 * h + 1] = [y, z];
                });
                let from = values.bytes(step * Self::A_ROW as u32);
                unroll!(i < MT / 16, most 4, {
                    let a = from.bytes(i as u32 * 32).ldmatrix_trans();
                    unroll!(j < 4, { E::mma(&mut sums[i][j], a, b[j]) });
                });
            }
        });
    }

    /// Waits for all groups of copies but the youngest ones. Their number is one less than that of the stages after the
    /// stage that is multiplied next.
    #[inline(always)]
    fn wait_for_copies() {
        match Self::STAGES {
            6 => copy::cp_async_wait::<4>(),
            5 => copy::cp_async_wait::<3>(),
            _ => {
                const { assert!(Self::STAGES >= 4 && Self::STAGES <= 6) };
                copy::cp_async_wait::<2>();
            }
        }
    }

    /// Multiplies all listed columns. All stages of the ring have been started, including empty ones. The first stage
    /// is waited for together with the second, as no copies are started between these two waits: the first free slot
    /// is that of the first stage.
    #[inline(always)]
    fn drain<E: MmaElem>(p: &PitFewParams, own: PerThread, listed: u32, sums: &mut Sums) {
        let stages = listed.div_ceil(FEW_DEPTH);
        // The slot of stage s, and the preceding slot of the ring.
        let (mut slot, mut freed) = (0, Self::STAGES - 1);
        let mut s = 0;
        while s < stages {
            Self::wait_for_copies();
            // All threads have copied their part of stage s, and have read stage s - 1.
            gpu::sync_threads();
            if s > 0 {
                Self::start(p, own, listed, s - 1 + Self::STAGES, freed);
            }
            Self::multiply::<E>(own, listed, s, slot, sums);
            freed = slot;
            slot = if slot == Self::STAGES - 1 { 0 } else { slot + 1 };
            s += 1;
        }
    }

    /// Finds and multiplies the columns `from..end`. Copies of B start as soon as a stage of columns is listed. The
    /// stages are multiplied when the list is full, or after the last column.
    #[inline(always)]
    fn gather<E: MmaElem>(p: &PitFewParams, from: u32, end: u32, sums: &mut Sums) {
        let (mut from, mut turn) = (from, 0);
        let (mut listed, mut started) = (0, 0);
        while from < end {
            let column = from + gpu::thread() * Self::EACH;
            let left = end.saturating_sub(column);
            Self::fetch_ahead(p, from + Self::ROUND, end);
            let raw = Self::load(p, column, left);
            let own = Self::places(p);
            from += Self::ROUND;
            let found = Self::found(p, &raw, left);
            let [rank, total] = Self::rank(found, turn);
            turn ^= 1;
            let mut first = 0;
            loop {
                let count = (total - first).min(Self::ROOM - listed);
                let place = listed;
                let taken = Taken { first, count, place };
                Self::put(&raw, found, rank, column, taken);
                first += count;
                listed += count;
                let over = first < total;
                let drains = over || from >= end;
                if drains {
                    Self::pad(listed);
                }
                // No thread multiplies, and the list can be read.
                gpu::sync_threads();
                let whole = (listed / FEW_DEPTH).min(Self::STAGES);
                let ready = if drains { Self::STAGES } else { whole };
                while started < ready {
                    Self::start(p, own, listed, started, started);
                    started += 1;
                }
                if !drains {
                    break;
                }
                Self::drain::<E>(p, own, listed, sums);
                if !over {
                    break;
                }
                (listed, started) = (0, 0);
                // All threads have read the last stage, its values and the list.
                gpu::sync_threads();
            }
        }
    }

    /// Initializes the barrier of the sums, which expects those of the other parts. The last warp does this: it has the
    /// fewest columns to load.
    #[inline(always)]
    fn set_up(p: &PitFewParams) {
        if TOGETHER && p.parts > 1 {
            if gpu::thread() == Self::THREADS - 32 {
                Self::summed().init(1);
                barrier::init_fence();
                Self::summed().arrive_expect_tx(Self::from_others(p));
            }
            // The other parts wait for this before they send sums.
            cluster::arrive_relaxed();
        }
    }
}

impl<W: WalkInfo, E: MmaElem, const MT: usize, const WARPS: usize, const TOGETHER: bool>
    Kernel<W, E, PitFewParams> for FewRows<MT, WARPS, TOGETHER>
{
    #[inline(always)]
    unsafe fn run(p: &PitFewParams, _: Maps) {
        grid::launch_dependents();
        Self::set_up(p);
        grid::wait_dependency();
        let from = Self::part(p) * p.share;
        let end = p.k.min(from.saturating_add(p.share));
        let mut sums: Sums = [[[0.0; 4]; 4]; 4];
        Self::gather::<E>(p, from, end, &mut sums);
        if TOGETHER {
            Self::epilogue::<E>(p, &sums);
        } else {
            Self::add_parts::<E>(p, &mut sums);
        }
    }
}
