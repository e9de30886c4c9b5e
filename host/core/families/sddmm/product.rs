//! Products at the nonzeros of a sparse output (SDDMM), bound to their operands, on a GPU and on the CPU.

use std::fmt;
use std::sync::Arc;

use einsparse_kernels::families::{SampledParams, SddmmStagedParams, SddmmTilesParams};
use einsparse_kernels::table::Row;

use super::cpu::{Slots, Strided, sampled};
use super::sampled::Sampler;
use super::sddmm::Sddmm;
use super::sddmm_staged::SddmmStaged;
use super::sddmm_tiles::SddmmTiles;
use crate::device::Device;
use crate::driver::DevicePtr;
use crate::einsum::Mode;
use crate::error::{Elsewhere, Error, Result};
use crate::indirect::SampledForm;
use crate::kernel::Queue;
use crate::launch::{Product, RawOperands, RawSddmm};
use crate::offer::{
    AnyOut, Executable, Expression, PlannedPattern, Request, Run, Slot, of_launch, refuse, wrong,
};
use crate::registry::{Dtype, block_of};
use crate::tensor::{AnyOperand, AnySparseTensor};
use crate::values::Slice;
use crate::worklist::Runs;

/// Form, extents, and slots of the operands.
#[derive(Debug)]
pub(crate) struct SddmmShape {
    pub(crate) form: SampledForm,
    pub(crate) extents: SddmmExtents,
    x: Slot,
    y: Slot,
    mask: Option<Slot>,
}

impl SddmmShape {
    pub(crate) fn new(request: &Request<'_, '_>, out: &AnySparseTensor) -> Result<Self> {
        let mut sparse = request.operands().iter().filter(|(_, o)| o.pattern().is_some());
        let mask = sparse.next().map(|(name, _)| *name);
        let form = SampledForm::of(request.einsum, mask)
            .ok_or_else(|| refuse("sampled", "computes S[m,n] (=|+=) P[m,n] * X[m,k] * Y[n,k]"))?;
        let &[m, n] = out.shape() else {
            return Err(refuse("sampled", "computes at the places of a matrix"));
        };
        let x = request.operand(&form.x.name)?.shape();
        let k = x.get(usize::from(!form.x.columns)).copied().unwrap_or(0);
        Ok(SddmmShape {
            extents: SddmmExtents { m, n, k },
            x: request.slot(&form.x.name)?,
            y: request.slot(&form.y.name)?,
            mask: form.mask.as_ref().map(|name| request.slot(name)).transpose()?,
            form,
        })
    }

    /// Checks that the addresses contain a mask if and only if the plan has one.
    fn check_mask(&self, raw: &RawSddmm) -> Result<()> {
        match (self.mask.is_some(), raw.mask != 0) {
            (true, false) => Err(Error::at_zero("mask")),
            (false, true) => {
                let found = format!("{:#x}", raw.mask);
                Err(Error::range("address of the mask", found, "0: the plan has no mask"))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the rows and the columns of a sparse matrix in row order: of blocks, or of nonzeros.
pub(crate) fn row_order<'a>(
    name: &str,
    s: &'a AnySparseTensor,
) -> Result<(&'a Arc<Runs>, &'a [u32])> {
    s.row_order().ok_or_else(|| Error::format(name, "a format in row order", s.format()))
}

/// Extents of an SDDMM: m rows, n columns, k terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SddmmExtents {
    pub m: usize,
    pub n: usize,
    pub k: usize,
}

/// Pattern at which a kernel computes products.
#[derive(Clone, Copy)]
pub(crate) struct Places<'a> {
    pub(crate) runs: &'a Runs,
    pub(crate) columns: &'a [u32],
    pub(crate) block: (usize, usize),
}

/// Prepares the kernel of a row.
fn launch(
    device: &Device,
    row: &'static Row,
    extents: SddmmExtents,
    (mode, out): (Mode, Dtype),
    places: Places<'_>,
) -> Result<Box<dyn Product<RawSddmm>>> {
    let pattern = (places.runs, places.columns);
    Ok(if row.takes::<SampledParams>() {
        Box::new(Sampler::new(device, row, extents, mode, places)?)
    } else if row.takes::<SddmmTilesParams>() {
        Box::new(SddmmTiles::new(device, row, extents, mode, pattern)?)
    } else if row.takes::<SddmmStagedParams>() {
        Box::new(SddmmStaged::new(device, row, extents, mode, pattern)?)
    } else {
        Box::new(Sddmm::new(device, row, extents, (mode, out), places.runs)?)
    })
}

/// Kernel of a product, and the slots of its operands.
#[derive(Debug)]
pub(crate) struct SddmmProduct {
    launch: Box<dyn Product<RawSddmm>>,
    shape: Arc<SddmmShape>,
    /// Pattern of the output and of the mask.
    pattern: PlannedPattern,
}

impl SddmmProduct {
    /// Prepares the kernel of a row for the pattern of the output.
    pub(crate) fn new(
        device: &Device,
        row: &'static Row,
        shape: Arc<SddmmShape>,
        dtype: Dtype,
        out: &AnySparseTensor,
    ) -> Result<Self> {
        let SampledForm { output, mode, .. } = &shape.form;
        let (runs, columns) = row_order(output, out)?;
        let places = Places { runs, columns, block: block_of(&out.format()) };
        Ok(SddmmProduct {
            launch: launch(device, row, shape.extents, (*mode, dtype), places)?,
            pattern: PlannedPattern::new(output, out.pattern()),
            shape,
        })
    }

