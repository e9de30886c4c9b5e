//! Contraction paths: several factors are contracted pair by pair, in the cheapest order by flops and bytes. First,
//! each factor is summed over the indices that only it has.
//!
//! On a GPU each step is a plan, and intermediate results have the element type. Paths therefore support f32 and f64,
//! which are also accumulator types. Products of 16-bit factors are rounded once, so all factors are multiplied at
//! once. On the CPU intermediate results have the accumulator type, and every element type has paths.
//!
//! A product of dense factors meets a NaN or Inf exactly where the joint sum has that term. An intermediate result of a
//! sparse factor has elements without a term. A GPU multiplies these zeros (`zeros = Dense`); the CPU marks and skips
//! them.

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
use crate::device::Device;
use crate::einsum::{Einsum, Extents};
use crate::error::{Error, Refusal, Result};
use crate::offer::{Candidate, Offer, Offers, Request, Source, Types, refuse};
use crate::registry::Scalar;
use crate::tensor::{AnyOperand, Operand, erase, volume};
use crate::values::sums_of;

use chain::Chain;
pub(super) use on_cpu::CpuChain;
use search::{Contraction, Found, NoPath, Place, best};
use step::Path;

/// Name of paths among candidates.
pub(super) const NAME: &str = "path";
/// Maximum multiplications of all factors at once; more take weeks on a CPU. A plan of more than [`EINSUM_FACTORS`]
/// factors above it is refused, as on a GPU, whose general kernels support no more factors.
const MAX_OPERATIONS: f64 = 1e18;

/// Offers a chain of pairwise steps, if there are several orders.
pub(super) fn offers<'q>(request: &'q Request<'q, '_>) -> Result<Offers<'q>> {
    let source = request.source();
    let path = match on_gpu(&source, request.extents)? {
        Ok(found) => found.path,
        Err(none) => return Err(refuse(NAME, none.reason)),
    };
    if path.zeros == Zeros::Dense && request.options.zeros == ZerosRule::Strict {
        return Err(refuse(NAME, "multiplies the zeros in rows without entries"));
    }
    let candidate = candidate(&path);
    let build = move |_: &Arc<Device>| match Chain::new(&source, path.clone()) {
        Ok(chain) => Ok(Box::new(chain) as _),
        Err(error) if is_refusal(&error) => {
            Err(refuse(NAME, format!("cannot plan its steps: {error}")))
        }
        Err(error) => Err(error),
    };
    Ok(vec![Ok(Offer { candidate, build: Box::new(build) })])
}

fn candidate(path: &Path) -> Candidate {
    Candidate { name: NAME, cost: path.cost(), zeros: path.zeros, prepacked: None }
}

/// Whether another way to compute the expression may succeed.
fn is_refusal(error: &Error) -> bool {
    matches!(
        error,
        Error::NoKernel { .. }
            | Error::Overflow { .. }
            | Error::OutOfMemory { .. }
            | Error::Format(FormatError::Limit { .. } | FormatError::Memory { .. })
    )
}

/// Returns the cheapest order of GPU steps. Intermediate results must have the type of the accumulators.
fn on_gpu(
    source: &Source<'_, '_>,
    extents: &Extents,
) -> Result<std::result::Result<Found, NoPath>> {
    let types = source.types;
    if !matches!(types.operands, Dtype::F32 | Dtype::F64) || !types.alike() {
        return Ok(Err(NoPath {
            reason: "temporaries would be rounded to fewer bits than sums: f32 and f64 only".into(),
            operations: None,
        }));
    }
    let machine = source.context.machine();
    let place = Place::Gpu(&machine);
    found(source, extents, (types.out, place, false))
}

/// Returns the cheapest order of the factors of an expression, with intermediate results of type `dtype`.
fn found(
    source: &Source<'_, '_>,
    extents: &Extents,
    (dtype, place, lists): (Dtype, Place<'_>, bool),
) -> Result<std::result::Result<Found, NoPath>> {
    let Source { types, einsum, .. } = *source;
    let bytes = types.operands.bytes() as u64;
    let out = extents.out().iter().map(|&extent| extent as u64);
    let mut held = out.fold(types.out.bytes() as u64, u64::saturating_mul);
    let mut entries = Vec::new();
    for factor in &einsum.factors {
        let operand = source.operand(&factor.tensor)?;
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
    Ok(best(Contraction { einsum, extents, entries: &entries, held, dtype, place, lists }))
}

/// Returns the path that a CPU plan runs: if it is cheaper than all factors at once, or requested as the variant.
///
/// # Errors
/// `NoKernel` if a path is requested and none exists. Also if intermediate results require too much memory, and all
/// factors at once take too much time.
pub(super) fn on_cpu(source: &Source<'_, '_>, extents: &Extents) -> Result<Option<Path>> {
    let Source { types, einsum, options, .. } = *source;
    let sums = sums_of(types.operands, types.out);
    let asked = options.variant.as_deref() == Some(NAME);
    let many = einsum.factors.len() > EINSUM_FACTORS;
    match found(source, extents, (sums, Place::Cpu, false))? {
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
    /// Returns the order in which a plan contracts factors pair by pair, as one expression per step, with the predicted
    /// microseconds. A CPU context returns the steps of its plan, and `None` if the plan multiplies all factors at
    /// once. A GPU context returns the cheapest order, and `None` if it supports no path or only one order. A GPU plan
    /// runs this order if it beats the kernels that compute the whole expression at once.
    ///
    /// The order is optimal for up to eight factors, and greedy for more.
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
        let einsum = &Einsum::parse(text)?;
        let source =
            Source { types, context: self, einsum, operands, options: &Options::default() };
        if self.device().is_none() {
            let plan = AnyPlan::of(&source)?;
            return Ok(plan.made.steps());
        }
        let shapes =
            operands.iter().map(|(name, o)| (name.to_string(), o.shape().to_vec())).collect();
        let extents = einsum.check(&shapes)?;
        let found = on_gpu(&source, &extents)?;
        Ok(found.ok().map(|found| found.path.to_string()))
    }
}
