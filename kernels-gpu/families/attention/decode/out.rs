//! Epilogue of `decode`. The sums of the warps are joined in shared memory. The sums of the chunks of a sequence are
//! joined by the thread block that arrives last, in the order of the chunks.

use super::place;
use super::tile::Sums;
use super::work::Chunk;
use crate::device::mma::MmaElem;
use crate::device::prelude::*;
use crate::device::split_k::block_arrives_last;
use crate::families::attention::abi::*;
use crate::families::attention::lanes::{quad_sum, rescaling};

/// Chunks whose sums are loaded at once.
const TOGETHER: u32 = 8;

/// Four neighbouring sums of a row, relative to a base, and the sum of exponentials.
struct Part {
    base: f32,
    sum: f32,
    out: [f32; 4],
}

impl Part {
    const NONE: Part = Part { base: f32::NEG_INFINITY, sum: 0.0, out: [0.0; 4] };

    /// Rescales the sums to a base that is not below their own.
    #[inline(always)]
    fn rise(&mut self, base: f32, scale: f32) {
        let by = rescaling(self.base, base, scale);
        self.base = base;
        self.sum *= by;
        self.out = self.out.map(|x| x * by);
    }

    /// Adds sums relative to a base that is not above this one.
    #[inline(always)]
    fn add(&mut self, other: &Part, scale: f32) {
        let by = rescaling(other.base, self.base, scale);
        self.sum = matrix::fma_f32(other.sum, by, self.sum);
        unroll!(i < 4, {
            self.out[i] = matrix::fma_f32(other.out[i], by, self.out[i]);
        });
    }
}

impl<const CHUNKS: usize, L: Loader> Decode<CHUNKS, L> {
    /// Vectors of four sums in a row.
    const VECTORS: u32 = 16 * CHUNKS as u32;

    #[inline(always)]
    fn stats(warp: u32, row: u32) -> Shared<[u32; 2]> {
        // SAFETY: `Decode::SHARED_BYTES` includes two words for each warp and row.
        unsafe { Shared::<[u32; 2]>::dynamic(Self::STATS) }.at(warp * DECODE_GROUP + row)
    }

    /// Stores the sums of a warp in its ring.
    #[inline(always)]
    pub(super) fn store(p: &DecodeParams, sums: &mut Sums<CHUNKS>) {
        let (lane, warp) = place();
        let (row, column) = frag::accumulator(lane, 0);
        let all = sums.sum.map(quad_sum);
        unroll!(r < 2, {
            let row = row + 8 * r as u32;
            if row < p.group {
                let to = Self::ring(warp).bytes(row * Self::ROW + column * 4);
                unroll!(c < CHUNKS, most 4, {
                    unroll!(n < 8, {
                        let two = [sums.out[c][n][2 * r], sums.out[c][n][2 * r + 1]];
                        to.bytes((c * 256 + n * 32) as u32).cast::<[u32; 2]>().st(two.map(f32::to_bits));
                    });
                });
                if lane.is_multiple_of(4) {
                    let own = [sums.base[r], all[r]];
                    Self::stats(warp, row).st(own.map(f32::to_bits));
                }
            }
        });
    }

    /// Returns the joined sums of all warps for a row and vector.
    #[inline(always)]
    fn of_warps(row: u32, vector: u32, scale: f32) -> Part {
        let mut parts = [Part::NONE; DECODE_WARPS as usize];
        let mut all = Part::NONE;
        unroll!(w < 4, {
            let warp = w as u32;
            let [base, sum] = Self::stats(warp, row).ld().map(f32::from_bits);
            let row = Self::ring(warp).bytes(row * Self::ROW).cast::<[u32; 4]>();
            let out = row.at(vector).ld().map(f32::from_bits);
            all.base = all.base.max(base);
            parts[w] = Part { base, sum, out };
        });
        unroll!(w < 4, {
            all.add(&parts[w], scale);
        });
        all
    }

    /// Joins the warps and, in the last thread block of the sequence and head, the chunks. All threads call it.
    #[inline(always)]
    pub(super) fn join<E: MmaElem>(p: &DecodeParams, chunk: &Chunk) {
        let vectors = p.group * Self::VECTORS;
        let mut i = gpu::opaque_thread();
        while i < vectors {
            let (row, vector) = (i / Self::VECTORS, i % Self::VECTORS);
            let part = Self::of_warps(row, vector, p.scale);
            if chunk.chunks == 1 {
                Self::finish::<E>(p, chunk.pair, [row, vector], &part);
            } else {
                let own = Self::row(p, chunk.pair, chunk.chunk, row);
                let to = p.partial().at(own * Self::VECTORS as u64 + vector as u64);
                to.st(part.out.map(f32::to_bits));
                if vector == 0 {
                    p.stats().at(own).st([part.base, part.sum].map(f32::to_bits));
                }
            }
            i += Self::THREADS;
        }
        let counter = p.counters().at(chunk.pair);
        // SAFETY: `Decode::SHARED_BYTES` includes this word.
        let told = unsafe { Shared::dynamic(Self::TOLD) };
        if chunk.chunks > 1 && block_arrives_last(counter, chunk.chunks, told) {
            Self::join_chunks::<E>(p, chunk);
        }
    }

    /// Returns the index of a row of a chunk among the partial sums.
    #[inline(always)]
    fn row(p: &DecodeParams, pair: u32, chunk: u32, row: u32) -> u64 {
        (pair as u64 * p.slots as u64 + chunk as u64) * p.group as u64 + row as u64
    }

    /// Adds the sums of all chunks in order, and stores the output.
    #[inline(always)]
    fn join_chunks<E: MmaElem>(p: &DecodeParams, chunk: &Chunk) {
        let mut i = gpu::opaque_thread();
        while i < p.group * Self::VECTORS {
            let (row, vector) = (i / Self::VECTORS, i % Self::VECTORS);
            let mut all = Part::NONE;
            let mut from = 0;
            while from < chunk.chunks {
                let mut parts = [Part::NONE; TOGETHER as usize];
                let mut base = all.base;
                unroll!(c < 8, {
                    let number = from + c as u32;
                    let there = number < chunk.chunks;
                    let own = Self::row(p, chunk.pair, number, row);
                    let at = p.partial().at(own * Self::VECTORS as u64 + vector as u64);
                    let stats = p.stats().at(own).ld_if(there);
                    let out = at.ld_if(there).map(f32::from_bits);
                    let [own, sum] = stats.map(f32::from_bits);
                    let own = if there { own } else { f32::NEG_INFINITY };
                    parts[c] = Part { base: own, sum, out };
                });
                unroll!(c < 8, {
                    base = base.max(parts[c].base);
                });
                all.rise(base, p.scale);
                unroll!(c < 8, {
                    all.add(&parts[c], p.scale);
                });
                from += TOGETHER;
            }
            Self::finish::<E>(p, chunk.pair, [row, vector], &all);
            i += Self::THREADS;
        }
    }

    #[inline(always)]
    fn finish<E: MmaElem>(p: &DecodeParams, pair: u32, [row, vector]: [u32; 2], part: &Part) {
        let inverse = matrix::rcp_approx(part.sum);
        // Without keys the result is zero; NaN stays.
        let out = part.out.map(|x| if part.sum == 0.0 { 0.0 } else { x * inverse });
        let index = pair as u64 * p.group as u64 + row as u64;
        p.out().bytes(index * p.out_row as u64).at(vector).cast::<E>().st_rounded(&out);
    }
}
