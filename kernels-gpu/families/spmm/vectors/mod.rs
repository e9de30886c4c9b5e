//! SpMM on Tensor Cores for unstructured A. A window is eight rows of A; a column of a window that has an entry is a
//! *vector*. The operands are swapped, C^T = B^T A^T, so that the vectors are the 8-wide operand of `mma.m16n8`, which
//! wastes the fewest multiplications (FlashSparse, arXiv 2412.11007, section 3). Every warp copies its rows of B
//! through a ring in shared memory.

mod elem;

use crate::device::epilogue::{Output, finish, output, row_bias, scale};
use crate::device::prelude::*;
use crate::families::spmm::abi::*;
pub use elem::VectorElem;

buffers! {
    // `VectorProduct` makes the windows and the records from the pattern of A, and checks the alignment and the strides.
    // `ProductPlan` checks the shapes and the pattern.
    unsafe VectorsParams {
        windows: [u32; 4], ReadOnly;
        records: u32, ReadOnly;
        values: u8, ReadOnly;
        b: u8, ReadOnly;
    }
}

/// Accumulators of a slab (128 bytes of columns): 16 columns an atom, in the atom's layout.
pub type Slab = [[f32; 4]; 4];

/// A lane's entries of a step, which are loading: those of row `lane / 4` in the vectors from `4 (lane % 4)` on.
#[derive(Clone, Copy)]
struct Entries {
    raw: [u32; 4],
    /// Bit j: vector j has an entry.
    valid: u32,
    /// Index of the first entry in `raw`.
    first: u32,
}

impl VectorsParams {
    #[inline(always)]
    fn output(&self) -> Output {
        output!(self)
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
    /// Address of this lane's 16 bytes in row 0 of B.
    b: Global<u8, ReadOnly>,
    column: u32,
    lane: u32,
    ring: u32,
}

impl Share {
    #[inline(always)]
    fn record(&self, p: &VectorsParams, step: u32) -> Record {
        let ok = step < self.steps;
        let (four, g) = (self.lane as u64 / 8, self.lane as u64 / 4);
        if p.wide == 0 {
            let at = self.records.row(step, record_bytes(false) as u64);
            let [a, b] = at.cast::<[u32; 2]>().at(four).ld_if(ok);
            Record {
                columns: [a & 0xffff, a >> 16, b & 0xffff, b >> 16],
                word: at.bytes(STEP_VECTORS as u64 * 2).at(g).ld_if(ok),
            }
        } else {
            let at = self.records.row(step, record_bytes(true) as u64);
            Record {
                columns: at.cast::<[u32; 4]>().at(four).ld_if(ok),
                word: at.bytes(STEP_VECTORS as u64 * 4).at(g).ld_if(ok),
            }
        }
    }

    /// Starts the copies of a step into a stage, eight lanes a row. Missing vectors and columns are filled with zeros,
    /// because zero times infinity is not zero.
    #[inline(always)]
    fn fetch<E: VectorElem, const SLABS: usize>(
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
                let from = self.b.row(columns[j], p.ldb_bytes);
                let valid = four * LANE_VECTORS as u32 + (j as u32) < left;
                let to = stage + E::chunk(E::place(four, j as u32), self.lane % 8);
                unroll!(s < SLABS, {
                    let column = self.column + (s * SLAB_BYTES) as u32 / E::BYTES;
                    let bytes = if valid && column < p.n { 16 } else { 0 };
                    let from = if bytes > 0 { from.bytes((s * SLAB_BYTES) as u64) } else { p.b() };
                    from.cp_async_16(to + (s * STAGE_SLAB) as u32, bytes);
                });
            });
        }
        copy::cp_async_commit();
    }

    /// Starts the loads of this lane's entries of a step.
    #[inline(always)]
    fn entries<E: VectorElem>(&self, p: &VectorsParams, word: u32) -> Entries {
        let below = self.lane % 4 * LANE_VECTORS as u32;
        let valid = word >> below & 0xf;
        let before = (word & ((1 << below) - 1)).count_ones();
        let index = self.base as u64 + (word >> 16) as u64 + before as u64;
        let (raw, first) = E::entries(p.values().cast(), index, valid);
        Entries { raw, valid, first }
    }
}

