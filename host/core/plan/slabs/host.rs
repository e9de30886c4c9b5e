//! CPU version of streaming: chunks are copied to buffers one after the other, and the CPU executor multiplies them
//! there.

use std::fmt;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use einsparse_formats::{CsrPattern, Format, SharedPattern};

use super::{Predicted, Shown, given_in};
use crate::context::Context;
use crate::cpu::{self, AnyOperands, AnyOutput};
use crate::error::{Elsewhere, Error, Result};
use crate::families::spmm::slabs::Layout;
use crate::indirect::{BiasAxis, IndirectEinsum, SpmmForm, rewrite};
use crate::offer::{AnyOut, Executable, PlannedPattern, Request, Run, Slot, wrong};
use crate::tensor::{AnyOperand, AnyTensor, HostArrays, row_major};
use crate::values::{Slice, with_type};
use crate::worklist::{Runs, Slab};

#[derive(Debug)]
pub(super) struct OnHost {
    context: Context,
    /// Rewritten for CSR, the format of chunks.
    indirect: IndirectEinsum,
    slot: Slot,
    pattern: PlannedPattern,
    runs: Runs,
    layout: Layout,
    /// Operand of which each chunk reads its own rows: a bias.
    by_rows: Option<Slot>,
    buffers: Mutex<Vec<Vec<u64>>>,
    element: usize,
    shown: (Predicted, usize),
}

impl OnHost {
    pub(super) fn new(
        request: &Request<'_, '_>,
        form: &SpmmForm,
        (layout, element): (Layout, usize),
        (slot, pattern): (Slot, PlannedPattern),
        shown: (Predicted, usize),
    ) -> Result<Self> {
        let Some(runs) = Runs::of_pattern(pattern.planned())? else {
            let (name, found) = (pattern.name(), pattern.planned().format());
            return Err(Error::format(name, "a format that stores rows", found));
        };
        let words = layout.buffer_bytes.div_ceil(8);
        let by_rows = form.bias.as_ref().filter(|(_, axis)| *axis == BiasAxis::Rows);
        Ok(OnHost {
            context: request.context.clone(),
            indirect: rewrite(request.einsum, pattern.name(), &Format::Csr)?,
            by_rows: by_rows.map(|(name, _)| request.slot(name)).transpose()?,
            buffers: Mutex::new(vec![vec![0; words]; layout.buffers]),
            runs,
            slot,
            pattern,
            layout,
            element,
            shown,
        })
    }

    fn copy(&self, (slab, at): (&Slab, usize), from: HostArrays<'_>, buffer: &mut [u64]) {
        let [values, _] = self.layout.places(at, self.element);
        let own = from.values.from(slab.slots.start).first(slab.slots.len());
        let columns: &[u8] = bytemuck::cast_slice(&from.columns[slab.slots.clone()]);
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(buffer);
        bytes[..columns.len()].copy_from_slice(columns);
        bytes[values..values + own.bytes().len()].copy_from_slice(own.bytes());
    }

    /// Computes the rows of a chunk from its buffer.
    fn product(
        &self,
        (slab, at): (&Slab, usize),
        buffer: &[u64],
        run: &Run<'_>,
        out: &mut AnyTensor,
    ) -> Result<()> {
        let dtype = run.of.types.operands;
        let [values, _] = self.layout.places(at, dtype.bytes());
        let own = self.runs.part(slab);
        // The buffer may begin with some nonzeros of the previous row.
        let filled = own.rows.iter().filter(|(_, len)| *len > 0);
        let first = filled.map(|(start, _)| *start as usize).min().unwrap_or(0);
        let count = own.total as usize;
        let bytes: &[u8] = bytemuck::cast_slice(buffer);
        let columns: &[u32] = bytemuck::cast_slice(&bytes[..(first + count) * 4]);
        let [start, end] = [first, first + count].map(|slot| values + slot * dtype.bytes());
        let values =
            with_type!(dtype, T => Slice::of::<T>(bytemuck::cast_slice(&bytes[start..end])));
        let mut offsets = vec![0];
        let mut next = 0;
        offsets.extend(own.rows.iter().map(|(_, len)| {
            next += len;
            next
        }));
        let k = self.pattern.planned().shape()[1];
        let pattern = CsrPattern::new(slab.rows.len(), k, offsets, columns[first..].to_vec())?;
        let pattern = SharedPattern::from(pattern);
        let mut bound = AnyOperands::default();
        bound.sparse(&self.indirect, pattern.view(), values)?;
        for (slot, name, operand) in run.named() {
            if slot == self.slot || name == run.of.output() {
                continue;
            }
            let rows = (self.by_rows == Some(slot)).then(|| slab.rows.clone());
            bind(&mut bound, name, operand, rows)?;
        }
        let (width, leading) = (out.shape()[1], out.leading());
        let values = out.host_mut().or_elsewhere(run.of.output())?;
        let reach = [slab.rows.start, slab.rows.end].map(|row| (row * leading).min(values.len()));
        let values = values.part(reach[0], reach[1] - reach[0]);
        let output = AnyOutput::new(&[slab.rows.len(), width], leading, values)?;
        cpu::run_any(dtype, &self.indirect, &bound, output)
    }
}

/// Binds an operand, or some of its rows.
fn bind<'a>(
    bound: &mut AnyOperands<'a>,
    name: &str,
    operand: &AnyOperand<'a>,
    rows: Option<Range<usize>>,
) -> Result<()> {
    let (shape, strides, values) = match operand {
        AnyOperand::Dense(d) | AnyOperand::Dynamic(d, _) => {
            let values = d.host().or_elsewhere(name)?;
            (d.shape(), d.strides(), values)
        }
        AnyOperand::HostDense(shape, values) => (*shape, row_major(shape), *values),
        AnyOperand::Scalar(x) => {
            bound.scalar(name, *x);
            return Ok(());
        }
        other => {
            return Err(wrong(name, "a dense tensor or a number", other));
        }
    };
    let (mut shape, mut values) = (shape.to_vec(), values);
    if let (Some(rows), Some(extent)) = (rows, shape.first_mut()) {
        *extent = rows.len();
        values = values.from((rows.start * strides[0]).min(values.len()));
    }
    bound.strided(name, &shape, &strides, values)
}

impl Executable for OnHost {
    fn variant(&self) -> &'static str {
        "cpu"
    }

    /// Returns the bytes that the plan would use on a GPU.
    fn bytes(&self) -> usize {
        self.layout.bytes()
    }

    fn run(&self, run: &Run<'_>, out: AnyOut<'_>) -> Result<()> {
        let out = run.dense(out)?;
        run.factor()?;
        let from = given_in(&self.pattern, run.of.types.operands, run.operand(self.slot)?)?;
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let slabs = self.layout.slabs.iter().zip(0..);
        for slab in slabs {
            let buffer = &mut buffers[slab.1 % self.layout.buffers];
            self.copy(slab, from, buffer);
            self.product(slab, buffer, run, out)?;
        }
        Ok(())
    }
}

impl fmt::Display for OnHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = Shown {
            layout: &self.layout,
            element: self.element,
            predicted: self.shown.0,
            limit: self.shown.1,
        };
        write!(f, "cpu: parallel executor on {}, as a GPU would: {shown}", self.context)
    }
}
