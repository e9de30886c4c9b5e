//! Description of a product, made from an expression and its operands. It determines the eligible kernels and their
//! costs.

use einsparse_formats::vectors::sampled_steps;
use einsparse_formats::{AnyPattern, Format};
use einsparse_kernels::abi::{Dtype, WalkKind};

use super::refuse::permits;
use super::{Options, Request, Types, Weights};
use crate::cost::Work;
use crate::einsum::{Activation, Mode};
use crate::error::Result;
use crate::indirect::{Orientation, SpmmForm};
use crate::registry::{block_of, refuses};
use crate::tensor::{AnyOperand, columns_of};
use crate::worklist::{Runs, fullest};

/// Properties of an SpMM that determine the eligible kernels and their costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    /// Format of A; `None` for a dense matrix.
    pub format: Option<Format>,
    /// Extents and number of nonzeros.
    pub work: Work,
    /// Element type in memory.
    pub dtype: Dtype,
    /// Element type of the output.
    pub out: Dtype,
    /// Whether A is a batch of patterns, treated as one block-diagonal matrix.
    pub stacked: bool,
    /// Matrices that are stored transposed. `work` has the extents of the product.
    pub order: Orientation,
    /// Whether the values stay constant from run to run ([`Weights::Static`]).
    pub kept: bool,
    /// Whether `relu_grad` is applied to the result.
    pub gated: bool,
    /// Whether the product adds a bias.
    pub biased: bool,
    /// Whether the product applies an activation.
    pub activated: bool,
    /// Largest power of two, at most 16, that divides n and the row strides of B and C in elements.
    pub alignment: usize,
    /// Largest power of two, at most 16, that divides the row stride of B in elements.
    pub b_alignment: usize,
    /// Number of elements, at most 16, that divides the address of B if B is one contiguous column; otherwise 1.
    pub column_alignment: usize,
}

impl Problem {
    /// Returns the product of a form, with an alignment derived from its extents.
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

    /// Returns a problem with contiguous B and C. `format`: `None` for a dense A.
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

/// Returns the number of elements, at most 16, that divides all addresses: from the options if set, otherwise from the
/// addresses of the dense operands.
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

/// Returns the largest power of two, at most 16, that divides every number.
pub(crate) fn alignment_of(numbers: &[usize]) -> usize {
    numbers.iter().fold(16, |a, &x| if x == 0 { a } else { a.min(1 << x.trailing_zeros().min(4)) })
}

/// Returns the product of an expression; `None` if the expression is not a product.
pub(super) fn problem(request: &Request<'_, '_>) -> Result<Option<(Problem, SpmmForm)>> {
    let Request { indirect, options, types, .. } = *request;
    let Some(form) = indirect.as_spmm() else {
        return match indirect.as_gemm() {
            Some(form) => dense_problem(form, request),
            None => Ok(None),
        };
    };
    let operands = request.operands();
    let operand = request.operand(&form.sparse)?;
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
    let Some((items, [m, n])) = extents_of_out(&form, request.extents.out()) else {
        return Ok(None);
    };
    // A batch of patterns is one block-diagonal matrix.
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

/// Counts the steps of the kernels that walk columns of eight rows. Without an eligible kernel of this walk it returns
/// zeros: sampling a pattern with long rows takes a millisecond.
fn vector_steps(
    (form, dtype): (&SpmmForm, Dtype),
    host: AnyPattern<'_>,
    runs: &Runs,
    options: &Options,
) -> (u64, u64) {
    let walked = !form.stacked
        && refuses(WalkKind::Vector, &host.format()).is_none()
        && permits(WalkKind::Vector, dtype, options);
    match columns_of(host) {
        Some(columns) if walked => sampled_steps(&runs.rows, columns),
        _ => (0, 0),
    }
}

/// Returns the number of outputs in the batch, and m and n of the product.
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

/// Counts the index words of a pattern: one per nonzero or block, one per 16 for N:M, one per 2 for sliced ELLPACK.
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

/// Returns the extents of a block of A as stored. Those in `work` are in the orientation of the product.
pub(super) fn stored_block(problem: &Problem) -> (usize, usize) {
    let (m, k) = problem.work.block;
    if problem.order.transposed { (k, m) } else { (m, k) }
}

/// Returns the row stride of an operand in elements; `width` for operands that are not in device memory.
pub(crate) fn leading(operands: &[(&str, AnyOperand<'_>)], name: &str, width: usize) -> usize {
    match operands.iter().find(|(n, _)| *n == name) {
        Some((_, AnyOperand::Dense(d))) => d.leading(),
        _ => width,
    }
}

/// Returns the problem of a product of two dense matrices: all pieces of A are stored.
fn dense_problem(form: SpmmForm, request: &Request<'_, '_>) -> Result<Option<(Problem, SpmmForm)>> {
    let &[m, n] = request.extents.out() else {
        return Ok(None);
    };
    let Request { options, types, .. } = *request;
    let (operands, order) = (request.operands(), form.order);
    let shape = request.operand(&form.sparse)?.shape();
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
