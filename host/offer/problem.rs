//! A product by what decides which kernels may run it and what they cost, out of an expression and its operands.

use einsparse_formats::vectors::sampled_steps;
use einsparse_formats::{AnyPattern, Format};
use einsparse_kernels::abi::{Dtype, WalkKind};

use super::Types;
use super::bind::find;
use super::refuse::asked_for;
use super::{Options, Weights};
use crate::cost::Work;
use crate::einsum::{Activation, Mode};
use crate::error::Result;
use crate::indirect::{IndirectEinsum, Orientation, SpmmForm};
use crate::registry::{block_of, refuses};
use crate::tensor::{AnyOperand, columns_of};
use crate::worklist::{Runs, fullest};

/// An SpMM by what decides which kernels may run it and what they cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    /// Format of A; `None` for a dense matrix.
    pub format: Option<Format>,
    /// Extents and entries.
    pub work: Work,
    /// Element type in memory.
    pub dtype: Dtype,
    /// That of the output.
    pub out: Dtype,
    /// Whether A is a pattern for each of a batch, taken as one matrix with all of them along its diagonal.
    pub stacked: bool,
    /// Which matrices lie the other way round; `work` is that of the product.
    pub order: Orientation,
    /// Whether values stay as they are from run to run.
    pub kept: bool,
    /// Whether the result passes a gate (`relu_grad`).
    pub gated: bool,
    /// Whether there is a bias.
    pub biased: bool,
    /// Whether there is an activation.
    pub activated: bool,
    /// Elements, up to 16, that n and the leading dimensions of B and C are multiples of.
    pub alignment: usize,
    /// Elements, up to 16, that the leading dimension of B is a multiple of.
    pub b_alignment: usize,
    /// Elements, up to 16, that B's address is a multiple of where B is one column without gaps; else 1.
    pub column_alignment: usize,
}

impl Problem {
    /// The product that a form says, of operands aligned as its extents are.
    fn of_form(
        form: &SpmmForm,
        format: Option<Format>,
        work: Work,
        Types { operands: dtype, out }: Types,
    ) -> Problem {
        let alignment = alignment_of(&[work.n]);
        Problem {
            format,
            stacked: form.stacked,
            order: form.order,
            kept: false,
            gated: form.gate.is_some(),
            biased: form.bias.is_some(),
            activated: form.activation != Activation::Identity,
            work,
            dtype,
            out,
            alignment,
            b_alignment: alignment,
            column_alignment: if work.n == 1 { 16 } else { 1 },
        }
    }

    /// A problem whose B and C have no gaps between rows; `None` for a dense A.
    pub fn contiguous(format: Option<Format>, work: Work, dtype: Dtype) -> Problem {
        let alignment = alignment_of(&[work.n]);
        Problem {
            format,
            stacked: false,
            order: Orientation::default(),
            kept: false,
            gated: false,
            biased: false,
            activated: false,
            work,
            dtype,
            out: dtype,
            alignment,
            b_alignment: alignment,
            column_alignment: if work.n == 1 { 16 } else { 1 },
        }
    }
}

