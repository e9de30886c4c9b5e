//! Gradient of a convolution's weights in f32, on CUDA cores or Tensor Cores (`mma.sync`, TF32): 32 pairs of rows a
//! stage, gathered by all threads. `wgmma` requires operands of 4 bytes to be contiguous along the depth, and pairs are
//! not. Fragments of `mma.sync` can be loaded from shared memory in any layout.

mod elem;

use super::conv::parts::{Places, corner};
use super::conv::words::{Line, bring};
use crate::device::prelude::*;
use crate::families::gather_gemm::abi::*;
pub use elem::PairElem;

pub type Sums = [[f32; 8]; 8];

struct Ahead {
    places: Places,
    /// Number of the block of 64 positions that is loaded next.
    half: u32,
    upper: u32,
    /// This thread's row of a stage: 32 threads hold rows of the input, the next 32 rows of the output.
    row: u32,
}

impl<const SIDE: usize, const VECTORS: bool> Paired<SIDE, VECTORS> {
    /// Returns the address of the row indices of a stage.
    #[inline(always)]
    fn index(stage: u32) -> Shared<u32> {
        // SAFETY: `SHARED_BYTES` of the tile includes the indices of two stages.
        let first = unsafe { Shared::<u32>::dynamic(Self::INDEX as u32) };
        first.at(stage % 2 * 2 * PAIRS_STAGE as u32)
    }

    #[inline(always)]
    fn stage(slot: u32) -> Shared<u8> {
        // SAFETY: `SHARED_BYTES` of the tile includes all stages.
        unsafe { Shared::<u8>::dynamic(slot * Self::STAGE as u32) }
    }

    /// Loads this thread's row of the next stage. All lanes of two warps call it together.
    #[inline(always)]
    fn look(p: &ConvWordsParams, ahead: &mut Ahead) {
        let thread = gpu::opaque_thread();
        if thread >= 2 * PAIRS_STAGE as u32 {
            return;
        }
        let valid = ahead.half != CONV_ABSENT;
        let stride = ahead.places.part.offset as u64 * p.base.stride as u64;
        let line = if thread < PAIRS_STAGE as u32 {
            p.base.neighbours().at(stride)
        } else {
            p.base.order()
        };
        let position = ahead.half.wrapping_mul(CONV_HALF as u32) + ahead.upper * 32 + thread % 32;
        ahead.row = line.at(position).ld_if(valid);
        ahead.upper ^= 1;
        if ahead.upper == 0 {
            ahead.half = ahead.places.next();
        }
    }

    /// Stores the loaded row where all threads can read it, and loads the next one.
    #[inline(always)]
    fn keep(p: &ConvWordsParams, ahead: &mut Ahead, stage: u32) {
        let thread = gpu::opaque_thread();
        if thread < 2 * PAIRS_STAGE as u32 {
            Self::index(stage).at(thread).st(ahead.row);
        }
        Self::look(p, ahead);
    }

    #[inline(always)]
    fn start<E: Elem<Acc = f32>>(p: &ConvWordsParams, stage: u32, slot: u32) {
        let (channel, column) = corner::<Self>(p);
        let side = SIDE as u32;
        if VECTORS && channel + side <= p.channels && column + side <= p.base.n {
            Self::rows::<E, true>(p, stage, slot);
        } else {
            Self::rows::<E, false>(p, stage, slot);
        }
    }

    /// Starts the copies of the rows of a stage. `WHOLE`: all channels of the tile exist.
    #[inline(always)]
    fn rows<E: Elem<Acc = f32>, const WHOLE: bool>(p: &ConvWordsParams, stage: u32, slot: u32) {
        let thread = gpu::opaque_thread();
        let (channel, column) = corner::<Self>(p);
        let chunks = SIDE as u32 / 4;
        let (first, chunk) = (thread / chunks, thread % chunks);
        let index = Self::index(stage);
        unroll!(i < SIDE / 32, most 4, {
            let r = first + (i * 1024 / SIDE) as u32;
            let input = index.at(r).ld();
            let output = index.at(PAIRS_STAGE as u32).at(r).ld();
            let valid = input != CONV_ABSENT;
            let [input, output] = [input, output].map(|row| if valid { row } else { 0 });
            // Rows that an atom reads together are stored in different banks.
            let place = r * SIDE as u32 * 4 + (chunk ^ ((r & 3) * 2)) * 16;
            let to = Self::stage(slot).bytes(place);
            let line = Line {
                row: p.base.input().row(input, p.base.in_bytes),
                width: p.channels,
                valid,
            };
            bring::<E, VECTORS, WHOLE>(to, line, channel + chunk * 4);
            let line = Line {
                row: p.weights().row(output, p.weights_bytes),
                width: p.base.n,
                valid,
            };
            bring::<E, VECTORS, WHOLE>(to.bytes(Self::ROWS as u32), line, column + chunk * 4);
        });
    }

