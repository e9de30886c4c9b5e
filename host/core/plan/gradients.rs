//! Plans for the gradients of a plan.

mod planned;
mod sums;

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use einsparse_formats::Dense;

use super::{AnyPlan, Plan};
use crate::context::Context;
use crate::device::Stream;
use crate::einsum::{Einsum, Extents, Gradient, IndexExpr};
use crate::error::{Error, Result};
use crate::offer::AnyOut;
use crate::registry::{Dtype, Scalar};
use crate::tensor::{AnyOperand, AnySparseTensor, AnyTensor, Operand, SparseTensor, Tensor, erase};
use planned::Kept;
pub(super) use planned::Planned;
use sums::{Sums, SumsStep};

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
    /// other expression, with the options of this plan, except [`variant`](crate::Options::variant) and
    /// [`weights`](crate::Options::weights). The gradient of a sparse operand has its pattern, and shares its device arrays. The
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
        let shapes =
            planned.operands.iter().map(|(name, kept)| (name.clone(), kept.shape().to_vec()));
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
        self.context.zeros(self.planned.find(name)?.shape()).map(Written::Dense)
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
