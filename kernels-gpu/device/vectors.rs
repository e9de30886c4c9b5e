//! SpMM on Tensor Cores for A made of single entries: rows of A by eight, of which a column with an entry is a *vector*.
//! The operands are swapped, C^T = B^T A^T, so that the vectors are the 8-wide operand of `mma.m16n8` and waste
//! the least (FlashSparse, arXiv 2412.11007, section 3). Every warp brings its rows of B through a ring in shared memory.

use super::epilogue::{Output, finish, row_bias, scale};
use super::gpu;
use super::mma::MmaElem;
use super::ptx::{copy, global, matrix, warp};
use crate::abi::*;
use crate::frag;

/// The body, generic over the element; the tile is the implementor.
pub trait Body: Tile {
    /// # Safety
    /// `p` describes live device memory and the launch has this tile's geometry.
    unsafe fn run<W: WalkInfo, E: VectorElem>(p: &VectorsParams, _at: u64);
}

/// Accumulators of a slab: 16 columns to an atom, as the atom has them.
type Slab = [[f32; 4]; 4];

/// A lane's entries of a step: those of row `lane / 4` in the vectors `4 (lane % 4) ..`, on their way from memory.
#[derive(Clone, Copy)]
struct Entries {
    raw: [u32; 4],
    /// Bit j: there is one in vector j.
    there: u32,
    /// Place of the first in `raw`.
    first: u32,
}

/// An element type, with its atom. Lanes hold four neighbouring vectors of a step, so that their entries are neighbours too; where the
/// atom wants these along k, `place` says.
pub trait VectorElem: MmaElem {
    /// Row of a stage in which vector `4 q + j` lies.
    fn place(q: u32, j: u32) -> u32;
    /// Byte offset of a 16-byte chunk of a row of a slab.
    fn chunk(row: u32, chunk: u32) -> u32;
    /// Starts to load up to four entries from number `index`; bit j of `there`: vector j has one.
    fn entries(values: u64, index: u64, there: u32) -> ([u32; 4], u32);
    /// Four vectors' entries as the atom takes them, zero where there is none.
    fn operand(raw: [u32; 4], first: u32, there: u32) -> [u32; LANE_VECTORS];
    /// Adds a step to a slab's accumulators; `at` is the slab in the stage.
    fn step(acc: &mut Slab, at: u32, lane: u32, operand: [u32; LANE_VECTORS]);
}

macro_rules! half_vectors {
    ($elem:ident) => {
        impl VectorElem for $elem {
            #[inline(always)]
            fn place(q: u32, j: u32) -> u32 {
                q * 2 + j % 2 + j / 2 * 8
            }
            #[inline(always)]
            fn chunk(row: u32, chunk: u32) -> u32 {
                frag::swizzle(row, chunk, SLAB_BYTES as u32)
            }
            /// Entries by the aligned eight bytes in which they lie, at most two of them: each is a look-up in eight rows.
            #[inline(always)]
            fn entries(values: u64, index: u64, there: u32) -> ([u32; 4], u32) {
                let (count, first) = (there.count_ones(), index as u32 & 3);
                let at = values + (index & !3) * 2;
                let [a, b] = global::load_v2(at, count > 0);
                let [c, d] = global::load_v2(at + 8, first + count > 4);
                ([a, b, c, d], first)
            }
            #[inline(always)]
            fn operand(raw: [u32; 4], first: u32, there: u32) -> [u32; LANE_VECTORS] {
                let [mut a, mut b, mut c, d] = raw;
                if first & 2 != 0 {
                    (a, b, c) = (b, c, d);
                }
                let half = 0x3210 + (first & 1) * 0x2222;
                let (low, high) = (matrix::bytes(a, b, half), matrix::bytes(b, c, half));
                // Vector j has as many entries in front of it as there are bits below.
                let (b0, b1, b2) = (there & 1, there >> 1 & 1, there >> 2 & 1);
                let pair = |one: u32, two: u32| 0x1010 + one * 0x22 + two * 0x2200;
                let mask = |bits: u32| (bits & 1) * 0xffff | (bits >> 1 & 1) * 0xffff_0000;
                [
                    matrix::bytes(low, high, pair(0, b0)) & mask(there),
                    matrix::bytes(low, high, pair(b0 + b1, b0 + b1 + b2)) & mask(there >> 2),
                    0,
                    0,
                ]
            }
            #[inline(always)]
            fn step(acc: &mut Slab, at: u32, lane: u32, v: [u32; LANE_VECTORS]) {
                // Matrices 0, 2 are rows 0 to 7 and 8 to 15 of a chunk, 1 and 3 of the next.
                let row = lane % 8 + lane / 16 * 8;
                let from = at + Self::chunk(row, lane / 8 % 2);
                unroll!(t < 4, {
                    // Chunk 2 t + c lies where c does, but for the bits of 2 t.
                    let a = matrix::ldmatrix_x4_trans(from ^ (t as u32 * 32));
                    Self::mma(&mut acc[t], a, [v[0], v[1]]);
                });
            }
        }
    };
}

