//! Rows gathered for the entries of a sparse tensor and reduced, for reductions that an expression cannot state: one
//! output row for every stored fibre, or the largest product instead of the sum.

use einsparse_kernels::families::REDUCE_MAX;

use crate::context::Context;
use crate::device::Stream;
use crate::error::{Elsewhere, Error, Refusal, Result};
use crate::families::tensor::cost::rows::{RowsWork, predict_rows};
use crate::families::tensor::cpu::gathers;
use crate::families::tensor::fibres::{Fibres, RowsOf};
use crate::families::tensor::offers::rows::rows_of;
use crate::families::tensor::{RawRows, RowsExtents, RowsLaunch};
use crate::machine::Machine;
use crate::offer::PlannedPattern;
use crate::operator::Operator;
use crate::registry::Dtype;
use crate::tensor::{AnySparseTensor, AnyTensor};

/// Output row of each entry, the rows gathered for it, and their reduction.
pub(super) struct Gathered<'a> {
    /// Axes of the tensor that determine the output row.
    pub kept: &'a [usize],
    /// Axis of each factor.
    pub factors: &'a [usize],
    /// Rows of the output.
    pub rows: RowsOf,
    /// [`REDUCE_SUM`](einsparse_kernels::families::REDUCE_SUM), [`REDUCE_MAX`], or `REDUCE_MEAN` for values in f32.
    pub reduce: u32,
    /// Element type of factors and output.
    pub dtype: Dtype,
    /// Columns of factors and output.
    pub n: usize,
}

/// Prepared reduction for one pattern; runs with new values allocate nothing.
#[derive(Debug)]
pub(super) struct RowsRun {
    operator: Operator<RowsLaunch>,
    fibres: Fibres,
    pattern: PlannedPattern,
    max: bool,
    n: usize,
}

impl RowsRun {
    pub(super) fn new(
        context: &Context,
        tensor: &AnySparseTensor,
        asked: &Gathered<'_>,
        variant: Option<&str>,
    ) -> Result<Self> {
        let pattern = tensor.pattern();
        let fibres = Fibres::new(pattern, asked.kept, asked.factors, asked.rows)?;
        let mut fibres = fibres.ok_or_else(|| Error::not_walked("T", pattern.format()))?;
        let operator = Operator::new(context, |device| {
            let row = cheapest(device.machine(), tensor, asked, &fibres, variant)?;
            let extents = RowsExtents { n: asked.n, accumulate: false };
            RowsLaunch::new(device, row, &fibres, extents)
        })?;
        if context.is_cuda() {
            // The launch has copied both to the device.
            fibres.places = Vec::new();
            fibres.permutation = None;
        }
        Ok(RowsRun {
            operator,
            fibres,
            pattern: PlannedPattern::new("T", pattern),
            max: asked.reduce == REDUCE_MAX,
            n: asked.n,
        })
    }

    /// Returns the number of rows of the output.
    pub(super) fn count(&self) -> usize {
        self.fibres.count
    }

    /// Returns [`Fibres::keys`].
    pub(super) fn keys(&self) -> &[u64] {
        &self.fibres.keys
    }

    pub(super) fn variant(&self) -> &'static str {
        self.operator.variant(|launch| launch.row().name)
    }

    /// Returns the device memory in bytes, operands excluded.
    pub(super) fn bytes(&self) -> usize {
        self.operator.bytes(RowsLaunch::bytes)
    }

    /// Queues a run. The tensor has the planned pattern, and each factor has as many rows as its axis is long.
    pub(super) fn run<'t>(
        &self,
        tensor: &AnySparseTensor,
        factors: &[(&str, &'t AnyTensor)],
        name: &str,
        out: &mut AnyTensor,
        stream: &Stream,
    ) -> Result<()> {
        let run = self.operator.start(stream)?;
        self.pattern.expect("T", tensor.pattern())?;
        let to = run.matrix(name, out, &[self.fibres.count, self.n])?;
        let mut raw = RawRows {
            values: run.values("T", tensor)?,
            factors: [(0, 0); 3],
            out: (to.address, to.leading),
            alpha: 1.0,
        };
        for (to, (name, factor)) in raw.factors.iter_mut().zip(factors) {
            run.check_context(name, factor)?;
            *to = (factor.place(), factor.leading());
        }
        run.queue(
            |launch, queue| launch.run(&raw, queue),
            || {
                let host = tensor.host().or_elsewhere("T")?;
                let matrix = |(name, factor): &(&str, &'t AnyTensor)| {
                    Ok((factor.host().or_elsewhere(name)?, factor.leading()))
                };
                let matrices = factors.iter().map(matrix).collect::<Result<Vec<_>>>()?;
                let to = (out.host_mut().or_elsewhere(name)?, to.leading, self.n);
                gathers(&self.fibres, host, &matrices, to, self.max);
                Ok(())
            },
        )
    }
}

/// Returns the kernel with the lowest predicted time.
fn cheapest(
    machine: &Machine,
    tensor: &AnySparseTensor,
    asked: &Gathered<'_>,
    fibres: &Fibres,
    variant: Option<&str>,
) -> Result<&'static einsparse_kernels::table::Row> {
    let work = RowsWork {
        entries: fibres.runs.total,
        rows: fibres.count as u64,
        factor_rows: asked.factors.iter().map(|&axis| tensor.shape()[axis] as u64).sum(),
        factors: asked.factors.len() as u64,
        n: asked.n,
        accumulate: false,
        ordered: fibres.permutation.is_some(),
    };
    let us = |row: &&einsparse_kernels::table::Row| predict_rows(row, &work, machine).us;
    rows_of(asked.dtype, asked.factors.len(), asked.reduce)
        .filter(|row| asked.n.is_multiple_of(row.vector as usize))
        .filter(|row| variant.is_none_or(|name| name == row.name))
        .min_by(|a, b| us(a).total_cmp(&us(b)))
        .ok_or_else(|| {
            let indirect =
                format!("{} factors, {} columns of {}", work.factors, asked.n, asked.dtype.name());
            let reason = "the table has rows for one to three factors in f32, f64, f16 and bf16";
            Error::no_kernel(indirect, [Refusal::of("mttkrp", reason)])
        })
}
