//! One warp's share of a window: rows of B pass through a ring in shared memory, entries of A through registers.

use crate::device::memory::Word;
use crate::device::prelude::*;
use crate::families::spmm::abi::*;

/// A lane's entries of a step, which are loading: those of row `lane / 4` in the vectors from `4 (lane % 4)` on.
#[derive(Clone, Copy)]
pub struct Entries<V> {
    /// The two aligned words of four values that contain the entries.
    pub words: [V; 2],
    /// Bit j: vector j has an entry.
    pub valid: u32,
    /// Index of the first entry in `words`.
    pub first: u32,
}

/// A lane's share of a step's record: columns of the four vectors whose rows of B it helps to copy, and the word of its
/// row of A.
#[derive(Clone, Copy)]
struct Record {
    columns: [u32; LANE_VECTORS],
    word: u32,
}

/// The warps of a thread block that share a window take its steps round-robin.
#[derive(Clone, Copy)]
pub struct Share {
    /// Whether there is a window.
    pub inside: bool,
    pub window: u32,
    /// Bit j: row j of the window has an entry.
    pub filled: u32,
    /// Index of this warp among those that share the window.
    pub part: u32,
    /// First column of C of the thread block.
    pub left: u32,
    /// Column of this lane's 16 bytes of a row of B, and their address in row 0.
    pub column: u32,
    b: Global<u8, ReadOnly>,
    records: Global<u32, ReadOnly>,
    /// First value, to which the words of the records are relative.
    base: u32,
    vectors: u32,
    steps: u32,
    pub lane: u32,
    /// The warp's ring. At the end it holds the warp's sums.
    pub ring: Shared<u8>,
}

impl Share {
    /// Returns this warp's share in a thread block of tile `T`. Elements of B have `bytes` bytes.
    #[inline(always)]
    pub fn new<T: Tile>(p: &VectorsParams, bytes: u32) -> Share {
        let (lane, warp) = (gpu::thread() % 32, gpu::thread() / 32);
        let index = gpu::block_x() * T::ITEMS + warp / T::PARTS;
        let inside = index < p.window_count;
        let [window, first, vectors, base] = p.windows().at(index).ld_if(inside);
        let left = gpu::block_y() * T::COLUMNS;
        let column = left + lane % 8 * (16 / bytes);
        let count = vectors & WINDOW_VECTORS;
        // SAFETY: the host launches with `SHARED_BYTES`, the rings of all warps.
        let rings = unsafe { Shared::dynamic(0) };
        Share {
            inside,
            window,
            filled: vectors >> 24,
            part: warp % T::PARTS,
            left,
            column,
            b: p.b().row(column, bytes),
            records: p.records().row(first, record_bytes(p.wide != 0)),
            base,
            vectors: count,
            steps: count.div_ceil(STEP_VECTORS),
            lane,
            ring: rings.bytes(warp * Self::ring_bytes::<T>()),
        }
    }

    #[inline(always)]
    fn ring_bytes<T: Tile>() -> u32 {
        T::SHARED_BYTES / (T::THREADS / 32)
    }

    /// Returns the ring of warp `part` of those that share the window.
    #[inline(always)]
    pub fn ring_of<T: Tile>(&self, part: u32) -> Shared<u8> {
        self.ring.bytes(part.wrapping_sub(self.part).wrapping_mul(Self::ring_bytes::<T>()))
    }

    #[inline(always)]
    fn record(&self, p: &VectorsParams, step: u32) -> Record {
        let ok = step < self.steps;
        let (four, g) = (self.lane / 8, self.lane / 4);
        let at = self.records.row(step, record_bytes(p.wide != 0));
        if p.wide == 0 {
            let [a, b] = at.cast::<[u32; 2]>().at(four).ld_if(ok);
            Record {
                columns: [a & 0xffff, a >> 16, b & 0xffff, b >> 16],
                word: at.bytes(STEP_VECTORS * 2).at(g).ld_if(ok),
            }
        } else {
            Record {
                columns: at.cast::<[u32; 4]>().at(four).ld_if(ok),
                word: at.bytes(STEP_VECTORS * 4).at(g).ld_if(ok),
            }
        }
    }

