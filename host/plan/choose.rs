//! The choice of a kernel: every row of the table for this element type is either a candidate with a
//! predicted cost, or refused with a reason.

use std::fmt;
use std::sync::Arc;

use einsparse_kernels::abi::Zeros;
use einsparse_kernels::table::Row;

use super::Options;
use super::bind::Given;
use super::cpu::OnCpu;
use super::family::{Compiled, Offers, Question, Types};
use super::gate;
use super::kept::KeptForm;
use super::path;
use crate::context::Context;
use crate::cost::Cost;
use crate::device::Device;
use crate::einsum;
use crate::einsum::Einsum;
use crate::error::{Error, Refusal, Result};
use crate::indirect::IndirectEinsum;

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

impl Candidate {
    /// The kernel of a row, which reads what it is given as it is.
    pub(super) fn of(row: &'static Row, cost: Cost) -> Self {
        Candidate {
            name: row.name,
            cost,
            zeros: row.zeros,
            kept: None,
        }
    }
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
    let machine = context.machine();
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
    let mut choice = Choice::default();
    let mut offers = Offers::new(&question);
    offers.widen(&mut choice)?;
    match context.device() {
        Some(device) => first_that_runs(&question, device, (offers, choice)),
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
) -> Result<Picked> {
    loop {
        offers.widen(&mut choice)?;
        let Some(best) = choice.candidates.first() else {
            return Err(Error::NoKernel {
                indirect: question.indirect.to_string(),
                tried: choice.refused,
            });
        };
        match offers.make(best, device)? {
            Ok(made) => return Ok(Picked { made, choice }),
            Err(refusal) => {
                choice.candidates.remove(0);
                choice.refused.push(refusal);
            }
        }
    }
}

/// A variant that the plan asks for has to exist.
pub(super) fn known_variant(indirect: &IndirectEinsum, options: &Options) -> Result<()> {
    match &options.variant {
        Some(name) if name != path::NAME && crate::registry::find(name).is_none() => {
            Err(Error::NoKernel {
                indirect: indirect.to_string(),
                tried: vec![Refusal::of(
                    name.clone(),
                    "the table has no kernel of this name",
                )],
            })
        }
        _ => Ok(()),
    }
}
