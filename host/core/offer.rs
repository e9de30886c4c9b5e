//! The contract between plans and families: a question (an expression, its operands, the options), the offers that
//! answer it, and the object that an offer prepares and a plan runs.

pub(crate) mod bind;
mod choice;
pub(crate) mod gate;
mod options;
mod pattern;
mod problem;
mod product;
mod refuse;
mod run;

use std::cell::OnceCell;
use std::fmt;
use std::sync::Arc;

use einsparse_kernels::table::Row;

use crate::context::Context;
use crate::cost::Cost;
use crate::device::Device;
use crate::einsum::{Einsum, Extents};
use crate::error::{Error, Refusal, Result};
use crate::indirect::{IndirectEinsum, SpmmForm};
use crate::kernel::Queue;
use crate::launch::{RawSddmm, RawSpmm};
use crate::machine::Machine;
use crate::registry::{Dtype, Scalar};
use crate::tensor::{AnyOperand, AnySparseTensor, AnyTensor, DynamicOptions};

pub use choice::{Candidate, Choice, PrepackedForm};
pub(crate) use gate::Checked;
pub use options::multiplied_as;
pub use options::{Determinism, Options, Precision, Weights, ZerosRule};
pub(crate) use pattern::PlannedPattern;
pub use problem::Problem;
use problem::problem;
pub(crate) use problem::{alignment_of, given_alignment, leading};
pub(crate) use product::{CostOf, products_of};
pub(crate) use run::{Expression, Run, sums_fit, whole_factor};

/// Element types of operands and output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Types {
    pub(crate) operands: Dtype,
    pub(crate) out: Dtype,
}

impl Types {
    pub(crate) fn of<T: Scalar, Out: Scalar>() -> Self {
        Types { operands: T::DTYPE, out: Out::DTYPE }
    }

    /// Whether operands and output have equal types.
    pub(crate) fn alike(self) -> bool {
        self.operands == self.out
    }
}

/// Question to a family: an indirect expression, bound to its operands.
pub(crate) struct Question<'q, 'a> {
    pub(crate) types: Types,
    pub(crate) context: &'q Context,
    pub(crate) einsum: &'q Einsum,
    pub(crate) indirect: &'q IndirectEinsum,
    /// Operands that passed validation.
    checked: Checked<'q, 'a>,
    /// Names and options of the dynamic operands.
    pub(crate) dynamic: &'q [(&'q str, DynamicOptions)],
    /// Extents of the indices of `einsum`, and the shape of the output.
    pub(crate) extents: &'q Extents,
    pub(crate) options: &'q Options,
    pub(crate) machine: &'q Machine,
    /// Cached result of [`Self::product`].
    product: OnceCell<Option<(Problem, SpmmForm)>>,
}

impl<'q, 'a> Question<'q, 'a> {
    pub(crate) fn new(
        (context, types): (&'q Context, Types),
        (einsum, indirect): (&'q Einsum, &'q IndirectEinsum),
        (checked, dynamic): (Checked<'q, 'a>, &'q [(&'q str, DynamicOptions)]),
        extents: &'q Extents,
        (options, machine): (&'q Options, &'q Machine),
    ) -> Self {
        Question {
            types,
            context,
            einsum,
            indirect,
            checked,
            dynamic,
            extents,
            options,
            machine,
            product: OnceCell::new(),
        }
    }

    /// The product of a matrix with a dense one, if the expression is one.
    pub(crate) fn product(&self) -> Result<Option<&(Problem, SpmmForm)>> {
        if self.product.get().is_none() {
            let asked = (self.options, self.types);
            let found = problem(self.indirect, self.operands(), self.extents.out(), asked)?;
            let _ = self.product.set(found);
        }
        Ok(self.product.get().and_then(Option::as_ref))
    }

    /// The operands by name.
    pub(crate) fn operands(&self) -> &'q [(&'q str, AnyOperand<'a>)] {
        self.checked.operands()
    }
}

/// The object that a plan runs: a kernel, other plans, or the CPU executor, prepared for one expression. Pattern,
/// extents and formats are fixed; values are not.
pub(crate) trait Compiled: fmt::Debug + fmt::Display + Send + Sync {
    /// Name of the row of the table, or of the chain of plans.
    fn variant(&self) -> &'static str;

    /// Device bytes held in addition to the operands.
    fn bytes(&self) -> usize;

    /// States that A is a copy that another plan holds, as in [`Product::keeps_a`](crate::launch::Product::keeps_a).
    fn keeps_a(&mut self) {}

    /// Queues the work of a run whose shapes have been checked. Implementations that launch kernels get their queue
    /// from [`Run::queue`]. On a GPU, a run does not allocate and does not wait.
    fn run(&self, run: &Run<'_>, _: &mut AnyTensor) -> Result<()> {
        Err(run.of.other_output("sparse", "dense"))
    }

    /// Queues the work of a run with a sparse output.
    fn run_sparse(&self, run: &Run<'_>, _: &mut AnySparseTensor) -> Result<()> {
        Err(run.of.other_output("dense", "sparse"))
    }

    /// Queues a run on raw addresses.
    fn run_raw(&self, of: &Expression, _: &RawSpmm, _: Queue<'_>) -> Result<()> {
        Err(of.no_addresses(self.variant(), "products of a matrix"))
    }

