//! The choice of a kernel: every row of the table for this element type is either a candidate with a
//! predicted cost, or refused with a reason.

use std::fmt;
use std::sync::Arc;

use einsparse_kernels::abi::{Dtype, Operation, Zeros};
use einsparse_kernels::table::{Row, kernels};

use super::bind::Given;
use super::cpu::OnCpu;
use super::family::{Compiled, Offers, Question, Types};
use super::gate;
use super::kept::{self, Kept, KeptForm};
use super::path;
use super::problem::{Problem, problem};
use super::refuse::refusal;
use super::spmm::Spmm;
use super::{Determinism, Options};
use crate::context::Context;
use crate::cost::{Cost, predict, turned_us};
use crate::device::Device;
use crate::einsum;
use crate::einsum::Einsum;
use crate::error::{Error, Refusal, Result};
use crate::indirect::{IndirectEinsum, SpmmForm};
use crate::machine::Machine;

/// A kernel that can run this, and what it is predicted to cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Name in the table.
    pub name: &'static str,
    /// The prediction.
    pub cost: Cost,
    /// What it does with implicit zeros.
    pub zeros: Zeros,
    /// The form in which the plan keeps the sparse factor for it; `None` if it reads the operand.
    pub kept: Option<KeptForm>,
}

/// Candidates, cheapest first, and refusals.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// Cheapest first; on a GPU the first is taken.
    pub candidates: Vec<Candidate>,
    /// Rows that cannot run this, and why.
    pub refused: Vec<Refusal>,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, c) in self.candidates.iter().enumerate() {
            let mark = if i == 0 { "->" } else { "  " };
            write!(f, "{mark} {:24} {}, zeros = {:?}", c.name, c.cost, c.zeros)?;
            match c.kept {
                Some(form) => writeln!(f, ", A kept as {form}")?,
                None => writeln!(f)?,
            }
        }
        for r in &self.refused {
            writeln!(f, "   {:24} refused: {}", r.name, r.reason)?;
        }
        Ok(())
    }
}

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
                Some(reason) => choice.refused.push(Refusal {
                    name: row.name.into(),
                    reason,
                }),
                None => choice.candidates.push(Candidate {
                    name: row.name,
                    cost: self.cost(row, machine),
                    zeros: row.zeros,
                    kept: None,
                }),
            }
        }
        choice
            .candidates
            .sort_by(|a, b| a.cost.us.total_cmp(&b.cost.us));
        choice
    }
}

/// What plans choose from.
const PRODUCTS: &str = "the table holds C[m,n] (=|+=) A[m,k] * B[k,n] with A sparse in row order; A as [k,m] where it is made \
    of blocks or single entries; with one of them made of blocks, or both dense, also with other axes swapped; batches C[z,m,n] \
    with one A for all, or A as [z,m,k] in coo; Context::cpu() runs every expression";

/// What runs, and what it was chosen from.
pub(super) struct Picked {
    pub(super) made: Box<dyn Compiled>,
    pub(super) choice: Choice,
}

pub(super) fn choose(
    context: &Context,
    (einsum, indirect): (&Einsum, &IndirectEinsum),
    (operands, dynamic): Given<'_, '_>,
    extents: &einsum::Extents,
    (options, types): (&Options, Types),
) -> Result<Picked> {
    known_variant(indirect, options)?;
    let checked = gate::pass(indirect, operands, extents.out())?;
    let found = problem(indirect, operands, extents.out(), (options, types))?;
    let machine = context.machine();
    let mut choice = Choice::default();
    match &found {
        Some((problem, form)) => {
            choice = problem.candidates(&machine, options);
            kept::add_forms(&mut choice, problem, form, &machine, options);
        }
        None => choice.refused.push(Refusal {
            name: "products".into(),
            reason: PRODUCTS.into(),
        }),
    }
    let question = Question {
        types,
        context,
        einsum,
        indirect,
        checked,
        dynamic,
        extents,
        options,
        machine: &machine,
    };
    // Products have their own kernels; where none of them may run, other families are asked.
    let mut offers = Offers::new(&question);
    if !dynamic.is_empty() {
        offers.beside(super::pit::offers, &mut choice)?;
        offers.beside(super::pit::right::offers, &mut choice)?;
    }
    offers.widen(&mut choice)?;
    match context.device() {
        Some(device) => first_that_runs(&question, device, (offers, choice), found.as_ref()),
        // The choice is still worked out, so that `explain` can show it without a GPU.
        None => Ok(Picked {
            made: Box::new(OnCpu::new(context, operands)),
            choice,
        }),
    }
}

/// The cheapest candidate that the pattern lets run; further families are asked as the others fall away.
fn first_that_runs<'q>(
    question: &'q Question<'q, '_>,
    device: &Arc<Device>,
    (mut offers, mut choice): (Offers<'q, '_>, Choice),
    found: Option<&(Problem, SpmmForm)>,
) -> Result<Picked> {
    let indirect = question.indirect;
    let refuse = |tried| Error::NoKernel {
        indirect: indirect.to_string(),
        tried,
    };
    loop {
        offers.widen(&mut choice)?;
        let Some(best) = choice.candidates.first() else {
            return Err(refuse(choice.refused));
        };
        let made = match (offers.of(best.name), found) {
            (Some(offer), _) => (offer.make)(device),
            (None, Some(found)) => product(question, device, best, found),
            (None, None) => return Err(refuse(choice.refused)),
        };
        match made {
            Ok(made) => return Ok(Picked { made, choice }),
            // What only the pattern tells: the next one's turn.
            Err(Error::NoKernel { tried, .. }) => {
                let name = choice.candidates.remove(0).name;
                let own = tried.into_iter().find(|refusal| refusal.name == name);
                choice.refused.extend(own);
            }
            Err(error) => return Err(error),
        }
    }
}

/// A candidate for the product of a matrix with a dense one.
fn product(
    asked: &Question<'_, '_>,
    device: &Arc<Device>,
    best: &Candidate,
    (problem, form): &(Problem, SpmmForm),
) -> Result<Box<dyn Compiled>> {
    if let Some(kept) = best.kept {
        let taken = (form.sparse.as_str(), best, kept);
        let kept = Kept::new(asked, taken)?;
        return Ok(Box::new(kept));
    }
    let Some(row) = crate::registry::find(best.name) else {
        return Err(Error::NoKernel {
            indirect: asked.indirect.to_string(),
            tried: Vec::new(),
        });
    };
    let product = Spmm::new(device, row, (problem, form), asked.operands())?;
    Ok(Box::new(product))
}

/// A variant that the plan asks for has to exist.
pub(super) fn known_variant(indirect: &IndirectEinsum, options: &Options) -> Result<()> {
    match &options.variant {
        Some(name) if name != path::NAME && crate::registry::find(name).is_none() => {
            Err(Error::NoKernel {
                indirect: indirect.to_string(),
                tried: vec![Refusal {
                    name: name.clone(),
                    reason: "the table has no kernel of this name".into(),
                }],
            })
        }
        _ => Ok(()),
    }
}
