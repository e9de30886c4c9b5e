//! Product of a matrix and a dense matrix by a kernel that reads A in its stored form: the eligible rows of a family,
//! and the plan of the selected row.

use std::sync::Arc;

use einsparse_formats::{AnyPattern, Format};
use einsparse_kernels::abi::{Dtype, Operation, WalkKind};
use einsparse_kernels::table::{Row, kernels};

use super::bind::{find, wrong};
use super::problem::{Problem, stored_block};
use super::refuse::refusal;
use super::run::sums_fit;
use super::{Answer, Compiled, Expression, Offer, Options, Question, Run, Weights, of_launch};
use crate::cost::{Cost, Work};
use crate::device::Device;
use crate::error::{Elsewhere, Error, Refusal, Result};
use crate::indirect::SpmmForm;
use crate::kernel::Queue;
use crate::launch::{Asked, Extents, Matrix, Product, RawSpmm};
use crate::machine::Machine;
use crate::tensor::{AnyOperand, AnyTensor, columns_of, told_by};

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

/// Constructor of a family: makes the kernel of the selected row for the given form of A.
pub(crate) type MakeProduct =
    fn(Asked<'_>, Matrix<'_>) -> Result<std::result::Result<Box<dyn Product>, Refusal>>;

/// Returns an offer or a refusal for each row of a family; an empty answer if the expression is not a product.
pub(crate) fn products_of<'q>(
    question: &'q Question<'q, '_>,
    family: (&'q str, CostOf),
    make: MakeProduct,
) -> Result<Answer<'q>> {
    let mut answer = Answer::default();
    let Some(product) = question.product()? else {
        return Ok(answer);
    };
    let (options, machine) = (question.options, question.machine);
    for (row, found) in product.0.rows_of(family, machine, options) {
        match found {
            Err(refusal) => answer.refused.push(refusal),
            Ok(cost) => answer.offers.push(Offer::unless(row, cost, move |device| {
                ProductPlan::new(question, (row, make), product, device)
            })),
        }
    }
    Ok(answer)
}

/// Kernel of a product, with the names of its operands.
#[derive(Debug)]
pub(crate) struct ProductPlan {
    launch: Box<dyn Product>,
    form: SpmmForm,
    /// Whether the kernel may read values of A ahead of the stream. Changes are announced only by `update_values`.
    ahead: bool,
}

impl ProductPlan {
    /// Prepares the kernel of a row for A in its stored form.
    fn new(
        question: &Question<'_, '_>,
        (row, make): (&'static Row, MakeProduct),
        (problem, form): &(Problem, SpmmForm),
        device: &Arc<Device>,
    ) -> Result<std::result::Result<Self, Refusal>> {
        let no_rows =
            |format: Format| Error::format(&form.sparse, "a format that stores rows", format);
        let matrix = match find(question.operands(), &form.sparse)? {
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
            },
            AnyOperand::Dense(a) => Matrix::Dense { leading: a.leading() },
            _ => {
                return Err(Error::on_host(&form.sparse));
            }
        };
        let Work { m, k, n, items, .. } = problem.work;
        sums_fit(row.dtype, problem.work.longest * problem.work.block.1 as u64)?;
        let asked = Asked {
            device,
            row,
            form: form.clone(),
            extents: Extents { m, k, n, items },
            out: problem.out,
        };
        let mut launch = match make(asked, matrix)? {
            Ok(launch) => launch,
            Err(refused) => return Ok(Err(refused)),
        };
        let ahead = question.options.weights == Weights::Static && launch.keeps_a();
        if let (true, AnyOperand::Sparse(a)) = (ahead, find(question.operands(), &form.sparse)?) {
            let values = a.values_address().or_elsewhere(&form.sparse)?;
            // SAFETY: the values belong to the pattern of the kernel above, and are borrowed until the stream is
            // synchronized. Work that writes them is queued earlier.
            let queue = unsafe { Queue::new(device.after_all()?) };
            launch.a_changed(values, queue)?;
            queue.stream().synchronize()?;
        }
        Ok(Ok(ProductPlan { launch, form: form.clone(), ahead }))
    }

    /// Returns the addresses of a run. A must have the planned pattern.
    fn bind(&self, run: &Run<'_>, out: &AnyTensor) -> Result<RawSpmm> {
        let form = &self.form;
        let (columns, values) = self.matrix(run)?;
        let (b, ldb) = run.tensor(&form.dense)?;
        let bias = match &form.bias {
            Some((name, _)) => run.tensor(name)?.0,
            None => 0,
        };
        let (gate, ldg) = match &form.gate {
            Some(name) => run.tensor(name)?,
            None => (0, 0),
        };
        let (c, ldc) = run.output(out)?;
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
            value_stride: 0,
            b_stride: 0,
            c_stride: 0,
            alpha: run.factor()?,
        })
    }

    /// Returns the addresses of the columns and the values of A.
    fn matrix(&self, run: &Run<'_>) -> Result<(u64, u64)> {
        let (launch, form) = (&self.launch, &self.form);
        Ok(match find(run.operands, &form.sparse)? {
            AnyOperand::Sparse(a) => {
                let same = Some(a.format()) == form.format
                    && a.product_runs().is_some_and(|r| launch.fits(r, told_by(a.pattern())));
                let (true, Some(arrays)) = (same, a.device()) else {
                    let planned =
                        form.format.map(|format| format!("{format} with the planned rows"));
                    let found = format!("{} {:?}", a.format(), a.pattern().shape());
                    return Err(Error::other_pattern(
                        &form.sparse,
                        planned.unwrap_or_default(),
                        found,
                    ));
                };
                (arrays.columns.address(), arrays.values.address())
            }
            AnyOperand::Dense(a) if form.format.is_none() => {
                launch.check_leading(&form.sparse, a.leading())?;
                (0, a.address().or_elsewhere(&form.sparse)?)
            }
            other => return Err(wrong(&form.sparse, "an uploaded sparse tensor", other)),
        })
    }
}

impl Compiled for ProductPlan {
    of_launch!();

    fn run(&self, run: &Run<'_>, out: &mut AnyTensor) -> Result<()> {
        let queue = run.queue(out)?;
        let raw = self.bind(run, out)?;
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

    fn run_raw(&self, _: &Expression, raw: &RawSpmm, queue: Queue<'_>) -> Result<()> {
        self.launch.run(raw, queue)
    }
}

of_launch!(ProductPlan);
