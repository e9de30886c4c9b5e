//! Offers of the sddmm kernels that can run a product at the nonzeros of a sparse output.

use std::sync::Arc;

use einsparse_formats::Format;
use einsparse_kernels::abi::{A_COLUMNS, B_COLUMNS, Operation};
use einsparse_kernels::families::{SampledParams, SddmmStagedParams, SddmmTilesParams};
use einsparse_kernels::table::{Row, kernels};

use super::SddmmExtents;
use super::cost::{Samples, predict_samples};
use super::panes::chunks;
use super::product::{SddmmProduct, SddmmShape, row_order};
use crate::cost::Cost;
use crate::device::Device;
use crate::einsum::Mode;
use crate::error::{Refusal, Result};
use crate::indirect::SampledForm;
use crate::machine::Machine;
use crate::offer::{
    Offer, Offers, Options, Precision, Request, alignment_of, given_alignment, leading, sums_fit,
};
use crate::registry::{Dtype, block_of, refuses, writes};
use crate::tensor::AnySparseTensor;

/// Offers kernels for a sparse output in row order.
pub(crate) fn offers<'q>(request: &'q Request<'q, '_>) -> Result<Offers<'q>> {
    let Some(out) = request.output else {
        return Ok(Offers::new());
    };
    let shape = Arc::new(SddmmShape::new(request, out)?);
    sums_fit(request.types.operands, shape.extents.k as u64)?;
    let problem = SddmmProblem::new(request, &shape, out)?;
    let rows = problem.rows(request.machine, request.options);
    let offers = rows.map(|(row, found)| {
        let shape = Arc::clone(&shape);
        let build = move |device: &Arc<Device>| {
            SddmmProduct::new(device, row, Arc::clone(&shape), request.types.out, out)
        };
        found.map(|cost| Offer::of(row, cost, build))
    });
    let offers: Offers<'q> = offers.collect();
    match offers.is_empty() {
        true => Ok(vec![Err(problem.none())]),
        false => Ok(offers),
    }
}

/// Properties of an SDDMM that determine which kernels can run it and their cost.
pub(crate) struct SddmmProblem<'a> {
    pub(crate) form: &'a SampledForm,
    pub(crate) format: Format,
    pub(crate) block: (usize, usize),
    pub(crate) dtype: Dtype,
    /// Element type of the output.
    pub(crate) out: Dtype,
    pub(crate) work: Samples,
    /// Row strides of X and of Y, in elements.
    pub(crate) distances: [usize; 2],
    /// Alignment in elements, up to 16: k and both row strides are multiples of it.
    pub(crate) alignment: usize,
}

/// Whether a kernel computes products at the nonzeros of a pattern.
fn samples(row: &Row) -> bool {
    [Operation::Sampled, Operation::SampledNarrow].contains(&row.operation)
}

impl<'a> SddmmProblem<'a> {
    fn new(
        request: &Request<'_, '_>,
        shape: &'a SddmmShape,
        out: &AnySparseTensor,
    ) -> Result<Self> {
        let SddmmShape { form, extents, .. } = shape;
        let SddmmExtents { m, n, k } = *extents;
        let (types, options, operands) = (request.types, request.options, request.operands());
        let (runs, columns) = row_order(&form.output, out)?;
        let masked = usize::from(form.mask.is_some());
        let [ldx, ldy] = [&form.x, &form.y].map(|factor| leading(operands, &factor.name, k));
        let given = given_alignment(options, operands);
        let block = block_of(&out.format());
        Ok(SddmmProblem {
            form,
            format: out.format(),
            block,
            dtype: types.operands,
            out: types.out,
            work: Samples {
                m,
                n,
                k,
                entries: runs.total * (block.0 * block.1) as u64,
                index_slots: columns.len() as u64,
                chunks: match types.operands {
                    Dtype::F32 if options.precision == Precision::Full => 0,
                    Dtype::F32 | Dtype::F16 | Dtype::Bf16 if block == (1, 1) => {
                        chunks(runs, columns)
                    }
                    _ => 0,
                },
                passes: 1 + masked + usize::from(form.mode == Mode::Accumulate),
            },
            distances: [ldx, ldy],
            alignment: alignment_of(&[k, ldx, ldy, given]),
        })
    }

