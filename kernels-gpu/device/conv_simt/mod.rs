//! Convolutions on CUDA cores: f32 as it is, and rows of any alignment. A thread block owns 128 rows by 128 columns, 8 x 8 a
//! thread; all threads gather ahead into three stages and multiply. A warp whose 32 rows have no neighbour at an offset does
//! not multiply.

mod pairs;

use super::conv::offsets::Offsets;
use super::elem::Elem;
use super::epilogue::{Output, finish};
use super::gpu;
use super::ptx::{copy, global, warp};
use crate::abi::*;

/// The body, generic over the element; the tile is the implementor.
pub trait Body: Tile {
    /// # Safety
    /// `p` describes live device memory, and the launch has this tile's geometry.
    unsafe fn run<W: WalkInfo, E: Elem<Acc = f32>>(p: &ConvWordsParams, at: u64);
}

/// Sums of a thread: eight rows by eight columns.
pub type Sums = [[f32; 8]; 8];

/// Bytes of the first half of a stage.
const HALF_STAGE: u32 = WORDS_STAGE as u32 / 2;

/// A row in memory.
#[derive(Clone, Copy)]
pub struct Line {
    /// First byte.
    pub at: u64,
    /// Elements; those behind read as zeros.
    pub width: u32,
    pub there: bool,
}

/// Brings four neighbouring elements of a row, from `first` on, to 16 bytes of shared memory as f32: by a copy under way
/// (`VECTORS`), or at once.
#[inline(always)]
pub fn bring<E: Elem<Acc = f32>, const VECTORS: bool>(to: u32, line: Line, first: u32) {
    let width = if line.there { line.width } else { 0 };
    if VECTORS {
        let bytes = (width.saturating_sub(first) * 4).min(16);
        let from = if bytes > 0 { first } else { 0 };
        copy::copy_async_16(to, line.at + from as u64 * 4, bytes);
        return;
    }
    let mut four = [0u32; 4];
    unroll!(i < 4, {
        let element = first + i as u32;
        let raw = E::load_fresh(line.at + element as u64 * E::BYTES as u64, element < width);
        four[i] = E::get(&raw, 0).to_bits();
    });
    copy::store_shared_v4(to, four);
}

/// Four f32 of shared memory.
#[inline(always)]
pub fn four(from: u32) -> [f32; 4] {
    copy::load_shared_v4(from).map(f32::from_bits)
}

/// Stages under way: which of them this warp multiplies, oldest first.
struct Flight {
    count: u32,
    own: u32,
}

/// What is gathered next: an offset, this thread's rows of it, and the channel.
struct Ahead {
    offsets: Offsets,
    offset: u32,
    rows: [u32; 4],
    own: bool,
    channel: u32,
}

impl Ahead {
    #[inline(always)]
    fn of(p: &ConvWordsParams, tile: u32) -> Ahead {
        let mut ahead = Ahead {
            offsets: Offsets::of(&p.base, tile),
            offset: 0,
            rows: [0; 4],
            own: false,
            channel: 0,
        };
        ahead.step(p, tile);
        ahead
    }

    /// Takes the next offset.
    #[inline(always)]
    fn step(&mut self, p: &ConvWordsParams, tile: u32) {
        self.offset = self.offsets.next::<true>().0;
        self.channel = 0;
        let there = self.offset != CONV_ABSENT;
        let first = self.offset as u64 * p.base.stride as u64 + (tile * CONV_ROWS as u32) as u64;
        let at = p.base.neighbours + first * 4;
        let thread = gpu::thread_again();
        unroll!(i < 4, {
            self.rows[i] = global::load_b32(at + (thread / 8 + i as u32 * 32) as u64 * 4, there);
        });
        let row = thread / 64 * 32 + thread % 32;
        let own = global::load_b32(at + row as u64 * 4, there);
        self.own = warp::ballot(there && own != CONV_ABSENT) != 0;
    }
}

