//! The kernels `vectors_narrow`: windows of eight rows of A as in `vectors`, for 8-bit integers, on `mma.m16n8k16.s8`
//! with swapped operands and i32 accumulators. `ldmatrix.trans` transposes pairs of bytes; a byte permutation then
//! sorts them by columns.

use crate::device::epilogue::{Output, finish, output, scale};
use crate::device::prelude::*;
use crate::families::spmm::abi::*;

/// Sums of 16 columns and eight rows in the atom's layout: lane `4 g + q` has rows `2 q` and `2 q + 1` of column `2 g`,
/// then of column `2 g + 1`.
type Square = [u32; 4];
/// Squares of 128 columns.
const SQUARES: usize = SLAB_BYTES / 16;

/// A lane's entries of a step, those of row `lane / 4` in the vectors from `4 (lane % 4)` on, as the two aligned words
/// that contain them.
#[derive(Clone, Copy)]
struct Entries {
    words: [u32; 2],
    /// Bit j: vector j has an entry.
    valid: u32,
    /// Byte of the first entry.
    first: u32,
}

impl Entries {
    /// Returns four bytes, with zero if there is no entry.
    #[inline(always)]
    fn operand(self) -> u32 {
        let own = matrix::prmt(self.words[0], self.words[1], 0x3210 + self.first * 0x1111);
        let valid = self.valid;
        // The number of entries before that of vector j is the number of bits below bit j. The second word is zero.
        let before = (valid & 1) * 0x1110 + (valid >> 1 & 1) * 0x1100 + (valid >> 2 & 1) * 0x1000;
        let absent = !valid & 0xf;
        let zeros = (absent & 1) << 2 | (absent & 2) << 5 | (absent & 4) << 8 | (absent & 8) << 11;
        matrix::prmt(own, 0, before + zeros)
    }
}

/// A lane's share of a step's record: columns of the four vectors whose rows of B it helps to copy, and the word of its
/// row of A.
#[derive(Clone, Copy)]
struct Record {
    columns: [u32; LANE_VECTORS],
    word: u32,
}

/// One warp's share of a window.
#[derive(Clone, Copy)]
struct Share {
    records: Global<u32, ReadOnly>,
    /// First value, to which the words of the records are relative.
    base: u32,
    vectors: u32,
    steps: u32,
    /// Address of this lane's 16 bytes in row 0 of B, and the number of these bytes that are inside.
    b: Global<u8, ReadOnly>,
    bytes: u32,
    /// Squares (16 columns) of the warp that are inside.
    squares: u32,
    lane: u32,
    ring: u32,
}

impl Share {
    #[inline(always)]
    fn record(&self, p: &VectorsParams, step: u32) -> Record {
        let ok = step < self.steps;
        let (four, g) = (self.lane as u64 / 8, self.lane as u64 / 4);
        let at = self.records.row(step, record_bytes(p.wide != 0) as u64);
        if p.wide == 0 {
            let [a, b] = at.cast::<[u32; 2]>().at(four).ld_if(ok);
            Record {
                columns: [a & 0xffff, a >> 16, b & 0xffff, b >> 16],
                word: at.bytes(STEP_VECTORS as u64 * 2).at(g).ld_if(ok),
            }
        } else {
            Record {
                columns: at.cast::<[u32; 4]>().at(four).ld_if(ok),
                word: at.bytes(STEP_VECTORS as u64 * 4).at(g).ld_if(ok),
            }
        }
    }

    /// Starts the copies of a step into a stage, eight lanes a row. Bytes copied for missing vectors are multiplied by
    /// zero, and an integer times zero is zero.
    #[inline(always)]
    fn fetch<const ALIGNED: bool>(
        &self,
        p: &VectorsParams,
        step: u32,
        stage: u32,
        columns: [u32; LANE_VECTORS],
    ) {
        if step < self.steps {
            let four = self.lane / 8;
            let left = self.vectors - step * STEP_VECTORS as u32;
            unroll!(j < 4, {
                let from = self.b.row(columns[j], p.ldb_bytes);
                let valid = four * LANE_VECTORS as u32 + (j as u32) < left;
                // Vectors 4 q and 4 q + 1 are stored in the upper eight rows, vectors 4 q + 2 and 4 q + 3 in the lower
                // eight.
                let row = four * 2 + j as u32 % 2 + j as u32 / 2 * 8;
                let to = stage + frag::swizzle(row, self.lane % 8, SLAB_BYTES as u32);
                let bytes = if valid { self.bytes } else { 0 };
                if ALIGNED {
                    let from = if bytes > 0 { from } else { p.b() };
                    from.cp_async_16(to, bytes);
                } else {
                    copy::st_shared_v4(to, by_bytes(from, bytes));
                }
            });
        }
        copy::cp_async_commit();
    }

