//! Description of a product, made from an expression and its operands. It determines the eligible kernels and their
//! costs, and the reasons why other kernels cannot run the product.

use einsparse_formats::vectors::sampled_steps;
use einsparse_formats::{AnyPattern, Format};
use einsparse_kernels::abi::{B_COLUMNS, C_COLUMNS, Dtype, Operation, WalkKind, Zeros};
use einsparse_kernels::families::BatchedParams;
use einsparse_kernels::table::{Row, kernels};

use super::{Options, Precision, Request, Types, Weights, ZerosRule};
use crate::cost::Work;
use crate::einsum::{Activation, Mode};
use crate::error::Result;
use crate::indirect::{Orientation, SpmmForm};
use crate::launch::MAX_GRID_Y;
use crate::machine::Machine;
use crate::registry::{block_of, has_strips, refuses, takes_blocks, writes};
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

/// Returns the first reason found; `None` if the kernel can run the product.
pub(super) fn refusal(
    row: &Row,
    problem: &Problem,
    machine: &Machine,
    options: &Options,
) -> Option<String> {
    not_asked_for(row, options)
        .or_else(|| not_on(row, problem, machine))
        .or_else(|| wrong_form(row, problem))
        .or_else(|| wrong_output(row, problem))
        .or_else(|| wrong_order(row, problem))
        .or_else(|| wrong_blocks(row, problem))
        .or_else(|| too_large(row, problem))
        .or_else(|| unaligned(row, problem))
}

/// Whether the options allow any row of this walk for elements of this type.
pub(super) fn permits(walk: WalkKind, dtype: Dtype, options: &Options) -> bool {
    let of_type =
        |row: &&Row| row.dtype == dtype || row.dtype == Dtype::Tf32 && dtype == Dtype::F32;
    let mut rows = kernels().iter().filter(of_type);
    rows.any(|row| row.walk == walk && not_asked_for(row, options).is_none())
}

/// Refuses rows that the options exclude.
fn not_asked_for(row: &Row, options: &Options) -> Option<String> {
    if let Some(wanted) = options.variant.as_ref().filter(|v| *v != row.name) {
        return Some(format!("the plan requires {wanted}"));
    }
    if row.dtype == Dtype::Tf32 && options.precision == Precision::Full {
        return Some("rounds to TF32, but the plan requires full precision".into());
    }
    if row.zeros == Zeros::Dense && options.zeros == ZerosRule::Strict {
        let what = match row.walk {
            WalkKind::Vector => "multiplies zeros beside entries",
            WalkKind::Filled => "multiplies all zeros",
            _ => "multiplies zeros inside blocks",
        };
        return Some(format!("{what}, but the plan requires Zeros::Strict"));
    }
    None
}

/// Refuses rows that exceed the capabilities of the GPU.
fn not_on(row: &Row, problem: &Problem, machine: &Machine) -> Option<String> {
    if let Some(reason) = machine.lacks(row) {
        return Some(reason);
    }
    let tiles = problem.work.n.div_ceil(row.columns as usize);
    (tiles > MAX_GRID_Y).then(|| format!("{tiles} column tiles are over the grid's {MAX_GRID_Y}"))
}

/// Refuses rows that do not support the expression or the format of A.
fn wrong_form(row: &Row, problem: &Problem) -> Option<String> {
    match &problem.format {
        Some(format) => {
            if let Some(reason) = refuses(row.walk, format) {
                return Some(reason);
            }
        }
        None if !has_strips(row) && row.walk != WalkKind::Direct => {
            return Some("walks a sparse A, which is dense here".into());
        }
        None => {}
    }
    if [WalkKind::Vector, WalkKind::Filled].contains(&row.walk) && problem.stacked {
        return Some("walks one matrix, and the batch has a pattern for each".into());
    }
    let none = problem.work.steps == (0, 0) && problem.work.entries > 0;
    if row.walk == WalkKind::Vector && none {
        return Some("counts 65,536 values in eight rows, which have more".into());
    }
    // For rows that walk CSR, plans reorder pattern and values for the transposed product.
    let turned = matches!(row.walk, WalkKind::Block | WalkKind::Permuted | WalkKind::Csr);
    let turned = turned && problem.format != Some(Format::HybridGroupCoo);
    if problem.order.transposed && !turned {
        return Some("walks rows of A, and the product takes its transpose".into());
    }
    if problem.order.transposed && row.walk == WalkKind::Csr && problem.work.items != 1 {
        return Some("orders the values of one product ahead, not of a batch".into());
    }
    if row.walk == WalkKind::Permuted && !problem.order.transposed {
        return Some("walks a transposed pattern, but A is not transposed in this product".into());
    }
    let batched = row.takes::<BatchedParams>();
    let wide = has_strips(row) || row.walk == WalkKind::Nm;
    if problem.work.items != 1 && !wide && !batched {
        return Some("computes one product at a time, not a batch".into());
    }
    // The operand of `relu_grad` has the element type of A and B, not that of C.
    let gates = wide && row.operation != Operation::Narrow;
    (problem.gated && !gates).then(|| "has no relu_grad".into())
}

