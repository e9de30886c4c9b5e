//! Selection of a kernel: families make offers, and the cheapest one that the pattern permits is built.

use std::sync::Arc;

use super::cpu::OnCpu;
use super::path::CpuChain;
use super::{path, prepacked};
use crate::device::Device;
use crate::error::{Error, Refusal, Result};
use crate::families;
use crate::families::sddmm;
use crate::offer::{Choice, Executable, Family, Offer, Request, refusals, refuse};

/// The selected executable, and the candidates among which it was selected; or the reasons why no kernel can run the
/// expression.
pub(super) type Chosen = std::result::Result<(Box<dyn Executable>, Choice), Vec<Refusal>>;

pub(super) fn choose(request: &Request<'_, '_>) -> Result<Chosen> {
    known_variant(request)?;
    let mut ranking = Ranking::new(request);
    ranking.widen()?;
    match request.context.device() {
        Some(device) => ranking.first_that_builds(device),
        // The candidates are still ranked, so that `explain` can print them without a GPU.
        None => Ok(Ok((on_cpu(request)?, ranking.choice()))),
    }
}

/// Prepares pairwise contractions, or one loop over all factors.
fn on_cpu(request: &Request<'_, '_>) -> Result<Box<dyn Executable>> {
    if let Some(out) = request.output {
        return Ok(Box::new(sddmm::product::OnCpu::new(request, out)?));
    }
    let (source, extents, indirect) = (request.source(), request.extents, request.indirect);
    let path = path::on_cpu(&source, extents)?;
    let filled = indirect.filled.iter().map(|&f| indirect.factors[f].tensor.as_str());
    let filled: Vec<&str> = filled.filter(|_| indirect.sparse.is_none()).collect();
    Ok(match path {
        Some(path) => Box::new(CpuChain::new(&source, (path, &filled), extents)?),
        None => Box::new(OnCpu::new(&source)),
    })
}

/// Query order: a later group is queried only if the earlier groups make no offer.
const ORDER: [[&[Family]; 2]; 3] = [
    [families::PRODUCTS, &[prepacked::offers]],
    [families::STRUCTURES, &[]],
    [&[path::offers], families::ANY],
];

/// Query order for expressions with a sparse output.
const SPARSE_OUTPUT: [[&[Family]; 2]; 1] = [[&[sddmm::offers::offers], &[]]];

/// Offers, cheapest first, and the groups that have not been queried.
struct Ranking<'q, 'a> {
    request: &'q Request<'q, 'a>,
    rest: std::slice::Iter<'static, [&'static [Family]; 2]>,
    offers: Vec<Offer<'q>>,
    refused: Vec<Refusal>,
}

impl<'q, 'a> Ranking<'q, 'a> {
    fn new(request: &'q Request<'q, 'a>) -> Self {
        let e = request.indirect;
        let rest = match request.output {
            Some(_) => &SPARSE_OUTPUT[..],
            // Only the general kernels skip stored zeros of values that are read through position lists.
            None if e.sparse.is_none() && !e.filled.is_empty() => &ORDER[2..],
            None => &ORDER,
        };
        Ranking { request, rest: rest.iter(), offers: Vec::new(), refused: Vec::new() }
    }

    /// Queries groups until there is an offer, or no group is left.
    fn widen(&mut self) -> Result<()> {
        let wanted = self.request.options.variant.as_deref();
        while self.offers.is_empty() {
            let Some(all) = self.rest.next() else {
                break;
            };
            for family in all.iter().copied().flatten() {
                let offers = match family(self.request) {
                    Ok(offers) => offers,
                    Err(error) => refusals(error)?.into_iter().map(Err).collect(),
                };
                for offer in offers {
                    let offer = match offer {
                        Ok(offer) => offer,
                        Err(refusal) => {
                            self.refused.push(refusal);
                            continue;
                        }
                    };
                    let name = offer.candidate.name;
                    // For all families: refuse rows that exceed the capabilities of this GPU.
                    let row = crate::registry::find(name);
                    match row.and_then(|row| self.request.machine.lacks(row)) {
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

    /// Builds the cheapest offer that the pattern permits. If all offers are refused, it queries the next group.
    fn first_that_builds(mut self, device: &Arc<Device>) -> Result<Chosen> {
        loop {
            self.widen()?;
            let Some(best) = self.offers.first() else {
                return Ok(Err(self.refused));
            };
            match (best.build)(device).and_then(|built| self.within_limit(built)) {
                Ok(built) => return Ok(Ok((built, Choice { taken: true, ..self.choice() }))),
                Err(error) => {
                    self.refused.extend(refusals(error)?);
                    self.offers.remove(0);
                }
            }
        }
    }

    /// Refuses a kernel whose device memory exceeds the limit.
    fn within_limit(&self, built: Box<dyn Executable>) -> Result<Box<dyn Executable>> {
        let (bytes, limit) = (built.bytes(), self.request.options.memory_limit);
        match limit.filter(|limit| bytes > *limit) {
            None => Ok(built),
            Some(limit) => {
                let reason = format!("holds {bytes} bytes of the GPU, and the limit is {limit}");
                Err(refuse(built.variant(), reason))
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
fn known_variant(request: &Request<'_, '_>) -> Result<()> {
    match &request.options.variant {
        Some(name) if name != path::NAME && crate::registry::find(name).is_none() => {
            let refusal = Refusal::of(name.clone(), "no kernel has this name");
            Err(Error::no_kernel(request.indirect.to_string(), [refusal]))
        }
        _ => Ok(()),
    }
}