impl<const SLABS: usize, F: VectorsForm> Vectors<SLABS, F> {
    /// Sums every `PARTS`th step of a window from `part` on. Rows of B are copied two steps ahead, entries of A are
    /// loaded one step ahead.
    #[inline(always)]
    fn sum<E: VectorElem>(p: &VectorsParams, share: &Share, part: u32) -> [Slab; SLABS] {
        let mut acc = [[[0f32; 4]; 4]; SLABS];
        let each = const { (SLABS * STAGE_SLAB) as u32 };
        let end = share.ring + Self::RING as u32;
        let mut step = part;
        let first = share.record(p, step);
        let mut next = share.record(p, step + F::PARTS);
        let mut ahead = share.record(p, step + 2 * F::PARTS);
        share.fetch::<E, SLABS>(p, step, share.ring, first.columns);
        let mut entries = share.entries::<E>(p, first.word);
        share.fetch::<E, SLABS>(p, step + F::PARTS, share.ring + each, next.columns);
        let (mut here, mut free) = (share.ring, share.ring + 2 * each);
        while step < share.steps {
            share.fetch::<E, SLABS>(p, step + 2 * F::PARTS, free, ahead.columns);
            let later = share.record(p, step + 3 * F::PARTS);
            let following = share.entries::<E>(p, next.word);
            copy::cp_async_wait::<2>();
            // The copies of all lanes become visible to the warp.
            warp::sync(u32::MAX);
            let operand = E::operand(entries.raw, entries.first, entries.valid);
            unroll!(s < SLABS, {
                E::step(&mut acc[s], here + (s * STAGE_SLAB) as u32, share.lane, operand);
            });
            (next, ahead, entries) = (ahead, later, following);
            free = here;
            here = if here + each == end { share.ring } else { here + each };
            step += F::PARTS;
            // No lane overwrites a stage that another lane still reads.
            warp::sync(u32::MAX);
        }
        copy::cp_async_wait::<0>();
        acc
    }

    /// Returns the offset in a warp's ring of a sum: row `row` of the window, column `column` of a slab. Groups of
    /// eight columns are permuted so that four pairs of rows use different banks.
    #[inline(always)]
    fn place(slab: u32, row: u32, column: u32) -> u32 {
        let columns = Self::SLAB_COLUMNS as u32;
        (slab * WINDOW as u32 + row) * columns * 4 + (column ^ (row / 2 * 8)) * 4
    }

    /// Stores a warp's sums in its ring.
    #[inline(always)]
    fn stage_sums(share: &Share, acc: &[Slab; SLABS]) {
        let (g, q) = (share.lane / 4, share.lane % 4);
        unroll!(s < SLABS, {
            unroll!(t < 4, {
                if t < Self::SLAB_COLUMNS / 16 {
                    unroll!(i < 4, {
                        let (row, column) =
                            (q * 2 + i as u32 % 2, t as u32 * 16 + i as u32 / 2 * 8);
                        let at = share.ring + Self::place(s as u32, row, column + g);
                        copy::st_shared_b32(at, acc[s][t][i].to_bits());
                    });
                }
            });
        });
    }

    /// Adds the parts in order and stores the rows: 16 bytes a lane, eight lanes for 128 bytes of a row.
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
            while of < F::PARTS {
                let from = rings + of * Self::RING as u32;
                unroll!(i < V, {
                    if i % 4 == 0 {
                        let column = chunk * V as u32 + i as u32;
                        let four = copy::ld_shared_v4(from + Self::place(slab, within, column));
                        unroll!(j < 4, { sum[i + j] += f32::from_bits(four[j]) });
                    }
                });
                of += 1;
            }
            if row < p.m {
                let own = filled >> within & 1;
                // The sum of a row without entries is zero, whatever B holds.
                unroll!(i < V, {
                    sum[i] = if own != 0 { sum[i] } else { 0.0 };
                });
                let column = gpu::block_y() * Self::COLUMNS
                    + slab * Self::SLAB_COLUMNS as u32
                    + chunk * V as u32;
                let factors = (scale::<E>(o, own), row_bias::<E>(o, row));
                finish::<E, V>(o, row, column, factors, sum);
            }
            item += F::PARTS * 32;
        }
    }
}

impl<W: WalkInfo, E: VectorElem, const SLABS: usize, F: VectorsForm> Kernel<W, E, VectorsParams>
    for Vectors<SLABS, F>
{
    #[inline(always)]
    unsafe fn run(p: &VectorsParams, _at: Maps) {
        let (lane, warp) = (gpu::thread() % 32, gpu::thread() / 32);
        let part = warp % F::PARTS;
        let index = gpu::block_x() * F::WINDOWS + warp / F::PARTS;
        let inside = index < p.window_count;
        // With one part no thread waits for another. With several, every thread must reach the barrier.
        if F::PARTS == 1 && !inside {
            return;
        }
        let [window, first, vectors, base] = p.windows().at(index).ld_if(inside);
        let column = gpu::block_y() * Self::COLUMNS + lane % 8 * (16 / F::BYTES) as u32;
        let count = vectors & WINDOW_VECTORS as u32;
        let share = Share {
            records: p.records().row(first, record_bytes(p.wide != 0) as u64),
            base,
            vectors: count,
            steps: count.div_ceil(STEP_VECTORS as u32),
            b: p.b().row(column, E::BYTES),
            column,
            lane,
            ring: copy::dynamic_shared() + warp * Self::RING as u32,
        };
        let acc = Self::sum::<E>(p, &share, part);
        Self::stage_sums(&share, &acc);
        if F::PARTS > 1 {
            gpu::sync_threads();
        } else {
            warp::sync(u32::MAX);
        }
        if !inside {
            return;
        }
        let (at, rings) = ((window, vectors >> 24), share.ring - part * Self::RING as u32);
        if F::BYTES == 2 {
            Self::write::<E, 8>(p, at, rings, part);
        } else {
            Self::write::<E, 4>(p, at, rings, part);
        }
    }
}
