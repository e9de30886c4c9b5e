//! The contract between plans and families: a request (an expression, its operands, the options), the offers that
//! answer it, and the executable that an offer builds and a plan runs.

mod choice;
mod options;
mod pattern;
mod problem;
mod run;
mod spmm;

use std::cell::OnceCell;
use std::fmt;
use std::sync::Arc;

use einsparse_kernels::table::Row;

use crate::context::Context;
use crate::cost::Cost;
use crate::cpu::{as_long_as_its_shape, check_slots};
use crate::device::Device;
use crate::einsum::{Einsum, Extents};
use crate::error::{Error, Refusal, Result};
use crate::indirect::{Access, Index, IndirectEinsum, SpmmForm};
use crate::kernel::Queue;
use crate::launch::RawOperands;
use crate::machine::Machine;
use crate::registry::{Dtype, Scalar};
use crate::tensor::{AnyOperand, AnySparseTensor, DynamicOptions};

pub use choice::{Candidate, Choice, PrepackedForm};
pub use options::multiplied_as;
pub use options::{Determinism, Options, Precision, Weights, ZerosRule};
pub(crate) use pattern::PlannedPattern;
pub use problem::Problem;
use problem::problem;
pub(crate) use problem::{alignment_of, given_alignment, leading};
pub use run::AnyOut;
pub(crate) use run::{
    Expression, Run, Slot, Slots, as_dense, find, slot_of, sums_fit, whole_factor, with, wrong,
};
pub(crate) use spmm::{CostOf, SpmmSlots, spmm_offers};

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

/// Parsed expression with its operands and options, before formats are substituted. The position of an operand is its
/// slot in runs.
#[derive(Clone, Copy)]
pub(crate) struct Source<'q, 'a> {
    pub(crate) types: Types,
    pub(crate) context: &'q Context,
    pub(crate) einsum: &'q Einsum,
    pub(crate) operands: &'q [(&'q str, AnyOperand<'a>)],
    pub(crate) options: &'q Options,
}

impl<'q, 'a> Source<'q, 'a> {
    /// Returns the operand of this name.
    pub(crate) fn operand(&self, name: &str) -> Result<&'q AnyOperand<'a>> {
        find(self.operands, name)
    }

    /// Returns the slot of the operand of this name.
    pub(crate) fn slot(&self, name: &str) -> Result<Slot> {
        slot_of(self.operands, name)
    }
}

/// Request for a kernel: an indirect expression with its operands.
pub(crate) struct Request<'q, 'a> {
    pub(crate) types: Types,
    pub(crate) context: &'q Context,
    pub(crate) einsum: &'q Einsum,
    pub(crate) indirect: &'q IndirectEinsum,
    /// Operands that passed validation.
    checked: Checked<'q, 'a>,
    /// Names and options of the dynamic operands.
    pub(crate) dynamic: &'q [(&'q str, DynamicOptions)],
    /// Sparse output; `None` for a dense one.
    pub(crate) output: Option<&'q AnySparseTensor>,
    /// Extents of the indices of `einsum`, and the shape of the output.
    pub(crate) extents: &'q Extents,
    pub(crate) options: &'q Options,
    pub(crate) machine: &'q Machine,
    /// Cached result of [`Self::product`].
    product: OnceCell<Option<(Problem, SpmmForm)>>,
}

impl<'q, 'a> Request<'q, 'a> {
    pub(crate) fn new(
        source: &Source<'q, 'a>,
        indirect: &'q IndirectEinsum,
        (extents, output): (&'q Extents, Option<&'q AnySparseTensor>),
        machine: &'q Machine,
    ) -> Result<Self> {
        let out_shape = output.is_none().then(|| extents.out());
        Ok(Request {
            types: source.types,
            context: source.context,
            einsum: source.einsum,
            indirect,
            checked: validate(indirect, source.operands, out_shape)?,
            dynamic: &[],
            output,
            extents,
            options: source.options,
            machine,
            product: OnceCell::new(),
        })
    }

    /// The product of a matrix with a dense one, if the expression is one.
    pub(crate) fn product(&self) -> Result<Option<&(Problem, SpmmForm)>> {
        if self.product.get().is_none() {
            let _ = self.product.set(problem(self)?);
        }
        Ok(self.product.get().and_then(Option::as_ref))
    }

