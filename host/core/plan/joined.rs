//! Plans over position lists, for several sparse factors and for sparse outputs. Planning creates the lists. A run
//! passes the values of the sparse tensors as flat arrays to a plan over the remaining expression.

mod operands;
mod positions;
mod written;

use std::collections::BTreeMap;
use std::fmt;

use einsparse_formats::{AnyPattern, SharedPattern};

use super::Options;
use super::any::AnyPlan;
use crate::context::Context;
use crate::device::Stream;
use crate::einsum::{Access, Einsum, Epilogue};
use crate::error::{Elsewhere, Error, Refusal, Result};
use crate::families::tensor::join::{Table, join_all};
use crate::indirect::IndirectEinsum;
use crate::indirect::rewrite::plain_indices;
use crate::offer::bind::{find, wrong};
use crate::offer::{Compiled, Run, Types};
use crate::tensor::{AnyOperand, AnySparseTensor, AnyTensor};
use operands::{Values, with_lists};
use written::{Written, write_joined};

pub(super) use operands::{only_factors, sparse_among, sparse_factors};
pub use positions::PositionLists;

/// Plan over position lists.
#[derive(Debug)]
pub(super) struct Joined {
    values: Vec<Values>,
    plan: Box<AnyPlan>,
    rows: usize,
    of: String,
}

fn refuse(einsum: &Einsum, reason: String) -> Error {
    Error::no_kernel(einsum.to_string(), [Refusal::of("join", reason)])
}

/// Parsed expression with its operands and options.
pub(super) struct Asked<'q, 'a> {
    pub(super) types: Types,
    pub(super) context: &'q Context,
    pub(super) einsum: &'q Einsum,
    pub(super) operands: &'q [(&'q str, AnyOperand<'a>)],
    pub(super) options: &'q Options,
}

impl Joined {
    /// Plans with a dense output of this shape. The caller has checked that sparse operands are only
    /// [factors](only_factors).
    pub(super) fn dense(asked: &Asked<'_, '_>, out_shape: &[usize]) -> Result<Self> {
        let factors = sparse_factors(asked.einsum, asked.operands);
        let table = met(asked, &factors)?;
        let filled = filled(asked, &factors)?;
        Self::over(asked, table, (&factors, filled), (None, out_shape))
    }

    /// Plans with a sparse output, one value per slot.
    pub(super) fn sampled(asked: &Asked<'_, '_>, out: AnyPattern<'_>) -> Result<Self> {
        let (einsum, operands) = (asked.einsum, asked.operands);
        only_factors(einsum, operands)?;
        let names = plain_indices(&einsum.out)?;
        if let Some(twice) = (1..names.len()).find(|&i| names[..i].contains(&names[i])) {
            let reason = format!("the sparse output `{}` has `{}` twice", einsum.out, names[twice]);
            return Err(refuse(einsum, reason));
        }
        if einsum.epilogue.bias.is_some() || einsum.epilogue.gate.is_some() {
            let reason = "a sparse output takes no bias and no gate".into();
            return Err(refuse(einsum, reason));
        }
        let factors = sparse_factors(einsum, operands);
        let own = out.shared();
        let mut all_aligned = true;
        for &f in &factors {
            let access = &einsum.factors[f];
            let tensor = find(operands, &access.tensor)?.pattern();
            let aligned = plain_indices(access)? == names && tensor.is_some_and(|t| out == t);
            all_aligned &= aligned;
        }
        let text = einsum.out.to_string();
        let filled = match all_aligned {
            // Stored zeros of the output only receive products of stored zeros.
            true => Vec::new(),
            false => filled(asked, &factors)?,
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
                tables.push(entries(asked, &einsum.factors[f])?);
            }
            join_all(tables, None, asked.context.device())?
        };
        Self::over(asked, table, (&factors, filled), (Some(own), &[out.slots()]))
    }

    /// Plans over a table of positions.
    fn over(
        asked: &Asked<'_, '_>,
        table: Table,
        (factors, filled): (&[usize], Vec<usize>),
        (out, out_shape): (Option<SharedPattern>, &[usize]),
    ) -> Result<Self> {
        let (rows, of) = (table.rows(), table.tensors.join(", "));
        let mut written = write_joined(asked.einsum, table, factors, out.is_some());
        written.indirect.filled = filled;
        let lists = written.lists.into_iter();
        let mut values = Vec::new();
        for (operand, name) in written.values {
            let pattern = match &out {
                Some(own) if operand == asked.einsum.out.tensor => own.clone(),
                _ => match find(asked.operands, &operand)?.pattern() {
                    Some(pattern) => pattern.shared(),
                    None => continue,
                },
            };
            values.push(Values { operand, name, pattern });
        }
        let lists: Vec<_> = lists.map(|(name, l)| (name, [l.len()], l)).collect();
        let inner = Inner { einsum: &written.einsum, indirect: written.indirect, out_shape };
        let plan = with_lists(
            &lists,
            &values,
            asked.operands,
            out.as_ref().map(|_| asked.einsum.out.tensor.as_str()),
            |own| inner.plan(asked, own),
        )?;
        Ok(Joined { plan: Box::new(plan), values, rows, of })
    }

    /// Returns the plan over the lists.
    pub(super) fn plan(&self) -> &AnyPlan {
        &self.plan
    }

    /// Queues a run. `out`: the dense output, or the values of the sparse output.
    pub(super) fn queue(
        &self,
        operands: &[(&str, AnyOperand<'_>)],
        out: &mut AnyTensor,
        stream: &Stream,
    ) -> Result<()> {
        let name = &self.plan.einsum().out.tensor;
        with_lists(&[], &self.values, operands, Some(name), |own| self.plan.run(own, out, stream))
    }

    /// Checks that a tensor has the planned pattern of the sparse output.
    pub(super) fn check_output(&self, name: &str, out: AnyPattern<'_>) -> Result<()> {
        let mut own = self.values.iter().filter(|v| v.operand == name);
        match own.find(|v| v.pattern.view() != out) {
            None => Ok(()),
            Some(v) => Err(Error::pattern(name, v.pattern.view(), out)),
        }
    }
}

/// Joins the sparse factors. The rows are in the order of the indices of the output.
fn met(asked: &Asked<'_, '_>, factors: &[usize]) -> Result<Table> {
    let einsum = asked.einsum;
    let tables = factors.iter().map(|&f| entries(asked, &einsum.factors[f]));
    let mut order = Vec::new();
    einsum.out.for_each_name(&mut |n| {
        if !order.contains(&n) {
            order.push(n);
        }
    });
    let tables = tables.collect::<Result<_>>()?;
    let device = asked.context.device();
    join_all(tables, Some(&order), device)
}

/// Rewrites an expression over the position lists of its sparse factors.
pub(super) fn over_lists(asked: &Asked<'_, '_>) -> Result<Written> {
    let factors = sparse_factors(asked.einsum, asked.operands);
    let table = met(asked, &factors)?;
    let mut written = write_joined(asked.einsum, table, &factors, false);
    written.indirect.filled = filled(asked, &factors)?;
    Ok(written)
}

/// Returns the factors in blocks or N:M. Lists contain their stored zeros, which runs skip.
fn filled(asked: &Asked<'_, '_>, factors: &[usize]) -> Result<Vec<usize>> {
    let mut filled = Vec::new();
    for &f in factors {
        let operand = find(asked.operands, &asked.einsum.factors[f].tensor)?;
        if operand.pattern().is_some_and(AnyPattern::holds_fill) {
            filled.push(f);
        }
    }
    Ok(filled)
}

/// Returns the stored slots of a sparse factor.
fn entries(asked: &Asked<'_, '_>, access: &Access) -> Result<Table> {
    let operand = find(asked.operands, &access.tensor)?;
    let Some(tensor) = operand.pattern() else {
        return Err(wrong(&access.tensor, "a sparse tensor", operand));
    };
    Table::entries(&access.to_string(), &plain_indices(access)?, tensor)
}

/// Parts of the plan over the lists.
struct Inner<'q> {
    einsum: &'q Einsum,
    indirect: IndirectEinsum,
    out_shape: &'q [usize],
}

