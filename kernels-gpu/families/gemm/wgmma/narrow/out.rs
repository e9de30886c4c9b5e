//! Epilogue of 8-bit products. The type of C is a flag of the launch.

use crate::device::epilogue::Output;
use crate::device::prelude::*;
use crate::device::store::StoreTile;
use crate::device::store::chunk::{Cell, Chunk, One, Spot, TypeOfC, store_each};
use crate::families::gemm::abi::*;

/// Returns the word of an accumulator as i32.
#[inline(always)]
fn whole(x: f32) -> i32 {
    x.to_bits() as i32
}

/// Returns `x * factor + old`, saturated to i32.
#[inline(always)]
fn product(x: i32, factor: i32, old: i32) -> i32 {
    let sum = x as i64 * factor as i64 + old as i64;
    let (low, high) = (sum as i32, (sum >> 32) as i32);
    // The upper word of a sum that fits i32 repeats its sign. Two 64-bit comparisons would be eight instructions.
    if high == low >> 31 { low } else { high >> 31 ^ i32::MAX }
}

/// Returns the sum of two accumulators.
#[inline(always)]
fn add<E: BytesElem>(a: f32, b: f32) -> f32 {
    if E::WHOLE { f32::from_bits(whole(a).wrapping_add(whole(b)) as u32) } else { a + b }
}

/// Type of C that the flags name.
struct Named;

macro_rules! named {
    ($flags:expr, $type:ident => $call:expr) => {
        if $flags & FLAG_OUT_F16 != 0 {
            type $type = F16;
            $call
        } else if $flags & FLAG_OUT_BF16 != 0 {
            type $type = Bf16;
            $call
        } else {
            type $type = F32;
            $call
        }
    };
}

impl TypeOfC for Named {
    #[inline(always)]
    fn row_bias(o: Output, row: u32) -> f32 {
        named!(o.flags, E => E::row_bias(o, row))
    }

    #[inline(always)]
    fn add_bias(o: Output, column: u32, x: &mut Chunk) {
        named!(o.flags, E => E::add_bias(o, column, x))
    }

    #[inline(always)]
    fn add_old<const ORDER: u32>(o: Output, spot: Spot, c: u32, x: &mut Chunk) {
        named!(o.flags, E => E::add_old::<ORDER>(o, spot, c, x))
    }

    #[inline(always)]
    fn store_pieces<const ORDER: u32>(o: Output, spot: Spot, c: u32, x: &Chunk) {
        named!(o.flags, E => E::store_pieces::<ORDER>(o, spot, c, x))
    }

    #[inline(always)]
    fn store_all<const ORDER: u32, const CHUNKS: usize>(o: Output, spot: Spot, acc: &Acc<CHUNKS>) {
        named!(o.flags, E => E::store_all::<ORDER, CHUNKS>(o, spot, acc))
    }

    #[inline(always)]
    fn store_elements<const ORDER: u32>(o: Output, spot: Spot, c: u32, x: &Chunk) {
        named!(o.flags, E => E::store_elements::<ORDER>(o, spot, c, x))
    }
}

/// i32 elements, stored one by one.
struct Whole;

impl Cell for Whole {
    const WIDTH: u32 = 4;

    #[inline(always)]
    fn store_one(o: Output, one: One) {
        let add = one.inside && o.flags & FLAG_ACCUMULATE != 0;
        let c = one.c.cast::<u32>();
        let old = c.ld_if(add) as i32;
        if one.inside {
            let sum = product(whole(one.x), o.alpha as i32, old);
            c.st(sum as u32);
        }
    }
}

impl<const CHUNKS: usize, F: PanelForm<A: Multiply, L: Loader>> Panel<CHUNKS, F> {
    #[inline(always)]
    pub(super) fn epilogue_narrow<E: BytesElem>(
        p: &WgmmaParams,
        strip: Strip,
        group: u32,
        acc: &mut Acc<CHUNKS>,
    ) {
        if let Some(stages) = Self::whole(p, strip, group, acc, add::<E>) {
            let ((corner, smem), o) = (Self::place(strip, group), p.output(strip.item));
            Self::write_narrow::<E>(o, p.m, corner, smem, stages, acc);
        }
    }

    #[inline(always)]
    pub(in crate::families) fn write_narrow<E: BytesElem>(
        o: Output,
        m: u32,
        corner: [u32; 2],
        smem: (u32, Shared<u8>),
        stages: u32,
        acc: &mut Acc<CHUNKS>,
    ) {
        let out = o.flags;
        if E::WHOLE {
            if out & (FLAG_OUT_F16 | FLAG_OUT_BF16 | FLAG_OUT_F32) == 0 {
                return Self::store_whole(o, Spot::of(m, corner, smem), acc);
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
        if F::A::ASYNCHRONOUS {
            StoreTile::<CHUNKS, PLAIN>::write::<Named>(o, m, corner, smem, stages, acc);
        } else {
            let write = StoreTile::<CHUNKS, PLAIN>::write_as::<Named, false>;
            write(o, m, corner, smem, stages, acc);
        }
    }

    /// Stores i32 sums times an integer factor, with `+=` added to C, saturated.
    #[inline(always)]
    fn store_whole(o: Output, spot: Spot, acc: &Acc<CHUNKS>) {
        let alpha = o.alpha as i32;
        let vectors = o.flags & (FLAG_VECTORS | FLAG_ACCUMULATE) == FLAG_VECTORS;
        if vectors && alpha == 1 {
            // The f32 stores move words unchanged, so they also store i32.
            return F32::store_all::<PLAIN, CHUNKS>(o, spot, acc);
        }
        let mut c = warp::opaque(0);
        while c < CHUNKS as u32 {
            warp::nounroll();
            let mut x = [0f32; 32];
            unroll!(k < CHUNKS, most 4, {
                if c == k as u32 {
                    x = acc.0[k];
                }
            });
            if vectors {
                unroll!(j < 8, {
                    unroll!(i < 4, {
                        let word = &mut x[4 * j + i];
                        *word = f32::from_bits(product(whole(*word), alpha, 0) as u32);
                    });
                });
                F32::store_pieces::<PLAIN>(o, spot, c, &x);
            } else {
                store_each::<Whole, PLAIN>(o, spot, c, &x);
            }
            c += 1;
        }
    }
}
