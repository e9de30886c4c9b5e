//! Convolutions on CUDA cores: f32 without rounding, and rows of any alignment. A thread has 8 x 8 accumulators; all
//! threads prefetch and multiply. A warp skips an offset at which none of its 32 rows has a neighbour.

use super::conv::words::{Line, bring, four};
use crate::device::epilogue::{Output, finish};
use crate::device::prelude::*;
use crate::families::gather_gemm::abi::*;

/// Accumulators of a thread: eight rows by eight columns.
type Sums = [[f32; 8]; 8];

/// Stages in flight: their number, and a bit for each one that this warp multiplies, oldest first.
struct Flight {
    count: u32,
    own: u32,
}

/// Stage that is gathered next: a kernel offset and a channel. The record of the following offset is stored in shared
/// memory: the accumulators leave no registers for it.
struct Ahead {
    offset: u32,
    channel: u32,
    own: bool,
    /// Index of the list in shared memory, of two, with the rows of `offset`.
    list: u32,
    /// This thread's row of the following offset, loaded long before its use.
    row: u32,
}

impl<const DOWN: usize, const ACROSS: usize, const VECTORS: bool>
    GatheredWords<DOWN, ACROSS, VECTORS>
{
    #[inline(always)]
    fn ahead(p: &ConvWordsParams) -> Ahead {
        let shares = (CONV_ROWS / Self::ROWS) as u32;
        let block = gpu::block_x();
        let tile = p.base.schedule().at(block / shares).ld();
        let first = (tile * shares + block % shares) * Self::ROWS as u32;
        copy::st_shared_b32(Self::notes() + Self::THREADS * 16, first);
        let mut ahead = Ahead { offset: 0, channel: 0, own: false, list: 0, row: CONV_ABSENT };
        Self::look(p, &mut ahead, 0, 0);
        Self::step(p, &mut ahead);
        ahead
    }

    /// Returns the address of this thread's record. The tile's first position is stored after the records of all
    /// threads.
    #[inline(always)]
    fn notes() -> u32 {
        copy::dynamic_shared() + Self::NOTES as u32 + gpu::opaque_thread() * 16
    }

    #[inline(always)]
    fn first() -> u32 {
        copy::ld_shared_b32(Self::notes() + Self::THREADS * 16)
    }

    /// Finds the next offset, after `taken` words of the masks and with the bits `left`, and loads this thread's row of
    /// it.
    #[inline(always)]
    fn look(p: &ConvWordsParams, ahead: &mut Ahead, mut taken: u32, mut left: u32) {
        let first = Self::first();
        while left == 0 && taken < p.base.words {
            let halves = (first / CONV_HALF as u32) as u64 * p.base.words as u64;
            let at = p.base.masks().at(halves + taken as u64);
            left = at.ld();
            if Self::ROWS > CONV_HALF {
                left |= at.at(p.base.words).ld();
            }
            taken += 1;
        }
        let mut offset = CONV_ABSENT;
        if left != 0 {
            offset = (taken - 1) * 32 + left.trailing_zeros();
            left &= left - 1;
            let place = offset as u64 * p.base.stride as u64 + first as u64;
            ahead.row = p.base.neighbours().at(place + Self::row() as u64).ld();
        }
        copy::st_shared_v4(Self::notes(), [taken, left, offset, 0]);
    }

    /// Returns the row of the tile that this thread looks up, one of those that its warp multiplies.
    #[inline(always)]
    fn row() -> u32 {
        let thread = gpu::opaque_thread();
        thread / 32 / ACROSS as u32 * 32 + thread % 32
    }

    /// Returns the address of a list of an offset's rows.
    #[inline(always)]
    fn index(list: u32) -> u32 {
        copy::dynamic_shared() + (Self::INDEX as u32) + list * (Self::ROWS * 4) as u32
    }

    /// Advances to the next offset, whose rows all threads can read after the next barrier.
    #[inline(always)]
    fn step(p: &ConvWordsParams, ahead: &mut Ahead) {
        let [taken, left, offset, _] = copy::ld_shared_v4(Self::notes());
        // Shows ptxas that the value is warp-uniform.
        ahead.offset = warp::uniform(offset);
        ahead.channel = 0;
        ahead.list ^= 1;
        if ahead.offset == CONV_ABSENT {
            return;
        }
        copy::st_shared_b32(Self::index(ahead.list) + Self::row() * 4, ahead.row);
        ahead.own = warp::ballot(ahead.row != CONV_ABSENT) != 0;
        Self::look(p, ahead, taken, left);
    }

    #[inline(always)]
    fn start<E: Elem<Acc = f32>>(
        p: &ConvWordsParams,
        ahead: &mut Ahead,
        flight: &mut Flight,
        slot: u32,
    ) {
        if ahead.offset != CONV_ABSENT {
            let stage = copy::dynamic_shared() + slot * Self::STAGE as u32;
            if VECTORS && ahead.channel + 32 <= p.channels {
                Self::rows::<E, true>(p, ahead, stage);
            } else {
                Self::rows::<E, false>(p, ahead, stage);
            }
            let end = (gpu::block_y() + 1) * Self::COLUMNS;
            if VECTORS && ahead.channel + 32 <= p.channels && end <= p.base.n {
                Self::matrix::<E, true>(p, ahead, stage);
            } else {
                Self::matrix::<E, false>(p, ahead, stage);
            }
            flight.own |= (ahead.own as u32) << flight.count;
            flight.count += 1;
            ahead.channel += 32;
            if ahead.channel >= p.channels {
                Self::step(p, ahead);
            }
        }
        copy::cp_async_commit();
    }

    /// Starts the copies of input rows. `WHOLE`: all channels of the stage exist.
    #[inline(always)]
    fn rows<E: Elem<Acc = f32>, const WHOLE: bool>(p: &ConvWordsParams, ahead: &Ahead, stage: u32) {
        let thread = gpu::opaque_thread();
        let index = Self::index(ahead.list);
        unroll!(i < 8 / ACROSS, {
            let (r, chunk) = (thread / 8 + i as u32 * Self::THREADS / 8, thread % 8);
            let row = copy::ld_shared_b32(index + r * 4);
            let valid = row != CONV_ABSENT;
            let line = Line {
                row: p.base.input().row(if valid { row } else { 0 }, p.base.in_bytes),
                width: p.channels,
                valid,
            };
            let to = stage + r * 128 + (chunk ^ (r & 7)) * 16;
            bring::<E, VECTORS, WHOLE>(to, line, ahead.channel + chunk * 4);
        });
    }

    /// Starts the copies of 32 channels of the offset's matrix. `WHOLE`: all of its elements exist.
    #[inline(always)]
    fn matrix<E: Elem<Acc = f32>, const WHOLE: bool>(
        p: &ConvWordsParams,
        ahead: &Ahead,
        stage: u32,
    ) {
        let thread = gpu::opaque_thread();
        let chunks = Self::COLUMNS / 4;
        let matrix = ahead.offset as u64 * p.channels as u64;
        unroll!(i < 16 / DOWN, {
            let (deep, chunk) = (thread / chunks + (i * 2 * DOWN) as u32, thread % chunks);
            let channel = ahead.channel + deep;
            let valid = WHOLE || channel < p.channels;
            let from = if valid { channel } else { 0 };
            let line = Line {
                row: p.weights().bytes((matrix + from as u64) * p.weights_bytes as u64),
                width: p.base.n,
                valid,
            };
            let to = stage + Self::GATHERED as u32 + deep * Self::COLUMNS * 4 + chunk * 16;
            bring::<E, VECTORS, WHOLE>(to, line, gpu::block_y() * Self::COLUMNS + chunk * 4);
        });
    }

    #[inline(always)]
    fn multiply(sums: &mut Sums, slot: u32) {
        let thread = gpu::opaque_thread();
        let (warp, lane) = (thread / 32, thread % 32);
        let (down, across) = (warp / ACROSS as u32, warp % ACROSS as u32);
        let stage = copy::dynamic_shared() + slot * Self::STAGE as u32;
        let (g, c) = (lane / 8, lane % 8);
        let rows = stage + (down * 32 + g) * 128;
        let columns = stage + Self::GATHERED as u32 + (across * 64 + c * 4) * 4;
        let mut q = 0;
        while q < 8 {
            // Two channels at a time: four would need more registers than there are.
            unroll!(h < 2, {
                let mut a = [[0f32; 2]; 8];
                unroll!(j < 8, {
                    let chunk = q ^ (g + (j as u32 % 2) * 4);
                    let at = rows + j as u32 * 512 + chunk * 16 + h as u32 * 8;
                    a[j] = copy::ld_shared_v2(at).map(f32::from_bits);
                });
                unroll!(k < 2, {
                    let at = columns + (q * 4 + (h * 2 + k) as u32) * Self::COLUMNS * 4;
                    let (low, high) = (four(at), four(at + 128));
                    unroll!(j < 8, {
                        unroll!(i < 4, {
                            sums[j][i] = F32::fma(a[j][k], low[i], sums[j][i]);
                            sums[j][4 + i] = F32::fma(a[j][k], high[i], sums[j][4 + i]);
                        });
                    });
                });
            });
            q += 1;
        }
    }

    #[inline(always)]
    fn epilogue<E: Elem<Acc = f32>>(p: &ConvWordsParams, any: bool, sums: &Sums) {
        let thread = gpu::opaque_thread();
        let (warp, lane) = (thread / 32, thread % 32);
        let top = Self::first() + warp / ACROSS as u32 * 32 + lane / 8;
        let left = gpu::block_y() * Self::COLUMNS + warp % ACROSS as u32 * 64 + lane % 8 * 4;
        let o = Output {
            bias: p.base.bias(),
            ..Output::plain(p.base.out(), p.base.out_bytes, p.base.n, p.base.flags)
        };
        let alpha = if any { p.base.alpha } else { 0.0 };
        unroll!(j < 8, {
            let position = top + j as u32 * 4;
            let row = p.base.order().at(position).ld();
            if row != CONV_ABSENT {
                unroll!(h < 2, {
                    let column = left + h as u32 * 32;
                    let four = [0, 1, 2, 3].map(|i| sums[j][4 * h + i]);
                    if VECTORS && o.flags & FLAG_VECTORS != 0 {
                        finish::<E, 4>(o, row, column, (alpha, 0.0), four);
                    } else {
                        unroll!(i < 4, {
                            finish::<E, 1>(o, row, column + i as u32, (alpha, 0.0), [four[i]]);
                        });
                    }
                });
            }
        });
    }
}