    /// Starts the loads of this lane's entries of a step: at most two aligned words.
    #[inline(always)]
    fn entries(&self, p: &VectorsParams, word: u32) -> Entries {
        let below = self.lane % 4 * LANE_VECTORS as u32;
        let valid = word >> below & 0xf;
        let before = (word & ((1 << below) - 1)).count_ones();
        let at = p.values().at(self.base).at(word >> 16).at(before);
        let (count, first) = (valid.count_ones(), at.address() as u32 & 3);
        let from = at.aligned_down::<u32>();
        let words = [from.ld_if(count > 0), from.at(1u32).ld_if(first + count > 4)];
        Entries { words, valid, first }
    }

    /// Adds a step whose rows of B are in a stage.
    #[inline(always)]
    fn multiply(&self, acc: &mut [Square; SQUARES], stage: u32, operand: u32) {
        // Matrices 0 and 2 are rows 0 to 7 and 8 to 15 of a chunk of 16 columns, matrices 1 and 3 those of the next
        // chunk.
        let row = self.lane % 8 + self.lane / 16 * 8;
        let from = stage + frag::swizzle(row, self.lane / 8 % 2, SLAB_BYTES as u32);
        unroll!(t < 4, {
            if t as u32 * 2 < self.squares {
                // The address of chunk 2 t + c is that of chunk c with the bits of 2 t flipped.
                let m = matrix::ldmatrix_x4_trans(from ^ (t as u32 * 32));
                unroll!(c < 2, {
                    // Each register holds pairs of columns of two vectors. The permutation gives four vectors of one
                    // column, then of the other.
                    let (upper, lower) = (m[c], m[c + 2]);
                    let a =
                        [matrix::prmt(upper, lower, 0x6420), matrix::prmt(upper, lower, 0x7531)];
                    matrix::mma_s8(&mut acc[2 * t + c], a, operand);
                });
            }
        });
    }
}

/// Loads up to 16 bytes from any address and pads them with zeros.
#[inline(always)]
fn by_bytes(from: Global<u8, ReadOnly>, bytes: u32) -> [u32; 4] {
    let mut words = [0u32; 4];
    unroll!(w < 4, {
        unroll!(i < 4, {
            let at = (w * 4 + i) as u32;
            words[w] |= from.at(at).ld_if(at < bytes) << (8 * i as u32);
        });
    });
    words
}

#[inline(always)]
fn saturated(x: i64) -> u32 {
    x.clamp(i32::MIN as i64, i32::MAX as i64) as i32 as u32
}

/// Stores two neighbouring sums of a row, in the type of C given by the flags.
#[inline(always)]
fn store(o: Output, row: u32, column: u32, len: u32, sums: [u32; 2]) {
    if o.flags & FLAG_OUT_F16 != 0 {
        store_float::<F16>(o, row, column, len, sums);
    } else if o.flags & FLAG_OUT_BF16 != 0 {
        store_float::<Bf16>(o, row, column, len, sums);
    } else if o.flags & FLAG_OUT_F32 != 0 {
        store_float::<F32>(o, row, column, len, sums);
    } else {
        store_whole(o, row, column, sums);
    }
}

#[inline(always)]
fn store_float<E: crate::device::elem::Elem<Acc = f32>>(
    o: Output,
    row: u32,
    column: u32,
    len: u32,
    sums: [u32; 2],
) {
    let sums = sums.map(|x| x as i32 as f32);
    let factors = (scale::<E>(o, len), 0.0);
    if o.flags & FLAG_VECTORS != 0 {
        finish::<E, 2>(o, row, column, factors, sums);
    } else {
        unroll!(i < 2, {
            finish::<E, 1>(o, row, column + i as u32, factors, [sums[i]]);
        });
    }
}

/// Stores sums times an integer factor, saturated; adds them to C with `FLAG_ACCUMULATE`.
#[inline(always)]
fn store_whole(o: Output, row: u32, column: u32, sums: [u32; 2]) {
    let alpha = o.alpha as i32 as i64;
    let at = o.c.row(row, o.ldc_bytes).cast::<u32>().at(column);
    let mut words = [0u32; 2];
    unroll!(i < 2, {
        let inside = column + (i as u32) < o.n;
        let add = inside && o.flags & FLAG_ACCUMULATE != 0;
        let old = at.at(i as u64).ld_if(add) as i32;
        words[i] = saturated(sums[i] as i32 as i64 * alpha + old as i64);
    });
    if o.flags & FLAG_VECTORS != 0 {
        if column < o.n {
            at.cast::<[u32; 2]>().st(words);
        }
    } else {
        unroll!(i < 2, {
            let inside = column + (i as u32) < o.n;
            at.at(i as u64).st_if(words[i], inside);
        });
    }
}

