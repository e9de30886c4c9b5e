//! Kernels beyond the product of a matrix with a dense one. Each family looks at the structure of the indirect Einsum and
//! offers its kernels with predicted costs, or says why it has none; the cheapest of all offers and products is taken.

use std::fmt;
use std::sync::Arc;

use einsparse_kernels::table::Row;

use super::Options;
use super::any::AnyPlan;
use super::choose::{Candidate, Choice};
use super::gate::Checked;
use super::kept::KeptForm;
use crate::context::Context;
use crate::device::{Device, Stream};
use crate::einsum::{Einsum, Extents};
use crate::error::{Error, Refusal, Result};
use crate::indirect::IndirectEinsum;
use crate::kernel::Queue;
use crate::launch::RawSpmm;
use crate::machine::Machine;
use crate::registry::{Dtype, Scalar};
use crate::tensor::Expected;
use crate::tensor::{AnyOperand, AnyTensor};

/// Element types of operands and output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Types {
    pub(crate) operands: Dtype,
    pub(crate) out: Dtype,
}

impl Types {
    pub(crate) fn of<T: Scalar, Out: Scalar>() -> Self {
        Types {
            operands: T::DTYPE,
            out: Out::DTYPE,
        }
    }

    /// Whether the output has the type of the operands.
    pub(crate) fn alike(self) -> bool {
        self.operands == self.out
    }
}

/// What a family is asked: an expression with the formats written in, bound to its operands.
pub(crate) struct Question<'q, 'a> {
    pub(crate) types: Types,
    pub(crate) context: &'q Context,
    pub(crate) einsum: &'q Einsum,
    pub(crate) indirect: &'q IndirectEinsum,
    /// What passed the gate.
    pub(super) checked: Checked<'q, 'a>,
    /// Which of them are dynamic, and what is expected of them.
    pub(crate) dynamic: &'q [(&'q str, Expected)],
    /// Extents of the indices of `einsum`, and the shape of the output.
    pub(crate) extents: &'q Extents,
    pub(crate) options: &'q Options,
    pub(crate) machine: &'q Machine,
}

impl<'q, 'a> Question<'q, 'a> {
    /// The operands by name.
    pub(crate) fn operands(&self) -> &'q [(&'q str, AnyOperand<'a>)] {
        self.checked.operands()
    }
}

/// What a plan runs: a kernel, other plans, or the executor of the CPU, made for one expression. Pattern, extents and
/// formats are fixed, values are not.
pub(crate) trait Compiled: fmt::Debug + fmt::Display + Send + Sync {
    /// Name of the row of the table; of a chain its own name.
    fn variant(&self) -> &'static str;

    /// Device bytes held beside the operands.
    fn bytes(&self) -> usize;