/// Refuses rows that do not support the output type or the epilogue.
fn wrong_output(row: &Row, problem: &Problem) -> Option<String> {
    let (own, out) = (row.dtype.name(), problem.out.name());
    if !writes(row, problem.out) {
        return Some(format!("has no {out} output of {own} operands"));
    }
    if row.operation == Operation::Narrow && problem.biased {
        return Some("adds no bias".into());
    }
    if problem.out == Dtype::Int32 && problem.activated {
        return Some("has no activation of an int32 output".into());
    }
    None
}

fn wrong_order(row: &Row, problem: &Problem) -> Option<String> {
    let own = Orientation {
        transposed: problem.order.transposed,
        dense_columns: row.order & B_COLUMNS != 0,
        out_columns: row.order & C_COLUMNS != 0,
    };
    (own != problem.order).then(|| format!("computes {own}, wanted is {}", problem.order))
}

fn wrong_blocks(row: &Row, problem: &Problem) -> Option<String> {
    let (bm, bk) = stored_block(problem);
    let transposed = problem.order.transposed;
    if row.walk != WalkKind::Block || takes_blocks(row, (bm, bk), transposed) {
        return None;
    }
    let (pm, pk) = row.block;
    let what = if has_strips(row) { "pieces" } else { "blocks" };
    let of = if transposed { ", transposed" } else { "" };
    Some(format!("is for {pm} x {pk} {what}, the operand has {bm} x {bk}{of}"))
}

/// Refuses products with more rows of A or B than the kernel supports.
fn too_large(row: &Row, problem: &Problem) -> Option<String> {
    let (k, most) = (problem.work.k, row.depth);
    if k > most as usize {
        return Some(format!("holds {most} rows of B at once, there are {k}"));
    }
    let down = problem.work.m.div_ceil(row.block.0 as usize);
    let by_tiles = [WalkKind::Direct, WalkKind::Filled].contains(&row.walk);
    let over = by_tiles && down > MAX_GRID_Y;
    over.then(|| format!("{down} rows of tiles are over the grid's {MAX_GRID_Y}"))
}

fn unaligned(row: &Row, problem: &Problem) -> Option<String> {
    if row.walk == WalkKind::Bitmap && row.columns == 1 {
        let whole = problem.column_alignment.is_multiple_of(row.vector as usize);
        let wanted = "takes one column of B without gaps, whose address is a multiple of 16 bytes";
        return (!whole).then(|| wanted.into());
    }
    let (what, alignment) = match row.walk {
        WalkKind::Block
        | WalkKind::Nm
        | WalkKind::Bitmap
        | WalkKind::Bytemap
        | WalkKind::SlicedEll
        | WalkKind::Filled
        | WalkKind::Direct => ("rows of B", problem.b_alignment),
        WalkKind::Vector if row.operation == Operation::Narrow => {
            ("rows of B", problem.b_alignment)
        }
        _ => ("rows of B and C and their length", problem.alignment),
    };
    let vector = row.vector;
    (!alignment.is_multiple_of(vector as usize))
        .then(|| format!("moves {vector} elements at once, {what} are aligned to {alignment}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A dense A with more rows than the grid of module `dense` supports is offered to another family.
    #[test]
    fn tall_products_have_a_kernel() {
        let work = Work {
            m: (MAX_GRID_Y + 1) * 256,
            k: 16,
            n: 64,
            entries: 0,
            index_slots: 0,
            longest: 0,
            fullest: 0,
            steps: (0, 0),
            block: (1, 1),
            items: 1,
            accumulate: false,
        };
        let dense = Problem::contiguous(None, work.all_stored(Dtype::F16), Dtype::F16);
        let choice = dense.candidates(&Machine::H200, &Options::default());
        let direct = |name: &str| name.starts_with("dense");
        assert!(!choice.candidates.is_empty(), "{choice}");
        assert!(choice.candidates.iter().all(|c| !direct(c.name)), "{choice}");
        let mut refused = choice.refused.iter().filter(|r| direct(&r.name));
        assert!(refused.any(|r| r.reason.contains("rows of tiles")), "{choice}");
    }
}
