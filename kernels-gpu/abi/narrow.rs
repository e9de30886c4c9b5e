//! The `narrow` family: products of 8-bit operands, with the tile, the lists and the parameters of `wgmma`.

/// C is f16. Without any of the three flags it is i32, which only products of integers have.
pub const FLAG_OUT_F16: u32 = 1 << 16;
/// C is bf16.
pub const FLAG_OUT_BF16: u32 = 1 << 17;
/// C is f32.
pub const FLAG_OUT_F32: u32 = 1 << 18;
