//! Functions of a context that create tensors.

use einsparse_formats::{AsSparse, Dense};

use super::{AnyTensor, SparseTensor, Tensor};
use crate::context::Context;
use crate::error::Result;
use crate::registry::Scalar;
use crate::values::Slice;

impl Context {
    /// Copies a sparse tensor to the context, in its format. It accepts a value or a reference. The values are copied
    /// once; the pattern in host memory is shared. Matrices can be [converted] first.
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
    /// If memory is exhausted.
    pub fn upload<T: Scalar>(&self, tensor: impl AsSparse<T>) -> Result<SparseTensor<T>> {
        SparseTensor::new(self.device(), tensor)
    }

    /// Copies a sparse tensor to page-locked host memory, from which a GPU copies at the full rate of its link. A plan
    /// with an [`Options::memory_limit`](crate::Options::memory_limit) streams such tensors. Values and columns are
    /// copied; the pattern is shared as by [`upload`](Self::upload). On a CPU context it is an upload.
    ///
    /// No other operation of a GPU context accepts such a tensor, except [`to_host`](SparseTensor::to_host) and
    /// [`set_values`](SparseTensor::set_values).
    ///
    /// ```
    /// use einsparse::formats::{Csr, CsrPattern, Dense};
    /// use einsparse::{Context, Operand, Options};
    /// let ctx = Context::new();
    /// let a = Csr::new(CsrPattern::new(2, 3, vec![0, 1, 3], vec![2, 0, 1])?, vec![2.0f32, 3.0, 4.0])?;
    /// let (a, b) = (ctx.pin(a)?, ctx.upload_dense(&Dense::new([3, 1], vec![1.0, 10.0, 100.0])?)?);
    /// let operands: [(&str, Operand<'_, f32>); 2] = [("A", (&a).into()), ("B", (&b).into())];
    /// let options = Options::default().memory_limit(64 << 20);
    /// let plan = ctx.plan("C[m,n] = A[m,k] * B[k,n]").operands(&operands).options(&options).build()?;
    /// let (mut c, stream) = (ctx.zeros(plan.out_shape())?, ctx.stream()?);
    /// plan.run(&operands, &mut c, &stream)?;
    /// stream.synchronize()?;
    /// assert_eq!(c.to_dense()?.values(), [200.0, 43.0]);
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// # Errors
    /// If memory is exhausted, or the driver cannot lock more of it.
    pub fn pin<T: Scalar>(&self, tensor: impl AsSparse<T>) -> Result<SparseTensor<T>> {
        SparseTensor::pinned(self.device(), tensor)
    }

    /// Copies a dense tensor to the context.
    pub fn upload_dense<T: Scalar>(&self, dense: &Dense<T>) -> Result<Tensor<T>> {
        let values = Slice::of(dense.values());
        AnyTensor::of(self.device(), dense.shape(), values).map(Tensor::of)
    }

    /// Copies a dense tensor to the context with row stride `leading`. The gaps between rows are filled with `gap`.
    pub fn upload_strided<T: Scalar>(
        &self,
        dense: &Dense<T>,
        leading: usize,
        gap: T,
    ) -> Result<Tensor<T>> {
        let rows = (dense.shape(), Slice::of(dense.values()));
        let gap = bytemuck::bytes_of(&gap);
        AnyTensor::strided(self.device(), rows, leading, gap).map(Tensor::of)
    }

    /// Creates a dense tensor of zeros in the context.
    pub fn zeros<T: Scalar>(&self, shape: &[usize]) -> Result<Tensor<T>> {
        Tensor::new(self.device(), shape, shape.last().copied().unwrap_or(1))
    }
}
