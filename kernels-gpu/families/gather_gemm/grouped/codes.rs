//! W as e4m3 with `mma.sync`. With fp8 Tensor Cores, the stages contain codes, as copied. Without them, the producer
//! threads load codes into registers, two stages ahead, and write elements to the stages. Producers convert each code
//! once. Consumers would convert the rows of A once in each of the four warps of a warpgroup.
//!
//! ```text
//! A elements (`SCALED_COLUMNS`)    A as it is; W scaled and rounded to A's type, with the bits of a W rounded before
//! A codes (`QUANTIZED_COLUMNS`)    A and W as f16, which represents all values of e4m3; the sums of each block along k
//!                                  start from zero, and are scaled as they are added
//! ```

use core::marker::PhantomData;

use super::DEPTH;
use super::out::NOWHERE;
use super::scaled::NO_SCALE;
use super::work::{Cursor, Work};
use crate::device::prelude::*;
use crate::families::gather_gemm::abi::*;

/// Codes in 16 bytes.
const CODES: u32 = 16;
/// Bytes of a row of a stage.
const ROW: u32 = PANEL_BYTES as u32;
/// Rows of A or W of which a thread loads 16 bytes each.
const MOST: usize = 8;
/// Scales of a row in a stage as the host counts stages: of [`DEPTH`] pairs of codes.
const SCALES: u32 = 2;

/// Part of a stage that one thread loads.
struct Loaded {
    exists: bool,
    a: [[u32; 4]; MOST],
    w: [[u32; 4]; MOST],
    /// Scales of W's columns, if W is scaled here.
    by: [f32; 2],
}

/// Progress of a thread's loads: they are ahead of the stages that it writes. The record of the work item after the
/// next one and the choice of a row of the next one are loaded early, because each load depends on the one before.
struct Loads<const CHUNKS: usize, F> {
    at: Cursor,
    choice: u32,
    /// Rows of A of this thread, and a bit for each that exists.
    rows: [u32; MOST],
    valid: u32,
    scales: [u32; 2],
    tile: PhantomData<F>,
}

impl<const CHUNKS: usize, F: GroupedForm<A: Multiply, L: Loader>> Loads<CHUNKS, F> {
    #[inline(always)]
    fn new(p: &GroupedParams) -> Self {
        let at = GroupedTile::<CHUNKS, F>::first_stage(p);
        let mut loads = Loads {
            choice: GroupedTile::<CHUNKS, F>::producer_choice(p, at.work),
            at,
            rows: [0; MOST],
            valid: 0,
            scales: [NO_SCALE; 2],
            tile: PhantomData,
        };
        loads.enter(p);
        loads
    }

    /// Begins the current work item.
    #[inline(always)]
    fn enter(&mut self, p: &GroupedParams) {
        let (thread, lanes) = (GroupedTile::<CHUNKS, F>::copier(), Self::LANES);
        let token = match p.flags & GROUPED_GATHER {
            0 => self.at.work.first + thread,
            _ => p.top.of(self.choice).0,
        };
        let (warp, lane) = (thread / 32, thread % 32);
        self.valid = 0;
        unroll!(i < Self::ROWS, {
            let row = i as u32 * (32 / lanes) + lane / lanes;
            self.rows[i] = warp::shfl(token, row);
            self.valid |= u32::from(warp * 32 + row < self.at.work.rows) << i;
        });
        if F::ORDER == SCALED_COLUMNS {
            self.scales = GroupedTile::<CHUNKS, F>::scales(p, self.at.work);
        }
        self.choice = GroupedTile::<CHUNKS, F>::producer_choice(p, self.at.later);
    }

    /// Lanes that load a row of A in a stage, and rows of which a thread loads 16 bytes.
    const LANES: u32 = GroupedTile::<CHUNKS, F>::STAGE_K / 8;
    const ROWS: usize = Self::LANES as usize;

    /// Loads this thread's part of the next stage.
    #[inline(always)]
    fn next(&mut self, p: &GroupedParams) -> Loaded {
        let mut loaded = Loaded {
            exists: self.at.index < self.at.tiles && p.k > 0,
            a: [[0; 4]; MOST],
            w: [[0; 4]; MOST],
            by: [0.0; 2],
        };
        if !loaded.exists {
            return loaded;
        }
        let thread = GroupedTile::<CHUNKS, F>::copier();
        // Extents along k count units of two bytes of A.
        let unit = self.at.deep + thread % Self::LANES * 8;
        let from = p.a().at(unit);
        unroll!(i < Self::ROWS, {
            let at = from.row(self.rows[i], p.lda_bytes);
            let there = self.valid & (1 << i) != 0 && unit < p.k;
            loaded.a[i] = at.cast::<[u32; 4]>().ld_once_if(there);
        });
        // Four lanes load a column of W.
        let code = self.at.deep * Self::CODES_OF_UNIT + thread % 4 * CODES;
        let map = &p.w_map;
        // SAFETY: the host made the map of a W that it has checked. Codes that are `there` are
        // inside of its extents.
        let w: Global<u8, ReadWrite> = unsafe { Global::new(map[MAP_ADDRESS]) };
        let from = w.row(self.at.work.expert, map[MAP_STRIDES + 1]).bytes(code);
        let columns = (map[MAP_EXTENTS] >> 32) as u32;
        unroll!(i < 2 * CHUNKS, {
            let half = if F::GATED { i / CHUNKS } else { 0 };
            let within = (i - half * CHUNKS) as u32 * 32 + thread / 4;
            let column = self.at.work.column + half as u32 * p.n + within;
            let there = column < columns && code < p.k * Self::CODES_OF_UNIT;
            let at = from.row(column, map[MAP_STRIDES]);
            loaded.w[i] = at.cast::<[u32; 4]>().ld_once_if(there);
        });
        if F::ORDER == SCALED_COLUMNS {
            loaded.by = GroupedTile::<CHUNKS, F>::factors(p, self.scales, self.at.deep);
        }
        if GroupedTile::<CHUNKS, F>::next_stage(p, &mut self.at) {
            self.enter(p);
        }
        loaded
    }