    /// Stores this thread's accumulators as `[part, c, m]`.
    #[inline(always)]
    fn epilogue<E: PairElem>(p: &ConvWordsParams, sums: &Sums) {
        let (channel, column) = corner::<Self>(p);
        let (warp, lane) = (gpu::opaque_thread() / 32, gpu::opaque_thread() % 32);
        let corner = (channel + warp / Self::ACROSS * 32, column + warp % Self::ACROSS * 64);
        unroll!(j < 8, {
            unroll!(i < 8, {
                let (row, across) = E::place(lane, j, i);
                Self::store(p, (corner.0 + row, corner.1 + across), sums[j][i]);
            });
        });
    }

    #[inline(always)]
    fn store(p: &ConvWordsParams, (row, column): (u32, u32), x: f32) {
        let line = (gpu::block_x() as u64 * p.channels as u64 + row as u64) * p.base.n as u64;
        let at = p.base.out().cast::<u32>().at(line + column as u64);
        let inside = row < p.channels && column < p.base.n;
        at.st_if(x.to_bits(), inside);
    }

    /// Adds the accumulators of warps that share a tile, through stages that are no longer read, and stores the result.
    #[inline(always)]
    fn join<E: PairElem>(p: &ConvWordsParams, sums: &Sums) {
        let (channel, column) = corner::<Self>(p);
        let thread = gpu::opaque_thread();
        let (warp, lane) = (thread / 32, thread % 32);
        let tile = (SIDE * SIDE * 4) as u32;
        // SAFETY: the ring is larger than four tiles of sums, one for each share of the pairs. Barriers separate this use
        // from the last stage.
        let sums_at = unsafe { Shared::<f32>::dynamic(0) };
        let own = sums_at
            .bytes(warp % Self::WARPS_OF_TILE * tile)
            .at(warp / Self::WARPS_OF_TILE * 32 * SIDE as u32);
        gpu::sync_threads();
        unroll!(j < 8, {
            unroll!(i < 8, {
                let (row, across) = E::place(lane, j, i);
                own.at(row * SIDE as u32 + across).st(sums[j][i]);
            });
        });
        gpu::sync_threads();
        let mut at = thread;
        while at < (SIDE * SIDE) as u32 {
            let mut sum = 0f32;
            unroll!(d < 4, {
                sum += sums_at.bytes(d as u32 * tile).at(at).ld();
            });
            let place = (channel + at / SIDE as u32, column + at % SIDE as u32);
            Self::store(p, place, sum);
            at += Self::THREADS;
        }
    }
}

impl<W: WalkInfo, E: PairElem, const SIDE: usize, const VECTORS: bool> Kernel<W, E, ConvWordsParams>
    for Paired<SIDE, VECTORS>
{
    #[inline(always)]
    unsafe fn run(p: &ConvWordsParams, _: Maps) {
        const { assert!(Self::WARPS_OF_TILE == 1 || Self::WARPS_OF_TILE == 4, "join adds up four") };
        let mut places = Places::of(p);
        let stages = places.part.count * 2;
        let half = places.next();
        let mut ahead = Ahead { places, half, upper: 0, row: 0 };
        let mut sums: Sums = [[0.0; 8]; 8];
        Self::look(p, &mut ahead);
        Self::keep(p, &mut ahead, 0);
        let last = Self::STAGES as u32 - 1;
        let mut started = 0;
        while started < last {
            gpu::sync_threads();
            if started < stages {
                Self::start::<E>(p, started, started);
            }
            copy::cp_async_commit();
            started += 1;
            Self::keep(p, &mut ahead, started);
        }
        let warp = gpu::opaque_thread() / 32;
        let (deep, warp) = (warp % Self::WARPS_OF_TILE, warp / Self::WARPS_OF_TILE);
        let (mut slot, mut free, mut done) = (0, last, 0);
        while done < stages {
            // `STAGES` - 1 groups are in flight; the oldest must complete.
            match Self::STAGES {
                6 => copy::cp_async_wait::<4>(),
                _ => copy::cp_async_wait::<1>(),
            }
            // All threads can read this stage, and no thread reads the stage that is overwritten next.
            gpu::sync_threads();
            if started < stages {
                Self::start::<E>(p, started, free);
            }
            copy::cp_async_commit();
            started += 1;
            Self::keep(p, &mut ahead, started);
            let stage = Self::stage(slot).cast();
            let corner = (warp / Self::ACROSS * 32, warp % Self::ACROSS * 64);
            E::multiply::<SIDE, { PAIRS_STAGE }>(&mut sums, stage, corner, deep);
            free = slot;
            slot = if slot == last { 0 } else { slot + 1 };
            done += 1;
        }
        copy::cp_async_wait_all();
        if Self::WARPS_OF_TILE == 1 {
            Self::epilogue::<E>(p, &sums);
        } else {
            Self::join::<E>(p, &sums);
        }
    }
}
