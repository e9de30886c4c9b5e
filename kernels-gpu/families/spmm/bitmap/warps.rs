//! Consumers that are single warps (`mma.sync`), for 1, 8 or 16 columns. A warp multiplies a whole tile of 64 x 64 or
//! part of it. Several warps take the stages of a CTA tile round-robin; their sums are added where the CTA tile ends.
//! Producers are those of [`BitTile`].

use super::consumer::{Slab, scanned};
use super::out::Strip;
use super::{ARRIVALS, Filled, Ring, shared};
use crate::device::prelude::*;
use crate::device::ptx::wgmma_thin::Thin;
use crate::device::thin::ThinElem;
use crate::families::spmm::abi::*;

/// Squares of 16 columns of a slab (16 rows).
const SQUARES: usize = 4;

/// A warp's sums: slabs of 16 rows, and groups of eight columns (at most 16 columns).
type Sums<const SLABS: usize> = [[[f32; 4]; 2]; SLABS];
/// B's fragments of a stage, indexed by square and group of eight columns.
type Rows = [[[u32; 2]; 2]; SQUARES];

#[derive(Clone, Copy)]
struct PerWarp {
    group: u32,
    /// Index of this warp among those that share a tile.
    part: u32,
    phase: u32,
    lane: u32,
    weights: bits::Weights,
}

/// Layout of shared memory, which is that of [`BitTile`].
type Layout<const N: usize, L> = BitTile<BIT_PANEL, N, BitOf<true, Wgmma, L>>;

impl Ring {
    #[inline(always)]
    fn skip(&mut self, count: u32, stages: u32) {
        self.slot += count;
        // Usually there are more stages than are skipped.
        while self.slot >= stages {
            self.slot -= stages;
        }
        self.arrival += count;
        if self.arrival >= ARRIVALS {
            self.arrival -= ARRIVALS;
        }
    }

    #[inline(always)]
    fn pass(&mut self, count: u32, stages: u32) {
        self.slot = (self.slot + count) % stages;
        self.arrival = (self.arrival + count) % ARRIVALS;
    }
}

impl<const N: usize, const SLABS: usize, F: WarpForm<L: Loader>> WarpTile<N, SLABS, F> {
    /// Warps that share a tile.
    const PARTS_OF: u32 = (4 / SLABS) as u32;

    #[inline(always)]
    fn consume<E: ThinElem>(p: &BitmapParams) {
        let own = Self::own();
        // Each barrier is always waited for by the same phase, which therefore sees all its rounds.
        const { assert!(BIT_STAGES.is_multiple_of(F::PHASES)) };
        let mut first = Ring::first(0);
        let mut round = 0;
        loop {
            let piece = p.piece(round);
            if piece.height == 0 {
                return;
            }
            round += 1;
            let valid = own.group < warp::uniform(piece.height);
            let mut sums = [[[0.0; 4]; 2]; SLABS];
            let mut ring = first;
            let phases = F::PHASES as u32;
            let mut stage = (own.phase + phases - first.arrival % phases) % phases;
            ring.skip(stage, p.stages);
            while stage < piece.stages {
                Layout::<N, F::L>::wait_for(ring);
                if valid {
                    Self::multiply::<E>(p, ring.slot, own, &mut sums);
                }
                Layout::<N, F::L>::release(ring.slot);
                ring.skip(phases, p.stages);
                stage += phases;
            }
            first.pass(piece.stages, p.stages);
            if valid {
                let mut acc = Self::meet(own, &sums);
                if own.phase < SLABS as u32 {
                    match N {
                        1 | 8 => {
                            Strip::<BIT_PANEL, N, 8>::epilogue::<E>(p, piece, own.group, &mut acc)
                        }
                        _ => Strip::<BIT_PANEL, N, 4>::epilogue::<E>(p, piece, own.group, &mut acc),
                    }
                }
            }
        }
    }

    /// Returns this warp's indices. The warps that store come first, one for each slab.
    #[inline(always)]
    fn own() -> PerWarp {
        // Uniform over the warp, which the shuffle shows to ptxas.
        let index = warp::uniform(gpu::thread() / 32);
        // Further warps exist only if there are more phases than slabs.
        let slabs = SLABS as u32;
        let more = const { if F::PHASES > SLABS { F::PHASES - SLABS } else { 1 } } as u32;
        let (group, part, phase) = if index < 16 {
            (index / 4, index % 4 / slabs, index % slabs)
        } else {
            let pair = (index - 16) / more;
            let phase = slabs + (index - 16) % more;
            (pair / Self::PARTS_OF, pair % Self::PARTS_OF, phase)
        };
        PerWarp { group, part, phase, lane: gpu::thread() % 32, weights: bits::Weights::new() }
    }