    /// Returns the addresses of the columns and the values of a sparse tensor of the planned pattern.
    fn arrays_of(
        &self,
        run: &Run<'_>,
        name: &str,
        s: &AnySparseTensor,
    ) -> Result<(DevicePtr, DevicePtr)> {
        let device = run.of.context.expect_device()?;
        self.pattern.expect(name, s.pattern())?;
        match s.device().filter(|arrays| arrays.device.is_same(device)) {
            Some(arrays) => Ok((arrays.columns.address(), arrays.values.address())),
            None => {
                let found = format!("{} {:?}", s.format(), s.pattern().shape());
                Err(Error::other_pattern(name, "", found))
            }
        }
    }
}

impl Executable for SddmmProduct {
    of_launch!();

    fn run(&self, run: &Run<'_>, out: AnyOut<'_>) -> Result<()> {
        let out = run.sparse(out)?;
        let alpha = run.factor()?;
        // `arrays_of` validates the output and the patterns.
        let queue = run.queue_of_operands()?;
        let (x, ldx) = run.tensor(self.shape.x)?;
        let (y, ldy) = run.tensor(self.shape.y)?;
        let mask = match self.shape.mask {
            None => 0,
            Some(slot) => match run.operand(slot)? {
                AnyOperand::Sparse(s) => self.arrays_of(run, run.name(slot), s)?.1,
                other => return Err(wrong(run.name(slot), "an uploaded sparse tensor", other)),
            },
        };
        let (columns, values) = self.arrays_of(run, run.of.output(), out)?;
        let raw = RawSddmm { columns, x, ldx, y, ldy, mask, values, alpha };
        self.launch.run(&raw, queue)
    }

    fn run_raw(&self, of: &Expression, raw: RawOperands<'_>, queue: Queue<'_>) -> Result<()> {
        let RawOperands::Sddmm(raw) = raw else {
            return Err(of.no_addresses(self.variant(), raw));
        };
        self.shape.check_mask(raw)?;
        self.launch.run(raw, queue)
    }
}

impl fmt::Display for SddmmProduct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.launch.row().name, self.launch.describe())
    }
}

/// Product on the CPU.
#[derive(Debug)]
pub(crate) struct OnCpu {
    shape: SddmmShape,
    out: PlannedPattern,
}

impl OnCpu {
    pub(crate) fn new(request: &Request<'_, '_>, out: &AnySparseTensor) -> Result<Self> {
        let shape = SddmmShape::new(request, out)?;
        Ok(OnCpu { out: PlannedPattern::new(&shape.form.output, out.pattern()), shape })
    }

    /// Values of a mask in host memory.
    fn mask<'a>(&self, run: &Run<'a>, slot: Slot) -> Result<Slice<'a>> {
        let name = run.name(slot);
        let mask = match run.operand(slot)? {
            AnyOperand::Sparse(mask) => mask,
            other => return Err(wrong(name, "an uploaded sparse tensor", other)),
        };
        self.out.expect(name, mask.pattern())?;
        mask.host().or_elsewhere(name)
    }
}

impl Executable for OnCpu {
    fn variant(&self) -> &'static str {
        "cpu"
    }

    fn bytes(&self) -> usize {
        0
    }

    fn run(&self, run: &Run<'_>, out: AnyOut<'_>) -> Result<()> {
        let out = run.sparse(out)?;
        let SddmmShape { form, extents, .. } = &self.shape;
        let alpha = run.factor()?;
        self.out.expect(&form.output, out.pattern())?;
        let x = strided(run, self.shape.x, form.x.columns)?;
        let y = strided(run, self.shape.y, form.y.columns)?;
        let mask = self.shape.mask.map(|slot| self.mask(run, slot)).transpose()?;
        let (runs, columns) = row_order(&form.output, out)?;
        let (runs, columns) = (Arc::clone(runs), columns.to_vec());
        let slots = Slots {
            runs: &runs,
            columns: &columns,
            block: block_of(&out.format()),
            extents: (extents.m, extents.n),
        };
        let values = out.host_mut().or_elsewhere(&form.output)?;
        let accumulate = form.mode == Mode::Accumulate;
        sampled([x, y], extents.k, slots, (alpha, mask, accumulate), values);
        Ok(())
    }
}

impl fmt::Display for OnCpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cpu: at the places of the output")
    }
}

/// Dense factor in host memory, by its own index and k. `columns`: k is its first axis.
fn strided<'a>(run: &Run<'a>, slot: Slot, columns: bool) -> Result<Strided<'a>> {
    let name = run.name(slot);
    let (values, leading) = match run.operand(slot)? {
        AnyOperand::Dense(d) => (d.host().or_elsewhere(name)?, d.leading()),
        AnyOperand::HostDense(shape, values) => (*values, shape[1]),
        other => return Err(wrong(name, "a dense tensor", other)),
    };
    let (row, k) = if columns { (1, leading) } else { (leading, 1) };
    Ok(Strided { values, row, k })
}
