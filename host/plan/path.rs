//! The order of contraction of several factors: pairs one after the other, in the cheapest order by flops and bytes,
//! each step a plan of its own. An index of one factor alone is summed before.
//!
//! On a GPU temporaries have the element type, so paths are for f32 and f64, whose accumulators these are; 16-bit
//! factors are multiplied all at once. On the CPU temporaries are of the accumulator's type, and every element type has
//! paths. A pre-product of dense factors meets a NaN or Inf exactly where the joint sum has that term, as its index is
//! summed whole either way. A sparse factor that is multiplied before the last step is different: its result has
//! elements without a term. A GPU multiplies their zeros (`zeros = Dense`); the CPU marks them and leaves them out.

mod on_cpu;
mod order;
mod search;
mod step;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use einsparse_kernels::abi::{Dtype, Zeros};

use super::{AnyPlan, Options, ZerosRule};
use crate::context::Context;
use crate::cpu::sums_of;
use crate::device::{Device, Stream};
use crate::einsum::{Einsum, Extents};
use crate::error::{Error, Refusal, Result};
use crate::launch::Turns;
use crate::offer::bind::find;
use crate::offer::{Answer, Candidate, Compiled, Made, Offer, Question, Run, Types, Weights};
use crate::registry::Scalar;
use crate::tensor::{AnyOperand, AnyTensor, Operand, erase};

pub(super) use on_cpu::CpuChain;
use search::{Found, Place, best};
use step::{Path, Step};

/// Its name among candidates.
pub(super) const NAME: &str = "path";

/// The chain of pairwise steps, where there is a choice.
pub(super) fn offers<'q>(question: &'q Question<'q, '_>) -> Result<Answer<'q>> {
    let refused = |reason: &str| Answer::refused(NAME, reason);
    let place = Place::Gpu(question.machine);
    let (einsum, operands) = (question.einsum, question.operands());
    if !on_a_gpu(question.types) {
        return refused("temporaries would be rounded to fewer bits than sums: f32 and f64 only");
    }
    let Some(Found { path, .. }) = found(
        question.types.operands,
        einsum,
        operands,
        question.extents,
        place,
    )?
    else {
        return refused("orders three or more factors with plain indices");
    };
    if path.zeros == Zeros::Dense && question.options.zeros == ZerosRule::Strict {
        return refused("multiplies zeros that stand for rows without entries");
    }
    let candidate = Candidate {
        name: NAME,
        cost: path.cost(),
        zeros: path.zeros,
        prepacked: None,
    };
    let make = move |_: &Arc<Device>| -> Result<Made> {
        let asked = (question.operands(), question.options);
        match Chain::new(question.context, path.clone(), asked, question.types) {
            Ok(chain) => Ok(Ok(Box::new(chain))),
            Err(Error::NoKernel { indirect, .. }) => {
                let reason = format!("has no kernel for a step: {indirect}");
                Ok(Err(Refusal::of(NAME, reason)))
            }
            Err(error) => Err(error),
        }
    };
    Answer::of(vec![Offer {
        candidate,
        make: Box::new(make),
    }])
}

/// Whether temporaries of a GPU are as wide as its sums.
fn on_a_gpu(types: Types) -> bool {
    matches!(types.operands, Dtype::F32 | Dtype::F64) && types.alike()
}

