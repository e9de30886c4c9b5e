//! The gradient of a convolution's weights on CUDA cores: 32 pairs of rows a stage, 128 channels by 128, a partial sum for each
//! part of an offset's pairs.

use super::{Body, HALF_STAGE, Line, Sums, bring, four};
use crate::abi::*;
use crate::device::conv::offsets::Halves;
use crate::device::elem::Elem;
use crate::device::gpu;
use crate::device::ptx::{copy, global};

/// What is gathered next: 32 of 64 positions.
struct Ahead {
    halves: Halves,
    half: u32,
    upper: u32,
}

impl<const VECTORS: bool> PairedWords<VECTORS> {
    /// First channel of the input and of the output.
    #[inline(always)]
    fn corner(p: &ConvWordsParams) -> (u32, u32) {
        let across = p.base.n.div_ceil(Self::COLUMNS);
        let block = gpu::block_y();
        // Never by zero, which only the host knows: device code may not panic.
        let row = block.checked_div(across).unwrap_or(0);
        (row * 128, (block - row * across) * Self::COLUMNS)
    }

    /// Starts the next stage, if there is one, and says whether there was.
    #[inline(always)]
    fn start<E: Elem<Acc = f32>>(
        p: &ConvWordsParams,
        neighbours: u64,
        ahead: &mut Ahead,
        slot: u32,
    ) -> u32 {
        let more = ahead.half != CONV_ABSENT;
        if more {
            let thread = gpu::thread_again();
            let (channel, column) = Self::corner(p);
            let first = ahead.half * CONV_HALF as u32 + ahead.upper * 32;
            let chunk = thread % 32;
            unroll!(i < 4, {
                let r = thread / 32 + i as u32 * 8;
                let position = (first + r) as u64 * 4;
                let input = global::load_b32(neighbours + position, true);
                let output = global::load_b32(p.base.order + position, true);
                let there = input != CONV_ABSENT;
                let [input, output] = [input, output].map(|row| if there { row } else { 0 });
                let to = copy::arena() + slot * WORDS_STAGE as u32 + r * 512 + chunk * 16;
                let line = Line {
                    at: p.base.input + input as u64 * p.base.in_bytes as u64,
                    width: p.channels,
                    there,
                };
                bring::<E, VECTORS>(to, line, channel + chunk * 4);
                let line = Line {
                    at: p.weights + output as u64 * p.weights_bytes as u64,
                    width: p.base.n,
                    there,
                };
                bring::<E, VECTORS>(to + HALF_STAGE, line, column + chunk * 4);
            });
            ahead.upper ^= 1;
            if ahead.upper == 0 {
                ahead.half = ahead.halves.next();
            }
        }
        copy::copy_commit();
        more as u32
    }

    /// A stage's products of this thread.
    #[inline(always)]
    fn multiply(sums: &mut Sums, slot: u32) {
        let thread = gpu::thread_again();
        let (warp, lane) = (thread / 32, thread % 32);
        let stage = copy::arena() + slot * WORDS_STAGE as u32;
        let rows = stage + (warp / 2 * 32 + lane / 8 * 4) * 4;
        let columns = stage + HALF_STAGE + (warp % 2 * 64 + lane % 8 * 4) * 4;
        let mut k = 0;
        while k < 32 {
            unroll!(u < 2, {
                let deep = (k + u as u32) * 512;
                let (a, b) = (four(rows + deep), four(rows + deep + 64));
                let (low, high) = (four(columns + deep), four(columns + deep + 128));
                unroll!(j < 4, {
                    unroll!(i < 4, {
                        sums[j][i] = F32::fma(a[j], low[i], sums[j][i]);
                        sums[j][4 + i] = F32::fma(a[j], high[i], sums[j][4 + i]);
                        sums[4 + j][i] = F32::fma(b[j], low[i], sums[4 + j][i]);
                        sums[4 + j][4 + i] = F32::fma(b[j], high[i], sums[4 + j][4 + i]);
                    });
                });
            });
            k += 2;
        }
    }
}

impl<const VECTORS: bool> Body for PairedWords<VECTORS> {
    #[inline(always)]
    unsafe fn run<W: WalkInfo, E: Elem<Acc = f32>>(p: &ConvWordsParams, _: u64) {
        let offset = gpu::block_x().checked_div(p.parts).unwrap_or(0);
        let part = gpu::block_x() - offset * p.parts;
        let neighbours = p.base.neighbours + offset as u64 * p.base.stride as u64 * 4;
        let mut ahead = Ahead {
            halves: Halves::of(p, offset, part),
            half: 0,
            upper: 0,
        };
        ahead.half = ahead.halves.next();
        let mut sums: Sums = [[0.0; 8]; 8];
        let mut flight = Self::start::<E>(p, neighbours, &mut ahead, 0);
        flight += Self::start::<E>(p, neighbours, &mut ahead, 1);
        let mut slot = 0;
        while flight > 0 {
            copy::copy_wait::<1>();
            gpu::sync_threads();
            let free = if slot == 0 { 2 } else { slot - 1 };
            flight += Self::start::<E>(p, neighbours, &mut ahead, free);
            Self::multiply(&mut sums, slot);
            flight -= 1;
            slot = if slot == 2 { 0 } else { slot + 1 };
        }
        let (channel, column) = Self::corner(p);
        let (warp, lane) = (gpu::thread_again() / 32, gpu::thread_again() % 32);
        let matrix = part as u64 * p.volume as u64 + offset as u64;
        unroll!(j < 8, {
            let row = channel + warp / 2 * 32 + lane / 8 * 4 + (j as u32 / 4) * 16 + j as u32 % 4;
            let line = (matrix * p.channels as u64 + row as u64) * p.base.n as u64;
            unroll!(i < 8, {
                let column =
                    column + warp % 2 * 64 + lane % 8 * 4 + (i as u32 / 4) * 32 + i as u32 % 4;
                let at = p.base.out + (line + column as u64) * 4;
                let inside = row < p.channels && column < p.base.n;
                global::store_b32_if(at, sums[j][i].to_bits(), inside);
            });
        });
    }
}