impl<const VECTORS: bool> GatheredWords<VECTORS> {
    /// Starts the next stage, if there is one.
    #[inline(always)]
    fn start<E: Elem<Acc = f32>>(
        p: &ConvWordsParams,
        tile: u32,
        ahead: &mut Ahead,
        flight: &mut Flight,
        slot: u32,
    ) {
        if ahead.offset != CONV_ABSENT {
            let thread = gpu::thread_again();
            let stage = copy::arena() + slot * WORDS_STAGE as u32;
            let (row, chunk) = (thread / 8, thread % 8);
            unroll!(i < 4, {
                let r = row + i as u32 * 32;
                let there = ahead.rows[i] != CONV_ABSENT;
                let from = if there { ahead.rows[i] } else { 0 };
                let line = Line {
                    at: p.base.input + from as u64 * p.base.in_bytes as u64,
                    width: p.channels,
                    there,
                };
                let to = stage + r * 128 + (chunk ^ (r & 7)) * 16;
                bring::<E, VECTORS>(to, line, ahead.channel + chunk * 4);
            });
            let left = gpu::block_y() * Self::COLUMNS;
            let matrix = ahead.offset as u64 * p.channels as u64;
            unroll!(i < 4, {
                let deep = thread / 32 + i as u32 * 8;
                let channel = ahead.channel + deep;
                let there = channel < p.channels;
                let from = if there { channel } else { 0 };
                let line = Line {
                    at: p.weights + (matrix + from as u64) * p.weights_bytes as u64,
                    width: p.base.n,
                    there,
                };
                let to = stage + HALF_STAGE + deep * 512 + thread % 32 * 16;
                bring::<E, VECTORS>(to, line, left + thread % 32 * 4);
            });
            flight.own |= (ahead.own as u32) << flight.count;
            flight.count += 1;
            ahead.channel += 32;
            if ahead.channel >= p.channels {
                ahead.step(p, tile);
            }
        }
        copy::copy_commit();
    }

    /// A stage's products of this thread.
    #[inline(always)]
    fn multiply(sums: &mut Sums, slot: u32) {
        let thread = gpu::thread_again();
        let (warp, lane) = (thread / 32, thread % 32);
        let stage = copy::arena() + slot * WORDS_STAGE as u32;
        let (g, c) = (lane / 8, lane % 8);
        let rows = stage + (warp / 2 * 32 + g) * 128;
        let columns = stage + HALF_STAGE + (warp % 2 * 64 + c * 4) * 4;
        let mut q = 0;
        while q < 8 {
            // Two channels at a time: four would be more registers than there are.
            unroll!(h < 2, {
                let mut a = [[0f32; 2]; 8];
                unroll!(j < 8, {
                    let chunk = q ^ (g + (j as u32 % 2) * 4);
                    let at = rows + j as u32 * 512 + chunk * 16 + h as u32 * 8;
                    a[j] = copy::load_shared_v2(at).map(f32::from_bits);
                });
                unroll!(k < 2, {
                    let at = columns + (q * 4 + (h * 2 + k) as u32) * 512;
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

    /// Finished sums to their rows.
    #[inline(always)]
    fn leave<E: Elem<Acc = f32>>(p: &ConvWordsParams, tile: u32, any: bool, sums: &Sums) {
        let thread = gpu::thread_again();
        let (warp, lane) = (thread / 32, thread % 32);
        let top = tile * CONV_ROWS as u32 + warp / 2 * 32 + lane / 8;
        let left = gpu::block_y() * Self::COLUMNS + warp % 2 * 64 + lane % 8 * 4;
        let o = Output {
            c: p.base.out,
            bias: p.base.bias,
            alpha: 1.0,
            ldc_bytes: p.base.out_bytes,
            n: p.base.n,
            flags: p.base.flags,
            gate: 0,
            gate_bytes: 0,
        };
        let alpha = if any { p.base.alpha } else { 0.0 };
        unroll!(j < 8, {
            let position = top + j as u32 * 4;
            let row = global::load_b32(p.base.order + position as u64 * 4, true);
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

impl<const VECTORS: bool> Body for GatheredWords<VECTORS> {
    #[inline(always)]
    unsafe fn run<W: WalkInfo, E: Elem<Acc = f32>>(p: &ConvWordsParams, _: u64) {
        let tile = global::load_b32(p.base.schedule + gpu::block_x() as u64 * 4, true);
        let mut ahead = Ahead::of(p, tile);
        let mut flight = Flight { count: 0, own: 0 };
        let mut sums: Sums = [[0.0; 8]; 8];
        let mut any = false;
        Self::start::<E>(p, tile, &mut ahead, &mut flight, 0);
        Self::start::<E>(p, tile, &mut ahead, &mut flight, 1);
        let mut slot = 0;
        while flight.count > 0 {
            copy::copy_wait::<1>();
            // What this stage brought is there for all, and nobody reads the stage that is overwritten next.
            gpu::sync_threads();
            let own = flight.own & 1 != 0;
            flight.own >>= 1;
            flight.count -= 1;
            let free = if slot == 0 { 2 } else { slot - 1 };
            Self::start::<E>(p, tile, &mut ahead, &mut flight, free);
            if own {
                any = true;
                Self::multiply(&mut sums, slot);
            }
            slot = if slot == 2 { 0 } else { slot + 1 };
        }
        Self::leave::<E>(p, tile, any, &sums);
    }
}