    /// Queues the work of a run of `plan`, which has looked at shapes; what launches kernels asks it for a queue
    /// ([`AnyPlan::check_places`]). Allocates nothing and waits for nothing, but on the CPU.
    fn run(
        &self,
        plan: &AnyPlan,
        operands: &[(&str, AnyOperand<'_>)],
        out: &mut AnyTensor,
        stream: &Stream,
    ) -> Result<()>;

    /// Queues a run over addresses.
    fn run_raw(&self, plan: &AnyPlan, _: &RawSpmm, _: Queue<'_>) -> Result<()> {
        Err(Error::NoKernel {
            indirect: plan.indirect.to_string(),
            tried: vec![Refusal {
                name: self.variant().into(),
                reason: "takes tensors (`Plan::run`): raw addresses are for products of a matrix"
                    .into(),
            }],
        })
    }

    /// The form in which it keeps the sparse factor, if it does.
    fn kept(&self) -> Option<KeptForm> {
        None
    }

    /// Queues the copying of values that it keeps.
    fn refresh(&self, _: &AnyPlan, _: &[(&str, AnyOperand<'_>)], _: &Stream) -> Result<()> {
        Ok(())
    }
}

/// The error of a kernel that does not run this after all, which passes the turn to the next candidate.
pub(super) fn turned_down(question: &Question<'_, '_>, row: &Row, reason: &Error) -> Error {
    Error::NoKernel {
        indirect: question.indirect.to_string(),
        tried: vec![Refusal {
            name: row.name.into(),
            reason: reason.to_string(),
        }],
    }
}

/// How a plan prints its kernel: name, rule of zeros, geometry.
pub(super) fn write_kernel(
    f: &mut fmt::Formatter<'_>,
    row: &Row,
    geometry: impl fmt::Display,
) -> fmt::Result {
    write!(f, "{}: zeros = {:?}, {geometry}", row.name, row.zeros)
}

/// Makes what was offered, on a GPU. `Error::NoKernel` passes the turn to the next candidate.
pub(crate) type Make<'q> = Box<dyn Fn(&Arc<Device>) -> Result<Box<dyn Compiled>> + 'q>;

/// A candidate of a family.
pub(crate) struct Offer<'q> {
    pub(crate) candidate: Candidate,
    pub(crate) make: Make<'q>,
}

/// What a family answers.
pub(crate) enum Answer<'q> {
    /// Kernels that can run this.
    Offers(Vec<Offer<'q>>),
    /// None, and why.
    Refused(Refusal),
}

type Family = for<'q, 'a> fn(&'q Question<'q, 'a>) -> Result<Answer<'q>>;

/// Families in the order in which they are asked, the next ones where those before have no kernel: those made for one
/// structure, then what runs any.
fn families() -> [Vec<Family>; 2] {
    [
        vec![
            super::rows::offers,
            super::dots::offers,
            super::tensor_product::offers,
            super::convolution::offers,
        ],
        vec![super::path::offers, super::einsum::offers],
    ]
}

/// The offers of families, asked for as far as they are needed.
pub(super) struct Offers<'q, 'a> {
    question: &'q Question<'q, 'a>,
    rest: std::array::IntoIter<Vec<Family>, 2>,
    made: Vec<Offer<'q>>,
}

impl<'q, 'a> Offers<'q, 'a> {
    pub(super) fn new(question: &'q Question<'q, 'a>) -> Self {
        Offers {
            question,
            rest: families().into_iter(),
            made: Vec::new(),
        }
    }

    /// Asks one family whose kernels stand beside those that there are.
    pub(super) fn beside(&mut self, family: Family, choice: &mut Choice) -> Result<()> {
        match family(self.question)? {
            Answer::Offers(own) => {
                let named = own.iter().map(|offer| offer.candidate.clone());
                choice
                    .candidates
                    .extend(named.filter(|c| self.wanted(c.name)));
                choice
                    .candidates
                    .sort_by(|a, b| a.cost.us.total_cmp(&b.cost.us));
                self.made.extend(own);
            }
            Answer::Refused(why) => choice.refused.push(why),
        }
        Ok(())
    }

    /// Whether the plan leaves the kernel of this name.
    fn wanted(&self, name: &str) -> bool {
        let asked = self.question.options.variant.as_deref();
        asked.is_none_or(|asked| asked == name)
    }

    /// Asks on until there is a candidate, or nobody is left.
    pub(super) fn widen(&mut self, choice: &mut Choice) -> Result<()> {
        while choice.candidates.is_empty() {
            let Some(families) = self.rest.next() else {
                break;
            };
            let first = self.made.len();
            for family in families {
                match family(self.question)? {
                    Answer::Offers(own) => self.made.extend(own),
                    Answer::Refused(why) => choice.refused.push(why),
                }
            }
            let own = self.made[first..].iter().map(|offer| &offer.candidate);
            let mut named: Vec<Candidate> = own.filter(|c| self.wanted(c.name)).cloned().collect();
            named.sort_by(|a, b| a.cost.us.total_cmp(&b.cost.us));
            choice.candidates = named;
        }
        Ok(())
    }

    /// The offer of this name.
    pub(super) fn of(&self, name: &str) -> Option<&Offer<'q>> {
        self.made.iter().find(|offer| offer.candidate.name == name)
    }
}
