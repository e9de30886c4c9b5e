//! The order of contraction of several factors: pairs one after the other, in the cheapest order by flops and bytes.
//! Before, a factor is summed over the indices that it alone has.
//!
//! On a GPU each step is a plan, and temporaries have the element type. So paths are for f32 and f64, whose accumulators
//! these types are; products of 16-bit factors are rounded once, and all factors are multiplied at once. On the CPU
//! temporaries have the type of the accumulator, and every element type has paths.
//!
//! A product of dense factors that is computed first meets a NaN or Inf exactly where the joint sum has that term. A
//! sparse factor that is multiplied before the last step is different: its result has elements without a term. A GPU
//! multiplies their zeros (`zeros = Dense`); the CPU marks them and leaves them out.

mod chain;
mod cost;
mod on_cpu;
mod order;
mod search;
mod several;
mod step;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use einsparse_formats::FormatError;
use einsparse_kernels::abi::{Dtype, Zeros};
use einsparse_kernels::families::EINSUM_FACTORS;

use super::{AnyPlan, Options, ZerosRule};
use crate::context::Context;
use crate::cpu::sums_of;
use crate::device::Device;
use crate::einsum::{Einsum, Extents};
use crate::error::{Error, Refusal, Result};
use crate::offer::bind::find;
use crate::offer::{Answer, Candidate, Made, Offer, Question, Types};
use crate::registry::Scalar;
use crate::tensor::{AnyOperand, Operand, erase, volume};

use chain::Chain;
pub(super) use on_cpu::CpuChain;
use search::{Asked, Found, NoPath, Place, best};
use step::Path;

/// Its name among candidates.
pub(super) const NAME: &str = "path";
/// A CPU takes weeks for more multiplications: a plan over all factors at once is refused then, as on a GPU, whose
/// general kernels multiply up to [`EINSUM_FACTORS`].
const MAX_OPERATIONS: f64 = 1e18;

/// The chain of pairwise steps, where there is a choice.
pub(super) fn offers<'q>(question: &'q Question<'q, '_>) -> Result<Answer<'q>> {
    let asked = (question.types, question.einsum, question.operands());
    let found = match on_gpu(asked, question.extents, question.context)? {
        Ok(found) => found,
        Err(none) => return Answer::refused(NAME, none.reason),
    };
    let path = found.path;
    if path.zeros == Zeros::Dense && question.options.zeros == ZerosRule::Strict {
        return Answer::refused(NAME, "multiplies the zeros in rows without entries");
    }
    let candidate = candidate(&path);
    let make = move |_: &Arc<Device>| -> Result<Made> {
        let asked = (question.operands(), question.options);
        match Chain::new(question.context, path.clone(), asked, question.types) {
            Ok(chain) => Ok(Ok(Box::new(chain))),
            Err(error) if is_refusal(&error) => {
                let reason = format!("cannot plan its steps: {error}");
                Ok(Err(Refusal::of(NAME, reason)))
            }
            Err(error) => Err(error),
        }
    };
    Answer::of(vec![Offer { candidate, make: Box::new(make) }])
}

fn candidate(path: &Path) -> Candidate {
    Candidate { name: NAME, cost: path.cost(), zeros: path.zeros, prepacked: None }
}

/// Whether another way to compute the expression may be possible.
fn is_refusal(error: &Error) -> bool {
    matches!(
        error,
        Error::NoKernel { .. }
            | Error::Overflow { .. }
            | Error::OutOfMemory { .. }
            | Error::Format(FormatError::Limit { .. } | FormatError::Memory { .. })
    )
}

/// Types, expression and operands that are ordered.
type Factors<'q, 'a> = (Types, &'q Einsum, &'q [(&'q str, AnyOperand<'a>)]);

/// The cheapest order of the steps of a GPU, whose temporaries are as wide as its sums.
fn on_gpu(
    factors: Factors<'_, '_>,
    extents: &Extents,
    context: &Context,
) -> Result<std::result::Result<Found, NoPath>> {
    let types = factors.0;
    if !matches!(types.operands, Dtype::F32 | Dtype::F64) || !types.alike() {
        return Ok(Err(NoPath {
            reason: "temporaries would be rounded to fewer bits than sums: f32 and f64 only".into(),
            operations: None,
        }));
    }
    let machine = context.machine();
    let place = Place::Gpu(&machine);
    found(factors, extents, (types.out, place, false))
}

