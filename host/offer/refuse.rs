//! Reasons why a kernel cannot run a product.

use einsparse_kernels::abi::{B_COLUMNS, C_COLUMNS, Dtype, Operation, WalkKind, Zeros};
use einsparse_kernels::families::BatchedParams;
use einsparse_kernels::table::{Row, kernels};

use super::problem::{Problem, stored_block};
use super::{Options, Precision, ZerosRule};
use einsparse_formats::Format;

use crate::indirect::Orientation;
use crate::launch::MAX_GRID_Y;
use crate::machine::Machine;
use crate::registry::{has_strips, refuses, takes_blocks, writes};

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
    use crate::cost::Work;

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
