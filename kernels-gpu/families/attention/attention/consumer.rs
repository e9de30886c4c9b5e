//! Consumer warpgroup of 64 queries: scores of a tile of keys, mask, online softmax, product with the values.
//!
//! ```text
//! Tensor Cores      S[j]   O += P[j-1] V[j-1]   S[j+1]   O += P[j] V[j]     both issued at once, in this order
//! CUDA cores               softmax of S[j]               softmax of S[j+1]  during the product with the values
//! global memory     mask bits of tile j+1, mask index of tile j+2 -> registers
//! ```
//!
//! The two warpgroups wait for each other only through the ring: a slot is free after both have released it. One of
//! them may multiply during the softmax of the other, but no barrier enforces this.

use super::softmax::{Entries, Rows, Weights, pack, rescale_if_moved, softmax};
use super::{Place, queries};
use crate::device::prelude::*;
use crate::device::ptx::ptx;
use crate::families::attention::abi::*;

/// Entries of the next tiles: the index of a mask is loaded two steps ahead, its bits one step ahead.
struct Ahead {
    next: Entries<2>,
    mask: u32,
}

/// Returns the mask index of tile `tile` for the warpgroup; [`MASK_NONE`] if `valid` is false.
#[inline(always)]
fn mask_of(p: &AttentionParams, tile: u32, group: u32, valid: bool) -> u32 {
    let mask = p.tiles().at(tile).cast::<u32>().at(2u32).at(group).ld_if(valid);
    if valid { mask } else { MASK_NONE }
}

/// Starts the load of this thread's mask bits: two words, one bit for each of its 64 scores of a tile.
#[inline(always)]
fn entries_of(p: &AttentionParams, mask: u32) -> Entries<2> {
    let own = gpu::opaque_thread() % 128;
    let at = p.masks().row(mask, ATTENTION_MASK as u64).at(own);
    Entries { mask, bits: at.ld_if(mask < MASK_LIMIT) }
}

/// Emits no instruction. Keeps the operands of an asynchronous product in their registers up to here.
#[inline(always)]
#[cfg_attr(not(target_arch = "nvptx64"), allow(unused_variables))]
fn keep_alive(weights: &mut Weights<2>) {
    unroll!(i < 8, {
        let w = &mut weights[i / STEPS][i % STEPS];
        ptx!(
            "// {} {} {} {}",
            inout(reg32) w[0], inout(reg32) w[1], inout(reg32) w[2], inout(reg32) w[3],
            options(nostack)
        );
    });
}

impl<const CHUNKS: usize> Attention<CHUNKS> {
    #[inline(always)]
    pub(super) fn consume<E: WgmmaElem>(p: &AttentionParams) {
        let group = gpu::thread() / 128;
        let mut ring = (0, 0);
        let mut queries_parity = 0;
        let mut round = 0;
        let mut later = queries(p, 0);
        while later.row != NO_STRIP {
            let now = later;
            round += 1;
            later = queries(p, round);
            let mut out = Acc::<CHUNKS>::zero();
            let mut rows = Rows::NONE;
            if now.tiles > 0 {
                Self::full(Self::QUERIES).wait(queries_parity);
                queries_parity ^= 1;
                ring = Self::mainloop::<E>(p, now, group, ring, &mut out, &mut rows);
            }
            Self::epilogue::<E>(p, now, group, &mut out, rows);
        }
    }

    /// Main loop over the tiles of keys of these queries. Step `j` waits for the keys of tile `j` and for the values of
    /// tile `j - 1`, and releases both. A warpgroup without entries in a tile releases it too, because both warpgroups
    /// share the ring. Step `tiles` has only values. The outer loop runs over tiles without entries. The inner loop
    /// runs over adjacent tiles with entries. Its first scores and its last product with values overlap with nothing.
    #[inline(always)]
    fn mainloop<E: WgmmaElem>(
        p: &AttentionParams,
        now: Queries,
        group: u32,
        mut ring: Place,
        out: &mut Acc<CHUNKS>,
        rows: &mut Rows,
    ) -> Place {
        let mut ahead = Ahead {
            next: entries_of(p, mask_of(p, now.tile, group, true)),
            mask: mask_of(p, now.tile + 1, group, now.tiles > 1),
        };
        let mut j = 0;
        while j <= now.tiles {
            let mut this = Self::next_mask(p, now, group, j, &mut ahead);
            let mut keys = Self::wait_full_if(&mut ring, j < now.tiles);
            let values = Self::wait_full_if(&mut ring, j > 0);
            Self::release_if(values, j > 0);
            if this.mask == MASK_NONE {
                Self::release_keys(keys, j, now.tiles);
                j += 1;
                continue;
            }
            let mut scores = Self::compute_scores::<E>(keys, group);
            Self::release_keys(keys, j, now.tiles);
            rescale_if_moved(out, softmax(&mut scores, this, rows, p.scale));
            let mut weights = pack::<E, 2>(&scores);
            // The product with this tile's values is issued after the scores of the next tile.
            loop {
                j += 1;
                this = Self::next_mask(p, now, group, j, &mut ahead);
                keys = Self::wait_full_if(&mut ring, j < now.tiles);
                let values = Self::wait_full_if(&mut ring, true);
                if this.mask == MASK_NONE {
                    Self::multiply_last_pv::<E>(out, values, &mut weights);
                    Self::release_keys(keys, j, now.tiles);
                    Self::release_if(values, true);
                    j += 1;
                    break;
                }
                scores = Acc::zero();
                scores.fence();
                out.fence();
                Self::issue_qk::<E>(&mut scores, keys, group);
                wgmma::commit();
                Self::issue_pv::<E>(out, values, &weights);
                wgmma::commit();
                scores.wait::<1>();
                Self::release_keys(keys, j, now.tiles);
                let by = softmax(&mut scores, this, rows, p.scale);
                Self::pin_exponentials(rows);
                out.wait::<0>();
                keep_alive(&mut weights);
                Self::release_if(values, true);
                rescale_if_moved(out, by);
                weights = pack::<E, 2>(&scores);
            }
        }
        ring
    }

