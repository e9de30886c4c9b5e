//! Plans with a prepacked A: its values are stored in a form that a faster kernel reads. They are written at each
//! update, or in each run.

mod copy;

use std::fmt;

use einsparse_formats::{AnyPattern, Format, FormatError};

use super::any::AnyPlan;
use crate::cost::{Cost, Work};
use crate::error::{Elsewhere, Error, Result};
use crate::families::convert::{Expand, Scatter, expand_us, slices_us};
use crate::indirect::{SpmmForm, rewrite_dense};
use crate::kernel::Queue;
use crate::launch::{RawOperands, RawSpmm, Turns};
use crate::machine::Machine;
use crate::offer::{
    AnyOut, Candidate, Executable, Expression, Offer, Offers, Options, PlannedPattern,
    PrepackedForm, Problem, Request, Run, Slot, Source, Weights, alignment_of, given_alignment,
    leading, refuse, with, wrong,
};
use crate::registry::block_of;
use crate::tensor::AnyOperand;
use copy::{Copy, Refill, all_slots, dense, numbered, sliced, sparse};

/// Maximum number of columns for which A is stored as bitmap or bytemap, whose kernels are for few columns.
const FEW_COLUMNS: usize = 64;
/// Minimum number of columns for which each run makes A dense, unless the variant is given. Below it, writing A takes
/// longer than any product over nonzeros.
const LEAST_COLUMNS: usize = 32;
/// Minimum number of positions per nonzero for a bytemap.
const BYTES_UP_TO: u64 = 9;
/// Alignment of the rows of a dense A in bytes, as tensor maps require.
const ROW_BYTES: usize = 16;

/// Refusal of other expressions, with the supported products.
const PRODUCTS: &str = "the table holds C[m,n] (=|+=) A[m,k] * B[k,n] with A sparse in row order; A as [k,m] where it is \
    made of blocks or single entries; with one of them made of blocks, or both dense, or A of single entries in f16 and \
    bf16, also with other axes swapped; batches C[z,m,n] \
    with one A for all, or A as [z,m,k] in coo; `Context::unchecked_cpu()` supports more expressions";

/// Offers the kernels that read A in another form than that of the operand.
pub(super) fn offers<'q>(request: &'q Request<'q, '_>) -> Result<Offers<'q>> {
    let Some(product @ (problem, form)) = request.product()? else {
        return Err(refuse("products", PRODUCTS));
    };
    let entries = problem.format.is_some_and(|format| {
        block_of(&format) == (1, 1)
            && !matches!(
                format,
                Format::Bitmap | Format::Bytemap | Format::SlicedEll | Format::HybridGroupCoo
            )
    });
    let (options, machine) = (request.options, request.machine);
    if !entries || form.batched || problem.stacked {
        return Ok(Offers::new());
    }
    let mut all = sparse_forms(problem, options);
    // A 2:4 pattern is stored without columns, which the conversions in each run and to dense require.
    if !is_two_of_four(problem) {
        all.extend(dense_form(request, product));
    }
    let offers = all.into_iter().flat_map(|(kept, other)| {
        let found = other.candidates(machine, options).candidates;
        let refill_us = match options.weights {
            Weights::Static => 0.0,
            Weights::EachRun => refill_us(kept, problem, machine),
        };
        found.into_iter().map(move |candidate| {
            Ok(Offer {
                build: Box::new(move |_| build(request, &form.sparse, (candidate.name, kept))),
                candidate: Candidate {
                    prepacked: Some(kept),
                    cost: Cost { us: candidate.cost.us + refill_us, ..candidate.cost },
                    ..candidate
                },
            })
        })
    });
    Ok(offers.collect())
}

