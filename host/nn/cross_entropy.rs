//! Loss of a classifier, and its gradient.

use std::marker::PhantomData;

use crate::context::Context;
use crate::device::Stream;
use crate::error::{Elsewhere, Error, Result, elements};
use crate::families::optimizer::cpu::HostRows;
use crate::families::optimizer::{CrossEntropyLaunch, Rows};
use crate::operator::{Operator, Run};
use crate::operator_of;
use crate::registry::Scalar;
use crate::tensor::Tensor;

/// Softmax cross-entropy of rows of logits, and its gradient.
///
/// The loss is the mean over the rows that have a label: `loss = mean(log(sum exp(logits[r])) - logits[r, label[r]])`.
/// Its gradient, `(softmax(logits[r])[c] - [c = label[r]]) / rows with a label`, is computed in one pass with the loss.
///
/// A row whose label is outside of `0..classes`, such as -1, is ignored: it does not count for the mean, and its
/// gradient is zero. Labels, and the number of rows that have one, are read at each run, so one CUDA graph serves every
/// batch. If no row has a label, the loss is 0. Exponentials and sums are f32 (f64 on the CPU), in a fixed order, so
/// results are bitwise reproducible. A NaN or +Inf in a row with a label makes the loss NaN. GPU kernels exist for f32,
/// f16 and bf16.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::Dense;
/// use einsparse::nn::CrossEntropy;
/// let ctx = Context::cpu();
/// let loss_of = CrossEntropy::<f32>::new(&ctx, [2, 2])?;
/// let logits = ctx.upload_dense(&Dense::new([2, 2], vec![0.0, 3f32.ln(), 5.0, 7.0])?)?;
/// let labels = ctx.upload_dense(&Dense::new([2], vec![1, -1])?)?; // the second row has none
/// let (mut loss, mut gradient) = (ctx.zeros(&[1])?, ctx.zeros(&[2, 2])?);
/// loss_of.forward_backward(&logits, &labels, &mut loss, &mut gradient, &ctx.stream()?)?;
/// let near = |found: &[f32], wanted: &[f32]| found.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-6);
/// assert!(near(loss.to_dense()?.values(), &[(4.0f32 / 3.0).ln()]));
/// assert!(near(gradient.to_dense()?.values(), &[0.25, -0.25, 0.0, 0.0]));
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct CrossEntropy<T> {
    shape: [usize; 2],
    operator: Operator<CrossEntropyLaunch>,
    element: PhantomData<T>,
}

impl<T: Scalar> CrossEntropy<T> {
    /// Creates the operation for logits `[rows, classes]`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if `classes` is 0; [`Error::Overflow`] for more than 2^31 - 1 rows or classes;
    /// [`Error::NoKernel`] for other element types.
    pub fn new(context: &Context, [rows, classes]: [usize; 2]) -> Result<Self> {
        if classes == 0 {
            return Err(Error::range("classes", classes, ">= 1: a label names one of them"));
        }
        let shape = [rows, classes];
        elements("logits", &shape)?;
        Ok(CrossEntropy {
            shape,
            operator: operator_of(context, |device| {
                CrossEntropyLaunch::new(device, T::DTYPE, shape)
            })?,
            element: PhantomData,
        })
    }

    /// Returns the kernel name, or `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        self.operator.variant(CrossEntropyLaunch::variant)
    }

    /// Queues only the loss. Logits are `[rows, classes]`, labels are `[rows]`, the loss is `[1]`. Allocates nothing
    /// and does not synchronize.
    ///
    /// # Errors
    /// [`Error::Shape`] if an operand has other extents than planned; [`Error::OtherContext`] if one belongs to another
    /// context; [`Error::RowStride`] if the labels have gaps.
    pub fn forward(
        &self,
        logits: &Tensor<T>,
        labels: &Tensor<i32>,
        loss: &mut Tensor<f32>,
        stream: &Stream,
    ) -> Result<()> {
        let (run, rows) = self.start(logits, labels, loss, stream)?;
        run.queue(
            |launch, queue| launch.run(&rows, queue),
            || {
                let (mean, _) = self.host(logits.host_rows("logits")?, labels)?.loss();
                store(loss, mean)
            },
        )
    }

    /// Queues the loss and the gradient of the logits. The gradient is `[rows, classes]`.
    ///
    /// # Errors
    /// Returns the errors of [`forward`](Self::forward).
    pub fn forward_backward(
        &self,
        logits: &Tensor<T>,
        labels: &Tensor<i32>,
        loss: &mut Tensor<f32>,
        gradient: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let (run, rows) = self.start(logits, labels, loss, stream)?;
        let to = run.matrix("gradient", gradient.any(), &self.shape)?;
        run.queue(
            |launch, queue| launch.run(&Rows { gradient: Some(to), ..rows }, queue),
            || {
                let rows = self.host(logits.host_rows("logits")?, labels)?;
                let (mean, factor) = rows.loss();
                let (to, leading) = gradient.host_rows_mut("gradient")?;
                rows.gradient(factor, to, leading);
                store(loss, mean)
            },
        )
    }

    /// Queues the loss, and overwrites the logits with their gradient.
    ///
    /// # Errors
    /// Returns the errors of [`forward`](Self::forward).
    pub fn forward_backward_in_place(
        &self,
        logits: &mut Tensor<T>,
        labels: &Tensor<i32>,
        loss: &mut Tensor<f32>,
        stream: &Stream,
    ) -> Result<()> {
        let (run, rows) = self.start(logits, labels, loss, stream)?;
        run.queue(
            |launch, queue| launch.run(&Rows { gradient: Some(rows.logits), ..rows }, queue),
            || {
                let (to, leading) = logits.host_rows_mut("logits")?;
                let from = to.to_vec();
                let rows = self.host((&from, leading), labels)?;
                let (mean, factor) = rows.loss();
                rows.gradient(factor, to, leading);
                store(loss, mean)
            },
        )
    }

    fn start<'o>(
        &'o self,
        logits: &Tensor<T>,
        labels: &Tensor<i32>,
        loss: &Tensor<f32>,
        stream: &'o Stream,
    ) -> Result<(Run<'o, CrossEntropyLaunch>, Rows)> {
        let run = self.operator.start(stream)?;
        let rows = Rows {
            logits: run.matrix("logits", logits.any(), &self.shape)?,
            labels: run.contiguous("labels", labels.any(), &self.shape[..1])?,
            loss: run.matrix("loss", loss.any(), &[1])?.address,
            gradient: None,
        };
        Ok((run, rows))
    }

    fn host<'a>(
        &self,
        (logits, leading): (&'a [T], usize),
        labels: &'a Tensor<i32>,
    ) -> Result<HostRows<'a, T>> {
        let labels = labels.host().or_elsewhere("labels")?;
        Ok(HostRows { logits, leading, classes: self.shape[1], labels: &labels[..self.shape[0]] })
    }
}

fn store(loss: &mut Tensor<f32>, mean: f64) -> Result<()> {
    let to = loss.host_mut().or_elsewhere("loss")?;
    to[0] = mean as f32;
    Ok(())
}
