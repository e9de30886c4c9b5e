//! Accumulators on their way out: carried to the other pieces of the strip where it was cut, finished, and sent to C
//! through shared memory as whole rows, or element by element where C does not allow that.

use super::carry::{Cut, carry};
use crate::abi::*;
use crate::device::elem::Elem;
use crate::device::epilogue::{Output, row_bias, scale};
use crate::device::gpu;
use crate::device::ptx::wgmma::Acc;
use crate::device::ptx::{barrier, copy, global, matrix, warp};
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

/// First accumulator of the pair that lies in row 0 or 8 of an atom.
pub(super) const ROWS: [usize; 2] = [0, 2];

/// Eight neighbours of C from this row and column on, zero where the gate is not positive.
#[inline(always)]
fn gated<E: Elem<Acc = f32>>(
    o: Output,
    (row, column): (u32, u32),
    inside: bool,
    eight: [u32; 4],
) -> [u32; 4] {
    if o.flags & FLAG_GATE == 0 {
        return eight;
    }
    let at = o.gate + row as u64 * o.gate_bytes as u64 + column as u64 * 2;
    let gate = global::load_v4(at, inside);
    let mut out = eight;
    unroll!(w < 4, {
        let half = |i: usize| {
            if E::get(&gate, 2 * w + i) > 0.0 {
                0xffff << (16 * i)
            } else {
                0
            }
        };
        out[w] = eight[w] & (half(0) | half(1));
    });
    out
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
    pub(in crate::device) fn write<E: Elem<Acc = f32>>(
        o: Output,
        m: u32,
        [top, left]: [u32; 2],
        (half, slab): (u32, u32),
        stages: u32,
        acc: &mut Acc<CHUNKS>,
    ) {
        let lane = gpu::thread_again() % 32;
        if top >= m {
            return;
        }
        let row = top + gpu::thread_again() / 32 % 4 * 16 + frag::accumulator(lane, 0).0;
        let bias = ROWS.map(|r| {
            let row = row + r as u32 * 4;
            if row < m { row_bias::<E>(o, row) } else { 0.0 }
        });
        let column = left + lane % 4 * 2;
        Self::finish::<E>(o, column, (scale::<E>(o, stages), bias), acc);
        if o.flags & (FLAG_VECTORS | FLAG_ACCUMULATE) == FLAG_VECTORS {
            if E::BYTES == 4 {
                Self::send_words::<E>(o, m, row, column, acc);
            } else if ORDER & C_COLUMNS == 0 {
                Self::send::<E>(o, m, [top, left], slab, acc);
            } else {
                Self::send_columns::<E>(o, m, [top, left], (half, slab), acc);
            }
        } else {
            unroll!(r < 2, {
                let row = row + r as u32 * 8;
                if row < m {
                    Self::store_row::<E>(o, row, column, r, acc);
                }
            });
        }
    }

    /// Scalar, bias and activation, each a pass of its own: a test per element would cost more than the pass.
    #[inline(always)]
    pub(super) fn finish<E: Elem<Acc = f32>>(
        o: Output,
        column: u32,
        (alpha, bias): (f32, [f32; 2]),
        acc: &mut Acc<CHUNKS>,
    ) {
        if alpha != 1.0 || o.flags & FLAG_BIAS_ROWS != 0 {
            unroll!(c < CHUNKS, most 4, {
                unroll!(j < 8, {
                    Self::atom(acc, c, j, |i, x| E::fma(alpha, x, bias[i / 2]));
                });
            });
        }
        if o.flags & (FLAG_BIAS_COLUMNS | FLAG_RELU | FLAG_GELU) == 0 {
            return;
        }
        // Atom by atom: the branches keep ptxas from starting all of them at once, which takes more registers than
        // there are.
        unroll!(c < CHUNKS, most 4, {
            unroll!(j < 8, {
                if o.flags & FLAG_BIAS_COLUMNS != 0 {
                    Self::atom(acc, c, j, |i, x| {
                        let column = column + (c * 64 + j * 8 + i % 2) as u32;
                        let at = o.bias + column as u64 * E::BYTES as u64;
                        x + E::get(&E::load::<1>(at, column < o.n), 0)
                    });
                }
                if o.flags & FLAG_RELU != 0 {
                    Self::atom(acc, c, j, |_, x| E::relu(x));
                }
                if o.flags & FLAG_GELU != 0 {
                    Self::atom(acc, c, j, |_, x| E::gelu(x));
                }
            });
        });
    }

    /// Replaces the four accumulators of an atom by functions of themselves.
    #[inline(always)]
    fn atom(acc: &mut Acc<CHUNKS>, c: usize, j: usize, f: impl Fn(usize, f32) -> f32) {
        unroll!(i < 4, {
            acc.0[c][4 * j + i] = f(i, acc.0[c][4 * j + i]);
        });
    }

    /// One row's finished sums, element by element.
    #[inline(always)]
    fn store_row<E: Elem<Acc = f32>>(
        o: Output,
        row: u32,
        column: u32,
        r: usize,
        acc: &Acc<CHUNKS>,
    ) {
        unroll!(c < CHUNKS, most 4, {
            unroll!(j < 8, {
                unroll!(i < 2, {
                    let column = column + (c * 64 + j * 8 + i) as u32;
                    let (at_row, place) = if ORDER & C_COLUMNS == 0 {
                        (row, column)
                    } else {
                        (column, row)
                    };
                    let at =
                        o.c + at_row as u64 * o.ldc_bytes as u64 + place as u64 * E::BYTES as u64;
                    let inside = column < o.n;
                    let old = E::load_own::<1>(at, inside && o.flags & FLAG_ACCUMULATE != 0);
                    let mut x = acc.0[c][4 * j + ROWS[r] + i];
                    if o.flags & FLAG_GATE != 0 {
                        let row = o.gate + at_row as u64 * o.gate_bytes as u64;
                        let gate = E::load::<1>(row + place as u64 * E::BYTES as u64, inside);
                        x = if E::get(&gate, 0) > 0.0 { x } else { 0.0 };
                    }
                    if inside {
                        E::store::<1>(at, &[x + E::get(&old, 0)]);
                    }
                });
            });
        });
    }

    /// Pairs of neighbours of 4 bytes as they lie in registers: the four lanes of a row fill a sector of 32 bytes.
    #[inline(always)]
    pub(super) fn send_words<E: Elem<Acc = f32>>(
        o: Output,
        m: u32,
        row: u32,
        column: u32,
        acc: &Acc<CHUNKS>,
    ) {
        unroll!(r < 2, {
            let row = row + r as u32 * 8;
            let line = o.c + row as u64 * o.ldc_bytes as u64 + column as u64 * 4;
            unroll!(c < CHUNKS, most 4, {
                unroll!(j < 8, {
                    let beyond = (c * 64 + j * 8) as u32;
                    let k = 4 * j + ROWS[r];
                    if row < m && column + beyond < o.n {
                        E::store::<2>(line + beyond as u64 * 4, &[acc.0[c][k], acc.0[c][k + 1]]);
                    }
                });
            });
        });
    }

    /// Chunks of 64 columns through shared memory, each warp its own 16 rows, to whole rows of 128 bytes. Ordinary stores:
    /// the copy engine would put them behind the copies of the stages ahead.
    #[inline(always)]
    fn send<E: Elem<Acc = f32>>(
        o: Output,
        m: u32,
        [top, left]: [u32; 2],
        slab: u32,
        acc: &Acc<CHUNKS>,
    ) {
        let (lane, warp) = (gpu::thread_again() % 32, gpu::thread_again() / 32 % 4);
        let slab = slab + warp * 2048;
        let (r, chunk) = frag::ldmatrix_x4(lane);
        let row = top + warp * 16 + lane / 8;
        let column = left + lane % 8 * 8;
        let c_row = o.c + row as u64 * o.ldc_bytes as u64 + column as u64 * 2;
        unroll!(c < CHUNKS, most 4, {
            warp::sync_lanes(u32::MAX);
            unroll!(j < 4, {
                let mut words = [0u32; 4];
                unroll!(w < 4, {
                    let k = 8 * j + 4 * (w / 2) + ROWS[w % 2];
                    let (x, y) = (acc.0[c][k], acc.0[c][k + 1]);
                    words[w] = E::put(&[x, y, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])[0];
                });
                let place = frag::swizzle(r, 2 * j as u32 + chunk, PANEL_BYTES as u32);
                matrix::stmatrix_x4(slab + place, words);
            });
            warp::sync_lanes(u32::MAX);
            unroll!(j < 4, {
                let place = frag::swizzle(j as u32 * 4 + lane / 8, lane % 8, PANEL_BYTES as u32);
                let eight = copy::load_shared_v4(slab + place);
                let at = c_row + j as u64 * 4 * o.ldc_bytes as u64 + c as u64 * 128;
                let (row, column) = (row + j as u32 * 4, column + (c as u32) * 64);
                let inside = row < m && column < o.n;
                let eight = gated::<E>(o, (row, column), inside, eight);
                if inside {
                    global::store_v4(at, eight);
                }
            });
        });
    }

    /// The same for C as `[n, m]`: the warpgroup turns 64 x 64 at a time, and a column of the strip leaves as a line of
    /// 128 bytes.
    #[inline(always)]
    fn send_columns<E: Elem<Acc = f32>>(
        o: Output,
        m: u32,
        [top, left]: [u32; 2],
        (half, slab): (u32, u32),
        acc: &Acc<CHUNKS>,
    ) {
        let (lane, warp) = (gpu::thread_again() % 32, gpu::thread_again() / 32 % 4);
        let row = top + lane % 8 * 8;
        let line = warp * 16 + lane / 8;
        let column = left + line;
        let c_line = o.c + column as u64 * o.ldc_bytes as u64 + row as u64 * 2;
        unroll!(c < CHUNKS, most 4, {
            barrier::sync_named(1 + half, 128);
            unroll!(j < 4, {
                let mut words = [0u32; 4];
                unroll!(w < 4, {
                    let k = 8 * j + 4 * (w / 2) + ROWS[w % 2];
                    let (x, y) = (acc.0[c][k], acc.0[c][k + 1]);
                    words[w] = E::put(&[x, y, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])[0];
                });
                // Of the four 8 x 8 matrices, two lie side by side along m, two along n.
                let line = (2 * j as u32 + lane / 16) * 8 + lane % 8;
                let place = frag::swizzle(line, warp * 2 + lane / 8 % 2, PANEL_BYTES as u32);
                matrix::stmatrix_x4_trans(slab + place, words);
            });
            barrier::sync_named(1 + half, 128);
            unroll!(j < 4, {
                let place = frag::swizzle(line + j as u32 * 4, lane % 8, PANEL_BYTES as u32);
                let eight = copy::load_shared_v4(slab + place);
                let beyond = (c * 64 + j * 4) as u32;
                let at = c_line + beyond as u64 * o.ldc_bytes as u64;
                let inside = row < m && column + beyond < o.n;
                let eight = gated::<E>(o, (column + beyond, row), inside, eight);
                if inside {
                    global::store_v4(at, eight);
                }
            });
        });
    }
}
