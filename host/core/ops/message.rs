//! Message passing on a graph: each vertex aggregates the messages of its neighbors (Gilmer et al., arXiv 1704.01212;
//! sum, mean and max of GraphSAGE, arXiv 1706.02216).

mod largest;

use einsparse_formats::{AsSparse, PAD, SparseRef, allocate};
use einsparse_kernels::families::{REDUCE_MAX, REDUCE_MEAN};

use super::rows::{Gathered, RowsRun};
use crate::context::Context;
use crate::device::Stream;
use crate::error::{Error, Refusal, Result, check_shape};
use crate::families::tensor::fibres::{RowsOf, coordinates};
use crate::plan::Plan;
use crate::registry::Scalar;
use crate::tensor::{Operand, SparseTensor, Tensor};
use largest::LargestGradient;

/// Reduction of the messages to a vertex.
///
/// ```
/// use einsparse::formats::{Csr, CsrPattern, Dense};
/// use einsparse::ops::{Aggregate, MessagePassing};
/// let graph = Csr::new(CsrPattern::new(1, 2, vec![0, 2], vec![0, 1])?, vec![1.0f32, 1.0])?;
/// let ctx = einsparse::Context::cpu();
/// let layer = MessagePassing::new(&ctx, graph, 1, Aggregate::Mean)?;
/// let x = ctx.upload_dense(&Dense::new([2, 1], vec![2.0, 6.0])?)?;
/// let mut y = ctx.zeros(&[1, 1])?;
/// layer.forward(&x, &mut y, &ctx.stream()?)?;
/// assert_eq!(y.to_dense()?.values(), [4.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Aggregate {
    /// Sum of the messages.
    #[default]
    Sum,
    /// Sum of the messages divided by their number. Weights of 8 and 16 bits are divided in f32, so the mean is rounded
    /// only once.
    Mean,
    /// Largest message, for each feature; NaN if a message is NaN.
    Max,
}

/// `Y[m,f] = A[m,k] * X[k,f]` over the edges from k to m of a graph, with sum, mean or maximum over k. A contains the
/// weights of the edges, in COO, CSR, CSC or GroupCOO. A vertex without edges gets zeros for every aggregate. For sum
/// and mean, [`MessagePassing::backward`] computes `dX[k,f] = A[m,k] * dY[m,f]`. For a maximum,
/// [`MessagePassing::backward_max`] passes the gradient to the largest message. Everything is planned once.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::{Csr, CsrPattern, Dense};
/// use einsparse::ops::{Aggregate, MessagePassing};
/// let ctx = Context::cpu();
/// let pattern = CsrPattern::new(3, 3, vec![0, 2, 3, 3], vec![1, 2, 0])?;
/// let graph = Csr::new(pattern, vec![1.0f32, 1.0, 2.0])?;
/// let x = ctx.upload_dense(&Dense::new([3, 1], vec![5.0, -2.0, 8.0])?)?;
/// let mut y = ctx.zeros(&[3, 1])?;
/// let stream = ctx.stream()?;
/// for (aggregate, wanted) in [
///     (Aggregate::Sum, [6.0, 10.0, 0.0]),
///     (Aggregate::Mean, [3.0, 10.0, 0.0]),
///     (Aggregate::Max, [8.0, 10.0, 0.0]),
/// ] {
///     let layer = MessagePassing::new(&ctx, graph.clone(), 1, aggregate)?;
///     layer.forward(&x, &mut y, &stream)?;
///     stream.synchronize()?;
///     assert_eq!(y.to_dense()?.values(), &wanted);
/// }
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct MessagePassing<T: Scalar> {
    /// Number of edges of its vertex, for each slot; empty unless the aggregate is a mean.
    degrees: Vec<u32>,
    exec: Exec<T>,
    shapes: [[usize; 2]; 2],
}

