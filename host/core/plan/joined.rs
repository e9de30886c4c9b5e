//! Plans over position lists, for several sparse factors and for sparse outputs. Planning creates the lists. A run
//! passes the values of the sparse tensors as flat arrays to a plan over the remaining expression.

mod operands;
mod positions;
mod written;

use std::collections::BTreeMap;
use std::fmt;

use einsparse_formats::AnyPattern;

use super::any::AnyPlan;
use crate::einsum::{Access, Einsum, Epilogue};
use crate::error::{Elsewhere, Error, Refusal, Result};
use crate::families::tensor::join::{Table, join_all};
use crate::indirect::IndirectEinsum;
use crate::indirect::rewrite::plain_indices;
use crate::offer::{AnyOut, Executable, PlannedPattern, Run, Slot, Slots, Source, wrong};
use crate::tensor::{AnyOperand, AnySparseTensor, AnyTensor};
use operands::flat_values;
use written::{Written, write_joined};

pub(super) use operands::{only_factors, sparse_among, sparse_factors};
pub use positions::PositionLists;

/// Plan over position lists.
#[derive(Debug)]
pub(super) struct Joined {
    /// Operands of the plan over the lists, by slot; its lists follow.
    inputs: Vec<Input>,
    /// Pattern of the sparse output, if the plan has one.
    out: Option<PlannedPattern>,
    plan: Box<AnyPlan>,
    rows: usize,
    of: String,
}

/// Operand of the plan over the lists.
#[derive(Debug)]
enum Input {
    /// An operand of the expression, unchanged.
    Operand(Slot),
    /// The values of a sparse operand as a tensor of one axis.
    Values(Slot, PlannedPattern),
}

fn refuse(einsum: &Einsum, reason: String) -> Error {
    Error::no_kernel(einsum.to_string(), [Refusal::of("join", reason)])
}

impl Joined {
    /// Plans with a dense output of this shape. The caller has checked that sparse operands are only
    /// [factors](only_factors).
    pub(super) fn dense(source: &Source<'_, '_>, out_shape: &[usize]) -> Result<Self> {
        let factors = sparse_factors(source.einsum, source.operands);
        let table = met(source, &factors)?;
        let filled = filled(source, &factors)?;
        Self::over(source, table, (&factors, filled), (None, out_shape))
    }

    /// Plans with a sparse output, one value per slot.
    pub(super) fn sampled(source: &Source<'_, '_>, out: AnyPattern<'_>) -> Result<Self> {
        let (einsum, operands) = (source.einsum, source.operands);
        only_factors(einsum, operands)?;
        let names = plain_indices(&einsum.out)?;
        if einsum.epilogue.bias.is_some() || einsum.epilogue.gate.is_some() {
            let reason = "a sparse output takes no bias and no gate".into();
            return Err(refuse(einsum, reason));
        }
        let factors = sparse_factors(einsum, operands);
        // With an index twice, only the diagonal has results.
        let mut all_aligned = (1..names.len()).all(|at| !names[..at].contains(&names[at]));
        for &f in &factors {
            let access = &einsum.factors[f];
            let tensor = source.operand(&access.tensor)?.pattern();
            let aligned = plain_indices(access)? == names && tensor.is_some_and(|t| out == t);
            all_aligned &= aligned;
        }
        let text = einsum.out.to_string();
        let filled = match all_aligned {
            // Stored zeros of the output only receive products of stored zeros.
            true => Vec::new(),
            false => filled(source, &factors)?,
        };
        let table = if all_aligned {
            // Every factor has the slots of the output, so slot i is at position i.
            let mut table = Table::whole(&text, &names, out)?;
            for _ in &factors {
                let slots = table.slots[0].clone();
                table.slots.push(slots);
            }
            table
        } else {
            let mut tables = vec![Table::entries(&text, &names, out)?];
            for &f in &factors {
                tables.push(entries(source, &einsum.factors[f])?);
            }
            join_all(tables, None, source.context.device())?
        };
        Self::over(source, table, (&factors, filled), (Some(out), &[out.slots()]))
    }

