//! Elementwise operations of a decoder: norms, rotary positions, gated units, 8-bit rows, tokens. The kernels are in
//! `kernels-gpu/families/elementwise`.

mod activation;
pub mod cpu;
mod gated;
mod norm_gradient;
mod quantize;
mod rms_norm;
mod rotary;
mod tokens;

use einsparse_kernels::families::{ELEMENTWISE_COLUMNS, ELEMENTWISE_THREADS, ELEMENTWISE_VECTORS};
use einsparse_kernels::table::{Row, rows_of};

pub use activation::ActivationLaunch;
pub use gated::GatedLaunch;
pub use norm_gradient::NormGradientLaunch;
pub(crate) use quantize::QuantizeLaunch;
pub use rms_norm::RmsNormLaunch;
pub use rotary::{PAIRS as ROTARY_PAIRS, RotaryLaunch};
pub use tokens::TokensLaunch;

use crate::device::Device;
use crate::error::{Result, elements};
use crate::kernel::{Grid, Kernel};
use crate::launch::{MAX_GRID_X, row_bytes, within};
use crate::registry::{Dtype, of_type};
use crate::tensor::DenseMatrix;

/// Matrix of tokens, which are its rows or its columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub tokens: usize,
    pub width: usize,
    pub columns: bool,
}

impl Layout {
    /// # Errors
    /// Returns [`Error::Overflow`](crate::error::Error::Overflow) if the matrix exceeds the address space.
    pub fn new(name: &str, [tokens, width]: [usize; 2], columns: bool) -> Result<Self> {
        elements(name, &[tokens, width])?;
        Ok(Layout { tokens, width, columns })
    }

    pub fn shape(self) -> [usize; 2] {
        match self.columns {
            true => [self.width, self.tokens],
            false => [self.tokens, self.width],
        }
    }

    /// Offset of a feature of a token, with a row stride of `leading` elements.
    pub(crate) fn at(self, leading: usize, token: usize, feature: usize) -> usize {
        match self.columns {
            true => feature * leading + token,
            false => token * leading + feature,
        }
    }

    fn flags(self) -> u32 {
        if self.columns { ELEMENTWISE_COLUMNS } else { 0 }
    }
}

/// Loads the kernel of an element type and step.
fn load<P: Copy + 'static>(
    device: &Device,
    dtype: Dtype,
    step: u32,
    what: &str,
) -> Result<Kernel<P>> {
    let rows = rows_of::<P>().filter(|row| row.step == step);
    let row = of_type(rows, dtype, format!("{what} in {}", dtype.name()))?;
    Kernel::load(device, row)
}

/// Row stride in bytes.
fn pitch(row: &Row, matrix: &DenseMatrix) -> Result<u32> {
    row_bytes("a matrix", matrix.leading, row.dtype.bytes())
}

/// Returns the vector flag if rows of `across` elements are whole aligned vectors in all matrices.
fn vectors(row: &Row, across: usize, matrices: &[DenseMatrix]) -> u32 {
    let of_vector = 16 / row.dtype.bytes();
    let whole =
        |m: &DenseMatrix| m.address.is_multiple_of(16) && m.leading.is_multiple_of(of_vector);
    match across.is_multiple_of(of_vector) && matrices.iter().all(whole) {
        true => ELEMENTWISE_VECTORS,
        false => 0,
    }
}

/// Grid of `threads` threads. Every kernel waits for the previous kernel before it reads or writes.
fn blocks(threads: usize) -> Result<Grid> {
    let blocks = threads.div_ceil(ELEMENTWISE_THREADS as usize);
    Ok(Grid::of([within("thread blocks", blocks, MAX_GRID_X)?, 1, 1]).early())
}