impl Inner<'_> {
    fn plan(self, asked: &Asked<'_, '_>, operands: &[(&str, AnyOperand<'_>)]) -> Result<AnyPlan> {
        let mut shapes: BTreeMap<String, Vec<usize>> =
            operands.iter().map(|(name, o)| (name.to_string(), o.shape().to_vec())).collect();
        shapes.insert(self.einsum.out.tensor.clone(), self.out_shape.to_vec());
        // The original expression has been checked with its epilogue. Here the indices of the epilogue are slots of
        // lists.
        let mut bare = self.einsum.clone();
        bare.epilogue = Epilogue::default();
        let mut known = shapes.clone();
        let epilogue = &self.einsum.epilogue;
        for access in epilogue.bias.iter().chain(&epilogue.gate) {
            known.remove(&access.tensor);
        }
        let extents = bare.check(&known)?;
        let parts = (self.einsum.clone(), self.indirect, shapes);
        AnyPlan::chosen(
            (asked.context, asked.types),
            parts,
            extents,
            (operands, &[]),
            asked.options,
        )
    }
}

/// Runs a plan into the values of a sparse output.
pub(super) fn run_into(
    joined: &Joined,
    operands: &[(&str, AnyOperand<'_>)],
    (name, out): (&str, &mut AnySparseTensor),
    stream: &Stream,
) -> Result<()> {
    joined.check_output(name, out.pattern())?;
    let mut values = AnyTensor::of_values(out)?;
    match values.device() {
        Some(_) => joined.queue(operands, &mut values, stream),
        None => {
            joined.queue(operands, &mut values, stream)?;
            out.set_values(values.host().or_elsewhere(name)?)
        }
    }
}

impl Compiled for Joined {
    fn variant(&self) -> &'static str {
        self.plan.variant()
    }

    fn bytes(&self) -> usize {
        self.plan.workspace_bytes()
    }

    fn steps(&self) -> Option<String> {
        self.plan.made.steps()
    }

    fn run(&self, run: &Run<'_>, out: &mut AnyTensor) -> Result<()> {
        self.queue(run.operands, out, run.stream)
    }
}

impl fmt::Display for Joined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Joined { rows, of, plan, .. } = self;
        write!(f, "{plan}, over {rows} rows of positions of {of}")
    }
}
