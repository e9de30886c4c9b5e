//! A warpgroup of 64 queries: scores of a tile of keys, mask, online softmax, product with the values. The scores of the
//! next tile are multiplied while the values of this one are.

use super::super::ptx::wgmma::{self, Acc};
use super::super::ptx::{barrier, copy, global, matrix, ptx, warp};
use super::super::wgmma::WgmmaElem;
use super::Place;
use super::{gpu, queries};
use crate::abi::*;
use crate::frag;

/// Number of the first of two named barriers by which the warpgroups take turns; 1 and 2 are those of the carry.
const TURN: u32 = 3;

/// Probabilities of 64 queries and 128 keys, as the left operand of the eight products with 16 values each.
pub(super) type Weights = [[u32; 4]; 8];

/// Base and sum of exponentials of the two rows of which a thread holds a quarter.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    /// Score that exponentials are relative to, before scaling: at most [`SLACK`] below the largest. -Inf without entries.
    pub base: [f32; 2],
    /// Of this thread's own columns.
    pub sum: [f32; 2],
}

/// What a tile is to this warpgroup.
#[derive(Clone, Copy)]
struct Entries {
    /// [`KeyTile::masks`] of the half.
    mask: u32,
    /// Bits of this thread's accumulators.
    bits: [u32; 2],
}

/// Entries of the tiles to come: the number of a mask is loaded two steps ahead, its bits one.
struct Ahead {
    next: Entries,
    mask: u32,
}

/// What tile number `tile` is to the half; nothing where `there` is false.
#[inline(always)]
fn mask_of(p: &AttentionParams, tile: u32, half: u32, there: bool) -> u32 {
    let at = p.tiles + tile as u64 * size_of::<KeyTile>() as u64 + 8 + half as u64 * 4;
    let mask = global::load_b32(at, there);
    if there { mask } else { MASK_NONE }
}

#[inline(always)]
fn entries_of(p: &AttentionParams, mask: u32) -> Entries {
    let own = gpu::thread_again() % 128;
    let at = p.masks + mask as u64 * ATTENTION_MASK as u64 + own as u64 * 8;
    Entries {
        mask,
        bits: global::load_v2(at, mask < MASK_LIMIT),
    }
}

/// No instruction: the operands of a product under way stay where they are until here.
#[inline(always)]
fn keep(weights: &mut Weights) {
    unroll!(i < 8, {
        let w = &mut weights[i];
        ptx!(
            "// {} {} {} {}",
            inout(reg32) w[0], inout(reg32) w[1], inout(reg32) w[2], inout(reg32) w[3],
            options(nostack)
        );
    });
}

impl<const CHUNKS: usize, const TURNS: bool> Attention<CHUNKS, TURNS> {
    #[inline(always)]
    pub(super) fn consume<E: WgmmaElem>(p: &AttentionParams) {
        let half = gpu::thread() / 128;
        if TURNS && half == 1 {
            barrier::arrive_named(TURN, 256);
        }
        let mut ring = (0, 0);
        let mut queries_parity = 0;
        let mut round = 0;
        let mut later = queries(p, 0);
        while later.row != NO_STRIP {
            let now = later;
            round += 1;
            later = queries(p, round);
            let mut out = Acc::<CHUNKS>::zero();
            let mut rows = Rows {
                base: [f32::NEG_INFINITY; 2],
                sum: [0.0; 2],
            };
            if now.tiles > 0 {
                barrier::wait(Self::full(Self::QUERIES), queries_parity);
                queries_parity ^= 1;
                ring = Self::walk::<E>(p, now, half, ring, &mut out, &mut rows);
            }
            Self::leave::<E>(p, now, half, &mut out, rows);
        }
    }

