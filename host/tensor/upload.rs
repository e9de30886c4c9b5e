//! What a context makes tensors of.

use einsparse_formats::{AsSparse, Dense};

use super::{AnyTensor, SparseTensor, Tensor};
use crate::context::Context;
use crate::error::Result;
use crate::registry::Scalar;
use crate::values::Slice;

impl Context {
    /// Copies a sparse tensor to the context, in the format it has: the values once, while the pattern on the host is
    /// shared. A value and a reference will both do. Matrices can be [converted] first.
    ///
    /// ```
    /// use einsparse::Context;
    /// use einsparse::formats::{Csr, CsrPattern};
    /// let ctx = Context::new();
    /// let csr = Csr::new(CsrPattern::new(1, 2, vec![0, 1], vec![1])?, vec![2.0f32])?;
    /// let there = ctx.upload(&csr)?;
    /// assert_eq!(there.to_host()?.to_csr()?, csr);
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// [converted]: einsparse_formats::Sparse::convert
    ///
    /// # Errors
    /// If memory does not suffice.
    pub fn upload<T: Scalar>(&self, tensor: impl AsSparse<T>) -> Result<SparseTensor<T>> {
        SparseTensor::new(self.device(), tensor)
    }

    /// Copies a dense tensor to the context.
    pub fn upload_dense<T: Scalar>(&self, dense: &Dense<T>) -> Result<Tensor<T>> {
        let values = Slice::of(dense.values());
        AnyTensor::of(self.device(), dense.shape(), values).map(Tensor::of)
    }

    /// Copies a dense tensor to the context with rows `leading` elements apart; the gaps hold `gap`.
    pub fn upload_strided<T: Scalar>(
        &self,
        dense: &Dense<T>,
        leading: usize,
        gap: T,
    ) -> Result<Tensor<T>> {
        let mut tensor = Tensor::new(self.device(), dense.shape(), leading)?;
        let (values, gap) = (
            bytemuck::cast_slice(dense.values()),
            bytemuck::bytes_of(&gap),
        );
        tensor.any.fill(values, Some(gap))?;
        Ok(tensor)
    }

    /// A dense tensor of zeros in the context.
    pub fn zeros<T: Scalar>(&self, shape: &[usize]) -> Result<Tensor<T>> {
        Tensor::new(self.device(), shape, shape.last().copied().unwrap_or(1))
    }
}
