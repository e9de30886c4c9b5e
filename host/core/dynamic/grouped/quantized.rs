//! Rows as e4m3 with scales on the CPU, decoded to the numbers that they represent.

use einsparse_formats::{Dense, E4m3, Element};
use einsparse_kernels::abi::{QUANTIZED_BLOCK, block_scale, inverse_scale};

use crate::context::Context;
use crate::error::Result;
use crate::registry::Scalar;
use crate::tensor::Tensor;

/// Rounds rows of a matrix as the kernels do. The result is in f32, because a number may be rounded past the range of
/// `T`.
pub(super) fn rounded<T: Scalar>(context: &Context, a: &Tensor<T>) -> Result<Tensor<f32>> {
    let rows = a.to_dense()?;
    let mut values: Vec<f32> = rows.values().iter().map(|x| x.to_f64() as f32).collect();
    let width = rows.shape().last().copied().unwrap_or(0);
    for row in values.chunks_mut(width.max(1)) {
        row.chunks_mut(QUANTIZED_BLOCK).for_each(round);
    }
    context.upload_dense(&Dense::new(a.shape().to_vec(), values)?)
}

/// Rounds numbers that share a scale.
fn round(block: &mut [f32]) {
    let most = block.iter().map(|x| x.abs().to_bits()).max();
    let scale = block_scale(most.unwrap_or(0));
    let by = f32::from_bits(inverse_scale(scale));
    for x in block {
        let code = E4m3::from_f64(f64::from(*x * by));
        *x = code.to_acc() * f32::from_bits(scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_keeps_four_bits_of_each_number_near_its_largest() {
        let mut block: Vec<f32> = (0..64).map(|i| 0.37 * (i as f32 - 31.0)).collect();
        let before = block.clone();
        round(&mut block);
        for (found, x) in block.iter().zip(before) {
            assert!((found - x).abs() <= x.abs() / 16.0, "{found} for {x}");
        }
        // For large and small numbers in one block, nothing overflows, and numbers far below the largest become zero.
        let mut block = [3e38f32, 1.0, -3e38];
        round(&mut block);
        assert!(block.iter().all(|x| x.is_finite()) && block[1] == 0.0, "{block:?}");
        let mut block = [1e-38f32, 0.0];
        round(&mut block);
        assert!(block[1] == 0.0 && block[0] <= 1.1e-38, "{block:?}");
        for other in [f32::NAN, f32::INFINITY] {
            let mut block = [1.0, other];
            round(&mut block);
            assert!(block.iter().all(|x| x.is_nan()), "{block:?}");
        }
    }
}
