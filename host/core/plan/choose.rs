//! Selection of a kernel: families make offers, and the cheapest one that the pattern permits is prepared.

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

/// The prepared kernel, and the candidates from which it was selected.
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
        // The candidates are still ranked, so that `explain` can print them without a GPU.
        None => Ok(Picked {
            made: on_cpu(context, (einsum, indirect), operands, extents, (options, types))?,
            choice: asked.choice(),
        }),
    }
}

/// Prepares pairwise contractions, or one loop over all factors.
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

/// Query order: a later group is queried only if the earlier groups make no offer.
const ORDER: [[&[Offers]; 2]; 3] = [
    [families::PRODUCTS, &[prepacked::offers]],
    [families::STRUCTURES, &[]],
    [&[path::offers], families::ANY],
];

/// Offers, cheapest first, and the groups that have not been queried.
struct Asked<'q, 'a> {
    question: &'q Question<'q, 'a>,
    rest: std::array::IntoIter<[&'static [Offers]; 2], 3>,
    offers: Vec<Offer<'q>>,
    refused: Vec<Refusal>,
}

impl<'q, 'a> Asked<'q, 'a> {
    fn new(question: &'q Question<'q, 'a>) -> Self {
        let mut rest = ORDER.into_iter();
        // Only the general kernels skip stored zeros of values that are read through position lists.
        let e = question.indirect;
        if e.sparse.is_none() && !e.filled.is_empty() {
            rest.by_ref().take(2).for_each(drop);
        }
        Asked { question, rest, offers: Vec::new(), refused: Vec::new() }
    }

    /// Queries groups until there is an offer, or no group is left.
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
                    // For all families: refuse rows that exceed the capabilities of this GPU.
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

    /// Prepares the cheapest offer that the pattern permits. If all offers are refused, it queries the next group.
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

    /// Refuses a kernel whose device memory exceeds the limit.
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

    /// Returns the remaining candidates. A kernel that supports one form of an operand is not listed as refused for
    /// another form.
    fn choice(self) -> Choice {
        let candidates: Vec<_> = self.offers.into_iter().map(|o| o.candidate).collect();
        let mut refused = self.refused;
        refused.retain(|refusal| candidates.iter().all(|c| c.name != refusal.name));
        Choice { candidates, taken: false, refused }
    }
}

/// Checks that the requested variant exists.
pub(super) fn known_variant(indirect: &IndirectEinsum, options: &Options) -> Result<()> {
    match &options.variant {
        Some(name) if name != path::NAME && crate::registry::find(name).is_none() => {
            let reason = "no kernel has this name";
            let refusal = Refusal::of(name.clone(), reason);
            Err(Error::no_kernel(indirect.to_string(), [refusal]))
        }
        _ => Ok(()),
    }
}