    /// Codes of W in a unit along k.
    const CODES_OF_UNIT: u32 = if F::ORDER == QUANTIZED_COLUMNS { 2 } else { 1 };
}

impl<const CHUNKS: usize, F: GroupedForm<A: Multiply, L: Loader>> GroupedTile<CHUNKS, F> {
    /// Whether Tensor Cores multiply codes.
    const FP8: bool = F::A::NEEDS & FP8_MMA != 0;
    /// Steps of 32 bytes of a block with one scale of A.
    const STEPS: usize = if Self::FP8 { 2 } else { 4 };
    /// Blocks of a stage.
    const BLOCKS: u32 = 4 / Self::STEPS as u32;

    /// Fills the stages with converted codes; called by all four producer warps.
    #[inline(always)]
    pub(super) fn convert<E: WgmmaElem>(p: &GroupedParams) {
        grid::wait_dependency();
        grid::launch_dependents();
        let mut loads = Loads::<CHUNKS, F>::new(p);
        let mut ring = Ring::<Self>::producer();
        let mut first = loads.next(p);
        let mut second = loads.next(p);
        while first.exists {
            Self::write::<E>(&mut ring, &first);
            first = loads.next(p);
            if !second.exists {
                break;
            }
            Self::write::<E>(&mut ring, &second);
            second = loads.next(p);
        }
    }

    /// Writes a stage.
    #[inline(always)]
    fn write<E: WgmmaElem>(ring: &mut Ring<Self>, loaded: &Loaded) {
        let slot = ring.wait_empty();
        let (to, to_w) = (Self::stage(slot), Self::w_of(slot).0);
        let thread = Self::copier();
        if F::ORDER == SCALED_COLUMNS {
            let (warp, lane) = (thread / 32, thread % 32);
            unroll!(i < 8, {
                let row = warp * 32 + i as u32 * 4 + lane / 8;
                let at = to.bytes(row * ROW).cast::<[u32; 4]>().at((lane % 8) ^ (row % 8));
                at.st(loaded.a[i]);
            });
            Self::write_scaled::<E>(thread, loaded.w, to_w, loaded.by);
        } else {
            let (warp, lane) = (thread / 32, thread % 32);
            unroll!(i < 4, {
                let row = warp * 32 + i as u32 * 8 + lane / 4;
                Self::write_halves(loaded.a[i], to, row, lane % 4);
            });
            unroll!(i < 2 * CHUNKS, {
                Self::write_halves(loaded.w[i], to_w, i as u32 * 32 + thread / 4, thread % 4);
            });
        }
        ring.full().arrive();
        ring.advance();
    }

    /// Writes 16 codes as f16 to quarter `quarter` of a row. The conversion may permute each 4 codes. A and W then have
    /// the same permutation along k, so their products are correct.
    #[inline(always)]
    fn write_halves(codes: [u32; 4], to: Shared<u8>, row: u32, quarter: u32) {
        unroll!(half < 2, {
            let [x, y] = matrix::f16x4_from_e4m3(codes[2 * half]);
            let [z, w] = matrix::f16x4_from_e4m3(codes[2 * half + 1]);
            let place = (2 * quarter + half as u32) ^ (row % 8);
            to.bytes(row * ROW).cast::<[u32; 4]>().at(place).st([x, y, z, w]);
        });
    }

    /// Returns the number of this warpgroup, computed anew: it occupies no register during the products.
    #[inline(always)]
    pub(super) fn own_group() -> u32 {
        warp::uniform(gpu::opaque_thread() / 128)
    }

    /// Returns the number of scale pairs that precede those of this warpgroup's rows `lane` and `lane + 32` of A;
    /// [`NOWHERE`] for missing rows.
    #[inline(always)]
    fn scales_of_rows(p: &GroupedParams, work: Work) -> [u32; 2] {
        let lane = gpu::opaque_thread() % 32;
        let gathers = p.flags & GROUPED_GATHER != 0;
        let stages = Self::opaque_if_mma_sync(p.k).div_ceil(DEPTH);
        [0, 32].map(|further| {
            let row = Self::own_group() * 64 + further + lane;
            let there = row < work.rows;
            let choice = p.order().at(work.first + row).ld_if(there && gathers);
            let source = if gathers { p.top.of(choice).0 } else { work.first + row };
            if there { source * stages } else { NOWHERE }
        })
    }

