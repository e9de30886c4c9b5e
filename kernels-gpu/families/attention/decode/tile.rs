//! A warp's tile: scores of the heads that share the keys, softmax, product with the values.

use crate::device::mma::MmaElem;
use crate::device::prelude::*;
use crate::device::tile::{ATile, BTile};
use crate::families::attention::abi::*;
use crate::families::attention::lanes::{base_moves, quad_max, rescaling, shift_of};

/// Queries as left operands: by 64 elements, then by 16 elements of them.
pub(super) struct Queries<const CHUNKS: usize>([[[u32; 4]; 4]; CHUNKS]);

/// Sums of a warp for two rows, that of a lane and the eighth below it: products by 64 elements and 8 of them, and base
/// and sum of exponentials.
pub(super) struct Sums<const CHUNKS: usize> {
    pub out: [[[f32; 4]; 8]; CHUNKS],
    pub base: [f32; 2],
    pub sum: [f32; 2],
}

/// Scores by 8 keys.
pub(super) type Scores = [[f32; 4]; 8];

impl<const CHUNKS: usize> Queries<CHUNKS> {
    /// Loads the queries of a pair; rows past the group are zeros.
    #[inline(always)]
    pub(super) fn load(p: &DecodeParams, pair: u32, lane: u32) -> Self {
        let mut all = [[[0; 4]; 4]; CHUNKS];
        let (row, column) = frag::a_k16(lane, 0, 0);
        let first = pair as u64 * p.group as u64 + row as u64;
        let at = p.q().bytes(first * p.q_row as u64).at(column);
        let there = [row < p.group, row + 8 < p.group];
        unroll!(c < CHUNKS, most 4, {
            unroll!(step < 4, {
                unroll!(r < 4, {
                    let (down, right) = frag::a_k16(0, r as u32, 0);
                    let elements = (c * 64 + step * 16) as u32 + right;
                    let from = at.row(down, p.q_row).at(elements).cast::<u32>();
                    all[c][step][r] = from.ld_if(there[r % 2]);
                });
            });
        });
        Queries(all)
    }
}

impl<const CHUNKS: usize> Sums<CHUNKS> {
    /// Steps of 16 keys in a tile.
    const STEPS: usize = 4 / CHUNKS;

    #[inline(always)]
    pub(super) fn none() -> Self {
        Sums { out: [[[0.0; 4]; 8]; CHUNKS], base: [f32::NEG_INFINITY; 2], sum: [0.0; 2] }
    }

    /// Returns the weights of the keys in `slot`, of which the first `keys` are valid.
    #[inline(always)]
    pub(super) fn score<E: MmaElem>(
        &mut self,
        queries: &Queries<CHUNKS>,
        slot: Shared<u8>,
        keys: u32,
        scale: f32,
    ) -> Scores {
        let lane = gpu::opaque_thread() % 32;
        let mut scores = Self::scores::<E>(queries, slot, lane);
        if keys < <Decode<CHUNKS>>::KEYS {
            Self::hide(&mut scores, keys, lane);
        }
        self.soften(&mut scores, scale);
        scores
    }

    #[inline(always)]
    fn scores<E: MmaElem>(queries: &Queries<CHUNKS>, slot: Shared<u8>, lane: u32) -> Scores {
        let mut scores = [[0.0; 4]; 8];
        let (key, piece) = frag::ldmatrix_x4_columns(lane);
        unroll!(c < CHUNKS, most 4, {
            let keys = ATile(slot.bytes(c as u32 * <Decode<CHUNKS>>::BOX));
            unroll!(step < 4, {
                unroll!(s < 4, {
                    if s < Self::STEPS {
                        let from = keys.chunk(s as u32 * 16 + key, step as u32 * 2 + piece);
                        let [a, b, x, y] = from.ldmatrix();
                        E::mma(&mut scores[2 * s], queries.0[c][step], [a, b]);
                        E::mma(&mut scores[2 * s + 1], queries.0[c][step], [x, y]);
                    }
                });
            });
        });
        scores
    }

    /// Sets scores past the last key to -Inf.
    #[inline(always)]
    fn hide(scores: &mut Scores, keys: u32, lane: u32) {
        unroll!(n < 8, {
            unroll!(i < 4, {
                let (_, column) = frag::accumulator(lane, i as u32);
                if n as u32 * 8 + column >= keys {
                    scores[n][i] = f32::NEG_INFINITY;
                }
            });
        });
    }

    /// Replaces scores by exponentials, and rescales the earlier sums if the base moves.
    #[inline(always)]
    fn soften(&mut self, scores: &mut Scores, scale: f32) {
        let mut top = [f32::NEG_INFINITY; 2];
        unroll!(n < 8, {
            unroll!(i < 4, {
                if n < 2 * Self::STEPS {
                    top[i / 2] = top[i / 2].max(scores[n][i]);
                }
            });
        });
        let top = top.map(quad_max);
        let grown = [0, 1].map(|r| base_moves(top[r], self.base[r], scale));
        if warp::ballot(grown[0] || grown[1]) != 0 {
            self.move_base(top, grown, scale);
        }
        let shift = self.base.map(|base| shift_of(base, scale));
        unroll!(n < 8, {
            unroll!(i < 4, {
                if n < 2 * Self::STEPS {
                    let x = &mut scores[n][i];
                    *x = matrix::ex2_approx_ftz(matrix::fma_f32(*x, scale, shift[i / 2]));
                    self.sum[i / 2] += *x;
                }
            });
        });
    }

    #[inline(always)]
    fn move_base(&mut self, top: [f32; 2], grown: [bool; 2], scale: f32) {
        let mut by = [1f32; 2];
        unroll!(r < 2, {
            if grown[r] {
                by[r] = rescaling(self.base[r], top[r], scale);
                self.base[r] = top[r];
                self.sum[r] *= by[r];
            }
        });
        unroll!(c < CHUNKS, most 4, {
            unroll!(n < 8, {
                unroll!(i < 4, {
                    self.out[c][n][i] *= by[i / 2];
                });
            });
        });
    }

    /// Multiplies the rounded exponentials by the values: two atoms of 8 keys are one of 16.
    #[inline(always)]
    pub(super) fn weigh<E: MmaElem>(&mut self, scores: &Scores, slot: Shared<u8>) {
        let lane = gpu::opaque_thread() % 32;
        unroll!(s < 4, {
            if s < Self::STEPS {
                let [a, b] = [scores[2 * s], scores[2 * s + 1]];
                let weights = E::put(&[a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]);
                unroll!(c < CHUNKS, most 4, {
                    let at = slot.bytes(c as u32 * <Decode<CHUNKS>>::BOX);
                    let values = BTile::<PANEL_BYTES>(at);
                    unroll!(n < 4, {
                        let [x, y] = values.fragment_b16(s as u32, n as u32 * 16, lane);
                        E::mma(&mut self.out[c][2 * n], weights, x);
                        E::mma(&mut self.out[c][2 * n + 1], weights, y);
                    });
                });
            }
        });
    }
}
