//! Accumulators on their way out: carried to the other pieces of the strip where it was cut, finished, and sent to C
//! through shared memory as whole rows, or element by element where C does not allow that.

use super::WgmmaElem;
use crate::abi::*;
use crate::device::epilogue::{Output, row_bias, scale};
use crate::device::gpu;
use crate::device::ptx::wgmma::Acc;
use crate::device::ptx::{barrier, copy, global, matrix, warp};
use crate::frag;

impl WgmmaParams {
    /// Where results go.
    #[inline(always)]
    fn output(&self) -> Output {
        Output {
            c: self.c,
            bias: self.bias,
            alpha: self.alpha,
            ldc_bytes: self.ldc_bytes,
            n: self.n,
            // Tested here and now: predicates held through the loop over strips cost registers.
            flags: warp::again(self.flags),
        }
    }
}

/// First accumulator of the pair that lies in row 0 or 8 of an atom.
const ROWS: [usize; 2] = [0, 2];

impl<const PM: usize, const PK: usize, const CHUNKS: usize, const ORDER: u32>
    Panel<PM, PK, CHUNKS, ORDER>
{
    #[inline(always)]
    pub(super) fn leave<E: WgmmaElem>(
        p: &WgmmaParams,
        strip: Strip,
        half: u32,
        acc: &mut Acc<CHUNKS>,
    ) {
        let mut stages = strip.stages;
        if strip.parts > 1 {
            if !Self::carry(p, strip, half, acc) {
                return;
            }
            stages = 1;
        }
        let slab = copy::arena() + (Self::OUT + half as usize * SLAB) as u32;
        let corner = [strip.row + half * HALF as u32, strip.column];
        Self::write::<E>(p.output(), p.m, corner, stages, slab, acc);
    }

    /// Finishes the sums of a warpgroup, 64 rows of C with the corner at row `top` and column `left`, and stores those
    /// above row `m`. `slab`: [`SLAB`] bytes of shared memory for this warpgroup.
    #[inline(always)]
    pub(in crate::device) fn write<E: WgmmaElem>(
        o: Output,
        m: u32,
        [top, left]: [u32; 2],
        stages: u32,
        slab: u32,
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
            Self::send::<E>(o, m, [top, left], slab, acc);
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
    fn finish<E: WgmmaElem>(
        o: Output,
        column: u32,
        (alpha, bias): (f32, [f32; 2]),
        acc: &mut Acc<CHUNKS>,
    ) {
        if alpha != 1.0 || o.flags & FLAG_BIAS_ROWS != 0 {
            unroll!(c < CHUNKS, {
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
        unroll!(c < CHUNKS, {
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
    fn store_row<E: WgmmaElem>(o: Output, row: u32, column: u32, r: usize, acc: &Acc<CHUNKS>) {
        let row = o.c + row as u64 * o.ldc_bytes as u64;
        unroll!(c < CHUNKS, {
            unroll!(j < 8, {
                unroll!(i < 2, {
                    let column = column + (c * 64 + j * 8 + i) as u32;
                    let at = row + column as u64 * E::BYTES as u64;
                    let inside = column < o.n;
                    let old = E::load_own::<1>(at, inside && o.flags & FLAG_ACCUMULATE != 0);
                    if inside {
                        E::store::<1>(at, &[acc.0[c][4 * j + ROWS[r] + i] + E::get(&old, 0)]);
                    }
                });
            });
        });
    }

    /// Chunks of 64 columns through shared memory, each warp its own 16 rows, to whole rows of 128 bytes. Ordinary stores:
    /// the copy engine would put them behind the copies of the stages ahead.
    #[inline(always)]
    fn send<E: WgmmaElem>(o: Output, m: u32, [top, left]: [u32; 2], slab: u32, acc: &Acc<CHUNKS>) {
        let (lane, warp) = (gpu::thread_again() % 32, gpu::thread_again() / 32 % 4);
        let slab = slab + warp * 2048;
        let (r, chunk) = frag::ldmatrix_x4(lane);
        let row = top + warp * 16 + lane / 8;
        let column = left + lane % 8 * 8;
        let c_row = o.c + row as u64 * o.ldc_bytes as u64 + column as u64 * 2;
        unroll!(c < CHUNKS, {
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
                if row + j as u32 * 4 < m && column + (c as u32) * 64 < o.n {
                    global::store_v4(at, eight);
                }
            });
        });
    }

    /// Leaves the partial sums of this piece. The warpgroup that arrives last gets the sum over all pieces, in order.
    #[inline(always)]
    fn carry(p: &WgmmaParams, strip: Strip, half: u32, acc: &mut Acc<CHUNKS>) -> bool {
        let lane = gpu::thread_again() % 128;
        // A warpgroup's accumulators, four of each thread side by side.
        let bytes = (CHUNKS * 8 * 128 * 16) as u64;
        let place = |part: u32| {
            p.partial + ((strip.first + part) as u64 * 2 + half as u64) * bytes + lane as u64 * 16
        };
        let mine = place(strip.part);
        unroll!(c < CHUNKS, {
            unroll!(j < 8, {
                let four = [0, 1, 2, 3].map(|i| acc.0[c][4 * j + i].to_bits());
                global::store_v4(mine + ((c * 8 + j) * 128 * 16) as u64, four);
            });
        });
        global::fence_gpu();
        barrier::sync_named(1 + half, 128);
        let arrivals = p.counters + (strip.counter * 2 + half) as u64 * 4;
        let told = Self::scratch() + half * 4;
        if lane == 0 {
            let before = global::atomic_add(arrivals, 1);
            copy::store_shared_b32(told, before);
            if before + 1 == strip.parts {
                global::store_b32(arrivals, 0);
            }
        }
        barrier::sync_named(1 + half, 128);
        if copy::load_shared_b32(told) + 1 != strip.parts {
            return false;
        }
        global::fence_gpu();
        // Two parts add up to the same bits in either order: this one's are at hand.
        let own = if strip.parts == 2 {
            strip.part
        } else {
            *acc = Acc::zero();
            strip.parts
        };
        let mut part = 0;
        while part < strip.parts {
            let from = place(part);
            part += 1;
            if part == own + 1 {
                continue;
            }
            unroll!(c < CHUNKS, {
                unroll!(j < 8, {
                    let four = global::load_v4_fresh(from + ((c * 8 + j) * 128 * 16) as u64, true);
                    unroll!(i < 4, { acc.0[c][4 * j + i] += f32::from_bits(four[i]) });
                });
            });
        }
        true
    }
}