/// The cheapest order of the factors of an expression, with intermediate results of this type.
fn found(
    (types, einsum, operands): Factors<'_, '_>,
    extents: &Extents,
    (dtype, place, lists): (Dtype, Place<'_>, bool),
) -> Result<std::result::Result<Found, NoPath>> {
    let bytes = types.operands.bytes() as u64;
    let out = extents.out().iter().map(|&extent| extent as u64);
    let mut held = out.fold(types.out.bytes() as u64, u64::saturating_mul);
    let mut entries = Vec::new();
    for factor in &einsum.factors {
        let operand = find(operands, &factor.tensor)?;
        if matches!(operand, AnyOperand::Index(..) | AnyOperand::Scalar(_)) {
            return Ok(Err(NoPath {
                reason: format!("`{}` is an index array or a number", factor.tensor),
                operations: None,
            }));
        }
        let own = match operand.pattern() {
            Some(pattern) => pattern.slots() as u64 * (bytes + 4),
            None => volume(operand.shape()) as u64 * bytes,
        };
        held = held.saturating_add(own);
        entries.push(operand.pattern().map(|pattern| pattern.nnz()));
    }
    Ok(best(Asked { einsum, extents, entries: &entries, held, dtype, place, lists }))
}

/// The path that a plan of the CPU runs: where it is cheaper than all factors at once, or asked for.
///
/// # Errors
/// `NoKernel` where a path is asked for and there is none, and where intermediate results would need too much memory
/// and all factors at once too much time.
pub(super) fn on_cpu(
    factors: Factors<'_, '_>,
    extents: &Extents,
    options: &Options,
) -> Result<Option<Path>> {
    let (types, einsum, _) = factors;
    let sums = sums_of(types.operands, types.out);
    let asked = options.variant.as_deref() == Some(NAME);
    let many = einsum.factors.len() > EINSUM_FACTORS;
    match found(factors, extents, (sums, Place::Cpu, false))? {
        Ok(found) if asked || found.path.us() < found.whole_us => Ok(Some(found.path)),
        Ok(_) => Ok(None),
        Err(none) if asked || many && none.operations.is_some_and(|n| n > MAX_OPERATIONS) => {
            let refusal = Refusal::of(NAME, none.reason);
            Err(Error::no_kernel(einsum.to_string(), [refusal]))
        }
        Err(_) => Ok(None),
    }
}

impl Context {
    /// The order in which a plan contracts factors pair by pair, an expression for each step, and the microseconds that
    /// it is predicted to take. A CPU context gives the steps that a plan runs, and `None` if a plan multiplies all
    /// factors at once. A GPU context gives the cheapest order: a plan runs it if it beats the kernels that compute the
    /// whole expression at once. It gives `None` if there is no order to choose.
    ///
    /// Up to eight factors have the cheapest of all orders, more have a greedy one.
    ///
    /// ```
    /// use einsparse::Context;
    /// use einsparse::formats::{Csr, CsrPattern, Dense};
    /// let ctx = Context::cpu();
    /// let a = ctx.upload(Csr::new(CsrPattern::new(2, 100, vec![0, 1, 2], vec![3, 70])?, vec![1.0f32, 2.0])?)?;
    /// let b = ctx.upload_dense(&Dense::new([100, 50], vec![1.0f32; 5000])?)?;
    /// let c = ctx.upload_dense(&Dense::new([50, 40], vec![1.0f32; 2000])?)?;
    /// let operands = [("A", (&a).into()), ("B", (&b).into()), ("C", (&c).into())];
    /// let path = ctx.contraction_path("Y[m,n] = A[m,k] * B[k,l] * C[l,n]", &operands)?;
    /// let path = path.unwrap_or_default();
    /// assert!(path.starts_with("P0[m,l] = A[m,k] * B[k,l]; Y[m,n] = P0[m,l] * C[l,n]"), "{path}");
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of parsing and checking; on a CPU context also those of planning.
    pub fn contraction_path<T: Scalar>(
        &self,
        text: &str,
        operands: &[(&str, Operand<'_, T>)],
    ) -> Result<Option<String>> {
        let (types, operands) = (Types::of::<T, T>(), &erase(operands)[..]);
        let einsum = Einsum::parse(text)?;
        if self.device().is_none() {
            let plan = AnyPlan::of((self, types), einsum, operands, &Options::default())?;
            return Ok(plan.made.steps());
        }
        let shapes =
            operands.iter().map(|(name, o)| (name.to_string(), o.shape().to_vec())).collect();
        let extents = einsum.check(&shapes)?;
        let found = on_gpu((types, &einsum, operands), &extents, self)?;
        Ok(found.ok().map(|found| found.path.to_string()))
    }
}
