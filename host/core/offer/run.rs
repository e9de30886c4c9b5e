//! Expression as planned, and one run of it: operands by name are put into slots once, and kernels are bound to slots.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{Source, Types};
use crate::context::Context;
use crate::device::{Device, Stream};
use crate::einsum::{Einsum, Scalar};
use crate::error::{Elsewhere, Error, Refusal, Result, check_shape};
use crate::indirect::IndirectEinsum;
use crate::kernel::Queue;
use crate::launch::RawOperands;
use crate::registry::Dtype;
use crate::tensor::{AnyOperand, AnySparseTensor, AnyTensor, DynamicOptions, Named};

/// Position of an operand among those of a plan. A run finds its operands by slots, not by names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot(usize);

impl Slot {
    /// Returns the element of this slot of a list that has one for each operand.
    pub(crate) fn of<E>(self, list: &[E]) -> Option<&E> {
        list.get(self.0)
    }
}

/// Operands of a run by slot; `None` for those that are not given. Up to six are stored without an allocation.
pub(crate) type Slots<'r> = SmallVec<[Option<AnyOperand<'r>>; 12]>;

/// Returns the operands with `own` in a slot.
pub(crate) fn with<'r>(
    operands: &[Option<AnyOperand<'r>>],
    slot: Slot,
    own: Option<AnyOperand<'r>>,
) -> Slots<'r> {
    let mut all = Slots::from_slice(operands);
    if let Some(place) = all.get_mut(slot.0) {
        *place = own;
    }
    all
}

/// Returns the operands with dynamic ones replaced by their dense tensors, and the options of the dynamic ones; `None` if
/// no operand is dynamic.
pub(crate) fn as_dense<'o, 'a>(
    operands: &[(&'o str, AnyOperand<'a>)],
) -> Option<(Named<'o, 'a>, Vec<(&'o str, DynamicOptions)>)> {
    let dynamic = operands.iter().filter_map(|(name, operand)| match operand {
        AnyOperand::Dynamic(_, options) => Some((*name, *options)),
        _ => None,
    });
    let dynamic: Vec<_> = dynamic.collect();
    if dynamic.is_empty() {
        return None;
    }
    let dense = operands.iter().map(|(name, operand)| (*name, operand.dense()));
    Some((dense.collect(), dynamic))
}

/// Returns the operand of this name.
pub(crate) fn find<'s, 'a>(
    operands: &'s [(&str, AnyOperand<'a>)],
    name: &str,
) -> Result<&'s AnyOperand<'a>> {
    operands.iter().find(|(n, _)| *n == name).map(|(_, o)| o).ok_or_else(|| Error::missing(name))
}

/// Returns the slot of the operand of this name.
pub(crate) fn slot_of(operands: &[(&str, AnyOperand<'_>)], name: &str) -> Result<Slot> {
    let slot = operands.iter().position(|(own, _)| *own == name);
    slot.map(Slot).ok_or_else(|| Error::missing(name))
}

pub(crate) fn wrong(name: &str, wanted: &str, found: &AnyOperand<'_>) -> Error {
    Error::kind(name, wanted, format_args!("a {}", found.describe()))
}

/// Reason for the refusal of an index array in a run.
const ARRAY: &str = "is an index array, and those are part of the plan, which has it: leave it out of the operands of a \
    run";

/// Expression with the operands for which it was planned.
#[derive(Debug)]
pub(crate) struct Expression {
    pub(crate) types: Types,
    pub(crate) context: Context,
    pub(crate) einsum: Einsum,
    pub(crate) indirect: IndirectEinsum,
    pub(crate) out_shape: Vec<usize>,
    /// Operands by slot.
    operands: Vec<PlannedOperand>,
    factors: Vec<Factor>,
}

/// Operand as planned.
#[derive(Debug)]
struct PlannedOperand {
    name: String,
    shape: Vec<usize>,
    /// Whether each run requires it: a number, or a tensor that the expression reads.
    required: bool,
}

/// Scalar factor.
#[derive(Debug)]
enum Factor {
    Literal(f64),
    Operand(Slot),
}

/// Operands of one run of an expression by slot, and its stream. Dynamic ones are dense here.
#[derive(Clone, Copy)]
pub(crate) struct Run<'r> {
    pub(crate) of: &'r Expression,
    pub(crate) operands: &'r [Option<AnyOperand<'r>>],
    pub(crate) stream: &'r Stream,
}

