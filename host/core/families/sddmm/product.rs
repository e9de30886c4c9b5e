//! Products at the nonzeros of a sparse output (SDDMM), bound to their operands, on a GPU and on the CPU.

use std::fmt;
use std::sync::Arc;

use einsparse_formats::Format;

use super::cpu::{Slots, Strided, sampled};
use super::{SddmmExtents, SddmmLaunch};
use crate::driver::DevicePtr;
use crate::einsum::Mode;
use crate::error::{Elsewhere, Error, Result};
use crate::indirect::{SampledFactor, SampledForm};
use crate::kernel::Queue;
use crate::launch::RawSddmm;
use crate::offer::bind::{find, wrong};
use crate::offer::{Compiled, Expression, PlannedPattern, Run, of_launch};
use crate::registry::block_of;
use crate::tensor::{AnyOperand, AnySparseTensor};
use crate::values::Slice;
use crate::worklist::Runs;

/// Product of two dense matrices at the nonzeros of a matrix in row order.
#[derive(Debug)]
pub(crate) struct Product {
    pub(crate) form: SampledForm,
    pub(crate) extents: SddmmExtents,
    /// Format of the output.
    pub(crate) format: Format,
}

/// Index arrays of a sparse matrix in row order: columns of blocks or of nonzeros.
pub(crate) struct Pattern<'a> {
    pub(crate) runs: &'a Arc<Runs>,
    pub(crate) columns: &'a [u32],
}

pub(crate) fn pattern<'a>(name: &str, s: &'a AnySparseTensor) -> Result<Pattern<'a>> {
    let (runs, columns) =
        s.row_order().ok_or_else(|| Error::format(name, "a format in row order", s.format()))?;
    Ok(Pattern { runs, columns })
}

impl Product {
    /// Checks that the addresses contain a mask if and only if the plan has one.
    fn check_mask(&self, raw: &RawSddmm) -> Result<()> {
        match (self.form.mask.is_some(), raw.mask != 0) {
            (true, false) => Err(Error::at_zero("mask")),
            (false, true) => {
                let found = format!("{:#x}", raw.mask);
                Err(Error::range("address of the mask", found, "0: the plan has no mask"))
            }
            _ => Ok(()),
        }
    }
}

/// Product with its kernel.
#[derive(Debug)]
pub(crate) struct OnGpu {
    pub(crate) product: Product,
    pub(crate) launch: Box<dyn SddmmLaunch>,
}

impl OnGpu {
    /// Addresses of the columns and the values of a sparse tensor of the planned pattern.
    fn arrays_of(
        &self,
        run: &Run<'_>,
        name: &str,
        s: &AnySparseTensor,
    ) -> Result<(DevicePtr, DevicePtr)> {
        let device = run.of.context.expect_device()?;
        let own = pattern(name, s)?;
        let arrays = s.device().filter(|arrays| arrays.device.is_same(device));
        match arrays {
            Some(arrays)
                if s.format() == self.product.format && self.launch.fits(own.runs, own.columns) =>
            {
                Ok((arrays.columns.address(), arrays.values.address()))
            }
            _ => {
                let found = format!("{} {:?}", s.format(), s.pattern().shape());
                Err(Error::other_pattern(name, "", found))
            }
        }
    }
}

impl Compiled for OnGpu {
    of_launch!();

    fn run_sparse(&self, run: &Run<'_>, out: &mut AnySparseTensor) -> Result<()> {
        let alpha = run.factor()?;
        // `arrays_of` validates the output and the patterns.
        let queue = run.queue_of_operands()?;
        let form = &self.product.form;
        let (x, ldx) = run.tensor(&form.x.name)?;
        let (y, ldy) = run.tensor(&form.y.name)?;
        let mask = match &form.mask {
            None => 0,
            Some(name) => match find(run.operands, name)? {
                AnyOperand::Sparse(s) => self.arrays_of(run, name, s)?.1,
                other => return Err(wrong(name, "an uploaded sparse tensor", other)),
            },
        };
        let (columns, values) = self.arrays_of(run, &form.output, out)?;
        let raw = RawSddmm { columns, x, ldx, y, ldy, mask, values, alpha };
        self.launch.run(&raw, queue)
    }

    fn run_raw_sparse(&self, _: &Expression, raw: &RawSddmm, queue: Queue<'_>) -> Result<()> {
        self.product.check_mask(raw)?;
        self.launch.run(raw, queue)
    }
}

impl fmt::Display for OnGpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.launch.row().name, self.launch.describe())
    }
}

/// Product on the CPU.
#[derive(Debug)]
pub(crate) struct OnCpu {
    product: Product,
    out: PlannedPattern,
}

impl OnCpu {
    pub(crate) fn new(product: Product, out: &AnySparseTensor) -> Self {
        OnCpu { out: PlannedPattern::new(&product.form.output, out.pattern()), product }
    }

    /// Values of a mask in host memory.
    fn mask<'a>(&self, run: &'a Run<'_>, name: &str) -> Result<Slice<'a>> {
        let mask = match find(run.operands, name)? {
            AnyOperand::Sparse(mask) => mask,
            other => return Err(wrong(name, "an uploaded sparse tensor", other)),
        };
        self.out.expect(name, mask.pattern())?;
        mask.host().or_elsewhere(name)
    }
}

impl Compiled for OnCpu {
    fn variant(&self) -> &'static str {
        "cpu"
    }

    fn bytes(&self) -> usize {
        0
    }

    fn run_sparse(&self, run: &Run<'_>, out: &mut AnySparseTensor) -> Result<()> {
        let Product { form, extents, .. } = &self.product;
        let alpha = run.factor()?;
        self.out.expect(&form.output, out.pattern())?;
        let x = strided(run.operands, &form.x)?;
        let y = strided(run.operands, &form.y)?;
        let mask = form.mask.as_deref().map(|name| self.mask(run, name));
        let mask = mask.transpose()?;
        let planned = pattern(&form.output, out)?;
        let runs = Arc::clone(planned.runs);
        let columns = planned.columns.to_vec();
        let slots = Slots {
            runs: &runs,
            columns: &columns,
            block: block_of(&self.product.format),
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

/// Dense factor in host memory, by its own index and k.
fn strided<'a>(
    operands: &'a [(&str, AnyOperand<'_>)],
    factor: &SampledFactor,
) -> Result<Strided<'a>> {
    let name = factor.name.as_str();
    let (values, leading) = match find(operands, name)? {
        AnyOperand::Dense(d) => (d.host().or_elsewhere(name)?, d.leading()),
        AnyOperand::HostDense(shape, values) => (*values, shape[1]),
        other => return Err(wrong(name, "a dense tensor", other)),
    };
    let (row, k) = if factor.columns { (1, leading) } else { (leading, 1) };
    Ok(Strided { values, row, k })
}
