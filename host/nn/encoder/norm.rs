//! Layer normalisation of the sum of two matrices.

use super::host::norms;
use crate::context::Context;
use crate::device::Stream;
use crate::error::{Error, Result, elements};
use crate::families::discover::PackLaunch;
use crate::operator::Operator;
use crate::operator_of;
use crate::registry::Scalar;
use crate::tensor::Tensor;

/// Layer normalisation of a residual sum (arXiv 1607.06450).
///
/// Each row is `out = (x + y - mean) / sqrt(variance + epsilon) * factor + summand`. It is computed in f32 and rounded
/// once; the CPU computes in f64.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::{Dense, f16};
/// use einsparse::nn::ResidualNorm;
/// let ctx = Context::cpu();
/// let norm = ResidualNorm::new(&ctx, [1, 8], 0.0)?;
/// // Two numbers four times.
/// let tensor = |shape: &[usize], values: [f32; 2]| {
///     let values = values.map(f16::from_f32).repeat(4);
///     ctx.upload_dense(&Dense::new(shape.to_vec(), values)?)
/// };
/// let (x, y) = (tensor(&[1, 8], [1.0, 2.0])?, tensor(&[1, 8], [2.0, 3.0])?);
/// let (factor, summand) = (tensor(&[8], [1.0, 2.0])?, tensor(&[8], [0.0, 1.0])?);
/// let mut out = ctx.zeros(&[1, 8])?;
/// norm.forward([&x, &y], [&factor, &summand], &mut out, &ctx.stream()?)?;
/// assert_eq!(out.to_dense()?.values()[..2], [-1.0, 3.0].map(f16::from_f32));
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct ResidualNorm<T> {
    shape: [usize; 2],
    epsilon: f64,
    operator: Operator<PackLaunch>,
    element: std::marker::PhantomData<T>,
}

impl<T: Scalar> ResidualNorm<T> {
    /// Creates the operation for matrices of this shape.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](einsparse_core::Error::OutOfRange) for an epsilon below 0, and for rows whose length is not a
    /// multiple of 8 elements or is above 1024; [`Error::NoKernel`](einsparse_core::Error::NoKernel) for types other than f16
    /// and bf16.
    pub fn new(context: &Context, shape: [usize; 2], epsilon: f64) -> Result<Self> {
        if epsilon.is_nan() || epsilon < 0.0 {
            return Err(Error::range("epsilon", epsilon, ">= 0"));
        }
        elements("x", &shape)?;
        let operator = operator_of(context, |device| {
            let extents = [1, shape[0], shape[1]];
            let launch = PackLaunch::new(device, T::DTYPE, extents, shape[0], epsilon)?;
            launch.set_live(device, shape[0])?;
            Ok(launch)
        })?;
        Ok(ResidualNorm { shape, epsilon, operator, element: std::marker::PhantomData })
    }

    /// Queues the normalised sum of `x` and `y`. `affine` contains a factor and a summand for each column.
    ///
    /// # Errors
    /// Returns an error if a tensor has another shape or context than planned, or if an address is not a multiple of 16
    /// bytes. The output is then not written.
    pub fn forward(
        &self,
        [x, y]: [&Tensor<T>; 2],
        affine: [&Tensor<T>; 2],
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let run = self.operator.start(stream)?;
        for (name, tensor) in [("x", x), ("y", y), ("out", &*out)] {
            run.check(name, tensor.any(), &self.shape)?;
        }
        for (name, tensor) in [("factor", affine[0]), ("summand", affine[1])] {
            run.check(name, tensor.any(), &self.shape[1..])?;
        }
        let (from, to) = ([x, y].map(super::rows), (super::rows(out), false, false));
        run.queue(
            |launch, queue| launch.norm(from, affine.map(|tensor| tensor.place()), to, queue),
            || {
                let [inputs, affine] = [[x, y], affine].map(|pair| pair.map(|t| t.any()));
                // SAFETY: only values are stored.
                let out = unsafe { out.any_mut() };
                norms(self.shape[0], inputs, affine, self.epsilon, out);
                Ok(())
            },
        )
    }
}
