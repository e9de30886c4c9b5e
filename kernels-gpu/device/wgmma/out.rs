//! Accumulators on their way out: carried to the other pieces of the strip where it was cut, finished, and sent to C.

use super::carry::{Cut, carry};
use super::chunk::{self, Chunk, Spot, TypeOfC};
use crate::abi::*;
use crate::device::elem::Elem;
use crate::device::epilogue::{Output, scale};
use crate::device::ptx::wgmma::Acc;
use crate::device::ptx::{copy, warp};
use crate::frag;

impl WgmmaParams {
    /// Where results go.
    #[inline(always)]
    pub(super) fn output(&self, item: u32) -> Output {
        Output {
            c: self.c + item as u64 * self.c_item,
            bias: self.bias,
            alpha: self.alpha,
            ldc_bytes: self.ldc_bytes,
            n: self.n,
            // Tested here and now: predicates held through the loop over strips cost registers.
            flags: warp::again(self.flags),
            gate: self.gate + item as u64 * self.gate_item,
            gate_bytes: self.gate_bytes,
        }
    }
}

impl<const PM: usize, const PK: usize, const CHUNKS: usize, const ORDER: u32, const BYTES: usize>
    Panel<PM, PK, CHUNKS, ORDER, BYTES>
{
    #[inline(always)]
    pub(super) fn leave<E: Elem<Acc = f32>>(
        p: &WgmmaParams,
        strip: Strip,
        half: u32,
        acc: &mut Acc<CHUNKS>,
    ) {
        let mut stages = strip.stages;
        if strip.count() > 1 {
            if !carry(Cut::of(p, strip), half, Self::scratch(), acc) {
                return;
            }
            stages = 1;
        }
        Self::finish_and_send::<E>(p, strip, half, stages, acc);
    }

    /// Epilogue and stores in the type of C, which need not be that of A and B.
    #[inline(always)]
    fn finish_and_send<E: Elem<Acc = f32>>(
        p: &WgmmaParams,
        strip: Strip,
        half: u32,
        stages: u32,
        acc: &mut Acc<CHUNKS>,
    ) {
        let slab = copy::arena() + (Self::OUT + half as usize * SLAB) as u32;
        let corner = [strip.row + half * HALF as u32, strip.column];
        Self::write::<E>(p.output(strip.item), p.m, corner, (half, slab), stages, acc);
    }

    /// Finishes the sums of a warpgroup, 64 rows of C with the corner at row `top` and column `left`, and stores those
    /// above row `m`. `slab`: [`SLAB`] bytes of shared memory for warpgroup `half`.
    #[inline(always)]
    pub(in crate::device) fn write<T: TypeOfC>(
        o: Output,
        m: u32,
        corner: [u32; 2],
        slab: (u32, u32),
        stages: u32,
        acc: &mut Acc<CHUNKS>,
    ) {
        Self::write_as::<T, true>(o, m, corner, slab, stages, acc);
    }

    /// [`Self::write`] in straight code unless `ROLLED`: a loop over chunks takes registers for a copy of one, and whoever
    /// holds other sums beside these has none.
    #[inline(always)]
    pub(in crate::device) fn write_as<T: TypeOfC, const ROLLED: bool>(
        o: Output,
        m: u32,
        [top, left]: [u32; 2],
        slab: (u32, u32),
        stages: u32,
        acc: &mut Acc<CHUNKS>,
    ) {
        if top >= m {
            return;
        }
        let spot = Spot::of(m, [top, left], slab);
        let rows = Self::rows::<T>(o, spot, stages);
        const VECTORS: u32 = FLAG_VECTORS;
        const MORE: u32 = FLAG_ACCUMULATE | FLAG_BIAS_COLUMNS | FLAG_GELU;
        if o.flags & (VECTORS | MORE) == VECTORS {
            Self::scale_and_clip(o, rows, acc);
            T::send_all::<ORDER, CHUNKS>(o, spot, acc);
        } else if ROLLED {
            Self::finish::<T>(o, spot, rows, acc);
        } else {
            Self::finish_straight::<T>(o, spot, rows, acc);
        }
    }

    /// The scalar, and the biases of the lane's two rows.
    #[inline(always)]
    pub(super) fn rows<T: TypeOfC>(o: Output, spot: Spot, stages: u32) -> (f32, [f32; 2]) {
        let row = spot.corner[0] + spot.warp * 16 + frag::accumulator(spot.lane, 0).0;
        let bias = [0, 8].map(|r| {
            if row + r < spot.m {
                T::row_bias(o, row + r)
            } else {
                0.0
            }
        });
        (scale::<F32>(o, stages), bias)
    }

    /// Scalar, bias of rows and ReLU, each a pass of its own: a test per element would cost more than the pass.
    #[inline(always)]
    pub(super) fn scale_and_clip(o: Output, (alpha, bias): (f32, [f32; 2]), acc: &mut Acc<CHUNKS>) {
        if alpha != 1.0 || o.flags & FLAG_BIAS_ROWS != 0 {
            unroll!(c < CHUNKS, most 4, {
                acc.0[c] = chunk::scaled(&acc.0[c], alpha, bias);
            });
        }
        if o.flags & FLAG_RELU != 0 {
            unroll!(c < CHUNKS, most 4, { chunk::clip(&mut acc.0[c]) });
        }
    }

    /// The whole epilogue and the stores, chunk by chunk in a loop: straight code for what it does would be longer than all
    /// the rest of the kernel, and longer than what a multiprocessor keeps of its instructions.
    #[inline(always)]
    fn finish<T: TypeOfC>(o: Output, spot: Spot, rows: (f32, [f32; 2]), acc: &Acc<CHUNKS>) {
        let mut c = warp::again(0);
        while c < CHUNKS as u32 {
            warp::stay_rolled();
            let spot = spot.again();
            let x = Self::finished::<T>(o, spot, rows, c, acc);
            if o.flags & (FLAG_VECTORS | FLAG_ACCUMULATE) == FLAG_VECTORS {
                T::send_pieces::<ORDER>(o, spot, c, &x);
            } else {
                T::send_elements::<ORDER>(o, spot, c, &x);
            }
            c += 1;
        }
    }

    /// [`Self::finish`] in place.
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
            let spot = spot.again();
            chunk::activate::<T, 1>(o, spot, c as u32, &mut acc.0[c]);
            if o.flags & (FLAG_VECTORS | FLAG_ACCUMULATE) == FLAG_VECTORS {
                T::send_pieces::<ORDER>(o, spot, c as u32, &acc.0[c]);
            } else {
                T::send_elements::<ORDER>(o, spot, c as u32, &acc.0[c]);
            }
        });
    }

    /// Chunk `c` after the epilogue. The multiplication by the scalar is the copy to the registers of the loop.
    #[inline(always)]
    pub(super) fn finished<T: TypeOfC>(
        o: Output,
        spot: Spot,
        (alpha, mut bias): (f32, [f32; 2]),
        c: u32,
        acc: &Acc<CHUNKS>,
    ) -> Chunk {
        if alpha == 1.0 && o.flags & FLAG_BIAS_ROWS == 0 {
            // x * 1 - 0 is x, also for x = -0, which x * 1 + 0 is not.
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
