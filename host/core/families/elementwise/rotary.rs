//! Rotary positions on a GPU: one launch, and a table of angles.

use einsparse_kernels::families::RotaryParams;

use super::{Layout, blocks, load, pitch, vectors};
use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::Result;
use crate::kernel::{Kernel, Queue};
use crate::launch::small;
use crate::registry::Dtype;
use crate::tensor::DenseMatrix;

/// The head dimension must be a multiple of this number of elements for the kernel.
pub const PAIRS: usize = 16;

/// Number of threads, one per pair of vectors. The kernel numbers the pairs in 32 bits.
fn threads(layout: Layout, dtype: Dtype) -> Result<usize> {
    let of_token = layout.width / (2 * (16 / dtype.bytes()));
    let all = layout.tokens.saturating_mul(of_token);
    small("pairs of 16 bytes in all tokens", all)?;
    Ok(all)
}

/// Kernel for tokens of one shape.
#[derive(Debug)]
pub struct RotaryLaunch {
    kernel: Kernel<RotaryParams>,
    layout: Layout,
    turns: DeviceMemory,
    params: RotaryParams,
}

impl RotaryLaunch {
    /// Creates the launch. `heads`: heads of queries and of keys. `turns`: full rotations of each pair per position.
    pub fn new(
        device: &Device,
        dtype: Dtype,
        layout: Layout,
        heads: [usize; 2],
        turns: &[f64],
    ) -> Result<Self> {
        threads(layout, dtype)?;
        Ok(RotaryLaunch {
            kernel: load(device, dtype, 1, "rotary positions")?,
            layout,
            turns: device.upload(turns)?,
            params: RotaryParams {
                tokens: small("tokens", layout.tokens)?,
                heads: small("heads", heads[0])?,
                key_heads: small("heads of keys", heads[1])?,
                dim: small("elements of a head", turns.len() * 2)?,
                ..RotaryParams::default()
            },
        })
    }

    pub fn variant(&self) -> &'static str {
        self.kernel.row().name
    }

    /// Queues the rotation of `x` into queries, keys and values. `lengths` and `out` are addresses.
    pub fn run(&self, x: DenseMatrix, lengths: u64, out: [u64; 3], queue: Queue<'_>) -> Result<()> {
        let row = self.kernel.row();
        let threads = threads(self.layout, row.dtype)?;
        if threads == 0 {
            return Ok(());
        }
        let mut flags = self.layout.flags();
        if !self.layout.columns {
            flags |= vectors(row, self.layout.width, &[x]);
        }
        let params = RotaryParams {
            x: x.address,
            lengths,
            turns: self.turns.address(),
            q: out[0],
            k: out[1],
            v: out[2],
            x_row: pitch(row, &x)?,
            flags,
            ..self.params
        };
        queue.launch(&self.kernel, blocks(threads)?, &params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_numbered_in_32_bits() {
        let of = |tokens: usize| threads(Layout::new("x", [tokens, 512], false)?, Dtype::Bf16);
        assert_eq!(of((1 << 27) - 1).unwrap(), ((1 << 27) - 1) * 32);
        let error = of(1 << 27).unwrap_err().to_string();
        assert!(error.contains("over the limit of 4294967295"), "{error}");
        let error = of(usize::MAX).unwrap_err().to_string();
        assert!(error.contains("elements of `x` of shape"), "{error}");
    }
}
