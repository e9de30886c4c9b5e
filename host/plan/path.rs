//! The order of contraction of three or more factors: pairs one after the other, the cheapest order by flops and bytes,
//! each step a plan.
//!
//! Steps keep their sums in temporaries of the element type, so paths are for f32 and f64, whose accumulators these
//! are. A pre-product of dense factors meets a NaN or Inf exactly where the joint sum has that term, as its index is
//! summed whole either way. A sparse factor that is multiplied before the last step is different: its result has zeros
//! where there was no entry, and these are multiplied (`zeros = Dense`).

mod search;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use einsparse_kernels::abi::{Dtype, Zeros};

use super::{AnyPlan, Options, ZerosRule};
use crate::context::Context;
use crate::device::{Device, Stream};
use crate::einsum::{Einsum, Extents};
use crate::error::{Error, Refusal, Result};
use crate::launch::Turns;
use crate::machine::Machine;
use crate::offer::bind::find;
use crate::offer::{Answer, Candidate, Compiled, Made, Offer, Question, Run, Types, Weights};
use crate::registry::Scalar;
use crate::tensor::{AnyOperand, AnyTensor, Operand, erase};

use search::{Path, Step};
use search::{Term, best};

/// Its name among candidates.
pub(super) const NAME: &str = "path";

/// The chain of pairwise steps, where there is a choice.
pub(super) fn offers<'q>(question: &'q Question<'q, '_>) -> Result<Answer<'q>> {
    let refused = |reason: &str| Answer::refused(NAME, reason);
    if question.einsum.factors.len() < 3 {
        return refused("orders three or more factors");
    }
    if !matches!(question.types.operands, Dtype::F32 | Dtype::F64) || !question.types.alike() {
        return refused("temporaries would be rounded to fewer bits than sums: f32 and f64 only");
    }
    let found = path(
        question.types.operands,
        question.einsum,
        question.operands(),
        question.extents,
        question.machine,
    )?;
    let Some(path) = found else {
        return refused("orders factors with plain indices and one sparse operand at the most");
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

/// The cheapest order of the factors of an expression; `None` where there is no choice, or indices are gathers.
pub(super) fn path(
    dtype: Dtype,
    einsum: &Einsum,
    operands: &[(&str, AnyOperand<'_>)],
    extents: &Extents,
    machine: &Machine,
) -> Result<Option<Path>> {
    let mut terms = Vec::new();
    for factor in &einsum.factors {
        let operand = find(operands, &factor.tensor)?;
        let known = !matches!(operand, AnyOperand::Index(..) | AnyOperand::Scalar(_));
        let entries = operand.pattern().map(|p| p.nnz());
        let Some(term) = Term::of(factor, entries).filter(|_| known) else {
            return Ok(None);
        };
        terms.push(term);
    }
    Ok(best(einsum, terms, extents, dtype, machine))
}

impl Context {
    /// The order in which a plan would contract three or more factors pair by pair, an expression for each step, and
    /// the microseconds it is predicted to cost; `None` where there is no choice. A plan takes it where it beats the
    /// kernels that compute the whole expression at once.
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
        let path = self.path_of(T::DTYPE, text, &erase(operands))?;
        Ok(path.map(|path| path.to_string()))
    }

    fn path_of(
        &self,
        dtype: Dtype,
        text: &str,
        operands: &[(&str, AnyOperand<'_>)],
    ) -> Result<Option<Path>> {
        let einsum = Einsum::parse(text)?;
        let shapes = operands
            .iter()
            .map(|(name, o)| (name.to_string(), o.shape().to_vec()))
            .collect();
        let extents = einsum.check(&shapes)?;
        path(dtype, &einsum, operands, &extents, &self.machine())
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

#[cfg(test)]
mod tests {
    use super::*;
    use einsparse_formats::{Csr, CsrPattern, Dense};

    fn integers(rows: usize, columns: usize) -> Dense<f64> {
        Dense::from_fn([rows, columns], |i| {
            ((i[0] * 7 + i[1] * 3) % 5) as f64 - 2.0
        })
        .unwrap()
    }

    /// Steps on the CPU against the expression as a whole.
    fn agrees(text: &str, extents: [usize; 4], wanted: &str) {
        let ctx = Context::cpu();
        let [m, k, l, n] = extents;
        let offsets = (0..=m as u32).map(|row| row * 2).collect();
        let columns = (0..m)
            .flat_map(|r| [(r % (k - 1)) as u32, k as u32 - 1])
            .collect();
        let pattern = CsrPattern::new(m, k, offsets, columns).unwrap();
        let values = (0..2 * m).map(|v| (v % 5) as f64 - 1.0).collect();
        let a = ctx.upload(Csr::new(pattern, values).unwrap()).unwrap();
        let [b, c] = [integers(k, l), integers(l, n)].map(|d| ctx.upload_dense(&d).unwrap());
        let bias = ctx
            .upload_dense(&Dense::new([n], vec![1.0; n]).unwrap())
            .unwrap();
        let mut operands: Vec<(&str, Operand<'_, f64>)> =
            vec![("A", (&a).into()), ("B", (&b).into()), ("C", (&c).into())];
        if text.contains("bias") {
            operands.push(("bias", (&bias).into()));
        }
        let erased = erase(&operands);
        let path = ctx.path_of(Dtype::F64, text, &erased).unwrap().unwrap();
        assert_eq!(path.steps[0].einsum.to_string(), wanted);
        let options = Options::default();
        let whole = ctx.plan(text).operands(&operands).build().unwrap();
        let types = Types::of::<f64, f64>();
        let chain = Chain::new(&ctx, path, (&erased, &options), types).unwrap();
        let stream = ctx.stream().unwrap();
        let start = integers(m, n);
        let [mut one, mut other] = [(); 2].map(|()| ctx.upload_dense(&start).unwrap());
        whole.run(&operands, &mut one, &stream).unwrap();
        chain.queue(&erased, &mut other.any, &stream).unwrap();
        assert_eq!(
            one.to_dense().unwrap(),
            other.to_dense().unwrap(),
            "{chain}"
        );
        assert!(chain.to_string().contains(wanted), "{chain}");
        assert!(chain.bytes() > 0);
    }

    #[test]
    fn steps_give_what_the_whole_gives() {
        let text = "Y[m,n] = A[m,k] * B[k,l] * C[l,n]";
        // Few rows of A: its product first. Many, of a narrow result: the dense ones first.
        agrees(text, [2, 60, 50, 40], "P0[m,l] = A[m,k] * B[k,l]");
        agrees(text, [900, 6, 200, 3], "P0[k,n] = B[k,l] * C[l,n]");
        let text = "Y[m,n] += relu(2 * A[m,k] * B[k,l] * C[l,n] + bias[n])";
        agrees(text, [2, 60, 50, 40], "P0[m,l] = A[m,k] * B[k,l]");
    }

    #[test]
    fn two_factors_leave_no_choice() {
        let ctx = Context::cpu();
        let [b, c] = [integers(3, 4), integers(4, 2)].map(|d| ctx.upload_dense(&d).unwrap());
        let operands = [("B", (&b).into()), ("C", (&c).into())];
        let found = ctx
            .contraction_path("Y[k,n] = B[k,l] * C[l,n]", &operands)
            .unwrap();
        assert!(found.is_none());
    }
}