    /// Plans over a table of positions.
    fn over(
        source: &Source<'_, '_>,
        table: Table,
        (factors, filled): (&[usize], Vec<usize>),
        (out, out_shape): (Option<AnyPattern<'_>>, &[usize]),
    ) -> Result<Self> {
        let (rows, of) = (table.rows(), table.tensors.join(", "));
        let mut written = write_joined(source.einsum, table, factors, out.is_some());
        written.indirect.filled = filled;
        let name = source.einsum.out.tensor.as_str();
        let lists: Vec<_> =
            written.lists.into_iter().map(|(name, l)| (name, [l.len()], l)).collect();
        let (mut inputs, mut operands) = (Vec::new(), Vec::new());
        for (own, operand) in source.operands.iter().filter(|(_, o)| o.pattern().is_none()) {
            // A given dense output determines its row stride.
            if out.is_none() || *own != name {
                inputs.push(Input::Operand(source.slot(own)?));
                operands.push((*own, *operand));
            }
        }
        let mut flat = Vec::new();
        for (operand, own) in written.values.iter().filter(|(of, _)| out.is_none() || of != name) {
            let tensor = source.operand(operand)?;
            let Some(pattern) = tensor.pattern() else { continue };
            let pattern = PlannedPattern::new(operand, pattern);
            inputs.push(Input::Values(source.slot(operand)?, pattern));
            flat.push((own.as_str(), flat_values(operand, tensor)?));
        }
        operands.extend(flat.iter().map(|(name, tensor)| (*name, AnyOperand::Dense(tensor))));
        operands.extend(
            lists.iter().map(|(name, shape, data)| (name.as_str(), AnyOperand::Index(shape, data))),
        );
        let einsum = &written.einsum;
        let plan =
            inner(&Source { einsum, operands: &operands, ..*source }, written.indirect, out_shape)?;
        let out = out.map(|out| PlannedPattern::new(name, out));
        Ok(Joined { inputs, out, plan: Box::new(plan), rows, of })
    }

    /// Returns the plan over the lists.
    pub(super) fn plan(&self) -> &AnyPlan {
        &self.plan
    }

    /// Queues a run. `out`: the dense output, or the values of the sparse output.
    fn queue(&self, run: &Run<'_>, out: &mut AnyTensor) -> Result<()> {
        let mut flat = Vec::new();
        for input in &self.inputs {
            let Input::Values(slot, planned) = input else { continue };
            let operand = run.operand(*slot)?;
            let Some(pattern) = operand.pattern() else {
                return Err(wrong(planned.name(), "a sparse tensor", operand));
            };
            planned.expect(planned.name(), pattern)?;
            flat.push(flat_values(planned.name(), operand)?);
        }
        let mut flat = flat.iter();
        let inputs = self.inputs.iter().map(|input| match input {
            Input::Operand(slot) => run.operand(*slot).ok().copied(),
            Input::Values(..) => flat.next().map(AnyOperand::Dense),
        });
        self.plan.run_slots(&inputs.collect::<Slots<'_>>(), AnyOut::Dense(out), run.stream)
    }

    /// Queues a run into the values of a sparse output.
    pub(super) fn run_into(&self, run: &Run<'_>, out: &mut AnySparseTensor) -> Result<()> {
        let name = run.of.output();
        if let Some(planned) = &self.out {
            planned.expect(name, out.pattern())?;
        }
        let mut values = AnyTensor::of_values(out)?;
        self.queue(run, &mut values)?;
        match values.device() {
            Some(_) => Ok(()),
            None => out.set_values(values.host().or_elsewhere(name)?),
        }
    }
}

/// Joins the sparse factors. The rows are in the order of the indices of the output.
fn met(source: &Source<'_, '_>, factors: &[usize]) -> Result<Table> {
    let einsum = source.einsum;
    let tables = factors.iter().map(|&f| entries(source, &einsum.factors[f]));
    let mut order = Vec::new();
    einsum.out.for_each_name(&mut |n| {
        if !order.contains(&n) {
            order.push(n);
        }
    });
    let tables = tables.collect::<Result<_>>()?;
    let device = source.context.device();
    join_all(tables, Some(&order), device)
}

/// Rewrites an expression over the position lists of its sparse factors.
pub(super) fn over_lists(source: &Source<'_, '_>) -> Result<Written> {
    let factors = sparse_factors(source.einsum, source.operands);
    let table = met(source, &factors)?;
    let mut written = write_joined(source.einsum, table, &factors, false);
    written.indirect.filled = filled(source, &factors)?;
    Ok(written)
}

/// Returns the factors in blocks or N:M. Lists contain their stored zeros, which runs skip.
fn filled(source: &Source<'_, '_>, factors: &[usize]) -> Result<Vec<usize>> {
    let mut filled = Vec::new();
    for &f in factors {
        let operand = source.operand(&source.einsum.factors[f].tensor)?;
        if operand.pattern().is_some_and(AnyPattern::holds_fill) {
            filled.push(f);
        }
    }
    Ok(filled)
}

/// Returns the stored slots of a sparse factor.
fn entries(source: &Source<'_, '_>, access: &Access) -> Result<Table> {
    let operand = source.operand(&access.tensor)?;
    let Some(tensor) = operand.pattern() else {
        return Err(wrong(&access.tensor, "a sparse tensor", operand));
    };
    Table::entries(&access.to_string(), &plain_indices(access)?, tensor)
}

/// Plans the rewritten expression over the lists.
fn inner(
    source: &Source<'_, '_>,
    indirect: IndirectEinsum,
    out_shape: &[usize],
) -> Result<AnyPlan> {
    let operands = source.operands.iter();
    let mut shapes: BTreeMap<String, Vec<usize>> =
        operands.map(|(name, o)| (name.to_string(), o.shape().to_vec())).collect();
    shapes.insert(source.einsum.out.tensor.clone(), out_shape.to_vec());
    // The original expression has been checked with its epilogue. Here the indices of the epilogue are slots of lists.
    let mut bare = source.einsum.clone();
    bare.epilogue = Epilogue::default();
    let epilogue = &source.einsum.epilogue;
    for access in epilogue.bias.iter().chain(&epilogue.gate) {
        shapes.remove(&access.tensor);
    }
    let extents = bare.check(&shapes)?;
    AnyPlan::chosen(source, indirect, &extents, &[])
}

impl Executable for Joined {
    fn variant(&self) -> &'static str {
        self.plan.variant()
    }

    fn bytes(&self) -> usize {
        self.plan.workspace_bytes()
    }

    fn steps(&self) -> Option<String> {
        self.plan.made.steps()
    }

    fn run(&self, run: &Run<'_>, out: AnyOut<'_>) -> Result<()> {
        self.queue(run, run.dense(out)?)
    }
}

impl fmt::Display for Joined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Joined { rows, of, plan, .. } = self;
        write!(f, "{plan}, over {rows} rows of positions of {of}")
    }
}
