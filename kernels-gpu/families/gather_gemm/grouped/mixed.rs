//! Rows of f16 or bf16 times W as e4m3, whose numbers both types hold: codes become elements between shared memory and
//! the Tensor Core.

use super::DEPTH;
use super::quantized::PART;
use crate::device::prelude::*;
use crate::families::gather_gemm::abi::*;

/// Elements along k of a step, and of what a lane reads of codes at once.
const STEP: u32 = 16;
const READ: u32 = 2 * STEP;

impl<
    const CHUNKS: usize,
    const ORDER: u32,
    const GATED: bool,
    const ROWS: usize,
    A: Multiply,
    L: Loader,
> GroupedTile<CHUNKS, ORDER, GATED, ROWS, A, L>
{
    /// The two codes in the low half of `x` as elements.
    #[inline(always)]
    fn elements<E: WgmmaElem>(x: u32) -> u32 {
        let two = matrix::f16x2_from_e4m3(x);
        if let Dtype::F16 = E::DTYPE {
            return two;
        }
        matrix::bf16x2_from_f32(matrix::f32_from_f16(two), matrix::f32_from_f16(two >> 16))
    }

    /// The products of a stage, from zero, by quarters of the columns. A lane reads four neighbouring codes, and the four
    /// elements of A that they meet: which product of a step comes first does not matter.
    #[inline(always)]
    pub(super) fn multiply_mixed<E: WgmmaElem>(
        part: &mut Acc<PART>,
        a_tile: u32,
        b_tile: u32,
        rows: u32,
    ) {
        *part = Acc::zero();
        let (warp, lane) = gpu::warp_and_lane();
        let row = lane / 4;
        let a = a_tile + row * PANEL_BYTES as u32;
        // Rows are swizzled over 128 bytes.
        let a_chunk = (lane % 4 * 8) ^ (row << 4);
        // Eight columns, two times 16 codes of each, then the eight columns behind them.
        let column = warp * 16 * PART as u32 + lane / 16 * 8 + lane % 8;
        let b = b_tile + column * GROUPED_DEPTH as u32;
        // Rows of codes are swizzled over 64 bytes.
        let b_chunk = (lane / 8 % 2 * STEP) ^ (lane % 8 / 2 << 4);
        let mut read = 0;
        while read < DEPTH / READ {
            // Straight code would convert more at a time than there are registers for.
            warp::stay_rolled();
            let mut codes = [[0; 4]; PART];
            unroll!(n < PART, most 4, {
                let at = b + n as u32 * 16 * GROUPED_DEPTH as u32;
                codes[n] = matrix::ldmatrix_x4(at + (b_chunk ^ (read * READ)));
            });
            unroll!(step < 2, {
                let deep = (2 * read + step as u32) * STEP * 2;
                let of_rows = |m: u32| {
                    let at = a + m * 16 * PANEL_BYTES as u32 + (a_chunk ^ deep);
                    (m * 16 < rows).then(|| {
                        let upper = copy::load_shared_v2(at);
                        let lower = copy::load_shared_v2(at + 8 * PANEL_BYTES as u32);
                        [upper[0], lower[0], upper[1], lower[1]]
                    })
                };
                let of_columns = |n: u32| {
                    let own = codes[n as usize];
                    let [x, y] = [own[step], own[2 + step]];
                    [x, x >> 16, y, y >> 16].map(Self::elements::<E>)
                };
                A::mma_both::<E, PART>(part, of_rows, of_columns);
            });
            read += 1;
        }
    }
}
