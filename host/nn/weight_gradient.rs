//! Gradients of the weights and the bias of a dense layer.

use std::marker::PhantomData;

use crate::context::Context;
use crate::device::Stream;
use crate::error::{Error, Result, elements};
use crate::families::optimizer::{WeightGradientLaunch, cpu};
use crate::operator::{Operator, Run};
use crate::operator_of;
use crate::plan::Precision;
use crate::registry::{Dtype, Scalar};
use crate::tensor::{DenseMatrix, Tensor};
use einsparse_core::multiplied_as;

/// Gradients of the weights and the bias of a dense layer over many rows, in one pass.
///
/// The layer is `Y[n,o] = X[n,i] * W[i,o] + b[o]`, its gradients are `dW[i,o] = X[n,i] * dY[n,o]` and
/// `db[o] = dY[n,o]`. Rows are distributed to thread blocks in parts, and the sums of the parts are added in order, so
/// results are bitwise reproducible. Sums are f32 on a GPU and f64 on the CPU. Results are f32, whatever the type of X,
/// as [`Adam`](super::Adam) accepts them. GPU kernels exist for f32, f16 and bf16. f16 and bf16 use Tensor Cores, and
/// so does f32 with [`Precision::Tf32`].
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::Dense;
/// use einsparse::nn::WeightGradient;
/// let ctx = Context::cpu();
/// let x = ctx.upload_dense(&Dense::new([2, 2], vec![1.0f32, 2.0, 3.0, 4.0])?)?;
/// let dy = ctx.upload_dense(&Dense::new([2, 1], vec![1.0f32, 10.0])?)?;
/// let gradient = WeightGradient::<f32>::new(&ctx, [2, 2, 1])?;
/// let (mut dw, mut db) = (ctx.zeros(&[2, 1])?, ctx.zeros(&[1])?);
/// gradient.backward_weight(&x, &dy, &mut dw, Some(&mut db), &ctx.stream()?)?;
/// assert_eq!(dw.to_dense()?.values(), [31.0, 42.0]);
/// assert_eq!(db.to_dense()?.values(), [11.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct WeightGradient<T, Out = f32> {
    extents: [usize; 3],
    operator: Operator<WeightGradientLaunch>,
    elements: PhantomData<(T, Out)>,
}

impl<T: Scalar, Out: Scalar> WeightGradient<T, Out> {
    /// Creates the operation for `[rows, inputs, outputs]`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] without inputs or outputs. Except on [`Context::unchecked_cpu`], also
    /// [`Error::ElementType`] if the results are not f32, [`Error::Overflow`] for more than 65,534 inputs or 2^31 - 1
    /// rows, [`Error::NoKernel`] for other element types, [`Error::OutOfMemory`].
    pub fn new(context: &Context, extents: [usize; 3]) -> Result<Self> {
        Self::with_precision(context, extents, Precision::Full)
    }

    /// Creates the operation as [`new`](Self::new) does; a GPU multiplies f32 in `precision`. The gradient of the bias
    /// stays full f32.
    ///
    /// # Errors
    /// Returns the errors of [`new`](Self::new).
    pub fn with_precision(
        context: &Context,
        extents: [usize; 3],
        precision: Precision,
    ) -> Result<Self> {
        let [rows, inputs, outputs] = extents;
        elements("X", &[rows, inputs])?;
        elements("dY", &[rows, outputs])?;
        elements("dW", &[inputs, outputs])?;
        if inputs == 0 || outputs == 0 {
            let found = format!("{inputs} x {outputs}");
            return Err(Error::range("extents of dW", found, "at least 1 x 1"));
        }
        if context.checks() && Out::DTYPE != Dtype::F32 {
            return Err(Error::dtype("dW", "f32", Out::DTYPE.name()));
        }
        let operator = operator_of(context, |device| {
            let dtype = multiplied_as(T::DTYPE, precision);
            WeightGradientLaunch::new(device, dtype, extents)
        })?;
        Ok(WeightGradient { extents, operator, elements: PhantomData })
    }

