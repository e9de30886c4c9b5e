//! Selection of a kernel for a product at the nonzeros of a sparse output.

use einsparse_formats::Format;
use einsparse_kernels::abi::{A_COLUMNS, B_COLUMNS, Operation};
use einsparse_kernels::families::{SampledParams, SddmmStagedParams, SddmmTilesParams};
use einsparse_kernels::table::{Row, kernels};

use super::cost::{Samples, predict_samples};
use crate::einsum::Mode;
use crate::error::Refusal;
use crate::families::sddmm::panes::chunks;
use crate::families::sddmm::{Places, SddmmExtents};
use crate::indirect::SampledForm;
use crate::machine::Machine;
use crate::offer::{
    Candidate, Choice, Options, Precision, Types, alignment_of, given_alignment, leading,
};
use crate::registry::{Dtype, block_of, refuses, writes};
use crate::tensor::AnyOperand;

/// Properties of an SDDMM that determine which kernels can run it and their cost.
pub(crate) struct Sampling<'a> {
    pub(crate) form: &'a SampledForm,
    pub(crate) format: Format,
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

impl Sampling<'_> {
    /// Returns every kernel for this element type: as a candidate with its predicted cost, cheapest first, or as a
    /// refusal with a reason.
    pub(crate) fn candidates(&self, machine: &Machine, options: &Options) -> Choice {
        let mut choice = Choice::default();
        let rows = kernels().iter().filter(|row| samples(row) && self.computes(row.dtype));
        for row in rows {
            match self.refusal(row, machine, options) {
                Some(reason) => choice.refused.push(Refusal::of(row.name, reason)),
                None => choice.candidates.push(Candidate {
                    name: row.name,
                    cost: predict_samples(row, &self.work, machine),
                    zeros: row.zeros,
                    prepacked: None,
                }),
            }
        }
        if choice.candidates.is_empty() && choice.refused.is_empty() {
            choice.refused.push(Refusal {
                name: "sampled, sddmm".into(),
                reason: format!("no kernel of these families computes {}", self.dtype.name()),
            });
        }
        choice.candidates.sort_by(|a, b| a.cost.us.total_cmp(&b.cost.us));
        choice
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
        let (bm, bk) = block_of(&self.format);
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

/// Collects the properties that determine the kernel.
pub(crate) fn sampling<'f>(
    form: &'f SampledForm,
    extents: SddmmExtents,
    places: Places<'_>,
    operands: &[(&str, AnyOperand<'_>)],
    (format, types, options): (Format, Types, &Options),
) -> Sampling<'f> {
    let SddmmExtents { m, n, k } = extents;
    let passes = 1 + usize::from(form.mask.is_some()) + usize::from(form.mode == Mode::Accumulate);
    let [ldx, ldy] = [&form.x, &form.y].map(|factor| leading(operands, &factor.name, k));
    let given = given_alignment(options, operands);
    Sampling {
        form,
        format,
        dtype: types.operands,
        out: types.out,
        work: Samples {
            m,
            n,
            k,
            entries: places.runs.total * (places.block.0 * places.block.1) as u64,
            index_slots: places.columns.len() as u64,
            chunks: match types.operands {
                Dtype::F32 if options.precision == Precision::Full => 0,
                Dtype::F32 | Dtype::F16 | Dtype::Bf16 if places.block == (1, 1) => {
                    chunks(places.runs, places.columns)
                }
                _ => 0,
            },
            passes,
        },
        distances: [ldx, ldy],
        alignment: alignment_of(&[k, ldx, ldy, given]),
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
    ) -> Choice {
        let form = SampledForm::of(&Einsum::parse(text).unwrap(), None).unwrap();
        let sampling = Sampling {
            form: &form,
            format: Format::Bsr { block },
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
        sampling.candidates(machine, &Options::default())
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
            let wide = said(PLAIN, (128, 64), [64, 72], Dtype::F16, machine);
            assert_eq!(wide.candidates[0].name, name);
            assert!(wide.refused.iter().any(|r| r.reason.contains(other)), "{wide:?}");
            for (text, block, distances, words) in [
                ("S[m,n] = X[m,k] * Y[k,n]", (64, 64), [64, 64], "reads [m,k] and [n,k]"),
                (PLAIN, (8, 64), [64, 64], "the output has 8 x 64"),
                (PLAIN, (64, 64), [64, 60], "rows of X lie 64 apart, rows of Y 60"),
            ] {
                let choice = said(text, block, distances, Dtype::F16, machine);
                assert_eq!(choice.candidates, [], "{text}");
                assert!(choice.refused.iter().any(|r| r.reason.contains(words)), "{choice:?}");
            }
        }
        let narrow = said(PLAIN, (64, 64), [64, 64], Dtype::E4m3, &hopper);
        assert!(narrow.refused[0].reason.ends_with("computes e4m3"), "{narrow:?}");
    }
}
