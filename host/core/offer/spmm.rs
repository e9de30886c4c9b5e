//! Product of a matrix and a dense matrix by a kernel that reads A in its stored form: the eligible rows of a family,
//! and the plan of the selected row.

use std::sync::Arc;

use einsparse_formats::{AnyPattern, Format};
use einsparse_kernels::abi::{Dtype, Operation, WalkKind};
use einsparse_kernels::table::{Row, kernels};

use super::problem::{Problem, refusal, stored_block};
use super::run::sums_fit;
use super::{
    AnyOut, Executable, Expression, Offer, Offers, Options, PlannedPattern, Request, Run, Slot,
    Weights, of_launch,
};
use crate::cost::{Cost, Work};
use crate::device::Device;
use crate::error::{Elsewhere, Error, Refusal, Result};
use crate::indirect::SpmmForm;
use crate::kernel::Queue;
use crate::launch::{Extents, Matrix, Product, RawOperands, RawSpmm, SpmmConfig};
use crate::machine::Machine;
use crate::tensor::{AnyOperand, AnyTensor, columns_of};

/// Cost function of a family: predicts the cost of a row for a product.
pub(crate) type CostOf = fn(&Row, &Problem, &Machine) -> Cost;

impl Problem {
    /// Iterates over the rows of a family for this element type, each with its predicted cost or with the reason of its
    /// refusal.
    pub(crate) fn rows_of<'p>(
        &'p self,
        (family, cost): (&'p str, CostOf),
        machine: &'p Machine,
        options: &'p Options,
    ) -> impl Iterator<Item = (&'static Row, std::result::Result<Cost, Refusal>)> + 'p {
        let own = rows(self.dtype).filter(move |row| row.family == family);
        own.map(move |row| match refusal(row, self, machine, options) {
            Some(reason) => (row, Err(Refusal::of(row.name, reason))),
            None => (row, Ok(cost(row, self, machine))),
        })
    }
}

/// Iterates over the rows of the table for products of these elements.
fn rows(dtype: Dtype) -> impl Iterator<Item = &'static Row> {
    let products = |row: &&Row| matches!(row.operation, Operation::Product | Operation::Narrow);
    let own =
        move |row: &&Row| row.dtype == dtype || (row.dtype, dtype) == (Dtype::Tf32, Dtype::F32);
    kernels().iter().filter(products).filter(own)
}

/// Returns an offer or a refusal for each row of a family; no offers if the expression is not a product. `launch`
/// prepares the kernel of a row for the given form of A.
pub(crate) fn spmm_offers<'q>(
    request: &'q Request<'q, '_>,
    family: (&'q str, CostOf),
    launch: fn(SpmmConfig<'_>, Matrix<'_>) -> Result<Box<dyn Product>>,
) -> Result<Offers<'q>> {
    let Some((problem, _)) = request.product()? else {
        return Ok(Offers::new());
    };
    let rows = problem.rows_of(family, request.machine, request.options);
    let offers = rows.map(|(row, found)| {
        let build = move |device: &Arc<Device>| Spmm::new(request, row, launch, device);
        found.map(|cost| Offer::of(row, cost, build))
    });
    Ok(offers.collect())
}

/// Slots of the operands of a product.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpmmSlots {
    pub(crate) a: Slot,
    b: Slot,
    bias: Option<Slot>,
    gate: Option<Slot>,
}

impl SpmmSlots {
    pub(crate) fn new(request: &Request<'_, '_>, form: &SpmmForm) -> Result<Self> {
        let slot = |name: &String| request.slot(name);
        Ok(SpmmSlots {
            a: slot(&form.sparse)?,
            b: slot(&form.dense)?,
            bias: form.bias.as_ref().map(|(name, _)| slot(name)).transpose()?,
            gate: form.gate.as_ref().map(slot).transpose()?,
        })
    }

    /// Returns the addresses of a run, with these of the columns and the values of A.
    pub(crate) fn bind(
        &self,
        run: &Run<'_>,
        (columns, values): (u64, u64),
        out: &AnyTensor,
    ) -> Result<RawSpmm> {
        let (b, ldb) = run.tensor(self.b)?;
        let bias = self.bias.map_or(Ok((0, 0)), |bias| run.tensor(bias))?.0;
        let (gate, ldg) = self.gate.map_or(Ok((0, 0)), |gate| run.tensor(gate))?;
        let (c, ldc) = run.output(out)?;
        let alpha = run.factor()?;
        Ok(RawSpmm {
            columns,
            values,
            b,
            ldb,
            c,
            ldc,
            bias,
            gate,
            ldg,
            alpha,
            ..RawSpmm::default()
        })
    }
}