#[derive(Debug)]
enum Exec<T: Scalar> {
    /// Graph, and the plans of forward and backward. For a mean, the weights are divided by the number of edges of
    /// their target.
    Sum(SparseTensor<T>, Box<[Plan<T>; 2]>),
    /// Mean with divided weights in f32, because rounding them to T would lose bits.
    Mean(SparseTensor<f32>, Box<[RowsRun; 2]>),
    Max(SparseTensor<T>, Box<RowsRun>, Box<LargestGradient>),
}

const FORWARD: &str = "Y[m,f] = A[m,k] * X[k,f]";
const BACKWARD: &str = "dX[k,f] = A[m,k] * dY[m,f]";

impl<T: Scalar> MessagePassing<T> {
    /// Plans message passing for a graph `[targets, sources]` and `features` features per vertex.
    ///
    /// # Errors
    /// [`Error::Shape`] if the graph is not a matrix; [`Error::StorageFormat`] if its format lacks coordinates;
    /// [`Error::NoKernel`] if no kernel of the context supports the format or the type.
    pub fn new(
        context: &Context,
        graph: impl AsSparse<T>,
        features: usize,
        aggregate: Aggregate,
    ) -> Result<Self> {
        let graph = graph.as_sparse();
        let &[targets, sources] = graph.pattern().shape() else {
            let shape = graph.pattern().shape();
            return Err(Error::shape("A", format!("shape {shape:?}"), "a graph is a matrix"));
        };
        let degrees = match aggregate {
            Aggregate::Mean => degrees_of(graph, targets)?,
            _ => Vec::new(),
        };
        let shapes = [[sources, features], [targets, features]];
        let exec = match aggregate {
            Aggregate::Max => Exec::max(context, context.upload(graph)?, shapes)?,
            Aggregate::Mean if size_of::<T>() < size_of::<f32>() => {
                let divided = divided(graph.values(), &degrees);
                let divided = graph.pattern().shared().with_values(divided)?;
                Exec::mean(context, context.upload(divided)?, features)?
            }
            Aggregate::Mean => {
                let divided = divided::<T, T>(graph.values(), &degrees);
                let divided = graph.pattern().shared().with_values(divided)?;
                Exec::sum(context, context.upload(divided)?, shapes)?
            }
            Aggregate::Sum => Exec::sum(context, context.upload(graph)?, shapes)?,
        };
        Ok(MessagePassing { degrees, exec, shapes })
    }

    /// Sets new weights of the edges, one for each slot of the given graph. Waits for all work on the GPU.
    ///
    /// # Errors
    /// [`Error::Shape`] for another number of weights.
    pub fn set_weights(&mut self, weights: &[T]) -> Result<()> {
        match &mut self.exec {
            Exec::Mean(graph, _) => graph.set_values(&divided(weights, &self.degrees)),
            Exec::Sum(graph, _) if !self.degrees.is_empty() => {
                graph.set_values(&divided(weights, &self.degrees))
            }
            Exec::Sum(graph, _) | Exec::Max(graph, ..) => graph.set_values(weights),
        }
    }