    /// Multiplies a tile of A by its rows of B.
    #[inline(always)]
    fn multiply<E: ThinElem>(p: &BitmapParams, slot: u32, own: PerWarp, sums: &mut Sums<SLABS>) {
        let a = Layout::<N, F::L>::a(p, slot).bytes(own.group * BIT_BYTES as u32);
        let values = Layout::<N, F::L>::values(p, slot, own.group);
        let b = Self::rows(slot, own.lane);
        // Two slabs at once, so that their chains of shuffles overlap.
        unroll!(pair < 2, {
            if pair < SLABS / 2 {
                Self::slabs::<E>(a, values, own, 2 * pair, &b, sums);
            }
        });
    }

    /// Multiplies two slabs from `first` on.
    #[inline(always)]
    fn slabs<E: ThinElem>(
        a: Shared<u8>,
        values: Shared<u16>,
        own: PerWarp,
        first: usize,
        b: &Rows,
        sums: &mut Sums<SLABS>,
    ) {
        let slabs = [first as u32, first as u32 + 1].map(|slab| {
            let slab = own.part * SLABS as u32 + slab;
            let word = a.cast::<u32>().at(slab * 32 + own.lane).ld();
            let middles = a.bytes(512).cast::<[u32; 2]>().at(slab).ld();
            Slab::new(word, middles, values)
        });
        let pairs = scanned(slabs.map(|slab| slab.counts));
        unroll!(s < 2, {
            unroll!(t < 4, {
                let fragment = slabs[s].square(own.weights, pairs[s], t as u32);
                unroll!(j < 2, {
                    if j < eights(N) {
                        E::mma(&mut sums[first + s][j], fragment, b[t][j])
                    }
                });
            });
        });
    }

    /// Loads B's fragments of a stage. Rows have 16 bytes, or 32 bytes whose halves are swapped in four of eight rows.
    /// A single column is repeated in all eight columns of a fragment.
    #[inline(always)]
    fn rows(slot: u32, lane: u32) -> Rows {
        let b = Layout::<N, F::L>::stage(slot).cast::<[u32; 4]>();
        let mut rows = [[[0; 2]; 2]; SQUARES];
        if N == 1 {
            // Each row of a matrix is the same eight elements.
            unroll!(i < 2, {
                let [x, y, z, w] = b.at(i as u32 * 4).at(lane / 8).ldmatrix();
                rows[2 * i][0] = [x, y];
                rows[2 * i + 1][0] = [z, w];
            });
        } else if N == 8 {
            // Four times eight rows are two squares.
            unroll!(i < 2, {
                let [x, y, z, w] = b.at(i as u32 * 32 + lane).ldmatrix_trans();
                rows[2 * i][0] = [x, y];
                rows[2 * i + 1][0] = [z, w];
            });
        } else {
            let half = (lane / 16) ^ (lane / 4 % 2);
            unroll!(t < 4, {
                let row = t as u32 * 16 + lane % 16;
                let [x, y, z, w] = b.at(row * 2).at(half).ldmatrix_trans();
                rows[t] = [[x, y], [z, w]];
            });
        }
        rows
    }

    /// Adds the sums of the phases in order. Each of the first `SLABS` phases receives a slab of 16 rows. Two slabs are
    /// added at a time.
    #[inline(always)]
    fn meet(own: PerWarp, sums: &Sums<SLABS>) -> Thin<N> {
        let across = eights(N) as u32;
        let region = shared().bytes(Self::SHARED_BYTES - Self::SUMS as u32);
        let base = region.cast::<[u32; 4]>().at(own.lane);
        let pair = own.group * Self::PARTS_OF + own.part;
        let place = |slab: u32, phase: u32, j: u32| {
            let tile = ((pair * 2 + slab % 2) * F::PHASES as u32 + phase) * across + j;
            base.at(tile * 32)
        };
        let mut acc = Thin::<N>::zero();
        unroll!(round < 2, {
            if round < SLABS / 2 {
                unroll!(s < 2, {
                    unroll!(j < 2, {
                        if j < eights(N) {
                            let four = sums[2 * round + s][j].map(f32::to_bits);
                            place(s as u32, own.phase, j as u32).st(four);
                        }
                    });
                });
                barrier::sync_named(1 + pair, F::PHASES as u32 * 32);
                if own.phase / 2 == round as u32 {
                    unroll!(phase < F::PHASES, {
                        unroll!(j < eights(N), {
                            let four = place(own.phase, phase as u32, j as u32).ld();
                            unroll!(i < 4, { acc.0[4 * j + i] += f32::from_bits(four[i]) });
                        });
                    });
                }
                // After this barrier the next sums may be stored.
                barrier::sync_named(1 + pair, F::PHASES as u32 * 32);
            }
        });
        acc
    }
}

impl<W: WalkInfo, E: ThinElem, const N: usize, const SLABS: usize, F> Kernel<W, E, BitmapParams>
    for WarpTile<N, SLABS, F>
where
    F: WarpForm<L: Loader>,
{
    #[inline(always)]
    unsafe fn run(p: &BitmapParams, at: Maps) {
        let threads = [Self::WARPS as u32 * 32, Self::PRODUCER_THREADS];
        if Layout::<N, F::L>::start(p, at, threads, BIT_PANEL as u32 * Self::PARTS_OF) {
            Self::consume::<E>(p);
        }
    }
}
