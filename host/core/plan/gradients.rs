//! Plans for the gradients of a plan.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use einsparse_formats::{Dense, SharedPattern};
use einsparse_kernels::abi::FLAG_GELU;
use smallvec::SmallVec;

use super::{AnyPlan, Plan};
use crate::context::Context;
use crate::cpu::gelu_slope;
use crate::device::Stream;
use crate::einsum::{Einsum, Extents, Gradient, IndexExpr, SumsGradient};
use crate::error::{Elsewhere, Error, Result};
use crate::families::elementwise::ActivationLaunch;
use crate::offer::{AnyOut, Options, Types, Weights, given_alignment, wrong};
use crate::operator::Operator;
use crate::registry::{Dtype, Scalar};
use crate::tensor::{
    AnyOperand, AnySparseTensor, AnyTensor, DenseMatrix, Operand, SparseTensor, Tensor, erase,
};
use crate::values::Slice;

/// Operands of a plan without their values. Gradients are planned for them.
#[derive(Debug)]
pub(super) struct Planned {
    types: Types,
    options: Options,
    operands: Vec<(String, Kept)>,
    out: Option<Sparse>,
}

/// Operand without its values.
#[derive(Debug)]
enum Kept {
    /// Shape and row stride.
    Dense(Vec<usize>, usize),
    Sparse(Sparse),
    Index(Vec<usize>, Vec<u32>),
    Scalar,
}

/// Sparse operand without its values.
#[derive(Debug)]
enum Sparse {
    /// A tensor of the context without values: its pattern, and the device arrays of the pattern.
    Here(AnySparseTensor),
    /// In host memory.
    Host(SharedPattern),
}

impl Sparse {
    fn of(operand: &AnySparseTensor) -> Result<Self> {
        Ok(match operand.is_pinned() {
            true => Sparse::Host(operand.pattern().shared()),
            false => Sparse::Here(operand.structure()?),
        })
    }

    /// Creates a tensor of zeros with this pattern.
    fn zeros(&self, context: &Context, dtype: Dtype) -> Result<AnySparseTensor> {
        match self {
            Sparse::Here(own) => own.zeros_like(context.device()),
            Sparse::Host(pattern) => {
                AnySparseTensor::new(context.device(), pattern.clone(), (dtype, None))
            }
        }
    }
}

