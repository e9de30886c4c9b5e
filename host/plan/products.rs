//! Products of a matrix with a dense one: rows of the table that read A as it is, or in a form that the plan keeps.

use std::sync::Arc;

use einsparse_kernels::abi::{Dtype, Operation};
use einsparse_kernels::table::{Row, kernels};

use super::choose::{Candidate, Choice};
use super::family::{Answer, Made, Offer, Question};
use super::kept::{self, Kept};
use super::problem::{Problem, problem};
use super::refuse::refusal;
use super::spmm::Spmm;
use super::{Determinism, Options};
use crate::cost::{Cost, predict, turned_us};
use crate::device::Device;
use crate::error::{Error, Refusal, Result};
use crate::indirect::SpmmForm;
use crate::machine::Machine;

/// What plans choose from.
const PRODUCTS: &str = "the table holds C[m,n] (=|+=) A[m,k] * B[k,n] with A sparse in row order; A as [k,m] where it is made \
    of blocks or single entries; with one of them made of blocks, or both dense, also with other axes swapped; batches C[z,m,n] \
    with one A for all, or A as [z,m,k] in coo; Context::cpu() runs every expression";

impl Problem {
    fn cost(&self, row: &Row, machine: &Machine) -> Cost {
        let mut cost = predict(row, &self.work, machine);
        if self.order.transposed && row.block == (1, 1) {
            cost.us += turned_us(row, &self.work, machine);
        }
        cost
    }

    /// Every kernel for this element type: a candidate with its predicted cost, or refused with a reason.
    pub fn candidates(&self, machine: &Machine, options: &Options) -> Choice {
        let mut choice = Choice::default();
        let relaxed = options.determinism == Determinism::Relaxed;
        let products = |row: &&Row| match row.operation {
            Operation::Product | Operation::Narrow => true,
            // By its variant only: it is there to be measured against.
            Operation::Relaxed => relaxed && options.variant.is_some(),
            _ => false,
        };
        for row in kernels().iter().filter(products) {
            let tf32 = row.dtype == Dtype::Tf32 && self.dtype == Dtype::F32;
            if row.dtype != self.dtype && !tf32 {
                continue;
            }
            match refusal(row, self, machine, options) {
                Some(reason) => choice.refused.push(Refusal::of(row.name, reason)),
                None => choice
                    .candidates
                    .push(Candidate::of(row, self.cost(row, machine))),
            }
        }
        choice
            .candidates
            .sort_by(|a, b| a.cost.us.total_cmp(&b.cost.us));
        choice
    }
}

/// Every row for these elements: an offer, or refused with a reason.
pub(super) fn offers<'q>(question: &'q Question<'q, '_>) -> Result<Answer<'q>> {
    let (options, types) = (question.options, question.types);
    let found = problem(
        question.indirect,
        question.operands(),
        question.extents.out(),
        (options, types),
    )?;
    let Some((problem, form)) = found else {
        return Answer::refused("products", PRODUCTS);
    };
    let mut choice = problem.candidates(question.machine, options);
    kept::add_forms(&mut choice, &problem, &form, question.machine, options);
    let found = Arc::new((problem, form));
    let offer = |candidate: Candidate| {
        let (own, found) = (candidate.clone(), Arc::clone(&found));
        Offer {
            candidate,
            make: Box::new(move |device: &Arc<Device>| make(question, device, &own, &found)),
        }
    };
    Ok(Answer {
        offers: choice.candidates.into_iter().map(offer).collect(),
        refused: choice.refused,
    })
}

fn make(
    question: &Question<'_, '_>,
    device: &Arc<Device>,
    candidate: &Candidate,
    (problem, form): &(Problem, SpmmForm),
) -> Result<Made> {
    if let Some(kept) = candidate.kept {
        let taken = (form.sparse.as_str(), candidate, kept);
        return match Kept::new(question, taken) {
            Ok(kept) => Ok(Ok(Box::new(kept))),
            // The plan over the form has its own kernel to ask.
            Err(error @ Error::NoKernel { .. }) => Ok(Err(Refusal::of(
                candidate.name,
                format!("over A as {kept}: {error}"),
            ))),
            Err(error) => Err(error),
        };
    }
    let Some(row) = crate::registry::find(candidate.name) else {
        return Ok(Err(Refusal::of(
            candidate.name,
            "the table has no kernel of this name",
        )));
    };
    let made = Spmm::new(device, row, (problem, form), question.operands())?;
    Ok(made.map(|made| Box::new(made) as _))
}
