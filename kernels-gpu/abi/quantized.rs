//! Rows as e4m3 with scales, which products of 8 bits quantize while they run.

/// Neighbours of a row that share a scale.
pub const QUANTIZED_BLOCK: usize = 64;

/// Bits of f32 infinity: what is not below is infinite, or NaN.
const INFINITE: u32 = 0x7f80_0000;

/// Scale of a block, as bits of f32: the smallest power of two that leaves numbers up to `most` within e4m3's 448 when
/// they are divided by it, or NaN where one is infinite or NaN. `most`: bits of the largest magnitude.
///
/// ```
/// use einsparse_kernels::abi::block_scale;
/// let scale = |most: f32| f32::from_bits(block_scale(most.to_bits()));
/// assert_eq!([scale(448.0), scale(449.0), scale(3.0)], [1.0, 2.0, 1.0 / 128.0]);
/// assert!(scale(f32::INFINITY).is_nan());
/// ```
#[inline(always)]
pub const fn block_scale(most: u32) -> u32 {
    if most >= INFINITE {
        return 0x7fff_ffff;
    }
    // 448 is 1.75 times 2 to the 8th: what is above 1.75 goes to the next power.
    let exponent = (most + 0x1f_ffff) >> 23;
    // Its inverse is a normal number too.
    let exponent = if exponent > 9 { exponent - 8 } else { 1 };
    exponent << 23
}

/// The inverse of a [`block_scale`].
#[inline(always)]
pub const fn inverse_scale(scale: u32) -> u32 {
    if scale >= INFINITE { scale } else { (254 << 23) - scale }
}