fn build(
    request: &Request<'_, '_>,
    name: &str,
    taken: (&str, PrepackedForm),
) -> Result<Box<dyn Executable>> {
    match Prepacked::new(request, name, taken) {
        Ok(kept) => Ok(Box::new(kept)),
        // If no kernel reads the form, or the form exceeds the memory, the next offer is prepared.
        Err(
            error @ (Error::NoKernel { .. }
            | Error::OutOfMemory { .. }
            | Error::Overflow { .. }
            | Error::Format(FormatError::Limit { .. } | FormatError::Memory { .. })),
        ) => {
            let reason = format!("over A as {}: {error}", taken.1);
            Err(refuse(taken.0, reason))
        }
        Err(error) => Err(error),
    }
}

/// Returns the microseconds to write the values of a form.
fn refill_us(form: PrepackedForm, problem: &Problem, machine: &Machine) -> f64 {
    let (work, bytes) = (&problem.work, problem.dtype.bytes());
    let values = (work.entries * bytes as u64) as f64;
    match form {
        PrepackedForm::Dense => {
            let [rows, columns] = stored(problem);
            let out = rows as f64 * (leading_of(columns, bytes) * bytes) as f64;
            expand_us(out, values, machine)
        }
        PrepackedForm::Sparse(_) => slices_us(values, machine),
    }
}

fn is_two_of_four(problem: &Problem) -> bool {
    matches!(problem.format, Some(Format::Nm { .. }))
}

/// Returns the numbers of rows and columns of A as stored.
fn stored(problem: &Problem) -> [usize; 2] {
    let (m, k) = (problem.work.m, problem.work.k);
    if problem.order.transposed { [k, m] } else { [m, k] }
}

/// Returns the sparse forms in which unstructured nonzeros may be stored, and the product over each. Runs convert only
/// to sliced ELLPACK, whose values are copied in contiguous pieces. A plan that runs once does not use it, because the
/// host would make it.
fn sparse_forms(problem: &Problem, options: &Options) -> Vec<(PrepackedForm, Problem)> {
    let Work { m, k, n, entries, .. } = problem.work;
    let mut formats = Vec::new();
    if problem.order.is_plain() && !options.once && !is_two_of_four(problem) {
        formats.push(Format::SlicedEll);
    }
    if problem.order.is_plain() && n <= FEW_COLUMNS && options.weights == Weights::Static {
        formats.push(Format::Bitmap);
        // At higher densities a bytemap is larger than a bitmap.
        if entries * BYTES_UP_TO <= m as u64 * k as u64 && !is_two_of_four(problem) {
            formats.push(Format::Bytemap);
        }
    }
    let over = |format| Problem { format: Some(format), ..*problem };
    let all = formats.into_iter();
    all.map(|format| (PrepackedForm::Sparse(format), over(format))).collect()
}

/// Returns the product over a dense A. Its own form determines which of the two matrices is walked.
fn dense_form(
    request: &Request<'_, '_>,
    (problem, form): &(Problem, SpmmForm),
) -> Option<(PrepackedForm, Problem)> {
    let each_run = request.options.weights == Weights::EachRun;
    let few = problem.order.is_plain() && problem.work.n < LEAST_COLUMNS;
    if each_run && few && request.options.variant.is_none() {
        return None;
    }
    let own = rewrite_dense(request.einsum).ok()?.as_gemm()?;
    let (&[m, n], true) = (request.extents.out(), Expand::takes(problem.dtype)) else {
        return None;
    };
    let Work { k, .. } = problem.work;
    let width = if form.order.dense_columns { k } else { problem.work.n };
    let lines = [
        leading_of(stored(problem)[1], problem.dtype.bytes()),
        leading(request.operands(), &form.dense, width),
        given_alignment(request.options, request.operands()),
    ];
    let dense = Problem {
        format: None,
        work: Work { m, n, ..problem.work }.all_stored(problem.dtype),
        order: own.order,
        alignment: alignment_of(&[n, lines[0], lines[1], lines[2]]),
        b_alignment: alignment_of(&lines),
        ..*problem
    };
    Some((PrepackedForm::Dense, dense))
}

