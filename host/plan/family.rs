//! Who can run an expression. Each of those that are asked looks at the structure of the indirect Einsum and offers its kernels with
//! predicted costs, or says why it has none; the cheapest of all offers is taken.

use std::fmt;
use std::sync::Arc;

use einsparse_kernels::table::Row;

use super::Options;
use super::any::AnyPlan;
use super::choose::{Candidate, Choice};
use super::gate::Checked;
use super::kept::KeptForm;
use crate::context::Context;
use crate::cost::Cost;
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

/// How a plan prints its kernel: name, rule of zeros, geometry.
pub(super) fn write_kernel(
    f: &mut fmt::Formatter<'_>,
    row: &Row,
    geometry: impl fmt::Display,
) -> fmt::Result {
    write!(f, "{}: zeros = {:?}, {geometry}", row.name, row.zeros)
}

/// What an offer made: of some kernels only the pattern tells that they cannot run it, and then another one has its turn.
pub(crate) type Made = std::result::Result<Box<dyn Compiled>, Refusal>;

/// Makes what was offered, on a GPU.
pub(crate) type Make<'q> = Box<dyn Fn(&Arc<Device>) -> Result<Made> + 'q>;

/// A candidate of a family.
pub(crate) struct Offer<'q> {
    pub(crate) candidate: Candidate,
    pub(crate) make: Make<'q>,
}

impl<'q> Offer<'q> {
    /// The kernel of a row.
    pub(crate) fn of<C: Compiled + 'static>(
        row: &'static Row,
        cost: Cost,
        make: impl Fn(&Arc<Device>) -> Result<C> + 'q,
    ) -> Self {
        Self::unless(row, cost, move |device| make(device).map(Ok))
    }

    /// The kernel of a row, of which only the pattern tells whether it can run it.
    pub(crate) fn unless<C: Compiled + 'static>(
        row: &'static Row,
        cost: Cost,
        make: impl Fn(&Arc<Device>) -> Result<std::result::Result<C, Refusal>> + 'q,
    ) -> Self {
        let made = move |device: &Arc<Device>| -> Result<Made> {
            Ok(make(device)?.map(|made| Box::new(made) as _))
        };
        Offer {
            candidate: Candidate::of(row, cost),
            make: Box::new(made),
        }
    }

    /// The kernel of a row that another one stands in for where there is more than it numbers, or no room for what it keeps.
    pub(crate) fn with_room<C: Compiled + 'static>(
        row: &'static Row,
        cost: Cost,
        make: impl Fn(&Arc<Device>) -> Result<C> + 'q,
    ) -> Self {
        Self::unless(row, cost, move |device| match make(device) {
            Err(
                error @ (Error::Overflow { .. }
                | Error::OutOfMemory { .. }
                | Error::NoKernel { .. }),
            ) => Ok(Err(Refusal::of(row.name, error.to_string()))),
            other => other.map(Ok),
        })
    }
}

/// What a family answers: the kernels that can run this, and why others cannot.
#[derive(Default)]
pub(crate) struct Answer<'q> {
    pub(crate) offers: Vec<Offer<'q>>,
    pub(crate) refused: Vec<Refusal>,
}

impl<'q> Answer<'q> {
    pub(crate) fn of(offers: Vec<Offer<'q>>) -> Result<Self> {
        Ok(Answer {
            offers,
            refused: Vec::new(),
        })
    }

    /// None of the kernels of this name.
    pub(crate) fn refused(name: &str, reason: impl Into<String>) -> Result<Self> {
        Ok(Answer {
            offers: Vec::new(),
            refused: vec![Refusal::of(name, reason)],
        })
    }
}

/// A function `offers`: the one place that says which of some kernels can run something, and at what cost.
type Family = for<'q, 'a> fn(&'q Question<'q, 'a>) -> Result<Answer<'q>>;

/// Families in the order in which they are asked, the next ones where those before have no kernel: products, those made for one
/// structure, then what runs any.
const FAMILIES: [&[Family]; 3] = [
    &[
        super::products::offers,
        super::pit::offers,
        super::pit::right::offers,
    ],
    &[
        super::rows::offers,
        super::dots::offers,
        super::tensor_product::offers,
        super::convolution::offers,
    ],
    &[super::path::offers, super::einsum::offers],
];

/// The offers of families, asked for as far as they are needed.
pub(super) struct Offers<'q, 'a> {
    question: &'q Question<'q, 'a>,
    rest: std::array::IntoIter<&'static [Family], 3>,
    made: Vec<Offer<'q>>,
}

impl<'q, 'a> Offers<'q, 'a> {
    pub(super) fn new(question: &'q Question<'q, 'a>) -> Self {
        Offers {
            question,
            rest: FAMILIES.into_iter(),
            made: Vec::new(),
        }
    }

    /// Asks on until there is a candidate, or nobody is left.
    pub(super) fn widen(&mut self, choice: &mut Choice) -> Result<()> {
        let asked = self.question.options.variant.as_deref();
        while choice.candidates.is_empty() {
            let Some(families) = self.rest.next() else {
                break;
            };
            for family in families {
                let Answer { offers, refused } = family(self.question)?;
                let named = offers.iter().map(|offer| offer.candidate.clone());
                let wanted = named.filter(|own| asked.is_none_or(|asked| asked == own.name));
                choice.candidates.extend(wanted);
                choice.refused.extend(refused);
                self.made.extend(offers);
            }
            choice
                .candidates
                .sort_by(|a, b| a.cost.us.total_cmp(&b.cost.us));
        }
        Ok(())
    }

    /// Makes a candidate.
    pub(super) fn make(&self, candidate: &Candidate, device: &Arc<Device>) -> Result<Made> {
        let own = |offer: &&Offer<'_>| {
            offer.candidate.name == candidate.name && offer.candidate.kept == candidate.kept
        };
        match self.made.iter().find(own) {
            Some(offer) => (offer.make)(device),
            None => Ok(Err(Refusal::of(candidate.name, "nobody offers it"))),
        }
    }
}
