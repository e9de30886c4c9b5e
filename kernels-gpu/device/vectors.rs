//! SpMM on Tensor Cores for A made of single entries: rows of A by eight, of which a column with an entry is a *vector*.
//! The operands are swapped, C^T = B^T A^T, so that the vectors are the 8-wide operand of `mma.m16n8` and waste
//! the least (FlashSparse, arXiv 2412.11007, section 3). Rows of B come from memory straight into the registers of the atom.

use super::epilogue::{Output, finish, row_bias, scale};
use super::gpu;
use super::mma::MmaElem;
use super::ptx::{copy, global, matrix};
use crate::abi::*;

/// The body, generic over the element; the tile is the implementor.
pub trait Body: Tile {
    /// # Safety
    /// `p` describes live device memory and the launch has this tile's geometry.
    unsafe fn run<W: WalkInfo, E: VectorElem>(p: &VectorsParams, _at: u64);
}

/// 16 bytes of each row of B that a lane gathers in a step.
type Rows = [[u32; 4]; LANE_VECTORS];
/// Accumulators of a slab: pair `t` of a lane's columns in register `t`, as the atom has them.
type Slab = [[f32; 4]; 4];

/// An element type, with its atom in the order in which lanes gather. Lane `4 g + q` holds the vectors `4 q ..` of a step: 16 bytes
/// from column `g * VECTOR` of their rows of B, and their entries in row `g` of the window. What the atom calls k is dealt to
/// vectors in any order, as long as both operands agree; what it calls rows `g` and `g + 8` are neighbouring columns.
pub trait VectorElem: MmaElem {
    /// Bits of a value.
    fn value(addr: u64, ok: bool) -> u32;
    /// Adds a step to the slab's accumulators.
    fn step(acc: &mut Slab, rows: &Rows, values: [u32; LANE_VECTORS]);
}

macro_rules! half_vectors {
    ($elem:ident) => {
        impl VectorElem for $elem {
            #[inline(always)]
            fn value(addr: u64, ok: bool) -> u32 {
                global::load_b16(addr, ok)
            }
            #[inline(always)]
            fn step(acc: &mut Slab, rows: &Rows, v: [u32; LANE_VECTORS]) {
                let b = [v[0] | v[1] << 16, v[2] | v[3] << 16];
                let (low, high) = (matrix::low_halves, matrix::high_halves);
                unroll!(t < 4, {
                    let a = [
                        low(rows[0][t], rows[1][t]),
                        high(rows[0][t], rows[1][t]),
                        low(rows[2][t], rows[3][t]),
                        high(rows[2][t], rows[3][t]),
                    ];
                    Self::mma(&mut acc[t], a, b);
                });
            }
        }
    };
}

half_vectors!(F16);
half_vectors!(Bf16);