/// Returns the row stride of a dense A in elements.
fn leading_of(k: usize, bytes: usize) -> usize {
    k.max(1).next_multiple_of(ROW_BYTES / bytes)
}

/// Copy of A, the conversion of its values, and the plan over the copy.
#[derive(Debug)]
pub(super) struct Prepacked {
    form: PrepackedForm,
    copy: Copy,
    refill: Refill,
    plan: Box<AnyPlan>,
    /// Whether the plan over a dense copy walks the other matrix as its A.
    swapped: bool,
    slot: Slot,
    pattern: PlannedPattern,
    /// Whether each run converts the values of its operand.
    each_run: bool,
    /// Serializes runs, which read the copy that [`Self::refill`] writes.
    turns: Turns,
}

impl Prepacked {
    /// Converts A to the form of the candidate and plans over it. With static weights, the copy has the values of A on
    /// return.
    pub(super) fn new(
        request: &Request<'_, '_>,
        name: &str,
        (kernel, form): (&str, PrepackedForm),
    ) -> Result<Self> {
        let (context, operands, dtype) =
            (request.context, request.operands(), request.types.operands);
        let device = context.expect_device()?;
        let a = match request.operand(name)? {
            AnyOperand::Sparse(a) => a,
            other => return Err(wrong(name, "an uploaded sparse tensor", other)),
        };
        let not_in_rows = || wrong(name, "a matrix in row order", &AnyOperand::Sparse(a));
        let entries = || match (a.row_order(), a.pattern()) {
            (Some((runs, columns)), _) => Ok(numbered(a.shape(), runs, columns)?.into()),
            (None, pattern @ AnyPattern::Nm(_)) => all_slots(pattern),
            _ => Err(not_in_rows()),
        };
        let (copy, refill) = match form {
            PrepackedForm::Dense => {
                let (runs, _) = a.row_order().ok_or_else(not_in_rows)?;
                let arrays = a.device().or_elsewhere(name)?;
                dense((context, dtype), a, (runs, arrays))?
            }
            PrepackedForm::Sparse(Format::SlicedEll) => sliced((device, dtype), &entries()?)?,
            PrepackedForm::Sparse(format) => {
                let slots = a.pattern().slots();
                let (copy, found) = sparse((device, dtype), &entries()?, format, slots)?;
                (copy, Refill::Places(Scatter::new(device, dtype, &found)?))
            }
        };
        let own = Options {
            weights: Weights::EachRun,
            variant: Some(kernel.to_owned()),
            ..request.options.clone()
        };
        let swapped = swap(operands, name, copy.operand());
        let source = Source { operands: &swapped, options: &own, ..request.source() };
        let plan = Box::new(AnyPlan::of(&source)?);
        let over = plan.expression.indirect.as_gemm();
        let mut kept = Prepacked {
            swapped: over.is_some_and(|over| over.sparse != name),
            form,
            refill,
            plan,
            slot: request.slot(name)?,
            pattern: PlannedPattern::new(name, a.pattern()),
            each_run: request.options.weights == Weights::EachRun,
            turns: Turns::new(device)?,
            copy,
        };
        if kept.each_run {
            return Ok(kept);
        }
        kept.plan.made.keeps_a();
        // Ordered after all queued work, which may write the values.
        let values = a.values_address().or_elsewhere(name)?;
        // SAFETY: the values belong to the pattern of the plan, and are borrowed until the stream is synchronized.
        let queue = unsafe { Queue::new(device.after_all()?) };
        kept.renew(values, queue)?;
        queue.stream().synchronize()?;
        Ok(kept)
    }

    /// Returns the address of the values of A, which must have the planned pattern.
    fn values(&self, run: &Run<'_>) -> Result<u64> {
        Ok(self.pattern.arrays(run.operand(self.slot)?)?.values.address())
    }