    /// The operands by name.
    pub(crate) fn operands(&self) -> &'q [(&'q str, AnyOperand<'a>)] {
        self.checked.0
    }

    /// Returns the operand of this name.
    pub(crate) fn operand(&self, name: &str) -> Result<&'q AnyOperand<'a>> {
        find(self.operands(), name)
    }

    /// Returns the slot of the operand of this name.
    pub(crate) fn slot(&self, name: &str) -> Result<Slot> {
        slot_of(self.operands(), name)
    }

    /// The expression before formats were substituted.
    pub(crate) fn source(&self) -> Source<'q, 'a> {
        Source {
            types: self.types,
            context: self.context,
            einsum: self.einsum,
            operands: self.operands(),
            options: self.options,
        }
    }
}

/// Validated operands of a plan: names are unique, index arrays have the length of their shape, and each slot is inside
/// of the indexed axis or PAD. Only [`validate`] creates it.
#[derive(Clone, Copy)]
pub(crate) struct Checked<'q, 'a>(&'q [(&'q str, AnyOperand<'a>)]);

/// Checks that each name is given once.
pub(crate) fn once_each(operands: &[(&str, AnyOperand<'_>)]) -> Result<()> {
    for (at, (name, operand)) in operands.iter().enumerate() {
        if let Some((_, first)) = operands[..at].iter().find(|(n, _)| n == name) {
            return Err(Error::operand(
                name,
                format!("is given twice: a {} and a {}", first.describe(), operand.describe()),
            ));
        }
    }
    Ok(())
}

/// Validates the operands of a plan. `out_shape`: `None` for a sparse output.
///
/// # Errors
/// - [`Error::Operand`] for a name given twice; [`Error::Shape`] for an index array whose length differs from its
///   shape; [`Error::OperandKind`] for an operand of another kind that is used as an index array.
/// - [`Error::InvalidIndex`] for a slot outside of an operand.
fn validate<'q, 'a>(
    e: &IndirectEinsum,
    operands: &'q [(&'q str, AnyOperand<'a>)],
    out_shape: Option<&[usize]>,
) -> Result<Checked<'q, 'a>> {
    once_each(operands)?;
    for (name, operand) in operands {
        if let AnyOperand::Index(shape, data) = operand {
            as_long_as_its_shape(name, shape, data.len())?;
        }
    }
    // The index arrays of a product at the nonzeros of a sparse output are those of its pattern, which was validated at
    // construction.
    let Some(out_shape) = out_shape else {
        return Ok(Checked(operands));
    };
    let mut inside = Inside { e, operands, seen: Vec::new() };
    for factor in &e.factors {
        // The values of a sparse operand have another name than the operand. Its pattern was validated at construction.
        if let Ok(operand) = find(operands, &factor.tensor) {
            inside.access(factor, operand.shape())?;
        }
    }
    inside.access(&e.out, out_shape)?;
    Ok(Checked(operands))
}

struct Inside<'q, 'a> {
    e: &'q IndirectEinsum,
    operands: &'q [(&'q str, AnyOperand<'a>)],
    /// Arrays already checked, with the extent of the axis.
    seen: Vec<(&'q str, usize)>,
}

impl<'q> Inside<'q, '_> {
    fn access(&mut self, access: &'q Access, shape: &[usize]) -> Result<()> {
        if access.indices.len() != shape.len() {
            return Err(Error::Shape {
                index: access.tensor.clone(),
                left: format!("`{access}` has {} indices", access.indices.len()),
                right: format!("the operand has {} axes, {shape:?}", shape.len()),
            });
        }
        for (axis, (index, &extent)) in access.indices.iter().zip(shape).enumerate() {
            if let Index::Access(array) = index {
                self.array(array, extent, &|| format!("axis {axis} of `{access}`"))?;
            }
        }
        Ok(())
    }

    /// Checks an array that indexes an axis of `extent` elements.
    fn array(&mut self, array: &'q Access, extent: usize, of: &dyn Fn() -> String) -> Result<()> {
        let name = array.tensor.as_str();
        let sparse = self.e.sparse.iter().flat_map(|s| &s.arrays);
        if sparse.into_iter().any(|own| own.name == name) {
            return Ok(());
        }
        let (shape, data) = match find(self.operands, name)? {
            AnyOperand::Index(shape, data) => (*shape, *data),
            other => return Err(wrong(name, "an index array", other)),
        };
        if !self.seen.contains(&(name, extent)) {
            check_slots(name, data, (extent, of))?;
            self.seen.push((name, extent));
        }
        self.access(array, shape)
    }
}

/// The object that a plan runs: a kernel, other plans, or the CPU executor, prepared for one expression. Pattern,
/// extents and formats are fixed; values are not.
pub(crate) trait Executable: fmt::Debug + fmt::Display + Send + Sync {
    /// Name of the row of the table, or of the chain of plans.
    fn variant(&self) -> &'static str;

    /// Device bytes held in addition to the operands.
    fn bytes(&self) -> usize;

    /// States that A is a copy that another plan holds, as in [`Product::keeps_a`](crate::launch::Product::keeps_a).
    fn keeps_a(&mut self) {}

    /// Queues the work of a run whose shapes have been checked. Implementations that launch kernels get their queue
    /// from [`Run::queue`]. On a GPU, a run does not allocate and does not wait.
    fn run(&self, run: &Run<'_>, out: AnyOut<'_>) -> Result<()>;

    /// Queues a run on raw addresses.
    fn run_raw(&self, of: &Expression, raw: RawOperands<'_>, _: Queue<'_>) -> Result<()> {
        Err(of.no_addresses(self.variant(), raw))
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

/// Implements `Display`, and name and bytes of [`Executable`], for a plan whose field `launch` is its kernel.
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

/// Builds the executable of an offer on a GPU. For some kernels, only the pattern shows that they cannot run the
/// expression. They return the error that [`refuse`] makes, and the plan then builds the next offer.
pub(crate) type Build<'q> = Box<dyn Fn(&Arc<Device>) -> Result<Box<dyn Executable>> + 'q>;

/// Candidate of a family, and the function that builds it.
pub(crate) struct Offer<'q> {
    pub(crate) candidate: Candidate,
    pub(crate) build: Build<'q>,
}

impl<'q> Offer<'q> {
    /// Offers the kernel of a row.
    pub(crate) fn of<C: Executable + 'static>(
        row: &'static Row,
        cost: Cost,
        build: impl Fn(&Arc<Device>) -> Result<C> + 'q,
    ) -> Self {
        let build = move |device: &Arc<Device>| Ok(Box::new(build(device)?) as _);
        Offer { candidate: Candidate::of(row, cost), build: Box::new(build) }
    }

    /// Offers the kernel of a row that is refused, in favor of another row, if its indices overflow or its prepacked
    /// data does not fit into memory.
    pub(crate) fn with_room<C: Executable + 'static>(
        row: &'static Row,
        cost: Cost,
        build: impl Fn(&Arc<Device>) -> Result<C> + 'q,
    ) -> Self {
        Self::of(row, cost, move |device| match build(device) {
            Err(
                error @ (Error::Overflow { .. }
                | Error::OutOfMemory { .. }
                | Error::NoKernel { .. }),
            ) => Err(refuse(row.name, error.to_string())),
            built => built,
        })
    }
}

/// Offers of a family, and the refusals of its other kernels.
pub(crate) type Offers<'q> = Vec<std::result::Result<Offer<'q>, Refusal>>;

/// Function `offers` of a family. It alone decides which kernels of the family can run an expression, and at what cost.
/// If none can, it may return the error that [`refuse`] makes.
pub(crate) type Family = for<'q, 'a> fn(&'q Request<'q, 'a>) -> Result<Offers<'q>>;

/// Refuses all kernels of this name.
pub(crate) fn refuse(name: &str, reason: impl Into<String>) -> Error {
    Error::no_kernel("", [Refusal::of(name, reason)])
}

/// Returns the refusals that an error contains; other errors are returned unchanged.
pub(crate) fn refusals(error: Error) -> Result<Vec<Refusal>> {
    match error {
        Error::NoKernel { tried, .. } => {
            Ok(tried.into_iter().map(|(name, reason)| Refusal::of(name, reason)).collect())
        }
        other => Err(other),
    }
}
