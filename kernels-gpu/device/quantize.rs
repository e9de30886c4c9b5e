//! Rows on their way to e4m3: a block of [`QUANTIZED_BLOCK`] neighbours is held by eight lanes.

use super::elem::{Elem, Raw};
use super::ptx::{matrix, warp};
use crate::abi::{QUANTIZED_BLOCK, block_scale, inverse_scale};

/// Elements of a lane.
const OWN: usize = 8;
const _: () = assert!(QUANTIZED_BLOCK == 8 * OWN);

/// A lane's eight neighbours as e4m3, and the scale of its block. Every lane of the warp must call it together.
#[inline(always)]
pub fn quantize<E: Elem<Acc = f32>>(raw: &Raw) -> ([u32; 2], u32) {
    let mut x = [0.0f32; OWN];
    let mut most = 0;
    unroll!(i < OWN, {
        x[i] = E::get(raw, i);
        most = most.max(x[i].to_bits() & 0x7fff_ffff);
    });
    unroll!(step < 3, {
        most = most.max(warp::shfl_xor(most, 1 << step));
    });
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