impl Planned {
    pub(super) fn of(
        types: Types,
        operands: &[(&str, AnyOperand<'_>)],
        out: Option<&AnySparseTensor>,
        options: &Options,
    ) -> Result<Self> {
        let kept = |operand: &AnyOperand<'_>| {
            Ok::<_, Error>(match operand {
                AnyOperand::Sparse(tensor) => Kept::Sparse(Sparse::of(tensor)?),
                AnyOperand::HostSparse(pattern, _) => Kept::Sparse(Sparse::Host(pattern.shared())),
                AnyOperand::Dense(d) | AnyOperand::Dynamic(d, _) => {
                    Kept::Dense(d.shape().to_vec(), d.leading())
                }
                AnyOperand::HostDense(shape, _) | AnyOperand::Shape(shape) => {
                    Kept::Dense(shape.to_vec(), shape.last().copied().unwrap_or(1))
                }
                AnyOperand::Index(shape, data) => Kept::Index(shape.to_vec(), data.to_vec()),
                AnyOperand::Scalar(_) => Kept::Scalar,
            })
        };
        let each =
            |(name, operand): &(&str, AnyOperand<'_>)| Ok((name.to_string(), kept(operand)?));
        let options = Options {
            // The gradients run other kernels, and values change between steps of training.
            variant: None,
            weights: Weights::EachRun,
            alignment: Some(given_alignment(options, operands)),
            ..options.clone()
        };
        let operands = operands.iter().map(each).collect::<Result<_>>()?;
        Ok(Planned { types, options, operands, out: out.map(Sparse::of).transpose()? })
    }

    fn find(&self, name: &str) -> Result<&Kept> {
        let found = self.operands.iter().find(|(own, _)| own == name);
        found.map(|(_, kept)| kept).ok_or_else(|| Error::missing(name))
    }
}

/// Tensor of a gradient.
#[derive(Debug)]
enum Written<T: Scalar> {
    Dense(Tensor<T>),
    Sparse(SparseTensor<T>),
}

impl<T: Scalar> Written<T> {
    fn out(&mut self) -> AnyOut<'_> {
        match self {
            Written::Dense(tensor) => AnyOut::Dense(&mut tensor.any),
            Written::Sparse(tensor) => AnyOut::Sparse(&mut tensor.any),
        }
    }
}

/// Plan of one expression of a gradient.
#[derive(Debug)]
struct Step<T: Scalar> {
    plan: Plan<T>,
    /// Position of the gradient that it writes.
    into: usize,
}

/// Gradient of the sums before an activation.
#[derive(Debug)]
struct Sums<T: Scalar> {
    step: SumsStep<T>,
    of: SumsGradient,
    /// With the pattern of the output if that is sparse. The step then reads and writes the values as vectors.
    gradient: Written<T>,
}

#[derive(Debug)]
enum SumsStep<T: Scalar> {
    Relu(Box<Plan<T>>),
    /// With the shape of the sums.
    Gelu(Box<Operator<ActivationLaunch>>, Vec<usize>),
}

/// Gradients of a plan by some of its operands, from [`Plan::gradients`]: plans, and the tensors that they write.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::{Csr, CsrPattern, Dense};
/// let ctx = Context::new();
/// let a = ctx.upload(Csr::new(CsrPattern::new(2, 3, vec![0, 1, 3], vec![2, 0, 1])?, vec![2.0f32, 3.0, 4.0])?)?;
/// let b = ctx.upload_dense(&Dense::new([3, 1], vec![1.0, 10.0, 100.0])?)?;
/// let plan = ctx.plan("C[m,n] = A[m,k] * B[k,n]").operand("A", &a).operand("B", &b).build()?;
/// let mut gradients = plan.gradients(&["A", "B"])?;
/// assert_eq!(gradients.to_string(), "dA[m,k] = dC[m,n] * B[k,n]; dB[k,n] = A[m,k] * dC[m,n]");
///
/// let dc = ctx.upload_dense(&Dense::new([2, 1], vec![1.0, -1.0])?)?;
/// let stream = ctx.stream()?;
/// gradients.run(&[("A", (&a).into()), ("B", (&b).into()), ("dC", (&dc).into())], &stream)?;
/// stream.synchronize()?;
/// assert_eq!(gradients.sparse("A")?.to_host()?.values(), [100.0, -1.0, -10.0]);
/// assert_eq!(gradients.dense("B")?.to_dense()?.values(), [-3.0, -4.0, 2.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct Gradients<T: Scalar> {
    /// Names that a run may pass: the operands of the plan, its output, the sums before an activation, and the gradient
    /// of the output.
    known: Vec<String>,
    sums: Option<Sums<T>>,
    steps: Vec<Step<T>>,
    gradients: Vec<(String, Written<T>)>,
    ones: Vec<(String, Tensor<T>)>,
}

impl<T: Scalar> Plan<T, T> {
    /// Plans the gradients by these operands, and creates their tensors.
    ///
    /// The expressions are those of [`Einsum::gradient`](crate::einsum::Einsum::gradient). Each is planned like any
    /// other expression, with the options of this plan, except [`variant`](Options::variant) and
    /// [`weights`](Options::weights). The gradient of a sparse operand has its pattern, and shares its device arrays. The
    /// gradient of a number is a tensor without axes. Patterns are transposed when this is called, not in runs.
    ///
    /// The plans of the gradients are plans, so they have gradients as well: see [`Gradients::plans`].
    ///
    /// # Errors
    /// - Errors of [`Einsum::gradient`](crate::einsum::Einsum::gradient).
    /// - [`Error::ElementType`] unless the elements are f16, bf16, f32 or f64.
    /// - [`Error::Operand`] for an operand that is named twice.
    /// - Errors of [`PlanBuilder::build`](super::PlanBuilder::build).
    pub fn gradients(&self, operands: &[&str]) -> Result<Gradients<T>> {
        let planned = self.any.planned.as_ref().ok_or_else(|| Error::missing("plan"))?;
        Making::new(&self.any, planned, operands)?.gradients(operands)
    }
}

/// Gradients while they are planned.
struct Making<'p> {
    plan: &'p AnyPlan,
    planned: &'p Planned,
    context: &'p Context,
    extents: Extents,
    /// A gradient by each operand.
    expressions: Vec<Gradient>,
    /// Tensors of the sparse operands, to plan with. Those of the gradients are then moved to them.
    sparse: BTreeMap<String, AnySparseTensor>,
}