    /// Queues a run with a sparse output on raw addresses.
    fn run_raw_sparse(&self, of: &Expression, _: &RawSddmm, _: Queue<'_>) -> Result<()> {
        Err(of.no_addresses(self.variant(), "S[m,n] = P[m,n] * X[m,k] * Y[n,k]"))
    }

    /// Form of the prepacked sparse factor; `None` if it is not prepacked.
    fn prepacked(&self) -> Option<PrepackedForm> {
        None
    }

    /// Steps of a contraction path on the CPU; `None` for other plans.
    fn steps(&self) -> Option<String> {
        None
    }

    /// Queues the update of prepacked values.
    fn update_values(&self, _: &Run<'_>) -> Result<()> {
        Ok(())
    }

    /// Queued after the work that wrote A's values at address `values`, if [`keeps_a`](Self::keeps_a) states that runs
    /// need not wait for that work.
    fn a_changed(&self, _values: u64, _: Queue<'_>) -> Result<()> {
        Ok(())
    }
}

/// Prints the kernel of a plan: name, rule for zeros, geometry.
pub(crate) fn write_kernel(
    f: &mut fmt::Formatter<'_>,
    row: &Row,
    geometry: impl fmt::Display,
) -> fmt::Result {
    write!(f, "{}: zeros = {:?}, {geometry}", row.name, row.zeros)
}

/// Implements `Display`, and name and bytes of [`Compiled`], for a plan whose field `launch` is its kernel.
macro_rules! of_launch {
    ($plan:ty) => {
        impl std::fmt::Display for $plan {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                $crate::offer::write_kernel(f, self.launch.row(), self.launch.describe())
            }
        }
    };
    () => {
        fn variant(&self) -> &'static str {
            self.launch.row().name
        }

        fn bytes(&self) -> usize {
            self.launch.bytes()
        }
    };
}
pub(crate) use of_launch;

/// Result of preparing an offer. For some kernels, only the pattern shows that they cannot run the expression; the plan
/// then prepares the next offer.
pub(crate) type Made = std::result::Result<Box<dyn Compiled>, Refusal>;

/// Prepares an offer on a GPU.
pub(crate) type Make<'q> = Box<dyn Fn(&Arc<Device>) -> Result<Made> + 'q>;

/// Candidate of a family.
pub(crate) struct Offer<'q> {
    pub(crate) candidate: Candidate,
    pub(crate) make: Make<'q>,
}

impl<'q> Offer<'q> {
    /// Offers the kernel of a row.
    pub(crate) fn of<C: Compiled + 'static>(
        row: &'static Row,
        cost: Cost,
        make: impl Fn(&Arc<Device>) -> Result<C> + 'q,
    ) -> Self {
        Self::unless(row, cost, move |device| make(device).map(Ok))
    }

    /// Offers the kernel of a row that may be refused when its pattern is read.
    pub(crate) fn unless<C: Compiled + 'static>(
        row: &'static Row,
        cost: Cost,
        make: impl Fn(&Arc<Device>) -> Result<std::result::Result<C, Refusal>> + 'q,
    ) -> Self {
        let made = move |device: &Arc<Device>| -> Result<Made> {
            Ok(make(device)?.map(|made| Box::new(made) as _))
        };
        Offer { candidate: Candidate::of(row, cost), make: Box::new(made) }
    }

    /// Offers the kernel of a row that is refused, in favor of another row, if its indices overflow or its prepacked
    /// data does not fit into memory.
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

/// Answer of a family: the kernels that can run the expression, and the reason why others cannot.
#[derive(Default)]
pub(crate) struct Answer<'q> {
    pub(crate) offers: Vec<Offer<'q>>,
    pub(crate) refused: Vec<Refusal>,
}

impl<'q> Answer<'q> {
    pub(crate) fn of(offers: Vec<Offer<'q>>) -> Result<Self> {
        Ok(Answer { offers, refused: Vec::new() })
    }

    /// Refuses all kernels of this name.
    pub(crate) fn refused(name: &str, reason: impl Into<String>) -> Result<Self> {
        Ok(Answer { offers: Vec::new(), refused: vec![Refusal::of(name, reason)] })
    }
}

/// Reason why kernels cannot run an expression, or an error during the check.
#[derive(Debug)]
pub(crate) enum Unfit {
    Because(String),
    Failed(Error),
}

impl Unfit {
    /// Converts to the answer of the kernels of this name.
    pub(crate) fn answer<'q>(self, name: &str) -> Result<Answer<'q>> {
        match self {
            Unfit::Because(reason) => Answer::refused(name, reason),
            Unfit::Failed(error) => Err(error),
        }
    }
}

impl From<Error> for Unfit {
    fn from(error: Error) -> Self {
        Unfit::Failed(error)
    }
}

impl From<String> for Unfit {
    fn from(reason: String) -> Self {
        Unfit::Because(reason)
    }
}

impl From<&str> for Unfit {
    fn from(reason: &str) -> Self {
        Unfit::from(reason.to_owned())
    }
}

/// Function `offers` of a family. It alone decides which kernels of the family can run an expression, and at what cost.
pub(crate) type Offers = for<'q, 'a> fn(&'q Question<'q, 'a>) -> Result<Answer<'q>>;
