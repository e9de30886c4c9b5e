//! Gradient of a bias, and the gradient through a ReLU.

use std::marker::PhantomData;

use crate::context::Context;
use crate::device::Stream;
use crate::error::{Elsewhere, Error, Result, elements};
use crate::families::optimizer::BiasGradientLaunch;
use crate::operator::Operator;
use crate::operator_of;
use crate::parallel;
use crate::registry::{Dtype, Scalar};
use crate::tensor::Tensor;

/// Gradients of the bias b and of Z in `Y[n,o] = relu(Z[n,o] + b[o])`, over many rows n in one pass.
///
/// The operation follows a convolution or a product whose own gradients do not include a bias. Rows are distributed to
/// thread blocks in parts, and the sums of the parts are added in order, so results are bitwise reproducible. Sums are
/// f32 on a GPU and f64 on the CPU. The result is f32, whatever the type of Y. GPU kernels exist for f32, f16 and bf16.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::Dense;
/// use einsparse::nn::BiasGradient;
/// let ctx = Context::cpu();
/// let y = ctx.upload_dense(&Dense::new([2, 2], vec![1.0f32, 0.0, 2.0, 3.0])?)?;
/// let mut dy = ctx.upload_dense(&Dense::new([2, 2], vec![1.0f32, 2.0, 3.0, 4.0])?)?;
/// let more = ctx.upload_dense(&Dense::new([2, 2], vec![10.0f32; 4])?)?; // from a second layer that reads Y
/// let mut db = ctx.zeros::<f32>(&[2])?;
/// let gradient = BiasGradient::new(&ctx, [2, 2])?;
/// gradient.backward_bias_relu(&y, Some(&more), &mut dy, &mut db, &ctx.stream()?)?;
/// assert_eq!(dy.to_dense()?.values(), [11.0, 0.0, 13.0, 14.0]);
/// assert_eq!(db.to_dense()?.values(), [24.0, 14.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct BiasGradient<T, Out = f32> {
    shape: [usize; 2],
    operator: Operator<BiasGradientLaunch>,
    elements: PhantomData<(T, Out)>,
}

impl<T: Scalar, Out: Scalar> BiasGradient<T, Out> {
    /// Creates the operation for matrices of this shape, `[rows, outputs]`.
    ///
    /// # Errors
    /// Except on [`Context::unchecked_cpu`]: [`Error::ElementType`] if the result is not f32, [`Error::Overflow`] for
    /// more than 2^31 - 1 rows or outputs, [`Error::NoKernel`] for other element types, [`Error::OutOfMemory`].
    pub fn new(context: &Context, shape: [usize; 2]) -> Result<Self> {
        elements("dY", &shape)?;
        if context.checks() && Out::DTYPE != Dtype::F32 {
            return Err(Error::dtype("db", "f32", Out::DTYPE.name()));
        }
        Ok(BiasGradient {
            shape,
            operator: operator_of(context, |device| {
                BiasGradientLaunch::new(device, T::DTYPE, shape)
            })?,
            elements: PhantomData,
        })
    }

    /// Returns the kernel name, or `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        self.operator.variant(BiasGradientLaunch::variant)
    }

    /// Returns the workspace size, in bytes of device memory; 0 on a CPU context.
    pub fn workspace_bytes(&self) -> usize {
        self.operator.bytes(BiasGradientLaunch::bytes)
    }

    /// Queues the sum `db[o] = dY[n,o]` over n, without a ReLU. dY is `[rows, outputs]`, db is `[outputs]`. Allocates
    /// nothing and does not synchronize.
    ///
    /// # Errors
    /// [`Error::Shape`] if an operand has other extents than planned; [`Error::OtherContext`] if one belongs to another
    /// context; [`Error::RowStride`] if db has gaps.
    pub fn backward_bias(
        &self,
        dy: &Tensor<T>,
        db: &mut Tensor<Out>,
        stream: &Stream,
    ) -> Result<()> {
        let run = self.operator.start(stream)?;
        let from = run.matrix("dY", dy.any(), &self.shape)?;
        let sums = run.contiguous("db", db.any(), &self.shape[1..])?;
        run.queue(
            |launch, queue| launch.run(from, [None; 2], sums, queue),
            || self.sum(dy.host_rows("dY")?, db),
        )
    }

    /// Queues the gradients through a ReLU.
    ///
    /// dY is replaced by the gradient of Z: `dY + more` where Y is above zero, and zero elsewhere. db is the sum of the
    /// new rows of dY. `more` is the gradient from a second consumer of Y, if any.
    ///
    /// # Errors
    /// Returns the errors of [`backward_bias`](Self::backward_bias).
    pub fn backward_bias_relu(
        &self,
        y: &Tensor<T>,
        more: Option<&Tensor<T>>,
        dy: &mut Tensor<T>,
        db: &mut Tensor<Out>,
        stream: &Stream,
    ) -> Result<()> {
        let run = self.operator.start(stream)?;
        let to = run.matrix("dY", dy.any(), &self.shape)?;
        let gate = run.matrix("Y", y.any(), &self.shape)?;
        let others = [run.optional("more", more.map(|more| more.any()), &self.shape)?, Some(gate)];
        let sums = run.contiguous("db", db.any(), &self.shape[1..])?;
        run.queue(
            |launch, queue| launch.run(to, others, sums, queue),
            || {
                let more = more.map(|more| more.host_rows("more")).transpose()?;
                self.mask(y.host_rows("Y")?, more, dy.host_rows_mut("dY")?);
                self.sum(dy.host_rows("dY")?, db)
            },
        )
    }

    fn mask(
        &self,
        (gate, ldy): (&[T], usize),
        more: Option<(&[T], usize)>,
        (to, ldg): (&mut [T], usize),
    ) {
        let [rows, outputs] = self.shape;
        parallel::chunks(to, ldg.max(1), &|row, to| {
            if row >= rows {
                return;
            }
            let add = |o: usize| more.map_or(0.0, |(more, ldm)| more[row * ldm + o].to_f64());
            for (o, to) in to.iter_mut().enumerate().take(outputs) {
                let open = gate[row * ldy + o].to_f64() > 0.0;
                *to = T::from_f64(if open { to.to_f64() + add(o) } else { 0.0 });
            }
        });
    }

    fn sum(&self, (from, leading): (&[T], usize), db: &mut Tensor<Out>) -> Result<()> {
        let to = db.host_mut().or_elsewhere("db")?;
        let [rows, outputs] = self.shape;
        let mut sums = vec![0.0; outputs];
        for row in 0..rows {
            let own = &from[row * leading..][..outputs];
            let all = sums.iter_mut().zip(own);
            all.for_each(|(sum, x)| *sum += x.to_f64());
        }
        let all = to.iter_mut().zip(sums);
        all.for_each(|(to, sum)| *to = Out::from_f64(sum));
        Ok(())
    }
}