impl<'p> Making<'p> {
    fn new(plan: &'p AnyPlan, planned: &'p Planned, operands: &[&str]) -> Result<Self> {
        let einsum = plan.einsum();
        let dtype = planned.types.operands;
        if !matches!(dtype, Dtype::F16 | Dtype::Bf16 | Dtype::F32 | Dtype::F64) {
            return Err(Error::dtype("gradient", "f16, bf16, f32 or f64", dtype.name()));
        }
        for (at, name) in operands.iter().enumerate() {
            if operands[..at].contains(name) {
                return Err(Error::operand(name, "is named twice among the gradients"));
            }
        }
        let expressions = operands.iter().map(|name| einsum.gradient(name));
        let expressions = expressions.collect::<Result<Vec<_>>>()?;
        let context = &plan.expression.context;
        let shape = |kept: &Kept| match kept {
            Kept::Dense(shape, _) | Kept::Index(shape, _) => shape.clone(),
            Kept::Sparse(Sparse::Here(own)) => own.shape().to_vec(),
            Kept::Sparse(Sparse::Host(own)) => own.view().shape().to_vec(),
            Kept::Scalar => Vec::new(),
        };
        let shapes = planned.operands.iter().map(|(name, kept)| (name.clone(), shape(kept)));
        let mut shapes: BTreeMap<_, _> = shapes.collect();
        shapes.insert(einsum.out.tensor.clone(), plan.out_shape().to_vec());
        let extents = einsum.check(&shapes)?;
        let mut sparse = BTreeMap::new();
        for (name, kept) in &planned.operands {
            if let Kept::Sparse(own) = kept {
                sparse.insert(name.clone(), own.zeros(context, dtype)?);
            }
        }
        Ok(Making { plan, planned, context, extents, expressions, sparse })
    }

    fn gradients<T: Scalar>(mut self, operands: &[&str]) -> Result<Gradients<T>> {
        let einsum = self.plan.einsum();
        let mut known: Vec<String> =
            self.planned.operands.iter().map(|(name, _)| name.clone()).collect();
        known.push(einsum.out.tensor.clone());
        let mut ones: Vec<(String, Tensor<T>)> = Vec::new();
        for own in self.expressions.iter().flat_map(|gradient| &gradient.ones) {
            if ones.iter().all(|(name, _)| *name != own.name) {
                let extent = self.extents.get(&own.index).unwrap_or(0);
                let values = Dense::from_fn(vec![extent], |_| T::from_f64(1.0))?;
                let tensor = self.context.upload_dense(&values)?;
                ones.push((own.name.clone(), tensor));
            }
        }
        let mut sums = None;
        if let Some(first) = self.expressions.first() {
            known.push(first.seed.clone());
            if let Some(of) = &first.sums {
                known.push(of.gate.tensor.clone());
                sums = Some(self.sums::<T>(of)?);
            }
        }
        let mut steps = Vec::new();
        let expressions = std::mem::take(&mut self.expressions);
        for (into, gradient) in expressions.iter().enumerate() {
            for term in &gradient.terms {
                steps.push(Step { plan: self.term(gradient, term)?, into });
            }
        }
        let gradients = operands.iter().map(|&name| Ok((name.to_owned(), self.written(name)?)));
        let gradients = gradients.collect::<Result<_>>()?;
        Ok(Gradients { known, sums, steps, gradients, ones })
    }

    /// Returns the tensor of the gradient by an operand.
    fn written<T: Scalar>(&mut self, name: &str) -> Result<Written<T>> {
        if let Some(own) = self.sparse.remove(name) {
            return Ok(Written::Sparse(SparseTensor::of(own)));
        }
        let shape = match self.planned.find(name)? {
            Kept::Dense(shape, _) => &shape[..],
            _ => &[],
        };
        self.context.zeros(shape).map(Written::Dense)
    }