/// Output of any element type.
#[derive(Debug)]
pub enum AnyOut<'a> {
    Dense(&'a mut AnyTensor),
    Sparse(&'a mut AnySparseTensor),
}

impl AnyOut<'_> {
    pub(crate) fn shape(&self) -> &[usize] {
        match self {
            AnyOut::Dense(out) => out.shape(),
            AnyOut::Sparse(out) => out.shape(),
        }
    }
}

impl<'r> Run<'r> {
    /// Returns a queue for work on the operands and the output of this run.
    ///
    /// # Errors
    /// An operand, the output or the stream belongs to another context than the plan.
    pub(crate) fn queue(&self, out: &AnyTensor) -> Result<Queue<'r>> {
        let queue = self.queue_of_operands()?;
        match (out.device(), self.of.context.device()) {
            (Some(on), Some(device)) if on.is_same(device) => Ok(queue),
            _ => Err(Error::elsewhere(self.of.output())),
        }
    }

    /// Returns a queue for work on the operands of this run. Shapes have been checked; patterns are checked when the
    /// operands are bound.
    ///
    /// # Errors
    /// Those of [`queue`](Self::queue).
    pub(crate) fn queue_of_operands(&self) -> Result<Queue<'r>> {
        let device = self.of.context.expect_device()?;
        if !self.stream.belongs_to(device) {
            return Err(Error::elsewhere("stream"));
        }
        let here = |on: Option<&Arc<Device>>| on.is_some_and(|on| on.is_same(device));
        for (slot, operand) in self.operands.iter().enumerate() {
            let here = match operand {
                Some(AnyOperand::Dense(d)) => here(d.device()),
                Some(AnyOperand::Sparse(a)) => here(a.device().map(|arrays| &arrays.device)),
                _ => true,
            };
            if !here {
                return Err(Error::elsewhere(self.of.name(Slot(slot))));
            }
        }
        // SAFETY: the operands are on the GPU of the stream and have the planned shapes. The tensors are borrowed for
        // the call. Device memory is freed only after the work queued on the context. Memory of another owner is freed
        // in the order of the work (`Tensor::from_raw`).
        Ok(unsafe { Queue::new(self.stream.raw()) })
    }

    /// Returns the run with other operands.
    pub(crate) fn with<'o>(&self, operands: &'o [Option<AnyOperand<'o>>]) -> Run<'o>
    where
        'r: 'o,
    {
        Run { of: self.of, operands, stream: self.stream }
    }

    /// Returns the operand of a slot.
    pub(crate) fn operand(&self, slot: Slot) -> Result<&'r AnyOperand<'r>> {
        let operand = self.operands.get(slot.0).and_then(Option::as_ref);
        operand.ok_or_else(|| Error::missing(self.name(slot)))
    }

    /// Iterates over the names and the operands that are given.
    pub(crate) fn named(&self) -> impl Iterator<Item = (Slot, &'r str, &'r AnyOperand<'r>)> {
        let all = self.of.operands.iter().zip(self.operands).enumerate();
        all.filter_map(|(slot, (own, given))| {
            Some((Slot(slot), own.name.as_str(), given.as_ref()?))
        })
    }

    /// Returns the name of an operand, for messages.
    pub(crate) fn name(&self, slot: Slot) -> &'r str {
        self.of.name(slot)
    }

    /// Returns the product of the scalar factors.
    pub(crate) fn factor(&self) -> Result<f64> {
        let mut alpha = 1.0;
        for factor in &self.of.factors {
            alpha *= match *factor {
                Factor::Literal(x) => x,
                Factor::Operand(slot) => match self.operand(slot)? {
                    AnyOperand::Scalar(x) => *x,
                    other => return Err(wrong(self.name(slot), "a number", other)),
                },
            };
        }
        whole_factor(self.of.types.out, alpha).map(|()| alpha)
    }

    /// Returns the address of a dense operand, and its row stride in elements.
    pub(crate) fn tensor(&self, slot: Slot) -> Result<(u64, usize)> {
        match self.operand(slot)? {
            AnyOperand::Dense(d) => Ok((d.address().or_elsewhere(self.name(slot))?, d.leading())),
            other => Err(wrong(self.name(slot), "an uploaded dense tensor", other)),
        }
    }

    /// Returns the address of the output, and its row stride in elements.
    pub(crate) fn output(&self, out: &AnyTensor) -> Result<(u64, usize)> {
        Ok((out.address().or_elsewhere(self.of.output())?, out.leading()))
    }

    /// Returns the dense output of a plan that writes one.
    pub(crate) fn dense<'o>(&self, out: AnyOut<'o>) -> Result<&'o mut AnyTensor> {
        match out {
            AnyOut::Dense(out) => Ok(out),
            AnyOut::Sparse(_) => Err(self.of.other_output("dense", "sparse")),
        }
    }

    /// Returns the sparse output of a plan that writes one.
    pub(crate) fn sparse<'o>(&self, out: AnyOut<'o>) -> Result<&'o mut AnySparseTensor> {
        match out {
            AnyOut::Sparse(out) => Ok(out),
            AnyOut::Dense(_) => Err(self.of.other_output("sparse", "dense")),
        }
    }
}