    /// Computes the scores of a tile of keys, without overlap.
    #[inline(always)]
    fn compute_scores<E: WgmmaElem>(keys: u32, group: u32) -> Acc<2> {
        let mut scores = Acc::zero();
        scores.fence();
        Self::issue_qk::<E>(&mut scores, keys, group);
        wgmma::commit();
        scores.wait::<0>();
        scores
    }

    /// Multiplies a tile's values when no scores follow, and waits for the sums.
    #[inline(always)]
    fn multiply_last_pv<E: WgmmaElem>(
        out: &mut Acc<CHUNKS>,
        values: u32,
        weights: &mut Weights<2>,
    ) {
        out.fence();
        Self::issue_pv::<E>(out, values, weights);
        wgmma::commit();
        out.wait::<0>();
        keep_alive(weights);
    }

    /// Returns the mask of tile `j`. Starts the loads of the mask bits of tile `j + 1` and of the mask index of tile
    /// `j + 2`.
    #[inline(always)]
    fn next_mask(
        p: &AttentionParams,
        now: Queries,
        group: u32,
        j: u32,
        ahead: &mut Ahead,
    ) -> Entries<2> {
        let mut this = ahead.next;
        ahead.next = entries_of(p, ahead.mask);
        ahead.mask = mask_of(p, now.tile + j + 2, group, j + 2 < now.tiles);
        // Uniform over the warp, which the shuffle shows to ptxas (C7519).
        this.mask = warp::uniform(this.mask);
        this
    }

    /// Waits until the next slot of the ring is full, returns it and advances (CUTLASS: `consumer_wait`). If `valid` is
    /// false, it does not wait, and the result must not be used.
    #[inline(always)]
    fn wait_full_if(ring: &mut Place, valid: bool) -> u32 {
        let (slot, parity) = *ring;
        if valid {
            Self::full(slot).wait(parity);
            *ring = Self::next(*ring);
        }
        slot
    }

    #[inline(always)]
    fn release_if(slot: u32, valid: bool) {
        if valid {
            Self::release(slot);
        }
    }

    /// Releases the keys of step `j`, and with the last ones the queries.
    #[inline(always)]
    fn release_keys(slot: u32, j: u32, tiles: u32) {
        Self::release_if(slot, j < tiles);
        Self::release_if(Self::QUERIES, j + 1 == tiles);
    }

    /// Prevents ptxas from moving the exponentials after the wait for the products that hide them. The branch depends
    /// on their sums. It is never taken, because sums are not negative.
    #[inline(always)]
    fn pin_exponentials(rows: &Rows) {
        if warp::ballot(rows.sum[0] + rows.sum[1] < 0.0) != 0 {
            Self::scratch().at(2).st(0);
        }
    }

    /// Issues the products `Q K^T` of a tile of keys: 64 queries x 128 keys. Both operands are contiguous along k.
    #[inline(always)]
    fn issue_qk<E: WgmmaElem>(scores: &mut Acc<2>, slot: u32, group: u32) {
        let queries = Self::query_tile(group, 0).descriptor(PANEL_BYTES as u32, 16);
        let keys = Self::stage(slot).descriptor(PANEL_BYTES as u32, 16);
        unroll!(c < CHUNKS, most 4, {
            unroll!(step < STEPS, most 4, {
                let a = onward(queries, c * SMEM_TILE + step * 32);
                let b = onward(keys, c * 2 * SMEM_TILE + step * 32);
                E::mma::<2, 0, 0>(scores, a, b);
            });
        });
    }

    /// Issues the products `P V` of a tile. P (the *weights*) is the rounded exponentials in registers, 16 keys at a
    /// time. V is contiguous along n.
    #[inline(always)]
    fn issue_pv<E: WgmmaElem>(out: &mut Acc<CHUNKS>, slot: u32, weights: &Weights<2>) {
        let values = Self::stage(slot).descriptor(PANEL_BYTES as u32, SMEM_TILE as u32);
        unroll!(step < 8, {
            let at = step / STEPS * CHUNKS * SMEM_TILE + step % STEPS * 16 * PANEL_BYTES;
            let weights = weights[step / STEPS][step % STEPS];
            E::mma_registers::<CHUNKS, 1>(out, weights, onward(values, at));
        });
    }
}

/// Advances a descriptor by `bytes`. The address is its lowest field, and addresses of shared memory fit in that.
#[inline(always)]
fn onward(descriptor: u64, bytes: usize) -> u64 {
    let low = descriptor as u32 + (bytes / 16) as u32;
    descriptor & 0xffff_ffff_0000_0000 | low as u64
}