half_vectors!(F16);
half_vectors!(Bf16);

impl VectorElem for Tf32 {
    #[inline(always)]
    fn place(q: u32, j: u32) -> u32 {
        q + j % 2 * 4 + j / 2 * 8
    }
    /// Four neighbouring rows, of two chunks each, fall into different banks.
    #[inline(always)]
    fn chunk(row: u32, chunk: u32) -> u32 {
        frag::swizzle(0, chunk ^ (row * 2 & 7), SLAB_BYTES as u32) + row * SLAB_BYTES as u32
    }
    #[inline(always)]
    fn entries(values: u64, index: u64, there: u32) -> ([u32; 4], u32) {
        let mut raw = [0; 4];
        unroll!(j < 4, {
            let before = there & ((1 << j) - 1);
            let at = values + (index + before.count_ones() as u64) * 4;
            raw[j] = global::load_b32(at, there >> j & 1 != 0);
        });
        (raw, 0)
    }
    #[inline(always)]
    fn operand(raw: [u32; 4], _first: u32, _there: u32) -> [u32; LANE_VECTORS] {
        raw.map(matrix::round_tf32)
    }
    #[inline(always)]
    fn step(acc: &mut Slab, at: u32, lane: u32, v: [u32; LANE_VECTORS]) {
        let (g, q) = (lane / 4, lane % 4);
        let load = |row: u32, column: u32| {
            let from = at + Self::chunk(row, column / 4) + column % 4 * 4;
            matrix::round_tf32(copy::load_shared_b32(from))
        };
        // Two atoms of eight vectors.
        unroll!(half < 2, {
            unroll!(t < 2, {
                let (row, column) = (half as u32 * 8 + q, t as u32 * 16 + g);
                let a = [
                    load(row, column),
                    load(row, column + 8),
                    load(row + 4, column),
                    load(row + 4, column + 8),
                ];
                Self::mma(&mut acc[t], a, [v[2 * half], v[2 * half + 1]]);
            });
        });
    }
}

impl VectorsParams {
    /// Where results go.
    #[inline(always)]
    fn output(&self) -> Output {
        Output {
            c: self.c,
            bias: self.bias,
            alpha: self.alpha,
            ldc_bytes: self.ldc_bytes,
            n: self.n,
            flags: self.flags,
            gate: 0,
            gate_bytes: 0,
        }
    }
}

/// What a lane knows of a step: columns of the four vectors whose rows of B it helps to copy, and the word of its row of A.
#[derive(Clone, Copy)]
struct Record {
    columns: [u32; LANE_VECTORS],
    word: u32,
}

/// One warp's share of a window.
#[derive(Clone, Copy)]
struct Share {
    /// Address of the window's first record.
    records: u64,
    /// Value from which words count.
    base: u32,
    vectors: u32,
    steps: u32,
    /// Address of this lane's 16 bytes in row 0 of B.
    b: u64,
    /// Their first column.
    column: u32,
    lane: u32,
    /// The warp's ring.
    ring: u32,
}

impl Share {
    #[inline(always)]
    fn record(&self, p: &VectorsParams, step: u32) -> Record {
        let ok = step < self.steps;
        let (four, g) = (self.lane as u64 / 8, self.lane as u64 / 4);
        if p.wide == 0 {
            let at = self.records + step as u64 * record_bytes(false) as u64;
            let [a, b] = global::load_v2(at + four * 8, ok);
            Record {
                columns: [a & 0xffff, a >> 16, b & 0xffff, b >> 16],
                word: global::load_b32(at + STEP_VECTORS as u64 * 2 + g * 4, ok),
            }
        } else {
            let at = self.records + step as u64 * record_bytes(true) as u64;
            Record {
                columns: global::load_v4(at + four * 16, ok),
                word: global::load_b32(at + STEP_VECTORS as u64 * 4 + g * 4, ok),
            }
        }
    }