/// Elements, up to 16, that addresses are multiples of: as the options say, else as the dense operands lie.
pub(crate) fn given_alignment(options: &Options, operands: &[(&str, AnyOperand<'_>)]) -> usize {
    if let Some(alignment) = options.alignment {
        return alignment.max(1);
    }
    let lies = |(_, operand): &(&str, AnyOperand<'_>)| match operand {
        AnyOperand::Dense(d) | AnyOperand::Dynamic(d, _) => {
            Some(d.address()? as usize / d.dtype().bytes())
        }
        _ => None,
    };
    let places: Vec<usize> = operands.iter().filter_map(lies).collect();
    alignment_of(&places)
}

/// Largest power of two, at most 16, that divides every number.
pub(crate) fn alignment_of(numbers: &[usize]) -> usize {
    numbers.iter().fold(16, |a, &x| if x == 0 { a } else { a.min(1 << x.trailing_zeros().min(4)) })
}

/// The product of an expression, `None` if it is none.
pub(super) fn problem(
    indirect: &IndirectEinsum,
    operands: &[(&str, AnyOperand<'_>)],
    out_shape: &[usize],
    asked: (&Options, Types),
) -> Result<Option<(Problem, SpmmForm)>> {
    let (options, types) = asked;
    let Some(form) = indirect.as_spmm() else {
        return match indirect.as_gemm() {
            Some(form) => dense_problem(form, operands, out_shape, asked),
            None => Ok(None),
        };
    };
    let operand = find(operands, &form.sparse)?;
    let Some(host) = operand.pattern() else {
        return Ok(None);
    };
    let runs = match operand {
        AnyOperand::Sparse(a) => a.product_runs().cloned(),
        _ => {
            let found = match Runs::of_pattern(host) {
                Ok(None) => Runs::of_batch(host).map(|batch| batch.map(|(runs, _)| runs)),
                runs => runs,
            };
            found.map_err(|error| error.of_operand(&form.sparse))?.map(Into::into)
        }
    };
    let Some(runs) = runs else { return Ok(None) };
    let order = form.order;
    let Some((items, [m, n])) = extents_of_out(&form, out_shape) else {
        return Ok(None);
    };
    // A batch of patterns is one matrix with all of them along its diagonal.
    let k = match *host.shape() {
        [items, _, columns] => items * columns,
        _ => host.shape()[usize::from(!order.transposed)],
    };
    let b_width = if order.dense_columns { k } else { n };
    let c_width = if order.out_columns { m } else { n };
    let ldb = leading(operands, &form.dense, b_width);
    let ldc = leading(operands, &form.output, c_width);
    let (bm, bk) = block_of(&host.format());
    let block = if order.transposed { (bk, bm) } else { (bm, bk) };
    let work = Work {
        steps: vector_steps((&form, types.operands), host, &runs, options),
        m,
        k,
        n,
        entries: runs.total * (block.0 * block.1) as u64,
        items,
        index_slots: index_slots(host, block),
        longest: u64::from(runs.longest),
        fullest: fullest(&runs.rows),
        block,
        accumulate: form.mode == Mode::Accumulate,
    };
    let given = given_alignment(options, operands);
    let problem = Problem {
        alignment: alignment_of(&[n, ldb, ldc, given]),
        b_alignment: alignment_of(&[ldb, given]),
        column_alignment: if (n, ldb) == (1, 1) { given } else { 1 },
        kept: options.weights == Weights::Static,
        ..Problem::of_form(&form, Some(host.format()), work, types)
    };
    Ok(Some((problem, form)))
}

/// Steps of the kernels that walk columns of eight rows, where the options leave one: sampling a pattern takes a
/// millisecond where rows are long.
fn vector_steps(
    (form, dtype): (&SpmmForm, Dtype),
    host: AnyPattern<'_>,
    runs: &Runs,
    options: &Options,
) -> (u64, u64) {
    let walked = !form.stacked
        && refuses(WalkKind::Vector, &host.format()).is_none()
        && asked_for(WalkKind::Vector, dtype, options);
    match columns_of(host) {
        Some(columns) if walked => sampled_steps(&runs.rows, columns),
        _ => (0, 0),
    }
}

/// How many outputs there are, and the product's m and n.
fn extents_of_out(form: &SpmmForm, out_shape: &[usize]) -> Option<(usize, [usize; 2])> {
    let (items, [rows, columns]) = match *out_shape {
        [rows, columns] => (1, [rows, columns]),
        [items, rows, columns] if form.batched => (items, [rows, columns]),
        [items, rows, columns] if form.stacked => (1, [items * rows, columns]),
        _ => return None,
    };
    let swapped = form.order.out_columns;
    Some((items, if swapped { [columns, rows] } else { [rows, columns] }))
}

/// Words that say where the entries (blocks) are: one each, for N:M one for 16, for sliced ELLPACK for two.
fn index_slots(host: AnyPattern<'_>, block: (usize, usize)) -> u64 {
    let each = match host {
        AnyPattern::Bitmap(a) => return a.words().len() as u64,
        AnyPattern::Bytemap(a) => return a.words().len() as u64,
        AnyPattern::Nm(_) => 16,
        AnyPattern::SlicedEll(_) => 2,
        _ => block.0 * block.1,
    };
    (host.slots() / each.max(1)) as u64
}

/// Extents of a block of A as it is stored; those of `work` are the product's.
pub(super) fn stored_block(problem: &Problem) -> (usize, usize) {
    let (m, k) = problem.work.block;
    if problem.order.transposed { (k, m) } else { (m, k) }
}

/// Elements from one row of an operand to the next; `width` for operands that are not on a device.
pub(crate) fn leading(operands: &[(&str, AnyOperand<'_>)], name: &str, width: usize) -> usize {
    match operands.iter().find(|(n, _)| *n == name) {
        Some((_, AnyOperand::Dense(d))) => d.leading(),
        _ => width,
    }
}

/// A product of two dense matrices: every piece of A is there.
fn dense_problem(
    form: SpmmForm,
    operands: &[(&str, AnyOperand<'_>)],
    out_shape: &[usize],
    (options, types): (&Options, Types),
) -> Result<Option<(Problem, SpmmForm)>> {
    let &[m, n] = out_shape else {
        return Ok(None);
    };
    let order = form.order;
    let shape = find(operands, &form.sparse)?.shape();
    let (k, a_width) = (shape[usize::from(!order.transposed)], shape[1]);
    let b_width = if order.dense_columns { k } else { n };
    let (lda, ldb) =
        (leading(operands, &form.sparse, a_width), leading(operands, &form.dense, b_width));
    let work = Work {
        steps: (0, 0),
        m,
        k,
        n,
        entries: 0,
        items: 1,
        index_slots: 0,
        longest: 0,
        fullest: 0,
        block: (1, 1),
        accumulate: form.mode == Mode::Accumulate,
    }
    .all_stored(types.operands);
    let given = given_alignment(options, operands);
    let problem = Problem {
        alignment: alignment_of(&[n, lda, ldb, given]),
        b_alignment: alignment_of(&[lda, ldb, given]),
        ..Problem::of_form(&form, None, work, types)
    };
    Ok(Some((problem, form)))
}