    /// Loads the scales of the lane's rows for block `block` along k.
    #[inline(always)]
    fn block_scales(p: &GroupedParams, rows: [u32; 2], block: u32) -> [u32; 2] {
        let at = p.a_scales().at(block);
        rows.map(|row| at.row(row, SCALES * 4).ld_if(row != NOWHERE))
    }

    /// Returns [`Self::scales`] of this warp's quarter of the columns, as the first element.
    #[inline(always)]
    fn scales_of_quarter(p: &GroupedParams, work: Work) -> [u32; 2] {
        let [first, second] = Self::scales(p, work);
        let is_second = Self::SCALE_CHUNKS == 1 && gpu::opaque_thread() / 64 % 2 != 0;
        [if is_second { second } else { first }, NO_SCALE]
    }

    /// Multiplies rows of codes by codes, like `products`. For two chunks of columns.
    #[inline(always)]
    pub(super) fn products_of_codes(
        p: &GroupedParams,
        work: Work,
        ring: &mut Ring<Self>,
        acc: &mut Acc<CHUNKS>,
    ) {
        let rows = Self::scales_of_rows(p, work);
        let columns = Self::scales_of_quarter(p, work);
        let count = Self::count(work) - Self::own_group() * 64;
        let mut block = 0;
        while block / Self::BLOCKS * Self::STAGE_K < p.k {
            warp::nounroll();
            if block % Self::BLOCKS == 0 {
                ring.wait_full();
            }
            // Scales arrive while the block is multiplied.
            let by_row = Self::block_scales(p, rows, block);
            let [by_column, _] = Self::factors(p, columns, block / SCALES * DEPTH);
            let place = (ring.slot, block % Self::BLOCKS);
            Self::multiply_block(acc, place, count, (by_row, by_column));
            block += 1;
            if block % Self::BLOCKS == 0 {
                if block / Self::BLOCKS * Self::STAGE_K < p.k {
                    Self::release(ring.slot);
                }
                ring.advance();
            }
        }
    }

    /// Adds the products of block `block` of a stage, each times the scales of its row and of the columns, for the
    /// first `rows` rows.
    #[inline(always)]
    fn multiply_block(
        acc: &mut Acc<CHUNKS>,
        (slot, block): (u32, u32),
        rows: u32,
        (by_row, by_column): ([u32; 2], f32),
    ) {
        let (warp, lane) = gpu::warp_and_lane();
        // Rows are swizzled over 128 bytes.
        let (row, chunk) = frag::ldmatrix_x4(lane);
        let first = block * Self::STEPS as u32 * 32;
        let a = Self::stage(slot).bytes((Self::own_group() * 64 + row) * ROW);
        let a_chunk = ((row % 8) << 4) ^ (chunk * 16) ^ first;
        let (column, chunk) = frag::ldmatrix_x4_columns(lane);
        let b = Self::w_of(slot).0.bytes((warp * 16 * CHUNKS as u32 + column) * ROW);
        let b_chunk = ((column % 8) << 4) ^ (chunk * 16) ^ first;
        let mut held = [[[0; 4]; CHUNKS]; 4];
        unroll!(step < Self::STEPS, most 4, {
            unroll!(n < CHUNKS, most 4, {
                let at = b.bytes(n as u32 * 16 * ROW);
                held[step][n] = at.bytes(b_chunk ^ (step as u32 * 32)).ldmatrix();
            });
        });
        unroll!(m < 4, {
            if m as u32 * 16 < rows {
                let mut sums = [[[0.0; 4]; 2]; CHUNKS];
                unroll!(step < Self::STEPS, most 4, {
                    let at = a.bytes(m as u32 * 16 * ROW);
                    let own = at.bytes(a_chunk ^ (step as u32 * 32)).ldmatrix();
                    unroll!(n < CHUNKS, most 4, {
                        unroll!(half < 2, {
                            let b = [held[step][n][2 * half], held[step][n][2 * half + 1]];
                            if Self::FP8 {
                                matrix::mma_e4m3(&mut sums[n][half], own, b);
                            } else {
                                matrix::mma_f16(&mut sums[n][half], own, b);
                            }
                        });
                    });
                });
                let by = [0, 8].map(|r| {
                    let own = warp::shfl(by_row[m / 2], (m as u32 % 2) * 16 + lane / 4 + r);
                    f32::from_bits(own) * by_column
                });
                unroll!(n < CHUNKS, most 4, {
                    unroll!(half < 2, {
                        let atom = m * 2 * CHUNKS + 2 * n + half;
                        unroll!(i < 4, {
                            let sum = &mut acc.0[atom / 8][atom % 8 * 4 + i];
                            *sum = matrix::fma_f32(sums[n][half][i], by[i / 2], *sum);
                        });
                    });
                });
            }
        });
    }
}
