//! W as e4m3 with synchronous products: codes are converted to elements between shared memory and the Tensor Core. With
//! rows of f16 or bf16 W is scaled and rounded there, and sums have the bits of those with a W that was rounded before.
//! With rows of e4m3 the sums of a block start from zero and are scaled as they are added. A warp multiplies a quarter
//! of the columns.

use super::DEPTH;
use super::out::NOWHERE;
use super::quantized::BLOCKS;
use super::scaled::NO_SCALE;
use super::work::Work;
use crate::device::prelude::*;
use crate::families::gather_gemm::abi::*;

/// Bytes of codes of a step of 16, and of one read where both operands are codes.
const STEP: u32 = 16;
const READ: u32 = 2 * STEP;

/// A value for each of the lane's two rows of each 16 rows of a tile.
type OfRows<T> = [[T; 2]; 4];

impl<const CHUNKS: usize, F: GroupedForm<A: Multiply, L: Loader>> GroupedTile<CHUNKS, F> {
    /// Returns the number of scale pairs that precede those of the lane's rows of A; [`NOWHERE`] for missing rows.
    #[inline(always)]
    fn scales_of_rows(p: &GroupedParams, work: Work) -> OfRows<u32> {
        let mut found = [[NOWHERE; 2]; 4];
        let lane = gpu::opaque_thread() % 32;
        let gathers = p.flags & GROUPED_GATHER != 0;
        let stages = p.k.div_ceil(DEPTH);
        unroll!(m < 4, {
            found[m] = [0, 8].map(|r| {
                let row = m as u32 * 16 + lane / 4 + r;
                let there = row < work.rows;
                let at = p.order + (work.first + row) as u64 * 4;
                let choice = global::ld_cg_b32(at, there && gathers);
                let source = if gathers { p.top.of(choice).0 } else { work.first + row };
                if there { source * stages } else { NOWHERE }
            });
        });
        found
    }

    /// Returns the scales of the lane's rows for block `block` along k.
    #[inline(always)]
    fn block_scales(p: &GroupedParams, rows: OfRows<u32>, block: u32) -> OfRows<f32> {
        let at = p.a_scales + block as u64 * 4;
        rows.map(|two| {
            two.map(|row| {
                let own = at + row as u64 * (BLOCKS * 4) as u64;
                f32::from_bits(global::ld_cg_b32(own, row != NOWHERE))
            })
        })
    }

    /// Returns [`Self::scales`] of this warp's quarter of the columns, as the first element.
    #[inline(always)]
    fn scales_of_quarter(p: &GroupedParams, work: Work) -> [u32; 2] {
        let [first, second] = Self::scales(p, work);
        let is_second = Self::SCALE_CHUNKS == 1 && gpu::opaque_thread() / 64 % 2 != 0;
        [if is_second { second } else { first }, NO_SCALE]
    }

    /// Multiplies rows of codes by codes, like `products`. For one warpgroup, and two chunks of columns.
    #[inline(always)]
    pub(super) fn products_of_codes(
        p: &GroupedParams,
        work: Work,
        ring: &mut Ring<Self>,
        acc: &mut Acc<CHUNKS>,
    ) {
        let rows = Self::scales_of_rows(p, work);
        let columns = Self::scales_of_quarter(p, work);
        let count = Self::count(work);
        let mut deep = 0;
        while deep < p.k {
            let [by_column, _] = Self::factors(p, columns, deep);
            let slot = ring.wait_full();
            let mut block = 0;
            while block < BLOCKS as u32 {
                // Unrolled code would convert more at a time than there are registers for.
                warp::nounroll();
                // Products take longer than these loads.
                let by_row = Self::block_scales(p, rows, deep / DEPTH * BLOCKS as u32 + block);
                let mut part = Acc::<CHUNKS>::zero();
                Self::multiply_block(&mut part, slot, block, count);
                Self::add_scaled(acc, &part, by_row, by_column);
                block += 1;
            }
            deep += DEPTH;
            if deep < p.k {
                Self::release(slot);
            }
            ring.advance();
        }
    }

    /// Multiplies rows of elements by codes, like `products`. For one warpgroup, and two chunks of columns.
    #[inline(always)]
    pub(super) fn products_of_scaled<E: WgmmaElem>(
        p: &GroupedParams,
        work: Work,
        ring: &mut Ring<Self>,
        acc: &mut Acc<CHUNKS>,
    ) {
        let columns = Self::scales_of_quarter(p, work);
        let count = Self::count(work);
        let mut deep = 0;
        while deep < p.k {
            let [by, _] = Self::factors(p, columns, deep);
            let slot = ring.wait_full();
            Self::multiply_scaled::<E>(acc, slot, by, count);
            deep += DEPTH;
            if deep < p.k {
                Self::release(slot);
            }
            ring.advance();
        }
    }

