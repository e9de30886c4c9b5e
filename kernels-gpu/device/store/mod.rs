//! Epilogue of a warpgroup: scalar, bias, activation and store to C, as whole rows if C permits accesses of 16 bytes.

pub mod chunk;

use super::epilogue::{Output, scale};
use super::ptx::warp;
use super::ptx::wgmma::Acc;
use super::shared::Shared;
use crate::abi::*;
use crate::frag;
use chunk::{Chunk, Spot, TypeOfC};

/// Stores 64 rows of `CHUNKS` x 64 columns of C in layout `ORDER`.
pub struct StoreTile<const CHUNKS: usize, const ORDER: u32>;

impl<const CHUNKS: usize, const ORDER: u32> StoreTile<CHUNKS, ORDER> {
    /// Applies the epilogue to the accumulators of a warpgroup and stores the rows below `m`. `corner`: row and column
    /// of C of the first element. `smem`: index of the warpgroup, and shared address of its [`SMEM_TILE`] bytes.
    /// `stages`: 0 for a tile without products. The scalar is then 0, because 0 times an infinite scalar would be NaN.
    #[inline(always)]
    pub fn write<T: TypeOfC>(
        o: Output,
        m: u32,
        corner: [u32; 2],
        smem: (u32, Shared<u8>),
        stages: u32,
        acc: &mut Acc<CHUNKS>,
    ) {
        Self::write_as::<T, true>(o, m, corner, smem, stages, acc);
    }

    /// [`Self::write`] with unrolled code unless `ROLLED`. A loop over chunks takes registers for a copy of one chunk;
    /// callers that hold further accumulators would spill.
    #[inline(always)]
    pub fn write_as<T: TypeOfC, const ROLLED: bool>(
        o: Output,
        m: u32,
        [top, left]: [u32; 2],
        smem: (u32, Shared<u8>),
        stages: u32,
        acc: &mut Acc<CHUNKS>,
    ) {
        if top >= m {
            return;
        }
        let spot = Spot::of(m, [top, left], smem);
        let rows = Self::rows::<T>(o, spot, stages);
        const VECTORS: u32 = FLAG_VECTORS;
        const MORE: u32 = FLAG_ACCUMULATE | FLAG_BIAS_COLUMNS | FLAG_GELU;
        if o.flags & (VECTORS | MORE) == VECTORS {
            Self::scale_and_relu(o, rows, acc);
            T::store_all::<ORDER, CHUNKS>(o, spot, acc);
        } else if ROLLED {
            Self::finish::<T>(o, spot, rows, acc);
        } else {
            Self::finish_straight::<T>(o, spot, rows, acc);
        }
    }

    /// Returns the scalar and the biases of the lane's two rows.
    #[inline(always)]
    fn rows<T: TypeOfC>(o: Output, spot: Spot, stages: u32) -> (f32, [f32; 2]) {
        let row = spot.corner[0] + spot.warp * 16 + frag::accumulator(spot.lane, 0).0;
        let bias = [0, 8].map(|r| if row + r < spot.m { T::row_bias(o, row + r) } else { 0.0 });
        (scale::<F32>(o, stages), bias)
    }

    /// Scalar, row bias and ReLU, in a separate pass each: a test per element would cost more than the pass.
    #[inline(always)]
    fn scale_and_relu(o: Output, (alpha, bias): (f32, [f32; 2]), acc: &mut Acc<CHUNKS>) {
        if alpha != 1.0 || o.flags & FLAG_BIAS_ROWS != 0 {
            unroll!(c < CHUNKS, most 4, {
                acc.0[c] = chunk::scaled(&acc.0[c], alpha, bias);
            });
        }
        if o.flags & FLAG_RELU != 0 {
            unroll!(c < CHUNKS, most 4, { chunk::relu(&mut acc.0[c]) });
        }
    }

    /// Whole epilogue and stores in a loop over chunks. Unrolled, it would be longer than the rest of the kernel and
    /// would not fit into the instruction cache of a multiprocessor.
    #[inline(always)]
    fn finish<T: TypeOfC>(o: Output, spot: Spot, rows: (f32, [f32; 2]), acc: &Acc<CHUNKS>) {
        let mut c = warp::opaque(0);
        while c < CHUNKS as u32 {
            warp::nounroll();
            let spot = spot.opaque();
            let mut x = Self::finished::<T>(o, spot, rows, c, acc);
            Self::add_and_store::<T>(o, spot, c, &mut x);
            c += 1;
        }
    }

    /// [`Self::finish`] without the copy of a chunk.
    #[inline(always)]
    fn finish_straight<T: TypeOfC>(
        o: Output,
        spot: Spot,
        (alpha, bias): (f32, [f32; 2]),
        acc: &mut Acc<CHUNKS>,
    ) {
        if alpha != 1.0 || o.flags & FLAG_BIAS_ROWS != 0 {
            unroll!(c < CHUNKS, most 4, {
                acc.0[c] = chunk::scaled(&acc.0[c], alpha, bias);
            });
        }
        unroll!(c < CHUNKS, most 4, {
            let spot = spot.opaque();
            chunk::activate::<T, 1>(o, spot, c as u32, &mut acc.0[c]);
            Self::add_and_store::<T>(o, spot, c as u32, &mut acc.0[c]);
        });
    }

    /// Stores a chunk to C or adds it to C, in pieces of 16 bytes if C permits them and no gate is applied between load
    /// and store.
    #[inline(always)]
    fn add_and_store<T: TypeOfC>(o: Output, spot: Spot, c: u32, x: &mut Chunk) {
        let add = o.flags & FLAG_ACCUMULATE != 0;
        if o.flags & FLAG_VECTORS == 0 || add && o.flags & FLAG_GATE != 0 {
            T::store_elements::<ORDER>(o, spot, c, x);
            return;
        }
        if add {
            T::add_old::<ORDER>(o, spot, c, x);
        }
        T::store_pieces::<ORDER>(o, spot, c, x);
    }

    /// Returns chunk `c` after the epilogue. The multiplication by the scalar also copies it to the registers of the
    /// loop.
    #[inline(always)]
    fn finished<T: TypeOfC>(
        o: Output,
        spot: Spot,
        (alpha, mut bias): (f32, [f32; 2]),
        c: u32,
        acc: &Acc<CHUNKS>,
    ) -> Chunk {
        if alpha == 1.0 && o.flags & FLAG_BIAS_ROWS == 0 {
            // x * 1 - 0 is x also for x = -0; x * 1 + 0 would be +0.
            bias = [-0.0; 2];
        }
        let mut x = [0f32; 32];
        unroll!(k < CHUNKS, most 4, {
            if c == k as u32 {
                x = chunk::scaled(&acc.0[k], alpha, bias);
            }
        });
        chunk::activate::<T, 2>(o, spot, c, &mut x);
        x
    }
}