    /// Queues the conversion of A's values. The caller has serialized it with other runs.
    fn write(&self, values: u64, queue: Queue<'_>) -> Result<()> {
        match &self.refill {
            Refill::Dense(expand) => expand.run(values, self.copy.address()?, queue),
            Refill::Places(scatter) => scatter.run(values, self.copy.address()?, queue),
            Refill::Slices(slices, device) => {
                let all = [values, self.copy.columns(), self.copy.address()?];
                slices.run(device, all, queue)
            }
        }
    }

    /// Queues the conversion for static weights, and notifies the kernel over the copy.
    fn renew(&self, values: u64, queue: Queue<'_>) -> Result<()> {
        self.write(values, queue)?;
        self.plan.made.a_changed(self.copy.address()?, queue)
    }

    /// Queues a product, after the conversion of the values if each run converts them.
    fn product(
        &self,
        values: u64,
        queue: Queue<'_>,
        product: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        self.turns.queue(true, queue.stream(), || {
            if self.each_run {
                self.write(values, queue)?;
            }
            product()
        })
    }

    /// Returns the addresses for the plan over the copy.
    fn raw(&self, raw: &RawSpmm) -> Result<RawSpmm> {
        Ok(RawSpmm { columns: self.copy.columns(), values: self.copy.address()?, ..*raw })
    }
}

impl Executable for Prepacked {
    fn variant(&self) -> &'static str {
        self.plan.variant()
    }

    /// Returns the bytes of device memory of the copy, of the conversion and of the plan.
    fn bytes(&self) -> usize {
        let copy = match &self.copy {
            Copy::Dense(tensor) => tensor.shape()[0] * tensor.leading() * tensor.dtype().bytes(),
            Copy::Sparse(tensor) => {
                tensor.device().map_or(0, |d| d.columns.bytes() + d.values.bytes())
            }
        };
        let refill = match &self.refill {
            Refill::Dense(expand) => expand.bytes(),
            Refill::Places(scatter) => scatter.bytes(),
            Refill::Slices(slices, _) => slices.bytes(),
        };
        copy + refill + self.plan.workspace_bytes()
    }

    fn run(&self, run: &Run<'_>, out: AnyOut<'_>) -> Result<()> {
        let out = run.dense(out)?;
        let (queue, values) = (run.queue(out)?, self.values(run)?);
        let own = with(run.operands, self.slot, Some(self.copy.operand()));
        self.product(values, queue, || self.plan.run_slots(&own, AnyOut::Dense(out), run.stream))
    }

    fn run_raw(&self, of: &Expression, raw: RawOperands<'_>, queue: Queue<'_>) -> Result<()> {
        let RawOperands::Spmm(raw) = raw else {
            return Err(of.no_addresses(self.variant(), raw));
        };
        if self.swapped {
            return Err(of.only_addresses_of(self.variant(), "sparse matrices on the left"));
        }
        let own = self.raw(raw)?;
        self.product(raw.values, queue, || self.plan.run_raw((&own).into(), queue))
    }

    fn prepacked(&self) -> Option<PrepackedForm> {
        Some(self.form)
    }

    fn update_values(&self, run: &Run<'_>) -> Result<()> {
        if self.each_run {
            return Ok(());
        }
        let (queue, values) = (run.queue_of_operands()?, self.values(run)?);
        self.turns.queue(true, queue.stream(), || self.renew(values, queue))
    }
}

impl fmt::Display for Prepacked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let when = if self.each_run { "in each run made" } else { "prepacked as" };
        write!(f, "{}, A {when} {}", self.plan, self.form)
    }
}

/// Returns the operands with `own` instead of `name`.
fn swap<'o>(
    operands: &[(&'o str, AnyOperand<'o>)],
    name: &str,
    own: AnyOperand<'o>,
) -> Vec<(&'o str, AnyOperand<'o>)> {
    let one = |(given, operand): &(&'o str, AnyOperand<'o>)| {
        (*given, if *given == name { own } else { *operand })
    };
    operands.iter().map(one).collect()
}
