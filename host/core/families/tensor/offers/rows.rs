//! Plans of module `mttkrp`: rows are gathered per nonzero of a sparse tensor of any order, multiplied, and summed by
//! row.

use std::sync::Arc;

use einsparse_formats::{AnyPattern, Format};
use einsparse_kernels::families::{REDUCE_SUM, rows_step};
use einsparse_kernels::table::{Row, kernels};

use super::{alignment, matrices, slots};
use crate::device::Device;
use crate::einsum::Mode;
use crate::error::{Error, Result};
use crate::families::tensor::cost::rows::{RowsWork, predict_rows};
use crate::families::tensor::fibres::{Fibres, RowsOf};
use crate::families::tensor::{RawRows, RowsExtents, RowsLaunch};
use crate::indirect::{IndirectEinsum, RowsForm};
use crate::offer::{
    AnyOut, Executable, Offer, Offers, PlannedPattern, Request, Run, Slot, of_launch, refuse,
};
use crate::registry::{Dtype, Operation};
use crate::tensor::{AnyOperand, volume};
use crate::worklist::Runs;

const FAMILY: &str = "mttkrp";

/// Returns the kernels of the family that can run the expression.
pub(crate) fn offers<'q>(request: &'q Request<'q, '_>) -> Result<Offers<'q>> {
    let refused = |reason: &str| Err(refuse(FAMILY, reason));
    let Some(form) = request.indirect.as_rows() else {
        return refused(
            "sums value x rows of one to three dense matrices [axis,r] over the entries of one sparse tensor, \
             into [axes..,r]",
        );
    };
    if !request.types.alike() {
        return refused("its outputs have the type of the operands");
    }
    let pattern = match request.operand(&form.sparse)? {
        AnyOperand::Sparse(a) => a.pattern(),
        AnyOperand::HostSparse(pattern, _) => *pattern,
        _ => return refused("walks a sparse tensor"),
    };
    if let Some(reason) = unfit(request.indirect, pattern) {
        return refused(&reason);
    }
    let n = request.extents.out().last().copied().unwrap_or(0);
    let names = form.factors.iter().map(|(name, _)| name);
    let alignment = alignment(request, names.chain([&form.output]), n);
    let mut offers = Offers::new();
    for row in rows_of(request.types.operands, form.factors.len(), REDUCE_SUM) {
        let asked = request.options.variant.as_deref() == Some(row.name);
        if row.vector as usize > alignment || (row.columns as usize >= 4 * n.max(8) && !asked) {
            continue;
        }
        let work = work(&form, pattern, request, n);
        let cost = predict_rows(row, &work, request.machine);
        let form = form.clone();
        offers.push(Ok(Offer::of(row, cost, move |device| {
            RowsPlan::new(request, device, row, form.clone(), n)
        })));
    }
    Ok(offers)
}

/// Returns the table rows for `factors` factors and this reduction.
pub(crate) fn rows_of(
    dtype: Dtype,
    factors: usize,
    reduce: u32,
) -> impl Iterator<Item = &'static Row> {
    kernels().iter().filter(move |row| {
        row.operation == Operation::Rows
            && row.step == rows_step(factors, reduce)
            && row.dtype == dtype
    })
}

/// Returns the reason why the family does not support this tensor. Other families multiply matrices in row order.
fn unfit(indirect: &IndirectEinsum, pattern: AnyPattern<'_>) -> Option<String> {
    let format = pattern.format();
    let known = matches!(format, Format::Coo | Format::Csr | Format::Csc | Format::GroupCoo { .. });
    if !known {
        return Some(format!("walks coo, group-coo, csr and csc, the operand is {format}"));
    }
    let product = indirect.as_spmm().is_some_and(|form| !form.stacked);
    // Planning the product rejects lists of rows that are too long.
    (product && !matches!(Runs::of_pattern(pattern), Ok(None)))
        .then(|| "is a product of a matrix, which the families for that compute".into())
}

fn work(form: &RowsForm, pattern: AnyPattern<'_>, request: &Request<'_, '_>, n: usize) -> RowsWork {
    let shape = pattern.shape();
    let rows = request.extents.out().split_last().map_or(1, |(_, outer)| volume(outer));
    let in_order = match pattern.format() {
        Format::Coo | Format::Csr => (0..form.rows.len()).eq(form.rows.iter().copied()),
        Format::Csc => form.rows == [1],
        _ => false,
    };
    RowsWork {
        entries: pattern.nnz() as u64,
        rows: rows as u64,
        factor_rows: form.factors.iter().map(|(_, axis)| shape[*axis] as u64).sum(),
        factors: form.factors.len() as u64,
        n,
        accumulate: form.mode == Mode::Accumulate,
        ordered: !in_order,
    }
}

/// Kernel prepared for one pattern.
#[derive(Debug)]
pub(super) struct RowsPlan {
    launch: RowsLaunch,
    sparse: Slot,
    factors: Vec<Slot>,
    pattern: PlannedPattern,
}

impl RowsPlan {
    /// Prepares the sparse operand of the request, if it is in device memory.
    fn new(
        request: &Request<'_, '_>,
        device: &Arc<Device>,
        row: &'static Row,
        form: RowsForm,
        n: usize,
    ) -> Result<Self> {
        let pattern = match request.operand(&form.sparse)? {
            AnyOperand::Sparse(a) => a.pattern(),
            AnyOperand::HostSparse(..) => return Err(Error::on_host(form.sparse)),
            _ => return Err(Error::elsewhere(&form.sparse)),
        };
        let of_factors: Vec<usize> = form.factors.iter().map(|(_, axis)| *axis).collect();
        let fibres = Fibres::new(pattern, &form.rows, &of_factors, RowsOf::All)?;
        let fibres = fibres.ok_or_else(|| {
            Error::format(&form.sparse, "a format whose slots have coordinates", pattern.format())
        })?;
        let extents = RowsExtents { n, accumulate: form.mode == Mode::Accumulate };
        Ok(RowsPlan {
            launch: RowsLaunch::new(device, row, &fibres, extents)?,
            pattern: PlannedPattern::new(&form.sparse, pattern),
            sparse: request.slot(&form.sparse)?,
            factors: slots(request, &form.factors)?,
        })
    }
}

of_launch!(RowsPlan);

impl Executable for RowsPlan {
    of_launch!();

    fn run(&self, run: &Run<'_>, out: AnyOut<'_>) -> Result<()> {
        let out = run.dense(out)?;
        let queue = run.queue(out)?;
        let arrays = self.pattern.arrays(run.operand(self.sparse)?)?;
        let alpha = run.factor()?;
        let raw = RawRows {
            values: arrays.values.address(),
            factors: matrices(run, &self.factors)?,
            out: run.output(out)?,
            alpha,
        };
        self.launch.run(&raw, queue)
    }
}
