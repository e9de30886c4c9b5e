//! Quantization of rows to e4m3. Eight lanes hold a block of [`QUANTIZED_BLOCK`] adjacent elements.

use super::elem::{Elem, Raw};
use super::lanes::{UP, reduce};
use super::ptx::{matrix, warp};
use crate::abi::{QUANTIZED_BLOCK, block_scale, inverse_scale};

/// Elements per lane.
const OWN: usize = 8;
const _: () = assert!(QUANTIZED_BLOCK == 8 * OWN);

/// Quantizes eight adjacent elements of a lane to e4m3; returns them and the scale of the block. Every lane of the warp
/// must call it together.
#[inline(always)]
pub fn quantize<E: Elem<Acc = f32>>(raw: &Raw) -> ([u32; 2], u32) {
    let mut x = [0.0f32; OWN];
    let mut most = 0;
    unroll!(i < OWN, {
        x[i] = E::get(raw, i);
        most = most.max(x[i].to_bits() & 0x7fff_ffff);
    });
    most = reduce(most, UP, 1..8, |x, distance| x.max(warp::shfl_xor(x, distance)));
    let scale = block_scale(most);
    let by = f32::from_bits(inverse_scale(scale));
    let mut codes = [0; 2];
    unroll!(i < 2, {
        let two = |k: usize| {
            matrix::e4m3x2_from_f32(E::mul(x[4 * i + k], by), E::mul(x[4 * i + k + 1], by))
        };
        codes[i] = two(0) | two(2) << 16;
    });
    (codes, scale)
}