    /// Plans the gradient of the sums before an activation.
    fn sums<T: Scalar>(&self, of: &SumsGradient) -> Result<Sums<T>> {
        let (gradient, shape) = match &self.planned.out {
            None => {
                let shape = self.plan.out_shape().to_vec();
                (Written::Dense(self.context.zeros(&shape)?), shape)
            }
            Some(out) => {
                let gradient = out.zeros(self.context, self.planned.types.out)?;
                let shape = vec![gradient.pattern().slots()];
                (Written::Sparse(SparseTensor::of(gradient)), shape)
            }
        };
        let step = match of.einsum() {
            Some(mut e) => {
                if let Written::Sparse(_) = gradient {
                    over_values(&mut e);
                }
                let mut operands = vec![(&of.seed.tensor[..], AnyOperand::Shape(&shape))];
                operands.push((&of.gate.tensor, AnyOperand::Shape(&shape)));
                SumsStep::Relu(Box::new(self.plan(&e.to_string(), (&operands, None))?))
            }
            None => {
                let matrix = matrix_of(&shape);
                let operator = Operator::new(self.context, |device| {
                    ActivationLaunch::new(device, T::DTYPE, matrix, FLAG_GELU)
                })?;
                SumsStep::Gelu(Box::new(operator), shape)
            }
        };
        Ok(Sums { step, of: of.clone(), gradient })
    }