impl<const WINDOWS: u32, const PARTS: u32, const ALIGNED: bool>
    NarrowVectors<WINDOWS, PARTS, ALIGNED>
{
    /// Sums every `PARTS`th step of a window from `part` on. Rows of B are copied two steps ahead, entries of A are
    /// loaded one step ahead.
    #[inline(always)]
    fn sum(p: &VectorsParams, share: &Share, part: u32) -> [Square; SQUARES] {
        let mut acc = [[0u32; 4]; SQUARES];
        let each = STAGE_SLAB as u32;
        let end = share.ring + Self::RING as u32;
        let mut step = part;
        let first = share.record(p, step);
        let mut next = share.record(p, step + PARTS);
        let mut ahead = share.record(p, step + 2 * PARTS);
        share.fetch::<ALIGNED>(p, step, share.ring, first.columns);
        let mut entries = share.entries(p, first.word);
        share.fetch::<ALIGNED>(p, step + PARTS, share.ring + each, next.columns);
        let (mut here, mut free) = (share.ring, share.ring + 2 * each);
        while step < share.steps {
            share.fetch::<ALIGNED>(p, step + 2 * PARTS, free, ahead.columns);
            let later = share.record(p, step + 3 * PARTS);
            let following = share.entries(p, next.word);
            copy::cp_async_wait::<2>();
            // The copies of all lanes become visible to the warp.
            warp::sync(u32::MAX);
            share.multiply(&mut acc, here, entries.operand());
            (next, ahead, entries) = (ahead, later, following);
            free = here;
            here = if here + each == end { share.ring } else { here + each };
            step += PARTS;
            // No lane overwrites a stage that another lane still reads.
            warp::sync(u32::MAX);
        }
        copy::cp_async_wait::<0>();
        acc
    }

    /// Returns the offset of a word of a lane's sums in the ring.
    #[inline(always)]
    fn place(lane: u32, square: u32, i: u32) -> u32 {
        ((square * 4 + i) * 32 + lane) * 4
    }

    /// Adds the parts and stores every `PARTS`th square of 16 columns.
    #[inline(always)]
    fn write(p: &VectorsParams, (window, filled): (u32, u32), share: &Share, part: u32) {
        let o = p.narrow_output();
        let rings = share.ring - part * Self::RING as u32;
        let (g, q) = (share.lane / 4, share.lane % 4);
        let mut square = part;
        while square < share.squares {
            let mut sums = [0u32; 4];
            let mut of = 0;
            while of < PARTS {
                let from = rings + of * Self::RING as u32;
                unroll!(i < 4, {
                    let at = from + Self::place(share.lane, square, i as u32);
                    sums[i] = sums[i].wrapping_add(copy::ld_shared_b32(at));
                });
                of += 1;
            }
            let column = gpu::block_y() * Self::COLUMNS + square * 16 + g * 2;
            unroll!(r < 2, {
                let within = q * 2 + r as u32;
                let row = window * WINDOW as u32 + within;
                if row < p.m {
                    let len = filled >> within & 1;
                    store(o, row, column, len, [sums[r], sums[r + 2]]);
                }
            });
            square += PARTS;
        }
    }
}

impl VectorsParams {
    #[inline(always)]
    fn narrow_output(&self) -> Output {
        let o = output!(self);
        Output { bias: o.c, ..o }
    }
}

impl<W: WalkInfo, E: ElemInfo, const WINDOWS: u32, const PARTS: u32, const ALIGNED: bool>
    Kernel<W, E, VectorsParams> for NarrowVectors<WINDOWS, PARTS, ALIGNED>
{
    #[inline(always)]
    unsafe fn run(p: &VectorsParams, _at: Maps) {
        let (lane, warp) = (gpu::thread() % 32, gpu::thread() / 32);
        let part = warp % PARTS;
        let index = gpu::block_x() * WINDOWS + warp / PARTS;
        let inside = index < p.window_count;
        // With one part no thread waits for another. With several, every thread must reach the barrier.
        if PARTS == 1 && !inside {
            return;
        }
        let [window, first, vectors, base] = p.windows().at(index).ld_if(inside);
        let left = gpu::block_y() * Self::COLUMNS;
        let column = left + lane % 8 * 16;
        let count = vectors & WINDOW_VECTORS as u32;
        let share = Share {
            records: p.records().row(first, record_bytes(p.wide != 0) as u64),
            base,
            vectors: count,
            steps: count.div_ceil(STEP_VECTORS as u32),
            b: p.b().at(column),
            bytes: p.n.saturating_sub(column).min(16),
            squares: (p.n - left).div_ceil(16).min(SQUARES as u32),
            lane,
            ring: copy::dynamic_shared() + warp * Self::RING as u32,
        };
        let acc = Self::sum(p, &share, part);
        unroll!(c < SQUARES, {
            unroll!(i < 4, {
                let at = share.ring + Self::place(lane, c as u32, i as u32);
                copy::st_shared_b32(at, acc[c][i]);
            });
        });
        if PARTS > 1 {
            gpu::sync_threads();
        } else {
            warp::sync(u32::MAX);
        }
        if inside {
            Self::write(p, (window, vectors >> 24), &share, part);
        }
    }
}
