//! Softmax of several heads that share a pattern, in one kernel.

use super::SparseSoftmax;
use crate::device::Stream;
use crate::error::{Error, Result, check_shape};
use crate::families::softmax::RawSoftmax;
use crate::families::softmax::cpu::{gradient, softmax};
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
        let stride = self.check_heads("scores", scores)?;
        self.same_stride("output", output, stride)?;
        self.queue_heads([Some(scores), None, Some(output)], stride, stream)?;
        if let (Some(from), Some(to)) = (scores.any.host(), output.any.host_mut()) {
            for (from, to) in from.chunks(stride).zip(to.chunks(stride)) {
                softmax(self.rows(), Some(from), to);
            }
        }
        Ok(())
    }

    /// Computes the softmax of the scores of every head in place.
    ///
    /// # Errors
    /// See [`SparseSoftmax::forward_heads`].
    pub fn forward_heads_in_place(&self, scores: &mut Tensor<T>, stream: &Stream) -> Result<()> {
        let stride = self.check_heads("scores", scores)?;
        self.queue_heads([Some(scores), None, Some(scores)], stride, stream)?;
        if let Some(scores) = scores.any.host_mut() {
            for scores in scores.chunks(stride) {
                softmax(self.rows(), None, scores);
            }
        }
        Ok(())
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
        let stride = self.check_heads("given", given)?;
        self.same_stride("dy", dy, stride)?;
        let tensors = [Some(given), Some(&*dy), Some(&*dy)];
        self.queue_heads(tensors, stride, stream)?;
        if let (Some(given), Some(to)) = (given.any.host(), dy.any.host_mut()) {
            for (given, to) in given.chunks(stride).zip(to.chunks(stride)) {
                gradient(self.rows(), given, None, to);
            }
        }
        Ok(())
    }

    /// Validates a tensor and returns the stride of heads in elements.
    fn check_heads(&self, name: &str, tensor: &Tensor<T>) -> Result<usize> {
        let shape = [self.options.heads, self.slots];
        check_shape(name, &shape, tensor.shape())?;
        self.check_place(name, tensor.device())?;
        Ok(tensor.leading())
    }

    fn same_stride(&self, name: &str, tensor: &Tensor<T>, stride: usize) -> Result<()> {
        let own = self.check_heads(name, tensor)?;
        match own == stride {
            true => Ok(()),
            false => {
                let reason = format!("has heads {own} elements apart, the input {stride}");
                Err(Error::operand(name, reason))
            }
        }
    }

    /// Queues a run. `tensors` are the input, the upstream gradient and the output, all validated.
    fn queue_heads(
        &self,
        tensors: [Option<&Tensor<T>>; 3],
        stride: usize,
        stream: &Stream,
    ) -> Result<()> {
        let stream = self.context.stream_of(stream)?;
        // Also required of one head: kernels read whole vectors, and no padding follows a tensor.
        let bytes = stride * size_of::<T>();
        if self.context.checks() && !bytes.is_multiple_of(16) {
            return Err(Error::alignment("scores", "head stride", bytes as u64, 16));
        }
        let [input, upstream, output] = tensors.map(|t| t.map_or(0, |t| t.place()));
        let raw = RawSoftmax { input, upstream, output, stride };
        // SAFETY: shapes and addresses were validated. The tensors are borrowed for the call, and device memory is
        // freed only after the work queued on the context.
        unsafe { self.queue_raw(&raw, stream) }
    }
}