    /// Returns the kernel name, or `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        self.operator.variant(WeightGradientLaunch::variant)
    }

    /// Returns the workspace size, in bytes of device memory; 0 on a CPU context.
    pub fn workspace_bytes(&self) -> usize {
        self.operator.bytes(WeightGradientLaunch::bytes)
    }

    /// Queues the gradients. X is `[rows, inputs]`, dY is `[rows, outputs]`, dW is `[inputs, outputs]`, db is
    /// `[outputs]`. Allocates nothing and does not synchronize.
    ///
    /// # Errors
    /// [`Error::Shape`] if an operand has other extents than planned; [`Error::OtherContext`] if one belongs to another
    /// context.
    pub fn backward_weight(
        &self,
        x: &Tensor<T>,
        dy: &Tensor<T>,
        dw: &mut Tensor<Out>,
        db: Option<&mut Tensor<Out>>,
        stream: &Stream,
    ) -> Result<()> {
        let (run, operands, sums) = self.start(x, dy, dw, db.as_deref(), stream)?;
        run.queue(
            |launch, queue| launch.run(operands, sums, None, queue),
            || self.on_host(x, dy, dw, db),
        )
    }

    /// Queues the gradients of a layer `Y = relu(X W + b)`, from the gradient of Y. In the same pass, dY is replaced by
    /// the gradient of the sums before the ReLU, which is zero where Y is not above zero. The gradient of the inputs
    /// requires this dY.
    ///
    /// # Errors
    /// Returns the errors of [`backward_weight`](Self::backward_weight).
    pub fn backward_weight_relu(
        &self,
        x: &Tensor<T>,
        y: &Tensor<T>,
        dy: &mut Tensor<T>,
        dw: &mut Tensor<Out>,
        db: Option<&mut Tensor<Out>>,
        stream: &Stream,
    ) -> Result<()> {
        let (run, operands, sums) = self.start(x, dy, dw, db.as_deref(), stream)?;
        let gate = run.matrix("Y", y.any(), dy.shape())?;
        run.queue(
            |launch, queue| launch.run(operands, sums, Some(gate), queue),
            || {
                let ((from, ldy), (to, ldg)) = (y.host_rows("Y")?, dy.host_rows_mut("dY")?);
                for (y, dy) in from.chunks(ldy.max(1)).zip(to.chunks_mut(ldg.max(1))) {
                    for (y, dy) in y.iter().zip(dy).take(self.extents[2]) {
                        if y.to_f64().is_nan() || y.to_f64() <= 0.0 {
                            *dy = T::ZERO;
                        }
                    }
                }
                self.on_host(x, dy, dw, db)
            },
        )
    }

    fn start<'o>(
        &'o self,
        x: &Tensor<T>,
        dy: &Tensor<T>,
        dw: &Tensor<Out>,
        db: Option<&Tensor<Out>>,
        stream: &'o Stream,
    ) -> Result<(Run<'o, WeightGradientLaunch>, [DenseMatrix; 3], u64)> {
        let [rows, inputs, outputs] = self.extents;
        let run = self.operator.start(stream)?;
        let operands = [
            run.matrix("X", x.any(), &[rows, inputs])?,
            run.matrix("dY", dy.any(), &[rows, outputs])?,
            run.matrix("dW", dw.any(), &[inputs, outputs])?,
        ];
        let db = match db {
            Some(db) => run.contiguous("db", db.any(), &[outputs])?,
            None => 0,
        };
        Ok((run, operands, db))
    }

    fn on_host(
        &self,
        x: &Tensor<T>,
        dy: &Tensor<T>,
        dw: &mut Tensor<Out>,
        db: Option<&mut Tensor<Out>>,
    ) -> Result<()> {
        let from = [x.host_rows("X")?, dy.host_rows("dY")?];
        let db = db.and_then(|db| db.host_mut());
        cpu::weight_gradient(self.extents, from, dw.host_rows_mut("dW")?, db);
        Ok(())
    }
}
