//! Quantization of rows to e4m3 with block scales, for 8-bit products that quantize at run time.

/// Adjacent elements of a row that share a scale.
pub const QUANTIZED_BLOCK: usize = 64;

/// Bits of f32 infinity: magnitudes with these bits or larger ones are infinite or NaN.
const INFINITE: u32 = 0x7f80_0000;

/// Scale of a block, as bits of f32: the smallest power of two such that magnitudes up to `most`, divided by it, are at
/// most 448, the max of e4m3. NaN if `most` is infinite or NaN. `most`: bits of the largest magnitude.
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
    // 448 = 1.75 * 2^8: a mantissa above 1.75 requires the next power of two.
    let exponent = (most + 0x1f_ffff) >> 23;
    // At least 2^-126, so that the scale and its inverse are normal numbers.
    let exponent = if exponent > 9 { exponent - 8 } else { 1 };
    exponent << 23
}

/// Inverse of a [`block_scale`].
#[inline(always)]
pub const fn inverse_scale(scale: u32) -> u32 {
    if scale >= INFINITE { scale } else { (254 << 23) - scale }
}