impl<W: WalkInfo, E: Elem<Acc = f32>, const DOWN: usize, const ACROSS: usize, const VECTORS: bool>
    Kernel<W, E, ConvWordsParams> for GatheredWords<DOWN, ACROSS, VECTORS>
{
    #[inline(always)]
    unsafe fn run(p: &ConvWordsParams, _: Maps) {
        let mut ahead = Self::ahead(p);
        let mut flight = Flight { count: 0, own: 0 };
        let mut sums: Sums = [[0.0; 8]; 8];
        let mut any = false;
        let last = Self::STAGES as u32 - 1;
        let mut started = 0;
        while started < last {
            gpu::sync_threads();
            Self::start::<E>(p, &mut ahead, &mut flight, started);
            started += 1;
        }
        let (mut slot, mut free) = (0, last);
        while flight.count > 0 {
            if Self::STAGES == 3 {
                copy::cp_async_wait::<1>();
            } else {
                copy::cp_async_wait::<0>();
            }
            // All threads can read this stage, and no thread reads the stage that is overwritten next.
            gpu::sync_threads();
            let own = flight.own & 1 != 0;
            flight.own >>= 1;
            flight.count -= 1;
            Self::start::<E>(p, &mut ahead, &mut flight, free);
            if own {
                any = true;
                Self::multiply(&mut sums, slot);
            }
            free = slot;
            slot = if slot == last { 0 } else { slot + 1 };
        }
        Self::epilogue::<E>(p, any, &sums);
    }
}
