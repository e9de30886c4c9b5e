//! W as e4m3 where products are synchronous: codes become elements between shared memory and the Tensor Core, which sums
//! a stage or a block from zero, and what it found is scaled as it is added. Rows are e4m3 with scales too, or of f16 or
//! bf16, both of which hold what e4m3 holds. A warp multiplies a quarter of the columns.

use super::DEPTH;
use super::out::NOWHERE;
use super::quantized::BLOCKS;
use super::scaled::NO_SCALE;
use super::work::Work;
use crate::device::prelude::*;
use crate::families::gather_gemm::abi::*;

/// Elements along k of a step, and of what a lane reads of codes at once.
const STEP: u32 = 16;
const READ: u32 = 2 * STEP;

/// For each 16 rows of a tile something of the lane's two.
type OfRows<T> = [[T; 2]; 4];

impl<
    const CHUNKS: usize,
    const ORDER: u32,
    const GATED: bool,
    const ROWS: usize,
    A: Multiply,
    L: Loader,
> GroupedTile<CHUNKS, ORDER, GATED, ROWS, A, L>
{
    /// Pairs of scales ahead of those of the lane's rows of A; [`NOWHERE`] of a row that is not there.
    #[inline(always)]
    fn scales_of_rows(p: &GroupedParams, work: Work) -> OfRows<u32> {
        let mut found = [[NOWHERE; 2]; 4];
        if ORDER != QUANTIZED_COLUMNS {
            return found;
        }
        let lane = gpu::rematerialize_thread() % 32;
        let gathers = p.flags & GROUPED_GATHER != 0;
        let stages = p.k.div_ceil(DEPTH);
        unroll!(m < 4, {
            found[m] = [0, 8].map(|r| {
                let row = m as u32 * 16 + lane / 4 + r;
                let there = row < work.rows;
                let at = p.order + (work.first + row) as u64 * 4;
                let choice = global::load_b32_fresh(at, there && gathers);
                let source = if gathers { p.top.of(choice).0 } else { work.first + row };
                if there { source * stages } else { NOWHERE }
            });
        });
        found
    }

    /// The scales of the lane's rows for block `block` along k. Rows of other types than e4m3 have none.
    #[inline(always)]
    fn block_scales(p: &GroupedParams, rows: OfRows<u32>, block: u32) -> OfRows<f32> {
        if ORDER != QUANTIZED_COLUMNS {
            return [[1.0; 2]; 4];
        }
        let at = p.a_scales + block as u64 * 4;
        rows.map(|two| {
            two.map(|row| {
                let own = at + row as u64 * (BLOCKS * 4) as u64;
                f32::from_bits(global::load_b32_fresh(own, row != NOWHERE))
            })
        })
    }

    /// What [`Self::scales`] says of this warp's quarter of the columns, in front.
    #[inline(always)]
    fn scales_of_quarter(p: &GroupedParams, work: Work) -> [u32; 2] {
        let [first, second] = Self::scales(p, work);
        let is_second = Self::SCALE_CHUNKS == 1 && gpu::rematerialize_thread() / 64 % 2 != 0;
        [if is_second { second } else { first }, NO_SCALE]
    }

    /// As `products`, of codes that are scaled as they are added. For one warpgroup, and two chunks of columns.
    #[inline(always)]
    pub(super) fn products_of_codes<E: WgmmaElem>(
        p: &GroupedParams,
        work: Work,
        ring: &mut Ring<Self>,
        acc: &mut Acc<CHUNKS>,
    ) {
        let rows = Self::scales_of_rows(p, work);
        let columns = Self::scales_of_quarter(p, work);
        let count = Self::count(work);
        let sums = if ORDER == QUANTIZED_COLUMNS { BLOCKS as u32 } else { 1 };
        let mut deep = 0;
        while deep < p.k {
            let [by_column, _] = Self::factors(p, columns, deep);
            let slot = ring.wait_full();
            let mut sum = 0;
            while sum < sums {
                // Straight code would convert more at a time than there are registers for.
                warp::stay_rolled();
                // Products take longer than these loads.
                let by_row = Self::block_scales(p, rows, deep / DEPTH * sums + sum);
                let mut part = Acc::<CHUNKS>::zero();
                let tiles = (Self::stage(slot), Self::w_of(slot).0);
                if ORDER == QUANTIZED_COLUMNS {
                    Self::multiply_block(&mut part, tiles, sum, count);
                } else {
                    Self::multiply_mixed::<E>(&mut part, tiles, count);
                }
                Self::add_scaled(acc, &part, by_row, by_column);
                sum += 1;
            }
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
                // Of each 16 rows a quarter has two atoms a chunk.
                let m = (8 * c + j) / (2 * CHUNKS);
                let by = by_row[m].map(|row| row * by_column);
                unroll!(i < 4, {
                    let sum = &mut acc.0[c][4 * j + i];
                    *sum = matrix::fma_f32(part.0[c][4 * j + i], by[i / 2], *sum);
                });
            });
        });
    }

    /// The products of a block of codes along k by codes, of the first `rows` rows.
    #[inline(always)]
    fn multiply_block(part: &mut Acc<CHUNKS>, (a_tile, b_tile): (u32, u32), block: u32, rows: u32) {
        let mut step = 2 * block;
        while step < 2 * block + 2 {
            warp::stay_rolled();
            let a = frag::descriptor(a_tile + step * 32, PANEL_BYTES as u32, 16);
            let b = frag::descriptor(b_tile + step * 32, PANEL_BYTES as u32, 16);
            A::mma_bytes_rows::<E4m3, CHUNKS>(part, a, b, true, rows);
            step += 1;
        }
    }

    /// The two codes in the low half of `x` as elements.
    #[inline(always)]
    fn elements<E: WgmmaElem>(x: u32) -> u32 {
        let two = matrix::f16x2_from_e4m3(x);
        if let Dtype::F16 = E::DTYPE {
            return two;
        }
        matrix::bf16x2_from_f32(matrix::f32_from_f16(two), matrix::f32_from_f16(two >> 16))
    }

    /// The products of a stage of elements by codes, of the first `rows` rows. A lane reads four neighbouring codes, and the four
    /// elements of A that they meet: which product of a step comes first does not matter.
    #[inline(always)]
    pub(super) fn multiply_mixed<E: WgmmaElem>(
        part: &mut Acc<CHUNKS>,
        (a_tile, b_tile): (u32, u32),
        rows: u32,
    ) {
        let (warp, lane) = gpu::warp_and_lane();
        let row = lane / 4;
        let a = a_tile + row * PANEL_BYTES as u32;
        // Rows are swizzled over 128 bytes.
        let a_chunk = (lane % 4 * 8) ^ (row << 4);
        // Eight columns, two times 16 codes of each, then the eight columns behind them.
        let column = warp * 16 * CHUNKS as u32 + lane / 16 * 8 + lane % 8;
        let b = b_tile + column * GROUPED_DEPTH as u32;
        // Rows of codes are swizzled over 64 bytes.
        let b_chunk = (lane / 8 % 2 * STEP) ^ (lane % 8 / 2 << 4);
        let mut read = 0;
        while read < DEPTH / READ {
            // Straight code would convert more at a time than there are registers for.
            warp::stay_rolled();
            let mut codes = [[0; 4]; CHUNKS];
            unroll!(n < CHUNKS, most 4, {
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
                A::mma_both::<E, CHUNKS>(part, of_rows, of_columns);
            });
            read += 1;
        }
    }
}
