//! Gradients of the weights and the bias of a dense layer.

use std::marker::PhantomData;

use crate::context::{Context, Prepared};
use crate::device::Stream;
use crate::dynamic::{operand, without_gaps};
use crate::error::{Elsewhere, Error, Result, elements};
use crate::families::optimizer::{WeightGradientLaunch, cpu};
use crate::kernel::Queue;
use crate::offer::{Precision, multiplied_as};
use crate::registry::{Dtype, Scalar};
use crate::tensor::Tensor;

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
/// gradient.backward_weight((&x, &dy), &mut dw, Some(&mut db), &ctx.stream()?)?;
/// assert_eq!(dw.to_dense()?.values(), [31.0, 42.0]);
/// assert_eq!(db.to_dense()?.values(), [11.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct WeightGradient<T, Out = f32> {
    context: Context,
    extents: [usize; 3],
    launch: Prepared<WeightGradientLaunch>,
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
        let launch = context.prepared(|device| {
            let dtype = multiplied_as(T::DTYPE, precision);
            WeightGradientLaunch::new(device, dtype, extents)
        })?;
        Ok(WeightGradient { context: context.clone(), extents, launch, elements: PhantomData })
    }

    /// Returns the kernel name, or `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        let launch = self.launch.as_ref();
        launch.map_or("cpu", WeightGradientLaunch::variant)
    }

    /// Returns the workspace size, in bytes of device memory; 0 on a CPU context.
    pub fn workspace_bytes(&self) -> usize {
        self.launch.as_ref().map_or(0, WeightGradientLaunch::bytes)
    }

    /// Queues the gradients. X is `[rows, inputs]`, dY is `[rows, outputs]`, dW is `[inputs, outputs]`, db is
    /// `[outputs]`. Allocates nothing and does not synchronize.
    ///
    /// # Errors
    /// [`Error::Shape`] if an operand has other extents than planned; [`Error::OtherContext`] if one belongs to another
    /// context.
    pub fn backward_weight(
        &self,
        (x, dy): (&Tensor<T>, &Tensor<T>),
        dw: &mut Tensor<Out>,
        db: Option<&mut Tensor<Out>>,
        stream: &Stream,
    ) -> Result<()> {
        self.check((x, dy), dw, db.as_deref())?;
        match self
            .launch
            .queue(|launch| self.queue(launch, (x, dy, None), dw, db.as_deref(), stream))?
        {
            true => Ok(()),
            false => self.on_host((x, dy), dw, db),
        }
    }

    /// Queues the gradients of a layer `Y = relu(X W + b)`, from the gradient of Y. In the same pass, dY is replaced by
    /// the gradient of the sums before the ReLU, which is zero where Y is not above zero. The gradient of the inputs
    /// requires this dY.
    ///
    /// # Errors
    /// Returns the errors of [`backward_weight`](Self::backward_weight).
    pub fn backward_weight_relu(
        &self,
        (x, y): (&Tensor<T>, &Tensor<T>),
        dy: &mut Tensor<T>,
        dw: &mut Tensor<Out>,
        db: Option<&mut Tensor<Out>>,
        stream: &Stream,
    ) -> Result<()> {
        self.check((x, dy), dw, db.as_deref())?;
        y.check("Y", &self.context, dy.shape())?;
        if self
            .launch
            .queue(|launch| self.queue(launch, (x, dy, Some(y)), dw, db.as_deref(), stream))?
        {
            return Ok(());
        }
        let (ldy, ldg, outputs) = (y.leading(), dy.leading(), self.extents[2]);
        let from = y.host().or_elsewhere("Y")?;
        let to = dy.host_mut().or_elsewhere("dY")?;
        for (y, dy) in from.chunks(ldy).zip(to.chunks_mut(ldg)) {
            for (y, dy) in y.iter().zip(dy).take(outputs) {
                if y.to_f64().is_nan() || y.to_f64() <= 0.0 {
                    *dy = T::ZERO;
                }
            }
        }
        self.on_host((x, dy), dw, db)
    }

    fn check(
        &self,
        (x, dy): (&Tensor<T>, &Tensor<T>),
        dw: &Tensor<Out>,
        db: Option<&Tensor<Out>>,
    ) -> Result<()> {
        let ([rows, inputs, outputs], context) = (self.extents, &self.context);
        x.check("X", context, &[rows, inputs])?;
        dy.check("dY", context, &[rows, outputs])?;
        dw.check("dW", context, &[inputs, outputs])?;
        db.map_or(Ok(()), |db| db.check("db", context, &[outputs]))
    }

    fn queue(
        &self,
        launch: &WeightGradientLaunch,
        (x, dy, gate): (&Tensor<T>, &Tensor<T>, Option<&Tensor<T>>),
        dw: &Tensor<Out>,
        db: Option<&Tensor<Out>>,
        stream: &Stream,
    ) -> Result<()> {
        let context = &self.context;
        let gate = gate.map(|gate| operand(context, gate, stream)).transpose()?;
        let operands = [
            operand(context, x, stream)?,
            operand(context, dy, stream)?,
            operand(context, dw, stream)?,
        ];
        let db = match db {
            Some(db) => without_gaps(context, "db", db, stream)?.address,
            None => 0,
        };
        // SAFETY: operands have the planned shapes and types; the caller keeps them until the stream is done.
        let queue = unsafe { Queue::new(stream.raw()) };
        launch.run(operands, db, gate, queue)
    }

    fn on_host(
        &self,
        (x, dy): (&Tensor<T>, &Tensor<T>),
        dw: &mut Tensor<Out>,
        db: Option<&mut Tensor<Out>>,
    ) -> Result<()> {
        let x = (x.host().or_elsewhere("X")?, x.leading());
        let dy = (dy.host().or_elsewhere("dY")?, dy.leading());
        let leading = dw.leading();
        let to = (dw.host_mut().or_elsewhere("dW")?, leading);
        let db = db.and_then(|db| db.host_mut());
        cpu::weight_gradient(self.extents, [x, dy], to, db);
        Ok(())
    }
}
