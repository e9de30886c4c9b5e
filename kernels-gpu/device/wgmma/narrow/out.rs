//! Accumulators of 8-bit products on their way to C, whose type is a flag of the launch.

use super::NarrowElem;
use crate::abi::*;
use crate::device::epilogue::Output;
use crate::device::gpu;
use crate::device::ptx::wgmma::Acc;
use crate::device::ptx::{copy, global};
use crate::device::wgmma::carry::{Cut, carry_by};
use crate::frag;

/// An accumulator's word as the i32 that it is.
#[inline(always)]
fn whole(x: f32) -> i32 {
    x.to_bits() as i32
}

/// The nearest i32.
#[inline(always)]
fn saturated(x: i64) -> i32 {
    x.clamp(i32::MIN as i64, i32::MAX as i64) as i32
}

/// The sum of two accumulators.
#[inline(always)]
fn add<E: NarrowElem>(a: f32, b: f32) -> f32 {
    if E::WHOLE {
        f32::from_bits(whole(a).wrapping_add(whole(b)) as u32)
    } else {
        a + b
    }
}

impl<const PM: usize, const PK: usize, const CHUNKS: usize, const ORDER: u32>
    Panel<PM, PK, CHUNKS, ORDER, 1>
{
    #[inline(always)]
    pub(super) fn leave_narrow<E: NarrowElem>(
        p: &WgmmaParams,
        strip: Strip,
        half: u32,
        acc: &mut Acc<CHUNKS>,
    ) {
        let mut stages = strip.stages;
        if strip.count() > 1 {
            let cut = Cut::of(p, strip);
            if !carry_by(cut, half, Self::scratch(), acc, add::<E>) {
                return;
            }
            stages = 1;
        }
        let slab = copy::arena() + (Self::OUT + half as usize * SLAB) as u32;
        let corner = [strip.row + half * HALF as u32, strip.column];
        Self::write_narrow::<E>(p.output(strip.item), p.m, corner, (half, slab), stages, acc);
    }

    /// As `write`, in the type of C that the flags name.
    #[inline(always)]
    pub(in crate::device) fn write_narrow<E: NarrowElem>(
        o: Output,
        m: u32,
        corner: [u32; 2],
        slab: (u32, u32),
        stages: u32,
        acc: &mut Acc<CHUNKS>,
    ) {
        let out = o.flags;
        if E::WHOLE {
            if out & (FLAG_OUT_F16 | FLAG_OUT_BF16 | FLAG_OUT_F32) == 0 {
                return Self::send_whole(o, m, corner, acc);
            }
            unroll!(c < CHUNKS, most 4, {
                unroll!(j < 8, {
                    unroll!(i < 4, {
                        let word = &mut acc.0[c][4 * j + i];
                        *word = whole(*word) as f32;
                    });
                });
            });
        }
        if out & FLAG_OUT_F16 != 0 {
            Self::write::<F16>(o, m, corner, slab, stages, acc);
        } else if out & FLAG_OUT_BF16 != 0 {
            Self::write::<Bf16>(o, m, corner, slab, stages, acc);
        } else {
            Self::write::<F32>(o, m, corner, slab, stages, acc);
        }
    }

    /// i32 sums times a whole factor, added to C where it is asked for, saturated.
    #[inline(always)]
    fn send_whole(o: Output, m: u32, [first, left]: [u32; 2], acc: &mut Acc<CHUNKS>) {
        let alpha = o.alpha as i32;
        let lane = gpu::thread_again() % 32;
        let (down, right) = frag::accumulator(lane, 0);
        let row = first + gpu::thread_again() / 32 % 4 * 16 + down;
        let column = left + right;
        if o.flags & (FLAG_VECTORS | FLAG_ACCUMULATE) == FLAG_VECTORS {
            if alpha != 1 {
                unroll!(c < CHUNKS, most 4, {
                    unroll!(j < 8, {
                        unroll!(i < 4, {
                            let word = &mut acc.0[c][4 * j + i];
                            let x = saturated(whole(*word) as i64 * alpha as i64);
                            *word = f32::from_bits(x as u32);
                        });
                    });
                });
            }
            // Words are words.
            return Self::send_words::<F32>(o, m, row, column, acc);
        }
        unroll!(r < 2, {
            let row = row + r as u32 * 8;
            let line = o.c + row as u64 * o.ldc_bytes as u64;
            unroll!(c < CHUNKS, most 4, {
                unroll!(j < 8, {
                    unroll!(i < 2, {
                        let column = column + (c * 64 + j * 8 + i) as u32;
                        let at = line + column as u64 * 4;
                        let inside = row < m && column < o.n;
                        let add = inside && o.flags & FLAG_ACCUMULATE != 0;
                        let old = global::load_own_b32(at, add) as i32;
                        let sum = whole(acc.0[c][4 * j + 2 * r + i]) as i64;
                        let x = saturated(sum * alpha as i64 + old as i64);
                        if inside {
                            global::store_b32(at, x as u32);
                        }
                    });
                });
            });
        });
    }
}