impl VectorElem for Tf32 {
    #[inline(always)]
    fn value(addr: u64, ok: bool) -> u32 {
        global::load_b32(addr, ok)
    }
    #[inline(always)]
    fn step(acc: &mut Slab, rows: &Rows, v: [u32; LANE_VECTORS]) {
        let round = matrix::round_tf32;
        // Two atoms of eight vectors.
        unroll!(half < 2, {
            let (first, second) = (2 * half, 2 * half + 1);
            let b = [round(v[first]), round(v[second])];
            unroll!(t < 2, {
                let a = [
                    round(rows[first][2 * t]),
                    round(rows[first][2 * t + 1]),
                    round(rows[second][2 * t]),
                    round(rows[second][2 * t + 1]),
                ];
                Self::mma(&mut acc[t], a, b);
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

/// What a lane knows of a step: its vectors' columns, and the word of its row.
#[derive(Clone, Copy)]
struct Record {
    columns: [u32; LANE_VECTORS],
    word: u32,
}

/// What a lane has gathered of a step.
#[derive(Clone, Copy)]
struct Gathered<const SLABS: usize> {
    rows: [Rows; SLABS],
    values: [u32; LANE_VECTORS],
}

/// One warp's share of a window.
#[derive(Clone, Copy)]
struct Share {
    /// Address of the window's first record.
    records: u64,
    /// Address of the value from which words count.
    values: u64,
    vectors: u32,
    steps: u32,
    /// Address of this lane's first column in row 0 of B.
    b: u64,
    /// Its first column.
    column: u32,
    g: u32,
    q: u32,
}

impl Share {
    #[inline(always)]
    fn record(&self, p: &VectorsParams, step: u32) -> Record {
        let ok = step < self.steps;
        if p.wide == 0 {
            let at = self.records + step as u64 * record_bytes(false) as u64;
            let [a, b] = global::load_v2(at + self.q as u64 * 8, ok);
            Record {
                columns: [a & 0xffff, a >> 16, b & 0xffff, b >> 16],
                word: global::load_b32(at + STEP_VECTORS as u64 * 2 + self.g as u64 * 4, ok),
            }
        } else {
            let at = self.records + step as u64 * record_bytes(true) as u64;
            Record {
                columns: global::load_v4(at + self.q as u64 * 16, ok),
                word: global::load_b32(at + STEP_VECTORS as u64 * 4 + self.g as u64 * 4, ok),
            }
        }
    }

    /// Starts the loads of a step; of one past the last there are none.
    #[inline(always)]
    fn gather<E: VectorElem, const SLABS: usize>(
        &self,
        p: &VectorsParams,
        step: u32,
        record: Record,
        into: &mut Gathered<SLABS>,
    ) {
        let ok = step < self.steps;
        unroll!(j < LANE_VECTORS, {
            let from = self.b + record.columns[j] as u64 * p.ldb_bytes as u64;
            unroll!(s < SLABS, {
                let inside = ok && self.column + (s * SLAB_BYTES) as u32 / E::BYTES < p.n;
                let from = from + (s * SLAB_BYTES) as u64;
                global::load_v4_into(&mut into.rows[s][j], from, inside);
            });
        });
        let own = record.word >> (self.q * 4);
        let before = record.word & ((1 << (self.q * 4)) - 1);
        let first = (record.word >> 16) + before.count_ones();
        unroll!(j < LANE_VECTORS, {
            let index = first + (own & ((1 << j) - 1)).count_ones();
            let at = self.values + index as u64 * E::BYTES as u64;
            into.values[j] = E::value(at, own >> j & 1 != 0);
        });
    }

    /// Adds a step. Vectors past the last have rows of B that nobody asked for: zeros in their place, since zero times
    /// infinity is none.
    #[inline(always)]
    fn multiply<E: VectorElem, const SLABS: usize>(
        &self,
        step: u32,
        of: &mut Gathered<SLABS>,
        acc: &mut [Slab; SLABS],
    ) {
        let left = self.vectors - step * STEP_VECTORS as u32;
        if left < STEP_VECTORS as u32 {
            unroll!(j < LANE_VECTORS, {
                if self.q * LANE_VECTORS as u32 + j as u32 >= left {
                    unroll!(s < SLABS, { of.rows[s][j] = [0; 4] });
                }
            });
        }
        unroll!(s < SLABS, { E::step(&mut acc[s], &of.rows[s], of.values) });
    }
}

impl<const WINDOWS: u32, const PARTS: u32, const SLABS: usize, const BYTES: usize>
    Vectors<WINDOWS, PARTS, SLABS, BYTES>
{
    /// Every `PARTS`-th step of a window from `part`: one is multiplied while the next one's loads are under way.
    #[inline(always)]
    fn sum<E: VectorElem>(p: &VectorsParams, share: &Share, part: u32) -> [Slab; SLABS] {
        let mut acc = [[[0f32; 4]; 4]; SLABS];
        let empty = Gathered::<SLABS> {
            rows: [[[0; 4]; LANE_VECTORS]; SLABS],
            values: [0; LANE_VECTORS],
        };
        let (mut even, mut odd) = (empty, empty);
        let mut step = part;
        let mut here = share.record(p, step);
        let mut next = share.record(p, step + PARTS);
        share.gather::<E, SLABS>(p, step, here, &mut even);
        while step < share.steps {
            here = share.record(p, step + 2 * PARTS);
            share.gather::<E, SLABS>(p, step + PARTS, next, &mut odd);
            share.multiply::<E, SLABS>(step, &mut even, &mut acc);
            step += PARTS;
            if step >= share.steps {
                break;
            }
            next = share.record(p, step + 2 * PARTS);
            share.gather::<E, SLABS>(p, step + PARTS, here, &mut even);
            share.multiply::<E, SLABS>(step, &mut odd, &mut acc);
            step += PARTS;
        }
        acc
    }

    /// Adds the parts of a window in part 0, in order, through shared memory.
    #[inline(always)]
    fn join<E: VectorElem>(part: u32, acc: &mut [Slab; SLABS]) {
        let (lane, window) = (gpu::thread() % 32, gpu::thread() / 32 / PARTS);
        // Words of one thread lie a thread block apart: neighbours fall into different banks.
        let word = |part: u32, i: usize| {
            let thread = (window * (PARTS - 1) + part - 1) * 32 + lane;
            copy::arena() + (i as u32 * (PARTS - 1) * WINDOWS * 32 + thread) * 4
        };
        // Pairs of columns: four of 16-bit elements, two of 32-bit ones.
        let pairs = const { 8 / BYTES };
        if part > 0 {
            unroll!(s < SLABS, {
                unroll!(t < 4, {
                    if t < pairs {
                        unroll!(r < 4, {
                            let at = word(part, (s * pairs + t) * 4 + r);
                            E::store_shared(at, acc[s][t][r]);
                        });
                    }
                });
            });
        }
        gpu::sync_threads();
        if part == 0 {
            let mut other = 1;
            while other < PARTS {
                unroll!(s < SLABS, {
                    unroll!(t < 4, {
                        if t < pairs {
                            unroll!(r < 4, {
                                let at = word(other, (s * pairs + t) * 4 + r);
                                acc[s][t][r] += E::load_shared(at);
                            });
                        }
                    });
                });
                other += 1;
            }
        }
    }

    /// Lane `4 g + q` has of rows `2 q` and `2 q + 1` the columns that it gathered: 16 bytes of each slab.
    #[inline(always)]
    fn write<E: VectorElem, const V: usize>(
        p: &VectorsParams,
        share: &Share,
        (window, filled): (u32, u32),
        acc: &[Slab; SLABS],
    ) {
        let o = p.output();
        unroll!(h < 2, {
            let within = share.q * 2 + h as u32;
            let row = window * WINDOW as u32 + within;
            if row < p.m {
                let own = filled >> within & 1;
                let factors = (scale::<E>(o, own), row_bias::<E>(o, row));
                unroll!(s < SLABS, {
                    let mut out = [0f32; V];
                    unroll!(i < V, {
                        // A row without entries has no sum, whatever B holds.
                        let sum = acc[s][i / 2][h + i % 2 * 2];
                        out[i] = if own != 0 { sum } else { 0.0 };
                    });
                    let column = share.column + (s * SLAB_BYTES / BYTES) as u32;
                    finish::<E, V>(o, row, column, factors, out);
                });
            }
        });
    }
}

impl<const WINDOWS: u32, const PARTS: u32, const SLABS: usize, const BYTES: usize> Body
    for Vectors<WINDOWS, PARTS, SLABS, BYTES>
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
        let (g, q) = (lane / 4, lane % 4);
        let column = gpu::block_y() * Self::COLUMNS + g * Self::VECTOR as u32;
        let count = vectors & WINDOW_VECTORS as u32;
        let share = Share {
            records: p.records + first as u64 * record_bytes(p.wide != 0) as u64,
            values: p.values + base as u64 * E::BYTES as u64,
            vectors: count,
            steps: count.div_ceil(STEP_VECTORS as u32),
            b: p.b + column as u64 * E::BYTES as u64,
            column,
            g,
            q,
        };
        let mut acc = Self::sum::<E>(p, &share, part);
        if PARTS > 1 {
            Self::join::<E>(part, &mut acc);
            if part > 0 || !inside {
                return;
            }
        }
        let at = (window, vectors >> 24);
        if BYTES == 2 {
            Self::write::<E, 8>(p, &share, at, &acc);
        } else {
            Self::write::<E, 4>(p, &share, at, &acc);
        }
    }
}