    /// Adds sums, each times the scales of its row and of the columns.
    #[inline(always)]
    fn add_scaled(acc: &mut Acc<CHUNKS>, part: &Acc<CHUNKS>, by_row: OfRows<f32>, by_column: f32) {
        unroll!(c < CHUNKS, most 4, {
            unroll!(j < 8, {
                // A quarter of the columns has two atoms a chunk for each 16 rows.
                let m = (8 * c + j) / (2 * CHUNKS);
                let by = by_row[m].map(|row| row * by_column);
                unroll!(i < 4, {
                    let sum = &mut acc.0[c][4 * j + i];
                    *sum = matrix::fma_f32(part.0[c][4 * j + i], by[i / 2], *sum);
                });
            });
        });
    }

    /// Converts the two codes in the low half of `x` to elements, times their scale.
    #[inline(always)]
    fn scaled<E: WgmmaElem>(x: u32, by: f32) -> u32 {
        let two = matrix::f16x2_from_e4m3(x);
        let [lo, hi] = [two, two >> 16].map(|x| E::mul(by, matrix::f32_from_f16(x)));
        match E::DTYPE {
            Dtype::F16 => matrix::f16x2_from_f32(lo, hi),
            _ => matrix::bf16x2_from_f32(lo, hi),
        }
    }

    /// Adds the products of a stage of elements by codes, for the first `rows` rows.
    #[inline(always)]
    fn multiply_scaled<E: WgmmaElem>(acc: &mut Acc<CHUNKS>, slot: u32, by: f32, rows: u32) {
        let (warp, lane) = gpu::warp_and_lane();
        let (row, chunk) = frag::ldmatrix_x4(lane);
        let a = Self::stage(slot) + row * PANEL_BYTES as u32;
        let a_chunk = ((row % 8) << 4) ^ (chunk * 16);
        // A lane reads two neighbouring codes of each eight: half a word.
        let column = warp * 16 * CHUNKS as u32 + lane / 4;
        let row_bytes = GROUPED_DEPTH as u32;
        let b = Self::w_of(slot).0 + column * row_bytes + lane % 4 / 2 * 4;
        let half = lane % 2 * 16;
        // Rows of codes are swizzled over 64 bytes.
        let b_chunk = (lane / 8) << 4;
        let mut step = 0;
        while step < 4 {
            // Unrolled code would convert more at a time than there are registers for.
            warp::nounroll();
            let of_rows = |m: u32| {
                let at = a + m * 16 * PANEL_BYTES as u32 + (a_chunk ^ (step * 32));
                (m * 16 < rows).then(|| matrix::ldmatrix_x4(at))
            };
            let of_columns = |n: u32| {
                let at = b + n * 16 * row_bytes + (b_chunk ^ (step * STEP));
                [0, 8, 8 * row_bytes, 8 * row_bytes + 8]
                    .map(|further| Self::scaled::<E>(copy::ld_shared_b32(at + further) >> half, by))
            };
            F::A::mma_both::<E, CHUNKS>(acc, of_rows, of_columns);
            step += 1;
        }
    }

    /// Adds the products of block `block` of a stage of codes by codes, for the first `rows` rows, in f16, which
    /// represents all of their values. A lane reads four neighbouring codes of both operands: the order of products
    /// within a step does not matter.
    #[inline(always)]
    fn multiply_block(part: &mut Acc<CHUNKS>, slot: u32, block: u32, rows: u32) {
        let (warp, lane) = gpu::warp_and_lane();
        let row_bytes = PANEL_BYTES as u32;
        // Rows are swizzled over 128 bytes.
        let (row, chunk) = frag::ldmatrix_x4(lane);
        let a = Self::stage(slot) + row * row_bytes;
        let a_chunk = ((row % 8) << 4) ^ (chunk * 16);
        // Eight columns, two times 16 codes of each, then the next eight columns.
        let (column, chunk) = frag::ldmatrix_x4_columns(lane);
        let b = Self::w_of(slot).0 + (warp * 16 * CHUNKS as u32 + column) * row_bytes;
        let b_chunk = ((column % 8) << 4) ^ (chunk * 16);
        let wide = matrix::f16x4_from_e4m3;
        let mut read = 2 * block;
        while read < 2 * block + 2 {
            warp::nounroll();
            let mut codes = [[0; 4]; CHUNKS];
            unroll!(n < CHUNKS, most 4, {
                let at = b + n as u32 * 16 * row_bytes;
                codes[n] = matrix::ldmatrix_x4(at + (b_chunk ^ (read * READ)));
            });
            unroll!(step < 2, {
                let of_rows = |m: u32| {
                    let at = a + m * 16 * row_bytes + (a_chunk ^ (read * READ));
                    (m * 16 < rows).then(|| {
                        let own = matrix::ldmatrix_x4(at);
                        let [x, y] = [own[2 * step], own[2 * step + 1]];
                        let ([x, z], [y, w]) = (wide(x), wide(y));
                        [x, y, z, w]
                    })
                };
                let of_columns = |n: u32| {
                    let own = codes[n as usize];
                    let [x, y] = [own[step], own[2 + step]];
                    let ([x, z], [y, w]) = (wide(x), wide(y));
                    [x, z, y, w]
                };
                F::A::mma_both::<F16, CHUNKS>(part, of_rows, of_columns);
            });
            read += 1;
        }
    }
}