/// Kernel of a product, and the slots of its operands.
#[derive(Debug)]
pub(crate) struct Spmm {
    launch: Box<dyn Product>,
    slots: SpmmSlots,
    /// Pattern of A; `None` for a dense A.
    pattern: Option<PlannedPattern>,
    /// Whether the kernel may read values of A ahead of the stream. Changes are announced only by `update_values`.
    ahead: bool,
}

impl Spmm {
    /// Prepares the kernel of a row for A in its stored form.
    fn new(
        request: &Request<'_, '_>,
        row: &'static Row,
        launch: fn(SpmmConfig<'_>, Matrix<'_>) -> Result<Box<dyn Product>>,
        device: &Arc<Device>,
    ) -> Result<Self> {
        let Some((problem, form)) = request.product()? else {
            return Err(super::refuse(row.name, "computes products of a matrix"));
        };
        let name = form.sparse.as_str();
        let no_rows = |format: Format| Error::format(name, "a format that stores rows", format);
        let operand = request.operand(name)?;
        let matrix = match operand {
            AnyOperand::Sparse(a) if row.walk == WalkKind::SlicedEll => {
                match (a.runs(), a.pattern()) {
                    (Some(runs), AnyPattern::SlicedEll(pattern)) => {
                        Matrix::Sliced { runs, pattern }
                    }
                    _ => return Err(no_rows(a.format())),
                }
            }
            AnyOperand::Sparse(a) => Matrix::Sparse {
                runs: a.product_runs().ok_or_else(|| no_rows(a.format()))?,
                spans: a.spans(),
                columns: columns_of(a.pattern()).unwrap_or(&[]),
                block: stored_block(problem),
                stored: problem.work.index_slots as usize,
                address: a.columns_address().unwrap_or(0),
                transposes: a.transposes(),
            },
            AnyOperand::Dense(a) => Matrix::Dense { leading: a.leading() },
            _ => return Err(Error::on_host(name)),
        };
        let Work { m, k, n, items, .. } = problem.work;
        sums_fit(row.dtype, problem.work.longest * problem.work.block.1 as u64)?;
        let extents = Extents { m, k, n, items };
        let config = SpmmConfig { device, row, form: form.clone(), extents, out: problem.out };
        let mut launch = launch(config, matrix)?;
        let ahead = request.options.weights == Weights::Static && launch.keeps_a();
        if let (true, AnyOperand::Sparse(a)) = (ahead, operand) {
            let values = a.values_address().or_elsewhere(name)?;
            // SAFETY: the values belong to the pattern of the kernel above, and are borrowed until the stream is
            // synchronized. Work that writes them is queued earlier.
            let queue = unsafe { Queue::new(device.after_all()?) };
            launch.a_changed(values, queue)?;
            queue.stream().synchronize()?;
        }
        let pattern = operand.pattern().map(|pattern| PlannedPattern::new(name, pattern));
        Ok(Spmm { launch, slots: SpmmSlots::new(request, form)?, pattern, ahead })
    }

    /// Returns the addresses of the columns and the values of A, which must have the planned pattern.
    fn matrix(&self, run: &Run<'_>) -> Result<(u64, u64)> {
        let operand = run.operand(self.slots.a)?;
        if let Some(pattern) = &self.pattern {
            let arrays = pattern.arrays(operand)?;
            return Ok((arrays.columns.address(), arrays.values.address()));
        }
        let (values, leading) = run.tensor(self.slots.a)?;
        self.launch.check_leading(run.name(self.slots.a), leading)?;
        Ok((0, values))
    }
}

impl Executable for Spmm {
    of_launch!();

    fn run(&self, run: &Run<'_>, out: AnyOut<'_>) -> Result<()> {
        let out = run.dense(out)?;
        let queue = run.queue(out)?;
        let raw = self.slots.bind(run, self.matrix(run)?, out)?;
        self.launch.run(&raw, queue)
    }

    fn keeps_a(&mut self) {
        self.launch.keeps_a();
    }

    fn a_changed(&self, values: u64, queue: Queue<'_>) -> Result<()> {
        self.launch.a_changed(values, queue)
    }

    fn update_values(&self, run: &Run<'_>) -> Result<()> {
        if !self.ahead {
            return Ok(());
        }
        let queue = run.queue_of_operands()?;
        let (_, values) = self.matrix(run)?;
        self.a_changed(values, queue)
    }

    fn run_raw(&self, of: &Expression, raw: RawOperands<'_>, queue: Queue<'_>) -> Result<()> {
        match raw {
            RawOperands::Spmm(raw) => self.launch.run(raw, queue),
            other => Err(of.no_addresses(self.variant(), other)),
        }
    }
}

of_launch!(Spmm);
