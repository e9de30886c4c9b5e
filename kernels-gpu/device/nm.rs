//! A kept two of four on Hopper's sparse Tensor Cores: a persistent thread block per multiprocessor. One thread copies
//! tiles of A and B into a ring of stages, two warpgroups multiply what has arrived (`wgmma.mma_async.sp`) and send C
//! out. The positions go straight from global memory to registers, a stage ahead.

use super::epilogue::Output;
use super::gpu;
use super::ptx::wgmma::{self, Acc};
use super::ptx::{barrier, bulk, copy, global, warp};
use super::wgmma::WgmmaElem;
use crate::abi::*;
use crate::frag;

/// An element type with a sparse `wgmma` atom.
pub trait SparseElem: WgmmaElem {
    /// `D += A B`, 32 deep.
    fn mma_sparse<const C: usize, const SELECTOR: i32>(acc: &mut Acc<C>, a: u64, b: u64, meta: u32);
}

impl SparseElem for F16 {
    #[inline(always)]
    fn mma_sparse<const C: usize, const S: i32>(acc: &mut Acc<C>, a: u64, b: u64, meta: u32) {
        acc.mma_sparse_f16::<S>(a, b, meta)
    }
}

impl SparseElem for Bf16 {
    #[inline(always)]
    fn mma_sparse<const C: usize, const S: i32>(acc: &mut Acc<C>, a: u64, b: u64, meta: u32) {
        acc.mma_sparse_bf16::<S>(a, b, meta)
    }
}

/// The body, generic over the element; the tile is the implementor.
pub trait Body: Tile {
    /// # Safety
    /// `p` describes live device memory, lies at the generic address `at`, and the launch has this tile's geometry.
    unsafe fn run<W: WalkInfo, E: SparseElem>(p: &NmParams, at: u64);
}

/// Registers a thread of the copying warpgroup keeps, and one of the multiplying ones gets: 40 + 2 x 232 is three
/// times the 168 they start with.
const FEW: u32 = 40;
const MANY: u32 = 232;

/// Warps that multiply.
const CONSUMERS: u32 = 8;
/// No stage is waiting to be freed.
const NONE: u32 = u32::MAX;

impl NmParams {
    /// Where results go.
    #[inline(always)]
    fn output(&self) -> Output {
        Output {
            c: self.c,
            bias: self.bias,
            alpha: self.alpha,
            ldc_bytes: self.ldc_bytes,
            n: self.n,
            // Tested here and now: predicates held through the loop over tiles cost registers.
            flags: warp::again(self.flags),
        }
    }

    /// Row and column of a tile's corner.
    #[inline(always)]
    fn corner(&self, tile: u32) -> [u32; 2] {
        global::load_v2(self.tiles + tile as u64 * 8, tile < self.tile_count)
    }
}

/// Where a lane finds the positions of its rows: rows `r` and `r + 8` of each 64, in bytes from the first word.
#[derive(Clone, Copy)]
struct Positions<const MA: usize>([[u32; 2]; MA]);

impl<const MA: usize> Positions<MA> {
    /// For the `MA` x 64 rows from `top`. Rows past the last one take its words: their values are zeros.
    #[inline(always)]
    fn new(p: &NmParams, top: u32) -> Self {
        let (warp, lane) = (gpu::thread_again() / 32 % 4, gpu::thread_again() % 32);
        let mut at = [[0; 2]; MA];
        unroll!(i < MA, {
            unroll!(h < 2, {
                let row = top + (i * HALF) as u32 + warp * 16 + frag::metadata(lane, h as u32).0;
                at[i][h] = row.min(p.m - 1) * p.words * 4;
            });
        });
        Positions(at)
    }

    /// The words of a stage that this lane's selector is about. Past the last word its neighbour serves: the values
    /// there are zeros, and positions must be valid ones.
    #[inline(always)]
    fn load(self, p: &NmParams, stage: u32) -> [[u32; 2]; MA] {
        let selector = frag::metadata_selector(gpu::thread_again() % 32);
        let word = (stage * NM_STEPS as u32 + selector).min(p.words - 1);
        let mut words = [[0; 2]; MA];
        unroll!(i < MA, {
            unroll!(h < 2, {
                words[i][h] = global::load_b32(p.meta + (self.0[i][h] + word * 4) as u64, true);
            });
        });
        words
    }
}

impl<const MA: usize, const CHUNKS: usize> TwoOfFour<MA, CHUNKS> {
    /// Barrier that says: the stage has arrived.
    #[inline(always)]
    fn full(slot: u32) -> u32 {
        copy::arena() + Self::BARRIERS as u32 + slot * 8
    }

    /// Barrier that says: the stage may be overwritten.
    #[inline(always)]
    fn empty(slot: u32) -> u32 {
        Self::full(slot) + Self::STAGES as u32 * 8
    }

    /// First byte of the stage.
    #[inline(always)]
    fn stage(slot: u32) -> u32 {
        copy::arena() + slot * Self::STAGE as u32
    }

    /// The next slot of the ring, and the parity of its round.
    #[inline(always)]
    fn next(slot: u32, parity: u32) -> (u32, u32) {
        if slot + 1 == Self::STAGES as u32 {
            (0, parity ^ 1)
        } else {
            (slot + 1, parity)
        }
    }