impl Expression {
    /// Gives each operand of the expression its slot: its position among the operands.
    pub(crate) fn new(
        source: &Source<'_, '_>,
        indirect: IndirectEinsum,
        out_shape: &[usize],
    ) -> Result<Self> {
        let einsum = source.einsum;
        let numbers = || {
            einsum.scalars.iter().filter_map(|scalar| match scalar {
                Scalar::Name(name) => Some(name.as_str()),
                Scalar::Literal(_) => None,
            })
        };
        let read = |name: &str| {
            let mut names = einsum.right().map(|access| access.tensor.as_str()).chain(numbers());
            names.any(|own| own == name)
        };
        let planned = |(name, operand): &(&str, AnyOperand<'_>)| PlannedOperand {
            name: name.to_string(),
            shape: operand.shape().to_vec(),
            required: read(name),
        };
        let factor = |scalar: &Scalar| match scalar {
            Scalar::Literal(x) => Ok(Factor::Literal(*x)),
            Scalar::Name(name) => source.slot(name).map(Factor::Operand),
        };
        Ok(Expression {
            types: source.types,
            context: source.context.clone(),
            operands: source.operands.iter().map(planned).collect(),
            factors: einsum.scalars.iter().map(factor).collect::<Result<_>>()?,
            einsum: einsum.clone(),
            indirect,
            out_shape: out_shape.to_vec(),
        })
    }

    /// Permits the output among the operands of a run, which then ignores it.
    pub(crate) fn with_output(mut self) -> Self {
        let (name, shape) = (self.output().to_owned(), self.out_shape.clone());
        self.operands.push(PlannedOperand { name, shape, required: false });
        self
    }

    /// Returns the name of the output.
    pub(crate) fn output(&self) -> &str {
        &self.einsum.out.tensor
    }

    /// Whether each run requires the operand of this name.
    pub(crate) fn reads(&self, name: &str) -> bool {
        self.operands.iter().any(|own| own.required && own.name == name)
    }

    /// Returns the name of an operand.
    pub(crate) fn name(&self, slot: Slot) -> &str {
        self.operands.get(slot.0).map_or("", |own| &own.name)
    }

    /// Returns the slot of an operand that a run names at position `at`. Most runs name the operands in the order of
    /// the plan.
    fn slot(&self, at: usize, name: &str) -> Option<usize> {
        match self.operands.get(at) {
            Some(own) if own.name == name => Some(at),
            _ => self.operands.iter().position(|own| own.name == name),
        }
    }