/// The cheapest order of the factors of an expression, with temporaries of this type; `None` where there is no choice.
fn found(
    dtype: Dtype,
    einsum: &Einsum,
    operands: &[(&str, AnyOperand<'_>)],
    extents: &Extents,
    place: Place<'_>,
) -> Result<Option<Found>> {
    let mut entries = Vec::new();
    for factor in &einsum.factors {
        let operand = find(operands, &factor.tensor)?;
        if matches!(operand, AnyOperand::Index(..) | AnyOperand::Scalar(_)) {
            return Ok(None);
        }
        entries.push(operand.pattern().map(|p| p.nnz()));
    }
    Ok(best(einsum, &entries, extents, dtype, place))
}

/// The path that a plan of the CPU runs: where it is cheaper than all factors at once, or asked for.
pub(super) fn on_cpu(
    types: Types,
    einsum: &Einsum,
    operands: &[(&str, AnyOperand<'_>)],
    extents: &Extents,
    options: &Options,
) -> Result<Option<Path>> {
    let sums = sums_of(types.operands, types.out);
    let found = found(sums, einsum, operands, extents, Place::Cpu)?;
    let cheaper = |found: &Found| match options.variant.as_deref() {
        None => found.path.us() < found.whole_us,
        Some(name) => name == NAME,
    };
    Ok(found.filter(cheaper).map(|found| found.path))
}

/// The chain over several sparse factors, on a GPU where it is cheaper than lists of positions or `forced`.
pub(super) fn over_sparse(
    (context, types): (&Context, Types),
    einsum: &Einsum,
    operands: &[(&str, AnyOperand<'_>)],
    extents: &Extents,
    (options, forced): (&Options, bool),
) -> Result<Option<Box<dyn Compiled>>> {
    if context.device().is_none() {
        let path = on_cpu(types, einsum, operands, extents, options)?;
        let chain = path.map(|path| CpuChain::new(context, path, operands, extents, types));
        return Ok(chain.transpose()?.map(|chain| Box::new(chain) as _));
    }
    let machine = context.machine();
    let place = Place::Gpu(&machine);
    let found = match on_a_gpu(types) {
        true => found(types.operands, einsum, operands, extents, place)?,
        false => None,
    };
    let strict = options.zeros == ZerosRule::Strict;
    let wanted = |found: &Found| {
        let allowed = !(strict && found.path.zeros == Zeros::Dense);
        allowed && (forced || found.path.us() < found.whole_us)
    };
    let Some(Found { path, .. }) = found.filter(wanted) else {
        return Ok(None);
    };
    match Chain::new(context, path, (operands, options), types) {
        Ok(chain) => Ok(Some(Box::new(chain))),
        Err(Error::NoKernel { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Context {
    /// The order in which a plan contracts factors pair by pair, an expression for each step, and the microseconds it is
    /// predicted to cost. On a CPU context it is what a plan runs, and `None` where a plan multiplies all factors at
    /// once. On a GPU it is `None` where there is no choice, and a plan takes it where it beats the kernels that
    /// compute the whole expression at once.
    ///
    /// Up to eight factors have the cheapest of all orders, up to sixty a greedy one.
    ///
    /// ```
    /// use einsparse::Context;
    /// use einsparse::formats::{Csr, CsrPattern, Dense};
    /// let ctx = Context::cpu();
    /// let a = ctx.upload(Csr::new(CsrPattern::new(2, 100, vec![0, 1, 2], vec![3, 70])?, vec![1.0f32, 2.0])?)?;
    /// let b = ctx.upload_dense(&Dense::new([100, 50], vec![1.0f32; 5000])?)?;
    /// let c = ctx.upload_dense(&Dense::new([50, 4], vec![1.0f32; 200])?)?;
    /// let operands = [("A", (&a).into()), ("B", (&b).into()), ("C", (&c).into())];
    /// let path = ctx.contraction_path("Y[m,n] = A[m,k] * B[k,l] * C[l,n]", &operands)?;
    /// let path = path.unwrap_or_default();
    /// assert!(path.starts_with("P0[m,l] = A[m,k] * B[k,l]; Y[m,n] = P0[m,l] * C[l,n]"), "{path}");
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// # Errors
    /// What parsing and checking find.
    pub fn contraction_path<T: Scalar>(
        &self,
        text: &str,
        operands: &[(&str, Operand<'_, T>)],
    ) -> Result<Option<String>> {
        let path = self.path_of(Types::of::<T, T>(), text, &erase(operands))?;
        Ok(path.map(|path| path.to_string()))
    }

    fn path_of(
        &self,
        types: Types,
        text: &str,
        operands: &[(&str, AnyOperand<'_>)],
    ) -> Result<Option<Path>> {
        let einsum = Einsum::parse(text)?;
        let shapes = operands
            .iter()
            .map(|(name, o)| (name.to_string(), o.shape().to_vec()))
            .collect();
        let extents = einsum.check(&shapes)?;
        if self.device().is_none() {
            return on_cpu(types, &einsum, operands, &extents, &Options::default());
        }
        let machine = self.machine();
        let place = Place::Gpu(&machine);
        let found = found(types.operands, &einsum, operands, &extents, place)?;
        Ok(found.map(|found| found.path))
    }
}

/// Plans of the steps, and the temporaries between them.
#[derive(Debug)]
pub(super) struct Chain {
    /// End of the last run: runs share the temporaries.
    turns: Option<Turns>,
    path: Path,
    steps: Vec<AnyPlan>,
    last: AnyPlan,
    temporaries: Mutex<Vec<AnyTensor>>,
}

impl Chain {
    fn new(
        context: &Context,
        path: Path,
        (operands, options): (&[(&str, AnyOperand<'_>)], &Options),
        types: Types,
    ) -> Result<Self> {
        let (mut steps, mut temporaries) = (Vec::new(), Vec::<AnyTensor>::new());
        // Nobody would tell the steps of new values.
        let options = Options {
            variant: None,
            weights: Weights::EachRun,
            ..options.clone()
        };
        let Some((last, before)) = path.steps.split_last() else {
            return Err(Error::NoKernel {
                indirect: path.to_string(),
                tried: Vec::new(),
            });
        };
        for step in before {
            let bound = bound(step, operands, &temporaries)?;
            let plan = AnyPlan::of((context, types), step.einsum.clone(), &bound, &options)?;
            let shape = plan.out_shape();
            let leading = shape.last().copied().unwrap_or(1);
            let own = AnyTensor::zeros(context.device(), types.out, shape, leading)?;
            drop(bound);
            steps.push(plan);
            temporaries.push(own);
        }
        let bound = bound(last, operands, &temporaries)?;
        let last = AnyPlan::of((context, types), last.einsum.clone(), &bound, &options)?;
        drop(bound);
        Ok(Chain {
            turns: context.on_gpu(|device| Turns::new(device))?,
            path,
            steps,
            last,
            temporaries: Mutex::new(temporaries),
        })
    }

    fn queue(
        &self,
        operands: &[(&str, AnyOperand<'_>)],
        out: &mut AnyTensor,
        stream: &Stream,
    ) -> Result<()> {
        let mut all = self
            .temporaries
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for (at, (plan, step)) in self.steps.iter().zip(&self.path.steps).enumerate() {
            let (done, rest) = all.split_at_mut(at);
            let bound = bound(step, operands, done)?;
            if let Some(to) = rest.first_mut() {
                plan.run(&bound, to, stream)?;
            }
        }
        match self.path.steps.last() {
            Some(step) => self.last.run(&bound(step, operands, &all)?, out, stream),
            None => Ok(()),
        }
    }
}

/// The operands of a step: those of the expression that it names, and temporaries.
fn bound<'b>(
    step: &'b Step,
    operands: &'b [(&str, AnyOperand<'b>)],
    temporaries: &'b [AnyTensor],
) -> Result<Vec<(&'b str, AnyOperand<'b>)>> {
    let of = |name: &'b str| match step.temporary(name).and_then(|at| temporaries.get(at)) {
        Some(tensor) => Ok((name, AnyOperand::Dense(tensor))),
        None => Ok((name, *find(operands, name)?)),
    };
    let given = operands.iter().map(|(name, _)| *name);
    let out = given.filter(|name| *name == step.einsum.out.tensor).take(1);
    let mut all = step
        .names()
        .into_iter()
        .map(of)
        .collect::<Result<Vec<_>>>()?;
    for name in out {
        // The output among the operands says its leading dimension.
        all.push((name, *find(operands, name)?));
    }
    Ok(all)
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{NAME} of {} steps, zeros = {:?}",
            self.path.steps.len(),
            self.path.zeros
        )?;
        for (step, plan) in self.path.steps.iter().zip(&self.steps) {
            write!(f, "\n  {}: {plan}", step.einsum)?;
        }
        match self.path.steps.last() {
            Some(step) => write!(f, "\n  {}: {}", step.einsum, self.last),
            None => Ok(()),
        }
    }
}

impl Compiled for Chain {
    fn variant(&self) -> &'static str {
        NAME
    }

    fn bytes(&self) -> usize {
        let all = self
            .temporaries
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let bytes = |t: &AnyTensor| t.shape().iter().product::<usize>() * t.dtype().bytes();
        let plans = self.steps.iter().map(AnyPlan::workspace_bytes);
        all.iter().map(bytes).sum::<usize>() + plans.sum::<usize>() + self.last.workspace_bytes()
    }

    fn run(&self, run: &Run<'_>, out: &mut AnyTensor) -> Result<()> {
        run.queue(out)?;
        match &self.turns {
            Some(turns) => turns.queue(true, run.stream.raw(), || {
                self.queue(run.operands, out, run.stream)
            }),
            None => self.queue(run.operands, out, run.stream),
        }
    }
}