    /// Iterates over the kernels for this element type, each with its predicted cost or with the reason of its refusal.
    fn rows<'p>(
        &'p self,
        machine: &'p Machine,
        options: &'p Options,
    ) -> impl Iterator<Item = (&'static Row, std::result::Result<Cost, Refusal>)> + 'p {
        let rows = kernels().iter().filter(|row| samples(row) && self.computes(row.dtype));
        rows.map(move |row| match self.refusal(row, machine, options) {
            Some(reason) => (row, Err(Refusal::of(row.name, reason))),
            None => (row, Ok(predict_samples(row, &self.work, machine))),
        })
    }

    /// Refusal of all kernels if none is for this element type.
    fn none(&self) -> Refusal {
        let reason = format!("no kernel of these families computes {}", self.dtype.name());
        Refusal::of("sampled, sddmm", reason)
    }

    /// Whether kernels of this type read the operands.
    fn computes(&self, dtype: Dtype) -> bool {
        dtype == self.dtype || (dtype, self.dtype) == (Dtype::Tf32, Dtype::F32)
    }

    fn refusal(&self, row: &Row, machine: &Machine, options: &Options) -> Option<String> {
        if let Some(wanted) = options.variant.as_ref().filter(|v| *v != row.name) {
            return Some(format!("the plan requires {wanted}"));
        }
        if row.dtype == Dtype::Tf32 && options.precision == Precision::Full {
            return Some("rounds to TF32, but the plan requires full precision".into());
        }
        if let Some(reason) = machine.lacks(row) {
            return Some(reason);
        }
        if !writes(row, self.out) {
            let (own, out) = (row.dtype.name(), self.out.name());
            return Some(format!("has no {out} output of {own} operands"));
        }
        if let Some(reason) = refuses(row.walk, &self.format) {
            return Some(reason);
        }
        let x = row.order & A_COLUMNS != 0;
        let y = row.order & B_COLUMNS == 0;
        if (self.form.x.columns, self.form.y.columns) != (x, y) {
            let order = if x { "[k,m] and [k,n]" } else { "[m,k] and [n,k]" };
            return Some(format!("reads {order}"));
        }
        if row.takes::<SddmmStagedParams>() {
            let (most, k) = (row.columns as usize, self.work.k);
            if k > most || k <= most / 4 {
                return Some(format!("is for up to {most} terms, and more than {}", most / 4));
            }
        } else if row.takes::<SampledParams>() || row.takes::<SddmmTilesParams>() {
            return self.refusal_of_tiles(row, options);
        }
        let (vector, alignment) = (row.vector, self.alignment);
        (!alignment.is_multiple_of(vector as usize)).then(|| {
            format!("moves {vector} elements at once, rows of X and Y and their length are aligned to {alignment}")
        })
    }

    /// Reason why a kernel that copies whole tiles of X and Y cannot run.
    fn refusal_of_tiles(&self, row: &Row, options: &Options) -> Option<String> {
        let (bm, bk) = self.block;
        let (pm, pk) = (row.block.0 as usize, row.block.1 as usize);
        if !bm.is_multiple_of(pm) || !bk.is_multiple_of(pk) {
            return Some(format!(
                "is for blocks of multiples of {pm} x {pk}, the output has {bm} x {bk}"
            ));
        }
        let ([x, y], vector) = (self.distances, row.vector as usize);
        if let Some(given) = options.alignment.filter(|a| !a.is_multiple_of(vector)) {
            return Some(format!("moves {vector} elements at once, the plan is for {given}"));
        }
        (!x.is_multiple_of(vector) || !y.is_multiple_of(vector)).then(|| {
            format!("moves {vector} elements at once, rows of X lie {x} apart, rows of Y {y}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::einsum::Einsum;

    fn said(
        text: &str,
        block: (usize, usize),
        distances: [usize; 2],
        dtype: Dtype,
        machine: &Machine,
    ) -> (Vec<(f64, &'static str)>, Vec<Refusal>) {
        let form = SampledForm::of(&Einsum::parse(text).unwrap(), None).unwrap();
        let problem = SddmmProblem {
            form: &form,
            format: Format::Bsr { block },
            block,
            dtype,
            out: dtype,
            work: Samples {
                m: 256,
                n: 256,
                k: 64,
                entries: 16384,
                index_slots: 16,
                chunks: 0,
                passes: 1,
            },
            distances,
            alignment: 4,
        };
        let (mut candidates, mut refused) = (Vec::new(), Vec::new());
        for (row, found) in problem.rows(machine, &Options::default()) {
            match found {
                Ok(cost) => candidates.push((cost.us, row.name)),
                Err(refusal) => refused.push(refusal),
            }
        }
        if candidates.is_empty() && refused.is_empty() {
            refused.push(problem.none());
        }
        candidates.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        (candidates, refused)
    }

    #[test]
    fn refusals_say_why() {
        const PLAIN: &str = "S[m,n] = X[m,k] * Y[n,k]";
        let hopper = Machine::H200;
        let ampere = hopper.with_capability((8, 0)).with_shared_bytes(99 << 10);
        for (machine, name, other) in [
            (&hopper, "sampled_f16_64", "this GPU has `wgmma`"),
            (&ampere, "sampled_mma_f16_64", "compute capability 9.0"),
        ] {
            let (wide, refused) = said(PLAIN, (128, 64), [64, 72], Dtype::F16, machine);
            assert_eq!(wide[0].1, name);
            assert!(refused.iter().any(|r| r.reason.contains(other)), "{refused:?}");
            for (text, block, distances, words) in [
                ("S[m,n] = X[m,k] * Y[k,n]", (64, 64), [64, 64], "reads [m,k] and [n,k]"),
                (PLAIN, (8, 64), [64, 64], "the output has 8 x 64"),
                (PLAIN, (64, 64), [64, 60], "rows of X lie 64 apart, rows of Y 60"),
            ] {
                let (candidates, refused) = said(text, block, distances, Dtype::F16, machine);
                assert_eq!(candidates, [], "{text}");
                assert!(refused.iter().any(|r| r.reason.contains(words)), "{refused:?}");
            }
        }
        let (_, narrow) = said(PLAIN, (64, 64), [64, 64], Dtype::E4m3, &hopper);
        assert!(narrow[0].reason.ends_with("computes e4m3"), "{narrow:?}");
    }
}