    /// Puts the operands of an update of values into their slots. Others than those of the plan are ignored.
    pub(crate) fn some_slots<'o>(
        &self,
        operands: impl Iterator<Item = (&'o str, AnyOperand<'o>)>,
    ) -> Result<Slots<'o>> {
        let mut slots = Slots::from_elem(None, self.operands.len());
        for (at, (name, operand)) in operands.enumerate() {
            let Some(slot) = self.slot(at, name) else { continue };
            if let Some(first) = slots[slot].replace(operand.dense()) {
                return Err(twice(name, &first, &operand));
            }
        }
        Ok(slots)
    }

    /// Puts the operands of a run into their slots, and checks that they are those of the plan, with the planned
    /// shapes.
    pub(crate) fn slots<'o>(
        &self,
        operands: impl Iterator<Item = (&'o str, AnyOperand<'o>)>,
        out: &[usize],
    ) -> Result<Slots<'o>> {
        let mut slots = Slots::from_elem(None, self.operands.len());
        let mut unknown = None;
        let mut given_twice = None;
        for (at, (name, operand)) in operands.enumerate() {
            match operand {
                AnyOperand::Index(..) => return Err(Error::operand(name, ARRAY)),
                AnyOperand::Shape(_) => return Err(wrong(name, "a tensor", &operand)),
                _ => {}
            }
            match self.slot(at, name) {
                None => unknown = unknown.or(Some(name)),
                Some(slot) => match slots[slot] {
                    Some(first) => given_twice = given_twice.or(Some((name, first, operand))),
                    None => slots[slot] = Some(operand.dense()),
                },
            }
        }
        let all = || self.operands.iter().zip(&slots);
        if all().any(|(own, given)| own.required && given.is_none()) {
            return Err(self.missing(&slots));
        }
        if let Some((name, first, second)) = given_twice {
            return Err(twice(name, &first, &second));
        }
        if let Some(name) = unknown {
            return Err(Error::unknown(name, &self.einsum));
        }
        for (own, given) in all() {
            if let Some(given) = given {
                check_shape(&own.name, &own.shape, given.shape())?;
            }
        }
        check_shape(self.output(), &self.out_shape, out)?;
        Ok(slots)
    }

    /// Error of the first operand of the expression that is not given.
    fn missing(&self, slots: &Slots<'_>) -> Error {
        let given = |name: &str| {
            let mut own = self.operands.iter().zip(slots);
            own.any(|(own, given)| own.name == name && given.is_some())
        };
        let tensors = self.einsum.right().map(|access| access.tensor.as_str());
        let numbers = self.einsum.scalars.iter().filter_map(|scalar| match scalar {
            Scalar::Name(name) => Some(name.as_str()),
            Scalar::Literal(_) => None,
        });
        let name = tensors.chain(numbers).find(|name| !given(name));
        Error::missing_in(name.unwrap_or_default(), &self.einsum)
    }

    /// Error of a run with another output format than planned.
    fn other_output(&self, planned: &str, given: &str) -> Error {
        Error::kind(
            self.output(),
            format_args!("a {planned} output, as planned,"),
            format_args!("a {given} one"),
        )
    }

    /// Error of a run with raw addresses on a plan that does not support them.
    pub(crate) fn no_addresses(&self, variant: &str, raw: RawOperands<'_>) -> Error {
        self.only_addresses_of(
            variant,
            match raw {
                RawOperands::Spmm(_) => "products of a matrix",
                RawOperands::Sddmm(_) => "S[m,n] = P[m,n] * X[m,k] * Y[n,k]",
            },
        )
    }

    /// [`Self::no_addresses`] with the supported products.
    pub(crate) fn only_addresses_of(&self, variant: &str, products: &str) -> Error {
        let reason = format!("takes tensors (`Plan::run`): raw addresses are for {products}");
        let indirect = self.indirect.to_string();
        Error::no_kernel(indirect, [Refusal::of(variant, reason)])
    }
}

/// Error of an operand that is given twice.
fn twice(name: &str, first: &AnyOperand<'_>, second: &AnyOperand<'_>) -> Error {
    Error::operand(
        name,
        format!("is given twice: a {} and a {}", first.describe(), second.describe()),
    )
}

/// Maximum number of products of 8-bit integers per row whose sum always fits in an i32.
const MOST_TERMS: u64 = (1 << 17) - 1;

/// Checks that a sum of `terms` products of `dtype` cannot overflow.
pub(crate) fn sums_fit(dtype: Dtype, terms: u64) -> Result<()> {
    if dtype != Dtype::Int8 || terms <= MOST_TERMS {
        return Ok(());
    }
    Err(Error::Overflow {
        what: "terms of a row of int8".into(),
        value: terms.into(),
        limit: MOST_TERMS.into(),
    })
}

/// Checks that the scalar factor of an i32 output is an i32.
pub(crate) fn whole_factor(out: Dtype, alpha: f64) -> Result<()> {
    if out != Dtype::Int32 || alpha == f64::from(alpha as i32) {
        return Ok(());
    }
    Err(Error::range("product of scalar factors", alpha, "an int32 for an int32 output"))
}
