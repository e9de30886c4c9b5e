//! Element types of SDDMM at unstructured nonzeros: types with an accumulator of their own kind, and 8-bit integers.
//! Those are multiplied by fours (`dp4a`), summed in i32 and stored in the type that the flags name.

use crate::device::epilogue::store_or_add;
use crate::device::prelude::*;
use crate::families::sddmm::abi::*;

/// Element type of X and Y.
pub trait Terms: ElemInfo + Sized {
    /// Type of a sum of products.
    type Acc: Copy;
    const ZERO: Self::Acc;
    const BYTES: u32;

    /// Loads `V` elements; zeros if `ok` is false.
    fn load<const V: usize>(from: Global<Self, ReadOnly>, ok: bool) -> Raw;
    /// Returns `sum` plus the products of two vectors.
    fn dot<const V: usize>(a: &Raw, b: &Raw, sum: Self::Acc) -> Self::Acc;
    fn add(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    /// [`Elem::shfl_xor`] of a sum.
    fn shfl_xor(a: Self::Acc, other: u32) -> Self::Acc;
    /// Finishes the sum of an entry and stores it: scalar, mask, `=` or `+=`.
    fn finish(p: &SddmmParams, entry: u64, sum: Self::Acc);
}

impl<E: Elem> Terms for E {
    type Acc = <E as Elem>::Acc;
    const ZERO: Self::Acc = <E as Elem>::ZERO;
    const BYTES: u32 = <E as Elem>::BYTES;

    #[inline(always)]
    fn load<const V: usize>(from: Global<E, ReadOnly>, ok: bool) -> Raw {
        from.ld_raw::<V>(ok)
    }
    #[inline(always)]
    fn dot<const V: usize>(a: &Raw, b: &Raw, mut sum: Self::Acc) -> Self::Acc {
        unroll!(i < V, {
            sum = E::fma(E::get(a, i), E::get(b, i), sum);
        });
        sum
    }
    #[inline(always)]
    fn add(a: Self::Acc, b: Self::Acc) -> Self::Acc {
        <E as Elem>::add(a, b)
    }
    #[inline(always)]
    fn shfl_xor(a: Self::Acc, other: u32) -> Self::Acc {
        <E as Elem>::shfl_xor(a, other)
    }
    #[inline(always)]
    fn finish(p: &SddmmParams, entry: u64, sum: Self::Acc) {
        let mut value = E::mul(sum, E::scalar(p.alpha));
        if p.flags & FLAG_MASK_VALUES != 0 {
            value = E::mul(value, E::get(&p.mask().cast::<E>().at(entry).ld_raw::<1>(true), 0));
        }
        let to = p.values().cast::<E>().at(entry);
        store_or_add(to, value, p.flags & FLAG_ACCUMULATE != 0, true);
    }
}

impl Terms for Int8 {
    type Acc = i32;
    const ZERO: i32 = 0;
    const BYTES: u32 = 1;

    #[inline(always)]
    fn load<const V: usize>(from: Global<Int8, ReadOnly>, ok: bool) -> Raw {
        match V {
            16 => from.cast::<[u32; 4]>().ld_if(ok),
            8 => {
                let [a, b] = from.cast::<[u32; 2]>().ld_if(ok);
                [a, b, 0, 0]
            }
            4 => [from.cast::<u32>().ld_if(ok), 0, 0, 0],
            _ => [from.cast::<u8>().ld_if(ok), 0, 0, 0],
        }
    }
    #[inline(always)]
    fn dot<const V: usize>(a: &Raw, b: &Raw, mut sum: i32) -> i32 {
        // A single element is loaded with three zeros.
        unroll!(i < V.div_ceil(4), most 4, {
            sum = bits::dp4a_s8(a[i], b[i], sum);
        });
        sum
    }
    #[inline(always)]
    fn add(a: i32, b: i32) -> i32 {
        a.wrapping_add(b)
    }
    #[inline(always)]
    fn shfl_xor(a: i32, other: u32) -> i32 {
        warp::shfl_xor(a as u32, other) as i32
    }
    #[inline(always)]
    fn finish(p: &SddmmParams, entry: u64, sum: i32) {
        let mask = if p.flags & FLAG_MASK_VALUES != 0 {
            // SAFETY: the output does not overlap the mask, and this kernel does not start early.
            let mask = unsafe { p.mask().with::<ReadOnly>() };
            mask.at(entry).ld() as i8 as i32
        } else {
            1
        };
        if p.flags & FLAG_OUT_F16 != 0 {
            store_float::<F16>(p, entry, sum, mask);
        } else if p.flags & FLAG_OUT_BF16 != 0 {
            store_float::<Bf16>(p, entry, sum, mask);
        } else if p.flags & FLAG_OUT_F32 != 0 {
            store_float::<F32>(p, entry, sum, mask);
        } else {
            store_whole(p, entry, sum, mask);
        }
    }
}

#[inline(always)]
fn store_float<E: Elem<Acc = f32>>(p: &SddmmParams, entry: u64, sum: i32, mask: i32) {
    let at = p.values().cast::<E>().at(entry);
    let value = E::mul(E::mul(sum as f32, E::scalar(p.alpha)), mask as f32);
    store_or_add(at, value, p.flags & FLAG_ACCUMULATE != 0, true);
}

/// Limit of a scaled sum. Beyond it, the product with any mask but zero is beyond i32; up to it, the product with any
/// mask fits i64.
const BEYOND: i64 = 1 << 54;

#[inline(always)]
fn store_whole(p: &SddmmParams, entry: u64, sum: i32, mask: i32) {
    let at = p.values().cast::<u32>().at(entry);
    let accumulate = p.flags & FLAG_ACCUMULATE != 0;
    let old = at.ld_if(accumulate) as i32;
    let scaled = (sum as i64 * p.alpha as i32 as i64).clamp(-BEYOND, BEYOND);
    let value = scaled * mask as i64 + old as i64;
    at.st(value.clamp(i32::MIN as i64, i32::MAX as i64) as i32 as u32);
}
