//! Gradients of the layer normalisation of the sum of two matrices.

use std::marker::PhantomData;

use crate::context::Context;
use crate::device::Stream;
use crate::error::{Elsewhere, Error, Result, elements};
use crate::families::elementwise::{Layout, NormGradientLaunch, cpu};
use crate::operator::Operator;
use crate::operator_of;
use crate::registry::{Dtype, Scalar};
use crate::tensor::Tensor;

/// Gradients of [`ResidualNorm`](super::ResidualNorm).
///
/// Means and deviations are recomputed, so the forward run stores nothing for them. Sums are f32 on a GPU and f64 on
/// the CPU. The gradients of factor and summand are f32, whatever the type of x. Rows are distributed in parts, and the
/// sums of the parts are added in order, so results are bitwise reproducible. GPU kernels exist for f32, f16 and bf16.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::{Dense, f16};
/// use einsparse::nn::ResidualNormGradient;
/// let ctx = Context::cpu();
/// let gradient = ResidualNormGradient::<f16, f32>::new(&ctx, [1, 8], 0.0)?;
/// let tensor = |shape: &[usize], value: fn(usize) -> f32| {
///     ctx.upload_dense(&Dense::from_fn(shape.to_vec(), |i| f16::from_f32(value(i[i.len() - 1])))?)
/// };
/// let (x, y) = (tensor(&[1, 8], |i| (i % 2) as f32)?, tensor(&[1, 8], |_| 0.0)?);
/// let (factor, dy) = (tensor(&[8], |_| 1.0)?, tensor(&[1, 8], |i| if i == 1 { 8.0 } else { 0.0 })?);
/// let (mut dx, mut affine) = (ctx.zeros(&[1, 8])?, ctx.zeros(&[2, 8])?);
/// gradient.backward([&x, &y], &factor, &dy, &mut dx, &mut affine, &ctx.stream()?)?;
/// // The mean is 1/2, and the normalised element 1.
/// assert_eq!([affine.to_dense()?.get(&[0, 1]), affine.to_dense()?.get(&[1, 1])], [Some(8.0); 2]);
/// assert!((dx.to_dense()?.values()[1].to_f32() - 12.0).abs() < 0.1);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct ResidualNormGradient<T, Out = f32> {
    shape: [usize; 2],
    epsilon: f64,
    operator: Operator<NormGradientLaunch>,
    elements: PhantomData<(T, Out)>,
}

impl<T: Scalar, Out: Scalar> ResidualNormGradient<T, Out> {
    /// Creates the operation for matrices of this shape.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for an epsilon below 0. Except on [`Context::unchecked_cpu`], also [`Error::ElementType`]
    /// if the gradients of factor and summand are not f32, [`Error::Overflow`] for more than 2^31 - 1 rows or columns,
    /// [`Error::NoKernel`] for other element types, [`Error::OutOfMemory`].
    pub fn new(context: &Context, shape: [usize; 2], epsilon: f64) -> Result<Self> {
        if epsilon.is_nan() || epsilon < 0.0 {
            return Err(Error::range("epsilon", epsilon, ">= 0"));
        }
        if context.checks() && Out::DTYPE != Dtype::F32 {
            return Err(Error::dtype("affine", "f32", Out::DTYPE.name()));
        }
        elements("x", &shape)?;
        Ok(ResidualNormGradient {
            shape,
            epsilon,
            operator: operator_of(context, |device| {
                NormGradientLaunch::new(device, T::DTYPE, shape, epsilon)
            })?,
            elements: PhantomData,
        })
    }

    /// Returns the kernel name, or `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        self.operator.variant(NormGradientLaunch::variant)
    }

    /// Returns the workspace size, in bytes of device memory; 0 on a CPU context.
    pub fn workspace_bytes(&self) -> usize {
        self.operator.bytes(NormGradientLaunch::bytes)
    }

    /// Queues the gradients.
    ///
    /// `dy` is the gradient of the output. `dx` receives the gradient of x, which is also that of y. The two rows of
    /// `affine`, `[2, columns]`, receive the gradients of the factors and of the summands. Allocates nothing and does
    /// not synchronize.
    ///
    /// # Errors
    /// [`Error::Shape`] if an operand has other extents than planned; [`Error::OtherContext`] if one belongs to another
    /// context; [`Error::RowStride`] if factors or `affine` have gaps.
    pub fn backward(
        &self,
        [x, y]: [&Tensor<T>; 2],
        factor: &Tensor<T>,
        dy: &Tensor<T>,
        dx: &mut Tensor<T>,
        affine: &mut Tensor<Out>,
        stream: &Stream,
    ) -> Result<()> {
        let run = self.operator.start(stream)?;
        let of = |name: &str, tensor: &Tensor<T>| run.matrix(name, tensor.any(), &self.shape);
        let all = [of("x", x)?, of("y", y)?, of("dy", dy)?, of("dx", dx)?];
        let by = run.contiguous("factor", factor.any(), &self.shape[1..])?;
        let sums = run.contiguous("affine", affine.any(), &[2, self.shape[1]])?;
        run.queue(
            |launch, queue| launch.run(all, by, sums, queue),
            || self.on_host([x, y, dy], factor, dx, affine),
        )
    }

    fn on_host(
        &self,
        [x, y, dy]: [&Tensor<T>; 3],
        factor: &Tensor<T>,
        dx: &mut Tensor<T>,
        affine: &mut Tensor<Out>,
    ) -> Result<()> {
        let layout = Layout::new("x", self.shape, false)?;
        let all = [cpu::Host::of("x", x)?, cpu::Host::of("y", y)?, cpu::Host::of("dy", dy)?];
        let factor = factor.host().or_elsewhere("factor")?;
        let own = (factor, self.epsilon);
        let sums = cpu::norm_gradient(layout, &all, own, dx.host_rows_mut("dx")?);
        let (to, leading) = affine.host_rows_mut("affine")?;
        for (row, sums) in sums.into_iter().enumerate() {
            let to = to[row * leading..].iter_mut().zip(sums);
            to.for_each(|(to, sum)| *to = Out::from_f64(sum));
        }
        Ok(())
    }
}
