//! The choice of a kernel: families are asked for offers, and the cheapest that the pattern lets run is made.

use std::sync::Arc;

use super::cpu::OnCpu;
use super::path::CpuChain;
use super::{path, prepacked};
use crate::context::Context;
use crate::device::Device;
use crate::einsum::{Einsum, Extents};
use crate::error::{Error, Refusal, Result};
use crate::families;
use crate::indirect::IndirectEinsum;
use crate::offer::bind::Given;
use crate::offer::{Choice, Compiled, Made, Offer, Offers, Options, Question, Types, gate};
use crate::tensor::AnyOperand;

/// What runs, and what it was chosen from.
pub(super) struct Picked {
    pub(super) made: Box<dyn Compiled>,
    pub(super) choice: Choice,
}

pub(super) fn choose(
    context: &Context,
    (einsum, indirect): (&Einsum, &IndirectEinsum),
    (operands, dynamic): Given<'_, '_>,
    extents: &Extents,
    (options, types): (&Options, Types),
) -> Result<Picked> {
    known_variant(indirect, options)?;
    let checked = gate::pass(indirect, operands, extents.out())?;
    let machine = context.machine();
    let question = Question::new(
        (context, types),
        (einsum, indirect),
        (checked, dynamic),
        extents,
        (options, &machine),
    );
    let mut asked = Asked::new(&question);
    asked.widen()?;
    match context.device() {
        Some(device) => asked.first_that_runs(device),
        // The choice is still worked out, so that `explain` can show it without a GPU.
        None => Ok(Picked {
            made: on_cpu(context, (einsum, indirect), operands, extents, (options, types))?,
            choice: asked.choice(),
        }),
    }
}

/// Pair by pair, or all factors at once.
fn on_cpu(
    context: &Context,
    (einsum, indirect): (&Einsum, &IndirectEinsum),
    operands: &[(&str, AnyOperand<'_>)],
    extents: &Extents,
    (options, types): (&Options, Types),
) -> Result<Box<dyn Compiled>> {
    let path = path::on_cpu((types, einsum, operands), extents, options)?;
    let filled = indirect.filled.iter().map(|&f| indirect.factors[f].tensor.as_str());
    let filled: Vec<&str> = filled.filter(|_| indirect.sparse.is_none()).collect();
    Ok(match path {
        Some(path) => {
            let of = (path, &filled[..]);
            Box::new(CpuChain::new(context, of, operands, extents, types)?)
        }
        None => Box::new(OnCpu::new(context, operands)),
    })
}

/// Who is asked, in this order; the next ones where those before have no kernel.
const ORDER: [[&[Offers]; 2]; 3] = [
    [families::PRODUCTS, &[prepacked::offers]],
    [families::STRUCTURES, &[]],
    [&[path::offers], families::ANY],
];

/// Offers, cheapest first, asked for as far as they are needed.
struct Asked<'q, 'a> {
    question: &'q Question<'q, 'a>,
    rest: std::array::IntoIter<[&'static [Offers]; 2], 3>,
    offers: Vec<Offer<'q>>,
    refused: Vec<Refusal>,
}

impl<'q, 'a> Asked<'q, 'a> {
    fn new(question: &'q Question<'q, 'a>) -> Self {
        let mut rest = ORDER.into_iter();
        // The general kernels alone leave zeros of values behind lists out.
        let e = question.indirect;
        if e.sparse.is_none() && !e.filled.is_empty() {
            rest.by_ref().take(2).for_each(drop);
        }
        Asked { question, rest, offers: Vec::new(), refused: Vec::new() }
    }

    /// Asks on until there is an offer, or nobody is left.
    fn widen(&mut self) -> Result<()> {
        let wanted = self.question.options.variant.as_deref();
        while self.offers.is_empty() {
            let Some(all) = self.rest.next() else {
                break;
            };
            for offers in all.into_iter().flatten() {
                let answer = offers(self.question)?;
                self.refused.extend(answer.refused);
                for offer in answer.offers {
                    let name = offer.candidate.name;
                    // Whatever a family looks at itself: no offer needs more than this GPU has.
                    let row = crate::registry::find(name);
                    match row.and_then(|row| self.question.machine.lacks(row)) {
                        Some(reason) => self.refused.push(Refusal::of(name, reason)),
                        None if wanted.is_none_or(|wanted| wanted == name) => {
                            self.offers.push(offer);
                        }
                        None => {}
                    }
                }
            }
            let us = |offer: &Offer<'_>| offer.candidate.cost.us;
            self.offers.sort_by(|a, b| us(a).total_cmp(&us(b)));
        }
        Ok(())
    }

    /// Makes the cheapest that the pattern lets run; further ones are asked for as the others fall away.
    fn first_that_runs(mut self, device: &Arc<Device>) -> Result<Picked> {
        loop {
            self.widen()?;
            let Some(best) = self.offers.first() else {
                let indirect = self.question.indirect.to_string();
                return Err(Error::no_kernel(indirect, self.refused));
            };
            let made = (best.make)(device)?.and_then(|made| self.within_limit(made));
            match made {
                Ok(made) => {
                    let choice = Choice { taken: true, ..self.choice() };
                    return Ok(Picked { made, choice });
                }
                Err(refusal) => {
                    self.offers.remove(0);
                    self.refused.push(refusal);
                }
            }
        }
    }

    /// What holds no more than it may.
    fn within_limit(&self, made: Box<dyn Compiled>) -> Made {
        let (bytes, limit) = (made.bytes(), self.question.options.memory_limit);
        match limit.filter(|limit| bytes > *limit) {
            None => Ok(made),
            Some(limit) => {
                let reason = format!("holds {bytes} bytes of the GPU, and the limit is {limit}");
                Err(Refusal::of(made.variant(), reason))
            }
        }
    }

    /// What is left to choose from. A kernel that reads one form of an operand is not refused for another one.
    fn choice(self) -> Choice {
        let candidates: Vec<_> = self.offers.into_iter().map(|o| o.candidate).collect();
        let mut refused = self.refused;
        refused.retain(|refusal| candidates.iter().all(|c| c.name != refusal.name));
        Choice { candidates, taken: false, refused }
    }
}

/// A variant that the plan asks for has to exist.
pub(super) fn known_variant(indirect: &IndirectEinsum, options: &Options) -> Result<()> {
    match &options.variant {
        Some(name) if name != path::NAME && crate::registry::find(name).is_none() => {
            let reason = "the table has no kernel of this name";
            let refusal = Refusal::of(name.clone(), reason);
            Err(Error::no_kernel(indirect.to_string(), [refusal]))
        }
        _ => Ok(()),
    }
}