    /// All tiles of keys of these queries. Step `j` takes the keys of tile `j` and the values of the one before out of the
    /// ring, whoever has entries there: the warpgroups share it.
    #[inline(always)]
    fn walk<E: WgmmaElem>(
        p: &AttentionParams,
        now: Queries,
        half: u32,
        mut ring: Place,
        out: &mut Acc<CHUNKS>,
        rows: &mut Rows,
    ) -> Place {
        let mut ahead = Ahead {
            next: entries_of(p, mask_of(p, now.tile, half, true)),
            mask: mask_of(p, now.tile + 1, half, now.tiles > 1),
        };
        let mut j = 0;
        while j <= now.tiles {
            let (mut this, mut mask) = Self::step(p, now, half, j, &mut ahead);
            let mut keys = Self::take(&mut ring, j < now.tiles);
            let values = Self::take(&mut ring, j > 0);
            Self::give(values, j > 0);
            Self::turn(half);
            if mask == MASK_NONE {
                Self::pass(half);
                Self::give_keys(keys, j, now.tiles);
                j += 1;
                continue;
            }
            let mut scores = Acc::zero();
            scores.fence();
            Self::score::<E>(&mut scores, keys, half);
            wgmma::commit();
            Self::pass(half);
            scores.wait::<0>();
            Self::give_keys(keys, j, now.tiles);
            if mask != MASK_ALL {
                hide(&mut scores, this.bits);
            }
            Self::shrink(out, softmax(&mut scores, rows, p.scale));
            let mut weights = pack::<E>(&scores);
            // The tile's values wait to be weighed, behind the scores of the next tile.
            loop {
                j += 1;
                (this, mask) = Self::step(p, now, half, j, &mut ahead);
                keys = Self::take(&mut ring, j < now.tiles);
                let values = Self::take(&mut ring, true);
                Self::turn(half);
                if mask == MASK_NONE {
                    out.fence();
                    Self::weigh::<E>(out, values, &weights);
                    wgmma::commit();
                    Self::pass(half);
                    out.wait::<0>();
                    keep(&mut weights);
                    Self::give_keys(keys, j, now.tiles);
                    Self::give(values, true);
                    j += 1;
                    break;
                }
                scores = Acc::zero();
                scores.fence();
                out.fence();
                Self::score::<E>(&mut scores, keys, half);
                wgmma::commit();
                Self::weigh::<E>(out, values, &weights);
                wgmma::commit();
                Self::pass(half);
                scores.wait::<1>();
                Self::give_keys(keys, j, now.tiles);
                if mask != MASK_ALL {
                    hide(&mut scores, this.bits);
                }
                let shrink = softmax(&mut scores, rows, p.scale);
                Self::hold(rows);
                out.wait::<0>();
                keep(&mut weights);
                Self::give(values, true);
                Self::shrink(out, shrink);
                weights = pack::<E>(&scores);
            }
        }
        ring
    }

    /// Entries of step `j`; those of the next are loaded.
    #[inline(always)]
    fn step(
        p: &AttentionParams,
        now: Queries,
        half: u32,
        j: u32,
        ahead: &mut Ahead,
    ) -> (Entries, u32) {
        let this = ahead.next;
        ahead.next = entries_of(p, ahead.mask);
        ahead.mask = mask_of(p, now.tile + j + 2, half, j + 2 < now.tiles);
        // The same for all lanes, and the shuffle tells ptxas so (C7519).
        (this, warp::shuffle::<32>(this.mask, 0, u32::MAX))
    }

    /// The next slot of the ring, once it is full, if `there` is one.
    #[inline(always)]
    fn take(ring: &mut Place, there: bool) -> u32 {
        let (slot, parity) = *ring;
        if there {
            barrier::wait(Self::full(slot), parity);
            *ring = Self::next(*ring);
        }
        slot
    }

    #[inline(always)]
    fn give(slot: u32, there: bool) {
        if there {
            Self::free(slot);
        }
    }

    /// Keys of step `j`; with the last ones go the queries.
    #[inline(always)]
    fn give_keys(slot: u32, j: u32, tiles: u32) {
        Self::give(slot, j < tiles);
        Self::give(Self::QUERIES, j + 1 == tiles);
    }

    /// A branch on the sums, which are never negative: the exponentials have to be there. Otherwise ptxas moves them behind
    /// the wait for the products that are to hide them.
    #[inline(always)]
    fn hold(rows: &Rows) {
        if warp::ballot(rows.sum[0] + rows.sum[1] < 0.0) != 0 {
            copy::store_shared_b32(Self::scratch() + 8, 0);
        }
    }

    /// Multiplies what is summed where the base of a row of this warp has moved.
    #[inline(always)]
    fn shrink(out: &mut Acc<CHUNKS>, by: [f32; 2]) {
        if warp::ballot(by[0] != 1.0 || by[1] != 1.0) != 0 {
            rescale(out, by);
        }
    }

    /// Waits for this warpgroup's turn to issue products.
    #[inline(always)]
    fn turn(half: u32) {
        if TURNS {
            barrier::sync_named(TURN + half, 256);
        }
    }

    /// Lets the other warpgroup issue.
    #[inline(always)]
    fn pass(half: u32) {
        if TURNS {
            barrier::arrive_named(TURN + 1 - half, 256);
        }
    }

    /// Scores of this half's queries against the keys of a slot.
    #[inline(always)]
    fn score<E: WgmmaElem>(scores: &mut Acc<2>, slot: u32, half: u32) {
        let queries = copy::arena() + half * (CHUNKS * SLAB) as u32;
        let queries = frag::descriptor(queries, PANEL_BYTES as u32, 16);
        let keys = frag::descriptor(Self::slot(slot), PANEL_BYTES as u32, 16);
        unroll!(c < CHUNKS, most 4, {
            unroll!(step < STEPS, most 4, {
                let a = onward(queries, c * SLAB + step * 32);
                let b = onward(keys, c * 2 * SLAB + step * 32);
                E::mma::<2, 0, 0>(scores, a, b);
            });
        });
    }