    /// Starts the copies of a step into a stage, eight lanes a row. `copy` gets the source of 16 bytes, the shared
    /// address in the first slab of the stage, and whether the vector exists.
    #[inline(always)]
    fn fetch(
        &self,
        p: &VectorsParams,
        step: u32,
        stage: Shared<u8>,
        columns: [u32; LANE_VECTORS],
        copy: impl Fn(Global<u8, ReadOnly>, Shared<u8>, bool),
    ) {
        if step < self.steps {
            let four = self.lane / 8;
            let left = self.vectors - step * STEP_VECTORS;
            unroll!(j < LANE_VECTORS, {
                let from = self.b.row(columns[j], p.ldb_bytes);
                let valid = four * LANE_VECTORS as u32 + (j as u32) < left;
                // Order along k in which the atom reads the vectors: 4 q and 4 q + 1 are in the upper eight rows,
                // 4 q + 2 and 4 q + 3 in the lower eight. The four entries of a lane are then neighbours.
                let row = four * 2 + j as u32 % 2 + j as u32 / 2 * 8;
                let to = stage.bytes(frag::swizzle(row, self.lane % 8, SLAB_BYTES));
                copy(from, to, valid);
            });
        }
        copy::cp_async_commit();
    }

    /// Starts the loads of this lane's entries of a step: at most two aligned words of type `T`, because each load is an
    /// L1 look-up in eight rows.
    #[inline(always)]
    fn entries<T: Word>(&self, p: &VectorsParams, word: u32) -> Entries<T::Value> {
        let below = self.lane % 4 * LANE_VECTORS as u32;
        let valid = word >> below & 0xf;
        let before = (word & ((1 << below) - 1)).count_ones();
        let bytes = T::SIZE / 4;
        let at = p.values().row(self.base, bytes).bytes((word >> 16) * bytes).bytes(before * bytes);
        let (count, first) = (valid.count_ones(), (at.address() as u32 / bytes) & 3);
        let from = at.aligned_down::<T>();
        let words = [from.ld_if(count > 0), from.at(1u32).ld_if(first + count > 4)];
        Entries { words, valid, first }
    }

    /// Calls `multiply` for each of this warp's steps, with its stage and entries. Rows of B are copied two steps ahead,
    /// entries of A are loaded one step ahead.
    #[inline(always)]
    pub fn each_step<T: Tile, V: Word>(
        &self,
        p: &VectorsParams,
        copy: impl Fn(Global<u8, ReadOnly>, Shared<u8>, bool),
        mut multiply: impl FnMut(Shared<u8>, Entries<V::Value>),
    ) {
        let each = Self::ring_bytes::<T>() / VECTOR_STAGES;
        let stage = |index: u32| self.ring.bytes(index * each);
        let mut step = self.part;
        let first = self.record(p, step);
        let mut next = self.record(p, step + T::PARTS);
        let mut ahead = self.record(p, step + 2 * T::PARTS);
        self.fetch(p, step, self.ring, first.columns, &copy);
        let mut entries = self.entries::<V>(p, first.word);
        self.fetch(p, step + T::PARTS, stage(1), next.columns, &copy);
        let (mut here, mut free) = (stage(0), stage(2));
        while step < self.steps {
            self.fetch(p, step + 2 * T::PARTS, free, ahead.columns, &copy);
            let later = self.record(p, step + 3 * T::PARTS);
            let following = self.entries::<V>(p, next.word);
            copy::cp_async_wait::<2>();
            // The copies of all lanes become visible to the warp.
            warp::sync(u32::MAX);
            multiply(here, entries);
            (next, ahead, entries) = (ahead, later, following);
            free = here;
            here = here.bytes(each);
            if here.address() == stage(VECTOR_STAGES).address() {
                here = self.ring;
            }
            step += T::PARTS;
            // No lane overwrites a stage that another lane still reads.
            warp::sync(u32::MAX);
        }
        copy::cp_async_wait::<0>();
    }

    /// Shared address at which this lane's fragments of a slab begin, for `ldmatrix`. Matrices 0 and 2 are rows 0 to 7
    /// and 8 to 15 of a chunk of 16 bytes, matrices 1 and 3 those of the next chunk.
    #[inline(always)]
    pub fn fragments(&self, slab: Shared<u8>) -> Shared<u8> {
        let row = self.lane % 8 + self.lane / 16 * 8;
        slab.bytes(frag::swizzle(row, self.lane / 8 % 2, SLAB_BYTES))
    }

    /// Synchronizes the warps that share the window.
    #[inline(always)]
    pub fn sync<T: Tile>() {
        if T::PARTS > 1 {
            gpu::sync_threads();
        } else {
            warp::sync(u32::MAX);
        }
    }
}