    /// Plans one expression of a gradient.
    fn term<T: Scalar>(&self, gradient: &Gradient, term: &Einsum) -> Result<Plan<T>> {
        let planned = self.planned;
        let device = self.context.device();
        let dtype = planned.types.operands;
        let of_out = match &planned.out {
            Some(out) => Some(out.zeros(self.context, dtype)?),
            None => None,
        };
        let seed = gradient.sums.as_ref().map_or(&gradient.seed, |sums| &sums.out.tensor);
        let out_shape = self.plan.out_shape();
        let ones: BTreeMap<&str, [usize; 1]> = gradient
            .ones
            .iter()
            .map(|own| (&own.name[..], [self.extents.get(&own.index).unwrap_or(0)]))
            .collect();
        let written = self.sparse.get(&gradient.operand);
        let mut dense: BTreeMap<&str, AnyTensor> = BTreeMap::new();
        for (name, kept) in &planned.operands {
            if let Kept::Dense(shape, leading) = kept {
                dense.insert(name, AnyTensor::of_rows(device, dtype, shape, *leading)?);
            }
        }
        let mut operands: Vec<(&str, AnyOperand<'_>)> = Vec::new();
        for name in term.names().into_iter().filter(|name| *name != term.out.tensor) {
            let operand = if name == seed {
                of_out.as_ref().map_or(AnyOperand::Shape(out_shape), AnyOperand::Sparse)
            } else if let Some(extent) = ones.get(name) {
                AnyOperand::Shape(extent)
            } else if let Some(tensor) = dense.get(name) {
                AnyOperand::Dense(tensor)
            } else if let Some(tensor) = self.sparse.get(name) {
                AnyOperand::Sparse(tensor)
            } else {
                match planned.find(name)? {
                    Kept::Index(shape, data) => AnyOperand::Index(shape, data),
                    _ => AnyOperand::Scalar(1.0),
                }
            };
            operands.push((name, operand));
        }
        let plain = |index: &IndexExpr| matches!(index, IndexExpr::Name(_));
        if written.is_none() && !term.out.indices.iter().all(plain) {
            // A scatter does not determine the extents of the output.
            if let Kept::Dense(shape, _) = planned.find(&gradient.operand)? {
                operands.push((gradient.output(), AnyOperand::Shape(shape)));
            }
        }
        self.plan(&term.text, (&operands, written))
    }

    fn plan<T: Scalar>(
        &self,
        text: &str,
        of: (&[(&str, AnyOperand<'_>)], Option<&AnySparseTensor>),
    ) -> Result<Plan<T>> {
        let at = (self.context, self.planned.types);
        let any = AnyPlan::new(at, text, of, &self.planned.options)?;
        Ok(Plan { any, elements: PhantomData })
    }
}

/// Replaces the indices of the gradient of the sums by one index over the values of a sparse output.
fn over_values(e: &mut Einsum) {
    let all = [&mut e.out].into_iter().chain(&mut e.factors).chain(&mut e.epilogue.gate);
    all.for_each(|access| access.indices = vec![IndexExpr::Name("p".into())]);
}

/// Rows and columns of a tensor whose rows are those of its last axis.
fn matrix_of(shape: &[usize]) -> [usize; 2] {
    let columns = shape.last().copied().unwrap_or(1);
    [shape.iter().rev().skip(1).product(), columns]
}

impl<T: Scalar> Gradients<T> {
    /// Queues the computation of all gradients. The operands are those of the plan, and `dC`, the gradient of its output
    /// `C`. After a ReLU also `C` itself; after a GELU, or a ReLU with `+=`, the sums before it, as `C'`
    /// ([`Einsum::gradient`](crate::einsum::Einsum::gradient)). Operands that no gradient reads may be omitted. All
    /// elements of the gradients are overwritten.
    ///
    /// On a GPU, a run does not allocate and does not wait, and can be captured in a CUDA graph. Equal inputs give equal
    /// bits. [`Plan::run`] states when runs wait for each other.
    ///
    /// # Errors
    /// Errors of [`Plan::run`].
    pub fn run(&mut self, operands: &[(&str, Operand<'_, T>)], stream: &Stream) -> Result<()> {
        for (name, _) in operands {
            if !self.known.iter().any(|own| own == name) {
                return Err(Error::unknown(name, &*self));
            }
        }
        let given = erase(operands);
        if let Some(sums) = &mut self.sums {
            sums.run(&given, stream)?;
        }
        let sums = self.sums.as_ref().map(|sums| {
            let operand = match &sums.gradient {
                Written::Dense(tensor) => AnyOperand::Dense(&tensor.any),
                Written::Sparse(tensor) => AnyOperand::Sparse(&tensor.any),
            };
            (&sums.of.out.tensor[..], operand)
        });
        let ones = self.ones.iter();
        let ones = ones.map(|(name, tensor)| (&name[..], AnyOperand::Dense(&tensor.any)));
        for Step { plan, into } in &self.steps {
            let all = given.iter().copied().chain(sums).chain(ones.clone());
            let named = all.filter(|(name, _)| plan.any.reads(name));
            let (_, gradient) = &mut self.gradients[*into];
            plan.any.run(named, gradient.out(), stream)?;
        }
        Ok(())
    }

    /// Returns the gradient by a dense operand, a bias or a number.
    ///
    /// # Errors
    /// [`Error::MissingOperand`] if it was not planned;
    /// [`Error::OperandKind`] for a sparse operand.
    pub fn dense(&self, operand: &str) -> Result<&Tensor<T>> {
        match self.find(operand)? {
            Written::Dense(tensor) => Ok(tensor),
            Written::Sparse(_) => Err(Error::kind(operand, "a dense operand", "a sparse one")),
        }
    }

    /// Returns the gradient by a sparse operand, with its pattern.
    ///
    /// # Errors
    /// [`Error::MissingOperand`] if it was not planned;
    /// [`Error::OperandKind`] for a dense operand.
    pub fn sparse(&self, operand: &str) -> Result<&SparseTensor<T>> {
        match self.find(operand)? {
            Written::Sparse(tensor) => Ok(tensor),
            Written::Dense(_) => Err(Error::kind(operand, "a sparse operand", "a dense one")),
        }
    }

    fn find(&self, operand: &str) -> Result<&Written<T>> {
        let found = self.gradients.iter().find(|(own, _)| own == operand);
        let found = found.map(|(_, gradient)| gradient);
        found.ok_or_else(|| {
            Error::missing_for(
                operand,
                "no gradient by it was planned: name it in `Plan::gradients`",
            )
        })
    }

    /// Iterates over the plans in the order in which they run. They have gradients as well, for second derivatives. The
    /// gradient of a GELU is not a plan.
    ///
    /// ```
    /// use einsparse::{Context, Operand};
    /// let ctx = Context::new();
    /// let plan = ctx.plan::<f32>("E[] = X[i,k] * W[k,l] * X[i,l]");
    /// let plan = plan.operand("X", Operand::Shape(&[64, 8])).operand("W", Operand::Shape(&[8, 8])).build()?;
    /// let gradients = plan.gradients(&["X"])?;
    /// let first = gradients.plans().next().unwrap();
    /// let second = first.gradients(&["X"])?;
    /// assert_eq!(second.to_string(), "dX'[i,l] = dE[] * W[k,l] * ddX[i,k]");
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    pub fn plans(&self) -> impl Iterator<Item = &Plan<T>> {
        let sums = self.sums.iter().filter_map(|sums| match &sums.step {
            SumsStep::Relu(plan) => Some(&**plan),
            SumsStep::Gelu(..) => None,
        });
        sums.chain(self.steps.iter().map(|step| &step.plan))
    }

    /// Device bytes of the plans and of the gradients, in addition to the operands.
    pub fn bytes(&self) -> usize {
        let dense = |tensor: &Tensor<T>| tensor.shape().iter().product::<usize>() * size_of::<T>();
        let written = |own: &Written<T>| match own {
            Written::Dense(tensor) => dense(tensor),
            Written::Sparse(tensor) => tensor.pattern().slots() * size_of::<T>(),
        };
        let plans: usize = self.plans().map(Plan::workspace_bytes).sum();
        let gradients: usize = self.gradients.iter().map(|(_, own)| written(own)).sum();
        let sums = self.sums.as_ref().map_or(0, |sums| written(&sums.gradient));
        plans + gradients + sums + self.ones.iter().map(|(_, own)| dense(own)).sum::<usize>()
    }
}

impl<T: Scalar> Sums<T> {
    fn run(&mut self, given: &[(&str, AnyOperand<'_>)], stream: &Stream) -> Result<()> {
        let Sums { step, of, gradient } = self;
        let names = [&of.seed.tensor[..], &of.gate.tensor];
        match gradient {
            Written::Dense(out) => {
                let mut operands = SmallVec::<[_; 2]>::new();
                for name in names {
                    let found = given.iter().find(|(own, _)| *own == name);
                    operands.push(*found.ok_or_else(|| Error::missing_in(name, &*of))?);
                }
                step.run(&operands, &mut out.any, stream)
            }
            Written::Sparse(out) => {
                let mut vectors = SmallVec::<[_; 2]>::new();
                for name in names {
                    let found = given.iter().find(|(own, _)| *own == name);
                    let tensor = match found {
                        Some((_, AnyOperand::Sparse(tensor))) => tensor,
                        Some((_, other)) => {
                            return Err(wrong(name, "an uploaded sparse tensor", other));
                        }
                        None => return Err(Error::missing_in(name, &*of)),
                    };
                    if tensor.pattern() != out.pattern() {
                        return Err(Error::pattern(name, out.pattern(), tensor.pattern()));
                    }
                    vectors.push((name, AnyTensor::of_values(tensor)?));
                }
                let operands = vectors.iter().map(|(name, own)| (*name, AnyOperand::Dense(own)));
                let operands: SmallVec<[_; 2]> = operands.collect();
                step.run(&operands, &mut out.values_mut()?.any, stream)
            }
        }
    }
}

impl<T: Scalar> SumsStep<T> {
    /// Runs on the gradient of the output and the tensor that determines the slope.
    fn run(
        &self,
        operands: &[(&str, AnyOperand<'_>)],
        out: &mut AnyTensor,
        stream: &Stream,
    ) -> Result<()> {
        let (operator, shape) = match self {
            SumsStep::Relu(plan) => {
                return plan.any.run(operands.iter().copied(), AnyOut::Dense(out), stream);
            }
            SumsStep::Gelu(operator, shape) => (operator, shape),
        };
        let run = operator.start(stream)?;
        let tensor = |at: usize| match &operands[at] {
            (_, AnyOperand::Dense(tensor)) => Ok(*tensor),
            (name, other) => Err(wrong(name, "an uploaded dense tensor", other)),
        };
        let (dy, x) = (tensor(0)?, tensor(1)?);
        let [rows, columns] = matrix_of(shape);
        let matrix = |name: &str, own: &AnyTensor| -> Result<DenseMatrix> {
            run.check(name, own, shape)?;
            Ok(DenseMatrix { address: own.place(), rows, columns, leading: own.leading() })
        };
        let of = [matrix(operands[1].0, x)?, matrix(operands[0].0, dy)?, matrix("sums", out)?];
        run.queue(
            |launch, queue| launch.run(of[0], Some(of[1]), of[2], queue),
            || {
                let x = x.host().and_then(Slice::typed::<T>).or_elsewhere(operands[1].0)?;
                let dy = dy.host().and_then(Slice::typed::<T>).or_elsewhere(operands[0].0)?;
                let to = out.host_mut().or_elsewhere("sums")?;
                let to = to.typed::<T>().or_elsewhere("sums")?;
                for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |c| (row, c))) {
                    let at = of.each_ref().map(|own| row * own.leading + column);
                    let slope = gelu_slope(x[at[0]].to_f64());
                    to[at[2]] = T::from_f64(slope * dy[at[1]].to_f64());
                }
                Ok(())
            },
        )
    }
}

impl<T: Scalar> fmt::Display for Gradients<T> {
    /// The steps in the order in which they run, separated by semicolons.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        if let Some(sums) = &self.sums {
            write!(f, "{}", sums.of)?;
            between = "; ";
        }
        for step in &self.steps {
            write!(f, "{between}{}", step.plan.einsum())?;
            between = "; ";
        }
        Ok(())
    }
}