    /// Returns the name of the forward kernel; `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        match &self.exec {
            Exec::Sum(_, plans) => plans[0].variant(),
            Exec::Mean(_, runs) => runs[0].variant(),
            Exec::Max(_, run, _) => run.variant(),
        }
    }

    /// Queues `Y[m,f] = A[m,k] * X[k,f]`, aggregated over k. Every element of Y is written.
    ///
    /// # Errors
    /// Fails for tensors of other shapes or another context than planned.
    pub fn forward(&self, x: &Tensor<T>, y: &mut Tensor<T>, stream: &Stream) -> Result<()> {
        let [of_x, of_y] = &self.shapes;
        check_shape("X", of_x, x.shape())?;
        check_shape("Y", of_y, y.shape())?;
        match &self.exec {
            Exec::Sum(a, plans) => plans[0].run(&[("A", a.into()), ("X", x.into())], y, stream),
            Exec::Mean(a, runs) => runs[0].run(a, &[("X", x.any())], "Y", &mut y.any, stream),
            Exec::Max(a, run, _) => run.run(a, &[("X", x.any())], "Y", &mut y.any, stream),
        }
    }

    /// Queues `dX[k,f] = A[m,k] * dY[m,f]`, the gradient with respect to the features of the sources. Every element of
    /// dX is written.
    ///
    /// # Errors
    /// See [`MessagePassing::forward`]; [`Error::NoKernel`] for [`Aggregate::Max`].
    pub fn backward(&self, dy: &Tensor<T>, dx: &mut Tensor<T>, stream: &Stream) -> Result<()> {
        let [of_x, of_y] = &self.shapes;
        check_shape("dY", of_y, dy.shape())?;
        check_shape("dX", of_x, dx.shape())?;
        match &self.exec {
            Exec::Sum(a, plans) => plans[1].run(&[("A", a.into()), ("dY", dy.into())], dx, stream),
            Exec::Mean(a, runs) => runs[1].run(a, &[("dY", dy.any())], "dX", &mut dx.any, stream),
            Exec::Max(..) => {
                let reason = "the gradient of a maximum reads X and Y as well: `backward_max`";
                let refusal = Refusal::of(self.variant(), reason);
                Err(Error::no_kernel(BACKWARD, [refusal]))
            }
        }
    }

    /// Queues the gradients of [`Aggregate::Max`] with respect to the features of the sources and, if `da` is given, to
    /// the weights of the edges. `dX[k,f]` is the sum of `A[m,k] * dY[m,f]`, and `dA[m,k]` the sum of
    /// `X[k,f] * dY[m,f]`. Both sums are over the messages `A[m,k] * X[k,f]` that are the largest for their m and f. X
    /// and Y are those of the forward pass: the largest message is the one that equals Y after rounding. Of several
    /// equal messages, and of several NaNs, it is the first in the order of the graph's slots. `da` is `[slots]`, one
    /// element for each slot of the given graph; slots without an edge get zero. Every element is written. Results are
    /// bitwise deterministic.
    ///
    /// ```
    /// # use einsparse::Context;
    /// # use einsparse::formats::{Csr, CsrPattern, Dense};
    /// # use einsparse::ops::{Aggregate, MessagePassing};
    /// let ctx = Context::cpu();
    /// let pattern = CsrPattern::new(2, 3, vec![0, 2, 3], vec![1, 2, 0])?;
    /// let graph = Csr::new(pattern, vec![1.0f32, 0.5, 2.0])?;
    /// let layer = MessagePassing::new(&ctx, graph, 1, Aggregate::Max)?;
    /// let x = ctx.upload_dense(&Dense::new([3, 1], vec![5.0, -2.0, 8.0])?)?;
    /// let dy = ctx.upload_dense(&Dense::new([2, 1], vec![10.0, 1.0])?)?;
    /// let (mut y, mut dx, mut da) = (ctx.zeros(&[2, 1])?, ctx.zeros(&[3, 1])?, ctx.zeros(&[3])?);
    /// let stream = ctx.stream()?;
    /// layer.forward(&x, &mut y, &stream)?;
    /// layer.backward_max([&x, &y, &dy], &mut dx, Some(&mut da), &stream)?;
    /// stream.synchronize()?;
    /// assert_eq!(dx.to_dense()?.values(), &[2.0, 0.0, 5.0]);
    /// assert_eq!(da.to_dense()?.values(), &[0.0, 80.0, 5.0]);
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// # Errors
    /// Fails for tensors of other shapes or another context than planned; [`Error::NoKernel`] for sum and mean.
    pub fn backward_max(
        &self,
        [x, y, dy]: [&Tensor<T>; 3],
        dx: &mut Tensor<T>,
        da: Option<&mut Tensor<T>>,
        stream: &Stream,
    ) -> Result<()> {
        match &self.exec {
            Exec::Max(a, _, gradient) => {
                let da = da.map(|da| &mut da.any);
                gradient.run(a, [x.any(), y.any(), dy.any()], &mut dx.any, da, stream)
            }
            Exec::Sum(..) | Exec::Mean(..) => {
                let reason = "is the gradient of no maximum: `backward`";
                let refusal = Refusal::of(self.variant(), reason);
                Err(Error::no_kernel(BACKWARD, [refusal]))
            }
        }
    }

    /// Returns the device memory for the gradient of a maximum in bytes, operands excluded: indices of the edges, and
    /// the slot of the largest message for each target and feature.
    pub fn gradient_bytes(&self) -> usize {
        match &self.exec {
            Exec::Max(.., gradient) => gradient.bytes(),
            Exec::Sum(..) | Exec::Mean(..) => 0,
        }
    }
}

