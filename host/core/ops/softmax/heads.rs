//! Softmax of several heads that share a pattern, in one kernel.

use super::SparseSoftmax;
use crate::device::Stream;
use crate::error::{Error, Result};
use crate::families::softmax::cpu::{gradient, softmax};
use crate::families::softmax::{RawSoftmax, SoftmaxLaunch};
use crate::operator::Run;
use crate::registry::Scalar;
use crate::tensor::Tensor;

impl<T: Scalar> SparseSoftmax<T> {
    /// Computes the softmax of the scores of every head, `[heads, slots]`, into `output`, in one launch. The slots are
    /// those of the planned tensor, padding included.
    ///
    /// # Errors
    /// Fails for tensors of another shape or context than planned
    /// ([`SoftmaxOptions::heads`](super::SoftmaxOptions::heads)). On a GPU, the row stride must be a multiple of 16
    /// bytes; [`Context::upload_strided`](crate::Context::upload_strided) pads rows. On failure the output is
    /// unchanged.
    pub fn forward_heads(
        &self,
        scores: &Tensor<T>,
        output: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let run = self.operator.start(stream)?;
        let (input, stride) = self.check_heads(&run, "scores", scores)?;
        let written = self.same_stride(&run, "output", output, stride)?;
        self.queue(run, &RawSoftmax { input, upstream: 0, output: written, stride }, || {
            if let (Some(from), Some(to)) = (scores.any.host(), output.any.host_mut()) {
                for (from, to) in from.chunks(stride.max(1)).zip(to.chunks(stride.max(1))) {
                    softmax(self.rows(), Some(from), to);
                }
            }
        })
    }

    /// Computes the softmax of the scores of every head in place.
    ///
    /// # Errors
    /// See [`SparseSoftmax::forward_heads`].
    pub fn forward_heads_in_place(&self, scores: &mut Tensor<T>, stream: &Stream) -> Result<()> {
        let run = self.operator.start(stream)?;
        let (input, stride) = self.check_heads(&run, "scores", scores)?;
        self.queue(run, &RawSoftmax { input, upstream: 0, output: input, stride }, || {
            if let Some(scores) = scores.any.host_mut() {
                for scores in scores.chunks(stride.max(1)) {
                    softmax(self.rows(), None, scores);
                }
            }
        })
    }

    /// Computes the gradient of the scores of every head in place, as [`SparseSoftmax::backward_in_place`] does for one
    /// head. It overwrites `dy`, the gradient of the output.
    ///
    /// # Errors
    /// See [`SparseSoftmax::forward_heads`].
    pub fn backward_heads_in_place(
        &self,
        given: &Tensor<T>,
        dy: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let run = self.operator.start(stream)?;
        let (input, stride) = self.check_heads(&run, "given", given)?;
        let upstream = self.same_stride(&run, "dy", dy, stride)?;
        self.queue(run, &RawSoftmax { input, upstream, output: upstream, stride }, || {
            if let (Some(given), Some(to)) = (given.any.host(), dy.any.host_mut()) {
                for (given, to) in given.chunks(stride.max(1)).zip(to.chunks(stride.max(1))) {
                    gradient(self.rows(), given, None, to);
                }
            }
        })
    }

    /// Validates a tensor. Returns its address and the stride of heads in elements.
    fn check_heads(
        &self,
        run: &Run<'_, SoftmaxLaunch>,
        name: &str,
        tensor: &Tensor<T>,
    ) -> Result<(u64, usize)> {
        let matrix = run.matrix(name, tensor.any(), &[self.options.heads, self.slots])?;
        // Also required of one head: kernels read whole vectors, and no padding follows a tensor.
        let bytes = matrix.leading * size_of::<T>();
        if self.operator.context().checks() && !bytes.is_multiple_of(16) {
            return Err(Error::alignment(name, "head stride", bytes as u64, 16));
        }
        Ok((matrix.address, matrix.leading))
    }

    fn same_stride(
        &self,
        run: &Run<'_, SoftmaxLaunch>,
        name: &str,
        tensor: &Tensor<T>,
        stride: usize,
    ) -> Result<u64> {
        let own = tensor.leading();
        if own == stride {
            return self.check_heads(run, name, tensor).map(|(address, _)| address);
        }
        run.check(name, tensor.any(), &[self.options.heads, self.slots])?;
        let reason = format!("has heads {own} elements apart, the input {stride}");
        Err(Error::operand(name, reason))
    }
}