    /// Starts the copies of a step into a stage, eight lanes to a row. Where there is no vector, or no column, come zeros: zero
    /// times infinity is none.
    #[inline(always)]
    fn fetch<E: VectorElem, const SLABS: usize, const NEAR: bool>(
        &self,
        p: &VectorsParams,
        step: u32,
        stage: u32,
        columns: [u32; LANE_VECTORS],
    ) {
        if step < self.steps {
            let four = self.lane / 8;
            let left = self.vectors - step * STEP_VECTORS as u32;
            unroll!(j < LANE_VECTORS, {
                let from = self.b + columns[j] as u64 * p.ldb_bytes as u64;
                let there = four * LANE_VECTORS as u32 + (j as u32) < left;
                let to = stage + E::chunk(E::place(four, j as u32), self.lane % 8);
                unroll!(s < SLABS, {
                    let column = self.column + (s * SLAB_BYTES) as u32 / E::BYTES;
                    let bytes = if there && column < p.n { 16 } else { 0 };
                    let from = if bytes > 0 {
                        from + (s * SLAB_BYTES) as u64
                    } else {
                        p.b
                    };
                    let to = to + (s * STAGE_SLAB) as u32;
                    if NEAR {
                        copy::copy_async_16_near(to, from, bytes);
                    } else {
                        copy::copy_async_16(to, from, bytes);
                    }
                });
            });
        }
        copy::copy_commit();
    }

    /// Starts the loads of this lane's entries of a step.
    #[inline(always)]
    fn entries<E: VectorElem>(&self, p: &VectorsParams, word: u32) -> Entries {
        let below = self.lane % 4 * LANE_VECTORS as u32;
        let there = word >> below & 0xf;
        let before = (word & ((1 << below) - 1)).count_ones();
        let index = self.base as u64 + (word >> 16) as u64 + before as u64;
        let (raw, first) = E::entries(p.values, index, there);
        Entries { raw, there, first }
    }
}

impl<
    const WINDOWS: u32,
    const PARTS: u32,
    const SLABS: usize,
    const BYTES: usize,
    const RING_STAGES: usize,
    const NEAR: bool,
