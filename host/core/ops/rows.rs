//! Rows gathered for the entries of a sparse tensor and reduced, for reductions that an expression cannot state: one
//! output row for every stored fibre, or the largest product instead of the sum.

use std::sync::Arc;

use einsparse_kernels::families::REDUCE_MAX;

use crate::context::{Context, Shadow};
use crate::device::Stream;
use crate::error::{Elsewhere, Error, Refusal, Result, check_shape};
use crate::families::tensor::cost::rows::{RowsWork, predict_rows};
use crate::families::tensor::cpu::gathers;
use crate::families::tensor::fibres::{Fibres, RowsOf};
use crate::families::tensor::offers::rows::rows_of;
use crate::families::tensor::{RawRows, RowsExtents, RowsLaunch};
use crate::kernel::Queue;
use crate::offer::PlannedPattern;
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

#[derive(Debug)]
enum Exec {
    Gpu(Box<RowsLaunch>),
    Cpu,
}

/// Prepared reduction for one pattern; runs with new values allocate nothing.
#[derive(Debug)]
pub(super) struct RowsRun {
    exec: Exec,
    shadow: Shadow<RowsRun>,
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
        let exec = match context.device() {
            None => Exec::Cpu,
            Some(device) => {
                let row = cheapest(context, tensor, asked, &fibres, variant)?;
                let extents = RowsExtents { n: asked.n, accumulate: false };
                let launch = RowsLaunch::new(device, row, &fibres, extents)?;
                // The launch has copied both to the device.
                fibres.places = Vec::new();
                fibres.permutation = None;
                Exec::Gpu(Box::new(launch))
            }
        };
        Ok(RowsRun {
            exec,
            shadow: Shadow::new(context, |context| {
                Self::new(context, &tensor.shadow()?, asked, variant)
            })?,
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
        match &self.exec {
            Exec::Gpu(launch) => launch.row().name,
            Exec::Cpu => "cpu",
        }
    }

    /// Returns the device memory in bytes, operands excluded.
    pub(super) fn bytes(&self) -> usize {
        match &self.exec {
            Exec::Gpu(launch) => launch.bytes(),
            Exec::Cpu => 0,
        }
    }

    /// Queues a run. The tensor has the planned pattern, and each factor has as many rows as its axis is long.
    pub(super) fn run<'t>(
        &self,
        tensor: &AnySparseTensor,
        factors: &[(&str, &'t AnyTensor)],
        (name, out): (&str, &mut AnyTensor),
        stream: &Stream,
    ) -> Result<()> {
        self.shadow.look(stream, |own, stream| {
            let shadows: Vec<AnyTensor> = factors.iter().map(|(_, own)| own.shadow()).collect();
            let names = factors.iter().map(|(name, _)| *name);
            let factors: Vec<_> = names.zip(&shadows).collect();
            let out = (name, &mut out.shadow());
            own.run(&tensor.shadow()?, &factors, out, stream)
        })?;
        self.pattern.expect("T", tensor.pattern())?;
        check_shape(name, &[self.fibres.count, self.n], out.shape())?;
        match &self.exec {
            Exec::Cpu => {
                let Some(host) = tensor.host() else {
                    return Err(Error::elsewhere("T"));
                };
                let matrix = |(name, factor): &(&str, &'t AnyTensor)| {
                    let values = factor.host().or_elsewhere(name)?;
                    Ok((values, factor.leading()))
                };
                let matrices = factors.iter().map(matrix).collect::<Result<Vec<_>>>()?;
                let leading = out.leading();
                let to = out.host_mut().or_elsewhere(name)?;
                let to = (to, leading, self.n);
                gathers(&self.fibres, host, &matrices, to, self.max);
                Ok(())
            }
            Exec::Gpu(launch) => {
                let raw = self.addresses(launch, tensor, factors, (name, out), stream)?;
                // SAFETY: pattern, shapes and addresses were validated. The tensors are borrowed for the call, and
                // device memory is freed only after the work queued on the context.
                let queue = unsafe { Queue::new(stream.raw()) };
                launch.run(&raw, queue)
            }
        }
    }

    fn addresses(
        &self,
        launch: &RowsLaunch,
        tensor: &AnySparseTensor,
        factors: &[(&str, &AnyTensor)],
        (name, out): (&str, &AnyTensor),
        stream: &Stream,
    ) -> Result<RawRows> {
        let device = launch.device();
        let here = |name: &str, on: Option<&Arc<crate::device::Device>>| match on {
            Some(on) if on.is_same(device) => Ok(()),
            _ => Err(Error::elsewhere(name)),
        };
        if !stream.belongs_to(device) {
            return Err(Error::elsewhere("stream"));
        }
        here("T", tensor.device().map(|arrays| &arrays.device))?;
        here(name, out.device())?;
        let mut raw = RawRows {
            values: tensor.values_address().unwrap_or(0),
            factors: [(0, 0); 3],
            out: (out.address().unwrap_or(0), out.leading()),
            alpha: 1.0,
        };
        for (to, (name, factor)) in raw.factors.iter_mut().zip(factors) {
            here(name, factor.device())?;
            *to = (factor.address().unwrap_or(0), factor.leading());
        }
        Ok(raw)
    }
}

/// Returns the kernel with the lowest predicted time.
fn cheapest(
    context: &Context,
    tensor: &AnySparseTensor,
    asked: &Gathered<'_>,
    fibres: &Fibres,
    variant: Option<&str>,
) -> Result<&'static einsparse_kernels::table::Row> {
    let machine = context.machine();
    let work = RowsWork {
        entries: fibres.runs.total,
        rows: fibres.count as u64,
        factor_rows: asked.factors.iter().map(|&axis| tensor.shape()[axis] as u64).sum(),
        factors: asked.factors.len() as u64,
        n: asked.n,
        accumulate: false,
        ordered: fibres.permutation.is_some(),
    };
    let us = |row: &&einsparse_kernels::table::Row| predict_rows(row, &work, &machine).us;
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