    /// One thread: waits for a free stage and starts its copies.
    #[inline(always)]
    fn produce(p: &NmParams, at: u64) {
        if gpu::thread() != CONSUMERS * 32 {
            return;
        }
        // A ring that starts empty: the first wait for a free stage passes.
        let (mut slot, mut parity) = (0, 1);
        let mut tile = gpu::block_x();
        while tile < p.tile_count {
            let [row, column] = p.corner(tile);
            let mut s = 0;
            while s < p.stages {
                barrier::wait(Self::empty(slot), parity);
                let (to, full) = (Self::stage(slot), Self::full(slot));
                barrier::arrive_expect(full, Self::STAGE as u32);
                bulk::load(to, at, s * (NM_DEPTH / 2) as u32, row, full);
                unroll!(c < CHUNKS, {
                    let to = to + (Self::A_BYTES + c * SLAB) as u32;
                    let x = column + c as u32 * 64;
                    bulk::load(to, at + 128, x, s * NM_DEPTH as u32, full);
                });
                (slot, parity) = Self::next(slot, parity);
                s += 1;
            }
            tile += gpu::grid_x();
        }
    }

    /// A warpgroup: waits for a stage, issues its `wgmma`s, and frees the stage before it.
    #[inline(always)]
    fn consume<E: SparseElem>(p: &NmParams) {
        let half = gpu::thread() / 128;
        let (mut slot, mut parity) = (0, 0);
        let mut tile = gpu::block_x();
        while tile < p.tile_count {
            let [row, column] = p.corner(tile);
            let top = row + half * (MA * HALF) as u32;
            let mut acc = [Acc::<CHUNKS>::zero(); MA];
            let mut held = NONE;
            if p.stages > 0 {
                let positions = Positions::<MA>::new(p, top);
                let mut words = positions.load(p, 0);
                let mut s = 0;
                while s < p.stages {
                    let lane = gpu::thread_again() % 32;
                    let mut meta = [0; MA];
                    unroll!(i < MA, {
                        meta[i] = frag::metadata_of(lane, words[i][0], words[i][1]);
                    });
                    s += 1;
                    words = positions.load(p, s);
                    barrier::wait(Self::full(slot), parity);
                    Self::multiply::<E>(&mut acc, slot, half, meta);
                    unroll!(i < MA, { acc[i].wait::<1>() });
                    Self::free(held);
                    held = slot;
                    (slot, parity) = Self::next(slot, parity);
                }
            }
            unroll!(i < MA, { acc[i].wait::<0>() });
            Self::free(held);
            let slab = copy::arena() + (Self::OUT + half as usize * SLAB) as u32;
            unroll!(i < MA, {
                let corner = [top + (i * HALF) as u32, column];
                Panel::<64, 64, CHUNKS, PLAIN>::write::<E>(
                    p.output(),
                    p.m,
                    corner,
                    p.stages,
                    slab,
                    &mut acc[i],
                );
            });
            tile += gpu::grid_x();
        }
    }

    /// The `wgmma`s of one stage, as one group.
    #[inline(always)]
    fn multiply<E: SparseElem>(acc: &mut [Acc<CHUNKS>; MA], slot: u32, half: u32, meta: [u32; MA]) {
        let stage = Self::stage(slot);
        let (slab, panel) = (
            stage + half * (MA * HALF * NM_ROW_BYTES) as u32,
            stage + Self::A_BYTES as u32,
        );
        unroll!(i < MA, { acc[i].fence() });
        unroll!(step < NM_STEPS, {
            let row = PANEL_BYTES as u32;
            let b = frag::descriptor(panel + step as u32 * 32 * row, row, SLAB as u32);
            unroll!(i < MA, {
                let place = i * HALF * NM_ROW_BYTES + step * 32;
                let a = frag::descriptor(slab + place as u32, NM_ROW_BYTES as u32, 16);
                if step == 0 {
                    E::mma_sparse::<CHUNKS, 0>(&mut acc[i], a, b, meta[i]);
                } else {
                    E::mma_sparse::<CHUNKS, 1>(&mut acc[i], a, b, meta[i]);
                }
            });
        });
        wgmma::commit();
    }

    /// Lets the stage be overwritten, as far as this warp goes.
    #[inline(always)]
    fn free(slot: u32) {
        if slot == NONE {
            return;
        }
        let lane = gpu::thread_again() % 32;
        // One lane arrives for all, when all have read.
        warp::sync_lanes(u32::MAX);
        if lane == 0 {
            barrier::arrive(Self::empty(slot));
        }
    }
}

impl<const MA: usize, const CHUNKS: usize> Body for TwoOfFour<MA, CHUNKS> {
    #[inline(always)]
    unsafe fn run<W: WalkInfo, E: SparseElem>(p: &NmParams, at: u64) {
        if gpu::thread() == 0 {
            let mut slot = 0;
            while slot < Self::STAGES as u32 {
                barrier::init(Self::full(slot), 1);
                barrier::init(Self::empty(slot), CONSUMERS);
                slot += 1;
            }
            barrier::init_fence();
            bulk::prefetch_map(at);
            bulk::prefetch_map(at + 128);
        }
        gpu::sync_threads();
        if gpu::thread() >= CONSUMERS * 32 {
            barrier::registers_down::<FEW>();
            Self::produce(p, at);
        } else {
            barrier::registers_up::<MANY>();
            Self::consume::<E>(p);
        }
    }
}