impl<T: Scalar> Exec<T> {
    fn sum(context: &Context, a: SparseTensor<T>, shapes: [[usize; 2]; 2]) -> Result<Self> {
        let [x, y] = shapes.each_ref().map(|shape| Operand::Shape(shape));
        let operands = [("A", (&a).into()), ("X", x)];
        let forward = context.plan(FORWARD).operands(&operands).build()?;
        let operands = [("A", (&a).into()), ("dY", y)];
        let text = forward.einsum().gradient("X")?.to_string();
        let backward = context.plan(&text).operands(&operands).build()?;
        Ok(Exec::Sum(a, Box::new([forward, backward])))
    }

    fn mean(context: &Context, a: SparseTensor<f32>, features: usize) -> Result<Self> {
        let by = |axis: usize| {
            let axes = [axis, 1 - axis];
            let asked = rows::<T>(&axes, features, REDUCE_MEAN);
            RowsRun::new(context, &a, &asked, None)
        };
        let runs = Box::new([by(0)?, by(1)?]);
        Ok(Exec::Mean(a, runs))
    }

    fn max(context: &Context, a: SparseTensor<T>, shapes: [[usize; 2]; 2]) -> Result<Self> {
        let [[sources, features], [targets, _]] = shapes;
        let asked = rows::<T>(&[0, 1], features, REDUCE_MAX);
        let run = RowsRun::new(context, &a, &asked, None)?;
        let gradient = LargestGradient::new(context, &a, [targets, sources], features)?;
        Ok(Exec::Max(a, Box::new(run), Box::new(gradient)))
    }
}

/// Describes rows of `features` elements that are gathered along the second axis, for each index on the first axis.
fn rows<T: Scalar>(axes: &[usize; 2], features: usize, reduce: u32) -> Gathered<'_> {
    let (kept, factors) = axes.split_at(1);
    Gathered { kept, factors, rows: RowsOf::All, reduce, dtype: T::DTYPE, n: features }
}

/// Returns the number of entries of its row for each slot.
fn degrees_of<T: Scalar>(graph: SparseRef<'_, T>, targets: usize) -> Result<Vec<u32>> {
    let Some(axes) = coordinates(graph.pattern()) else {
        return Err(Error::not_walked("A", graph.pattern().format()));
    };
    let filled = |slot: usize| axes.iter().all(|axis| axis[slot] != PAD);
    let held = allocate::bytes_of(&graph.pattern().arrays()) + size_of_val(graph.values()) as u64;
    allocate::extent("targets", targets as u128, 4, held)?;
    let mut counts: Vec<u32> = allocate::zeroed("degrees of targets", targets)?;
    let rows = || axes[0].iter().copied().enumerate();
    for (slot, row) in rows() {
        if filled(slot) {
            counts[row as usize] += 1;
        }
    }
    let own = |(slot, row): (usize, u32)| {
        if filled(slot) { counts[row as usize] } else { 1 }
    };
    Ok(rows().map(own).collect())
}

/// Divides weights by degrees. Weights past the last degree are copied, because storing too many of them is then an
/// error.
fn divided<T: Scalar, W: Scalar>(weights: &[T], degrees: &[u32]) -> Vec<W> {
    let degrees = degrees.iter().copied().chain(std::iter::repeat(1));
    let each = weights.iter().zip(degrees);
    each.map(|(w, degree)| W::from_f64(w.to_f64() / f64::from(degree))).collect()
}
