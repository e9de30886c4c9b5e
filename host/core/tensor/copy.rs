//! Updates the values of a sparse tensor from a dense one in the same memory.

use einsparse_formats::{Format, FormatError};

use super::{SparseTensor, Tensor};
use crate::device::Stream;
use crate::driver::copy_dtod_async;
use crate::error::{Error, Result};
use crate::registry::{Scalar, block_of};

impl<T: Scalar> SparseTensor<T> {
    /// Copies new values for the same pattern, in the order of [`SparseTensor::set_values`], from a tensor without gaps
    /// in the same context. The copy is queued on `stream`, without an allocation or a wait.
    ///
    /// # Errors
    /// [`Error::Format`] unless there is one value per slot, without gaps. [`Error::OtherContext`] if the tensor or the
    /// stream is of another context. On a GPU also [`Error::Operand`] if blocks extend past the last row or column: the
    /// elements past the edge would have to be set to zero.
    ///
    /// ```
    /// use einsparse::Context;
    /// use einsparse::formats::{Csr, CsrPattern, Dense};
    /// let ctx = Context::new();
    /// let mut a = ctx.upload(Csr::new(CsrPattern::new(1, 3, vec![0, 2], vec![0, 2])?, vec![1.0f32, 2.0])?)?;
    /// let values = ctx.upload_dense(&Dense::new([2], vec![3.0f32, 4.0])?)?;
    /// let stream = ctx.stream()?;
    /// a.copy_values(&values, &stream)?;
    /// stream.synchronize()?;
    /// assert_eq!(a.to_host()?.values(), [3.0, 4.0]);
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    pub fn copy_values(&mut self, values: &Tensor<T>, stream: &Stream) -> Result<()> {
        let (slots, shape) = (self.any.pattern().slots(), values.shape());
        let (elements, row) = (shape.iter().product(), shape.last().copied().unwrap_or(1));
        if elements != slots {
            return Err(
                FormatError::Length { array: "values", found: elements, expected: slots }.into()
            );
        }
        if values.leading() != row {
            return Err(FormatError::Shape {
                what: "row stride of the values",
                found: values.leading().to_string(),
                expected: format!("{row}, rows side by side,"),
            }
            .into());
        }
        let elsewhere = || Error::elsewhere("values");
        let Some(arrays) = self.any.device() else {
            return self.set_values(values.host().ok_or_else(elsewhere)?);
        };
        let device = &arrays.device;
        let here = values.device().is_some_and(|on| on.is_same(device));
        let from = values.address().filter(|_| here).ok_or_else(elsewhere)?;
        if !stream.belongs_to(device) {
            return Err(Error::elsewhere("stream"));
        }
        if !self.has_whole_blocks() {
            let reason = "of blocks that reach past the edge come from the host (`set_values`)";
            return Err(Error::operand("values", reason));
        }
        device.context().set_current()?;
        let bytes = slots * size_of::<T>();
        // SAFETY: both are of this GPU and have `bytes` bytes. The values of a sparse tensor do not overlap other
        // memory.
        unsafe { copy_dtod_async(arrays.values.address(), from, bytes, stream.raw()) }
    }

    /// Whether blocks end at the last row and column, so that [`copy_values`](Self::copy_values) supports the tensor on
    /// a GPU.
    #[doc(hidden)]
    pub fn has_whole_blocks(&self) -> bool {
        !reaches_outside(&self.format(), self.shape())
    }
}

/// Whether blocks or groups at the edge have elements outside the matrix.
fn reaches_outside(format: &Format, shape: &[usize]) -> bool {
    let (height, width) = match format {
        // Rows are whole words of positions, which cover 32 columns.
        Format::Nm { .. } => (1, 32),
        blocks => block_of(blocks),
    };
    match shape {
        &[rows, columns] => !rows.is_multiple_of(height) || !columns.is_multiple_of(width),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::reaches_outside;

    #[test]
    fn blocks_past_the_edge_are_seen() {
        let outside =
            |format: &str, shape: &[usize]| reaches_outside(&format.parse().unwrap(), shape);
        assert!(!outside("csr", &[5, 7]));
        assert!(!outside("bsr:2x4", &[6, 8]));
        assert!(outside("bsr:2x4", &[6, 9]));
        assert!(outside("blockcoo:4x2", &[6, 8]));
        assert!(outside("nm:2:4", &[5, 8]));
        assert!(!outside("nm:2:4", &[5, 32]));
    }
}