> Vectors<WINDOWS, PARTS, SLABS, BYTES, RING_STAGES, NEAR>
{
    /// Every `PARTS`-th step of a window from `part`. Rows of B arrive as many steps ahead as the ring has stages to spare, entries
    /// of A one.
    #[inline(always)]
    fn sum<E: VectorElem>(p: &VectorsParams, share: &Share, part: u32) -> [Slab; SLABS] {
        const { assert!(RING_STAGES == 2 || RING_STAGES == 3) };
        let mut acc = [[[0f32; 4]; 4]; SLABS];
        let each = const { (SLABS * STAGE_SLAB) as u32 };
        let (end, deep) = (share.ring + Self::RING as u32, RING_STAGES == 3);
        let mut step = part;
        let first = share.record(p, step);
        let mut next = share.record(p, step + PARTS);
        let mut ahead = next;
        share.fetch::<E, SLABS, NEAR>(p, step, share.ring, first.columns);
        let mut entries = share.entries::<E>(p, first.word);
        let (mut here, mut free) = (share.ring, share.ring + each);
        if deep {
            ahead = share.record(p, step + 2 * PARTS);
            share.fetch::<E, SLABS, NEAR>(p, step + PARTS, free, next.columns);
            free += each;
        }
        while step < share.steps {
            let reach = (RING_STAGES as u32 - 1) * PARTS;
            share.fetch::<E, SLABS, NEAR>(p, step + reach, free, ahead.columns);
            let later = share.record(p, step + reach + PARTS);
            let following = share.entries::<E>(p, next.word);
            if deep {
                copy::copy_wait::<2>();
            } else {
                copy::copy_wait::<1>();
            }
            // What other lanes copied is there for all.
            warp::sync_lanes(u32::MAX);
            let operand = E::operand(entries.raw, entries.first, entries.there);
            unroll!(s < SLABS, {
                E::step(
                    &mut acc[s],
                    here + (s * STAGE_SLAB) as u32,
                    share.lane,
                    operand,
                );
            });
            next = if deep { ahead } else { later };
            (ahead, entries) = (later, following);
            free = here;
            here = if here + each == end {
                share.ring
            } else {
                here + each
            };
            step += PARTS;
            // Nobody overwrites what another lane still reads.
            warp::sync_lanes(u32::MAX);
        }
        copy::copy_wait::<0>();
        acc
    }

    /// Where the sum of a row of the window and the columns from `column` of a slab lies in a warp's ring: eight columns together, in an
    /// order by which four pairs of rows fall into different banks.
    #[inline(always)]
    fn place(slab: u32, row: u32, column: u32) -> u32 {
        let columns = Self::SLAB_COLUMNS as u32;
        (slab * WINDOW as u32 + row) * columns * 4 + (column ^ (row / 2 * 8)) * 4
    }

    /// Leaves a warp's sums in its ring.
    #[inline(always)]
    fn leave(share: &Share, acc: &[Slab; SLABS]) {
        let (g, q) = (share.lane / 4, share.lane % 4);
        unroll!(s < SLABS, {
            unroll!(t < 4, {
                if t < Self::SLAB_COLUMNS / 16 {
                    unroll!(i < 4, {
                        let (row, column) =
                            (q * 2 + i as u32 % 2, t as u32 * 16 + i as u32 / 2 * 8);
                        let at = share.ring + Self::place(s as u32, row, column + g);
                        copy::store_shared_b32(at, acc[s][t][i].to_bits());
                    });
                }
            });
        });
    }

    /// Adds the parts in order and writes the rows: 16 bytes a lane, eight lanes to 128 bytes of a row.
    #[inline(always)]
    fn write<E: VectorElem, const V: usize>(
        p: &VectorsParams,
        (window, filled): (u32, u32),
        rings: u32,
        part: u32,
    ) {
        let o = p.output();
        let lane = gpu::thread() % 32;
        let mut item = part * 32 + lane;
        while item < (SLABS * WINDOW * 8) as u32 {
            let (slab, within, chunk) = (item / 64, item / 8 % 8, item % 8);
            let row = window * WINDOW as u32 + within;
            let mut sum = [0f32; V];
            let mut of = 0;
            while of < PARTS {
                let from = rings + of * Self::RING as u32;
                unroll!(i < V, {
                    if i % 4 == 0 {
                        let column = chunk * V as u32 + i as u32;
                        let four = copy::load_shared_v4(from + Self::place(slab, within, column));
                        unroll!(j < 4, { sum[i + j] += f32::from_bits(four[j]) });
                    }
                });
                of += 1;
            }
            if row < p.m {
                let own = filled >> within & 1;
                // A row without entries has no sum, whatever B holds.
                unroll!(i < V, {
                    sum[i] = if own != 0 { sum[i] } else { 0.0 };
                });
                let column = gpu::block_y() * Self::COLUMNS
                    + slab * Self::SLAB_COLUMNS as u32
                    + chunk * V as u32;
                let factors = (scale::<E>(o, own), row_bias::<E>(o, row));
                finish::<E, V>(o, row, column, factors, sum);
            }
            item += PARTS * 32;
        }
    }
}

impl<
    const WINDOWS: u32,
    const PARTS: u32,
    const SLABS: usize,
    const BYTES: usize,
    const RING_STAGES: usize,
    const NEAR: bool,
> Body for Vectors<WINDOWS, PARTS, SLABS, BYTES, RING_STAGES, NEAR>
{
    #[inline(always)]
    unsafe fn run<W: WalkInfo, E: VectorElem>(p: &VectorsParams, _at: u64) {
        let (lane, warp) = (gpu::thread() % 32, gpu::thread() / 32);
        let part = warp % PARTS;
        let index = gpu::block_x() * WINDOWS + warp / PARTS;
        let inside = index < p.window_count;
        // With one part nobody waits for anybody; else every thread must reach the barrier.
        if PARTS == 1 && !inside {
            return;
        }
        let [window, first, vectors, base] = global::load_v4(p.windows + index as u64 * 16, inside);
        let column = gpu::block_y() * Self::COLUMNS + lane % 8 * (16 / BYTES) as u32;
        let count = vectors & WINDOW_VECTORS as u32;
        let share = Share {
            records: p.records + first as u64 * record_bytes(p.wide != 0) as u64,
            base,
            vectors: count,
            steps: count.div_ceil(STEP_VECTORS as u32),
            b: p.b + column as u64 * E::BYTES as u64,
            column,
            lane,
            ring: copy::arena() + warp * Self::RING as u32,
        };
        let acc = Self::sum::<E>(p, &share, part);
        Self::leave(&share, &acc);
        if PARTS > 1 {
            gpu::sync_threads();
        } else {
            warp::sync_lanes(u32::MAX);
        }
        if !inside {
            return;
        }
        let (at, rings) = (
            (window, vectors >> 24),
            share.ring - part * Self::RING as u32,
        );
        if BYTES == 2 {
            Self::write::<E, 8>(p, at, rings, part);
        } else {
            Self::write::<E, 4>(p, at, rings, part);
        }
    }
}
