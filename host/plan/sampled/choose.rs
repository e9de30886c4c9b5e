//! The choice of a kernel for a product at the places of a sparse output.

use einsparse_formats::Format;
use einsparse_kernels::abi::{A_COLUMNS, B_COLUMNS, Operation, WalkKind};
use einsparse_kernels::table::{Row, kernels};

use crate::cost::{Machine, Samples, predict_samples};
use crate::error::Refusal;
use crate::indirect::SampledForm;
use crate::plan::{Candidate, Choice, Options};
use crate::registry::{Dtype, block_of, refuses};

/// An SDDMM by what decides which kernels may run it and what they cost.
pub(super) struct Sampling<'a> {
    pub(super) form: &'a SampledForm,
    pub(super) format: Format,
    pub(super) dtype: Dtype,
    pub(super) work: Samples,
    /// Elements, up to 16, that k and the leading dimensions of X and Y are multiples of.
    pub(super) alignment: usize,
}

impl Sampling<'_> {
    /// Every kernel for this element type: a candidate with its predicted cost, cheapest first, or refused with a reason.
    pub(super) fn candidates(&self, machine: &Machine, options: &Options) -> Choice {
        let mut choice = Choice::default();
        let rows = kernels()
            .iter()
            .filter(|row| row.operation == Operation::Sampled && row.dtype == self.dtype);
        for row in rows {
            match self.refusal(row, machine, options) {
                Some(reason) => choice.refused.push(Refusal {
                    name: row.name.into(),
                    reason,
                }),
                None => choice.candidates.push(Candidate {
                    name: row.name,
                    cost: predict_samples(row, &self.work, machine),
                    zeros: row.zeros,
                }),
            }
        }
        choice
            .candidates
            .sort_by(|a, b| a.cost.us.total_cmp(&b.cost.us));
        choice
    }

    fn refusal(&self, row: &Row, machine: &Machine, options: &Options) -> Option<String> {
        if let Some(wanted) = options.variant.as_ref().filter(|v| *v != row.name) {
            return Some(format!("the plan asks for {wanted}"));
        }
        if row.arch == "sm_90a" && machine.wgmma == 0.0 {
            return Some("is made of wgmma, which compute capability 9.0 has".into());
        }
        if let Some(reason) = refuses(row.walk, &self.format) {
            return Some(reason);
        }
        let blocks = row.walk == WalkKind::Block;
        // Rows of single entries read both matrices along k.
        let x = blocks && row.order & A_COLUMNS != 0;
        let y = blocks && row.order & B_COLUMNS == 0;
        if (self.form.x.columns, self.form.y.columns) != (x, y) {
            let order = if x {
                "[k,m] and [k,n]"
            } else {
                "[m,k] and [n,k]"
            };
            return Some(format!("reads {order}"));
        }
        if blocks {
            let (bm, bk) = block_of(&self.format);
            let (pm, pk) = (row.block.0 as usize, row.block.1 as usize);
            return (!bm.is_multiple_of(pm) || !bk.is_multiple_of(pk)).then(|| {
                format!("is for blocks of multiples of {pm} x {pk}, the output has {bm} x {bk}")
            });
        }
        let (vector, alignment) = (row.vector, self.alignment);
        (!alignment.is_multiple_of(vector as usize)).then(|| {
            format!("moves {vector} elements at once, rows of X and Y and their length are aligned to {alignment}")
        })
    }
}