    /// Adds the values of a slot, by their weights.
    #[inline(always)]
    fn weigh<E: WgmmaElem>(out: &mut Acc<CHUNKS>, slot: u32, weights: &Weights) {
        let values = frag::descriptor(Self::slot(slot), PANEL_BYTES as u32, SLAB as u32);
        unroll!(step < 8, {
            let at = step / STEPS * CHUNKS * SLAB + step % STEPS * 16 * PANEL_BYTES;
            E::mma_registers::<CHUNKS, 1>(out, weights[step], onward(values, at));
        });
    }
}

/// The descriptor of what lies `bytes` further on: the address is its lowest field, and shared memory fits into it.
#[inline(always)]
fn onward(descriptor: u64, bytes: usize) -> u64 {
    let low = descriptor as u32 + (bytes / 16) as u32;
    descriptor & 0xffff_ffff_0000_0000 | low as u64
}

/// Every accumulator of a row `r` of the two.
macro_rules! each {
    ($acc:ident, $chunks:expr, |$r:ident, $x:ident| $body:block) => {
        unroll!(c < $chunks, most 4, {
            unroll!(atom < 8, {
                unroll!(i < 4, {
                    let $r: usize = i / 2;
                    let $x = &mut $acc.0[c][4 * atom + i];
                    $body
                });
            });
        });
    };
}

/// Scores without an entry become -Inf.
#[inline(always)]
fn hide(scores: &mut Acc<2>, bits: [u32; 2]) {
    unroll!(c < 2, {
        unroll!(atom < 8, {
            unroll!(i < 4, {
                if bits[c] >> (4 * atom + i) & 1 == 0 {
                    scores.0[c][4 * atom + i] = f32::NEG_INFINITY;
                }
            });
        });
    });
}

/// The largest over the four lanes of a row.
#[inline(always)]
fn quad_max(x: f32) -> f32 {
    let other = |x: f32, distance: u32| f32::from_bits(warp::exchange(x.to_bits(), distance));
    let x = x.max(other(x, 1));
    x.max(other(x, 2))
}

/// Power of two up to which exponentials may grow before their base moves: the sums so far are seldom touched (an idea of
/// FlashAttention-4). f32 and f16 hold it, and less is lost below than with the largest score as the base.
const SLACK: f32 = 8.0;

/// Scores to exponentials, relative to a base that `rows` keeps with their sums. What earlier sums are to be multiplied by.
#[inline(always)]
fn softmax(scores: &mut Acc<2>, rows: &mut Rows, scale: f32) -> [f32; 2] {
    // Two chains for each row: one would be as long as what it is to be hidden behind.
    let mut max = [[f32::NEG_INFINITY; 2]; 2];
    let mut sum = [[0f32; 2]; 2];
    unroll!(atom < 8, {
        unroll!(i < 4, {
            unroll!(c < 2, {
                max[c][i / 2] = max[c][i / 2].max(scores.0[c][4 * atom + i]);
            });
        });
    });
    let mut shrink = [1f32; 2];
    // Minus the base, scaled; zero while there is none, so that -Inf gives no weight.
    let mut shift = [0f32; 2];
    unroll!(r < 2, {
        let largest = quad_max(max[0][r].max(max[1][r]));
        let old = rows.base[r];
        // False for -Inf and -Inf, and for Inf and Inf, which gives NaN below.
        let grown = (largest - old) * scale > SLACK;
        let base = if grown { largest } else { old };
        shift[r] = shift_of(base, scale);
        if grown {
            shrink[r] = matrix::exp2_flushed(matrix::fma_f32(old, scale, shift[r]));
        }
        rows.base[r] = base;
    });
    each!(scores, 2, |r, x| {
        *x = matrix::exp2_flushed(matrix::fma_f32(*x, scale, shift[r]));
    });
    unroll!(atom < 8, {
        unroll!(i < 4, {
            unroll!(c < 2, {
                sum[c][i / 2] += scores.0[c][4 * atom + i];
            });
        });
    });
    unroll!(r < 2, {
        rows.sum[r] = matrix::fma_f32(rows.sum[r], shrink[r], sum[0][r] + sum[1][r]);
    });
    shrink
}

/// Minus a base, scaled; zero for none.
#[inline(always)]
pub(super) fn shift_of(base: f32, scale: f32) -> f32 {
    if base == f32::NEG_INFINITY {
        0.0
    } else {
        -base * scale
    }
}

/// Multiplies what is summed by a factor for each row.
#[inline(always)]
pub(super) fn rescale<const C: usize>(out: &mut Acc<C>, by: [f32; 2]) {
    each!(out, C, |r, x| {
        *x *= by[r];
    });
}

/// Exponentials rounded, as the left operand of a product: two atoms of 8 keys are one of 16.
#[inline(always)]
fn pack<E: WgmmaElem>(scores: &Acc<2>) -> Weights {
    let mut weights: Weights = [[0; 4]; 8];
    unroll!(step < 8, {
        unroll!(w < 4, {
            let k = 8 * (step % 4) + 2 * w;
            let (x, y) = (scores.0[step / 4][k], scores.0[step / 4][k + 1]);
            weights[step][w] = E::put(&[x, y, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])[0];
        });
    });
    weights
}
