//! The choice of a kernel: every row of the table for this element type is either a candidate with a
//! predicted cost, or refused with a reason.

use std::fmt;

use einsparse_formats::{AnySparse, Format};
use einsparse_kernels::abi::{B_COLUMNS, C_COLUMNS, Dtype, WalkKind, Zeros};
use einsparse_kernels::table::{Row, products};

use super::bind::find;
use super::{Exec, Operand, Options, Precision, ZerosRule};
use crate::context::Context;
use crate::cost::{Cost, Machine, Work, predict};
use crate::einsum::Mode;
use crate::error::{Error, Refusal, Result};
use crate::indirect::{IndirectEinsum, Orientation, SpmmForm};
use crate::launch::{Extents, Launch, MAX_GRID_Y, Matrix};
use crate::registry::{Scalar, block_of, refuses, takes_blocks};

/// A kernel that can run this, and what it is predicted to cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Name in the table.
    pub name: &'static str,
    /// The prediction.
    pub cost: Cost,
    /// What it does with implicit zeros.
    pub zeros: Zeros,
}

/// Candidates, cheapest first, and refusals.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// Cheapest first; on a GPU the first is taken.
    pub candidates: Vec<Candidate>,
    /// Rows that cannot run this, and why.
    pub refused: Vec<Refusal>,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, c) in self.candidates.iter().enumerate() {
            let mark = if i == 0 { "->" } else { "  " };
            writeln!(f, "{mark} {:24} {}, zeros = {:?}", c.name, c.cost, c.zeros)?;
        }
        for r in &self.refused {
            writeln!(f, "   {:24} refused: {}", r.name, r.reason)?;
        }
        Ok(())
    }
}

/// An SpMM by what decides which kernels may run it and what they cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Problem {
    /// Format of A; `None` for a dense matrix.
    pub format: Option<Format>,
    /// Extents and entries.
    pub work: Work,
    /// Element type in memory.
    pub dtype: Dtype,
    /// Which matrices lie the other way round; `work` is that of the product.
    pub order: Orientation,
    /// Whether the result passes a gate (`relu_grad`).
    pub gated: bool,
    /// Elements, up to 16, that n and the leading dimensions of B and C are multiples of.
    pub alignment: usize,
    /// Elements, up to 16, that the leading dimension of B is a multiple of.
    pub b_alignment: usize,
}

impl Problem {
    /// A problem whose B and C have no gaps between rows.
    pub fn contiguous(format: Format, work: Work, dtype: Dtype) -> Problem {
        let alignment = alignment_of(&[work.n]);
        Problem {
            format: Some(format),
            order: Orientation::default(),
            gated: false,
            work,
            dtype,
            alignment,
            b_alignment: alignment,
        }
    }

    /// Every kernel for this element type: a candidate with its predicted cost, or refused with a reason.
    pub fn candidates(&self, machine: &Machine, options: &Options) -> Choice {
        let mut choice = Choice::default();
        for row in products() {
            let tf32 = row.dtype == Dtype::Tf32 && self.dtype == Dtype::F32;
            if row.dtype != self.dtype && !tf32 {
                continue;
            }
            match refusal(row, self, machine, options) {
                Some(reason) => choice.refused.push(Refusal {
                    name: row.name.into(),
                    reason,
                }),
                None => choice.candidates.push(Candidate {
                    name: row.name,
                    cost: predict(row, &self.work, machine),
                    zeros: row.zeros,
                }),
            }
        }
        choice
            .candidates
            .sort_by(|a, b| a.cost.us.total_cmp(&b.cost.us));
        choice
    }
}

/// Largest power of two, at most 16, that divides every number.
pub(super) fn alignment_of(numbers: &[usize]) -> usize {
    numbers.iter().fold(16, |a, &x| {
        if x == 0 {
            a
        } else {
            a.min(1 << x.trailing_zeros().min(4))
        }
    })
}

pub(super) fn choose<T: Scalar>(
    context: &Context,
    indirect: &IndirectEinsum,
    operands: &[(&str, Operand<'_, T>)],
    out_shape: &[usize],
    options: &Options,
) -> Result<(Exec, Choice)> {
    known_variant(indirect, options)?;
    let Some(device) = context.device() else {
        // The choice is still worked out, so that `explain` can show it without a GPU.
        let choice = problem(indirect, operands, out_shape, options)?
            .map(|(p, _)| p.candidates(&context.machine(), options))
            .unwrap_or_default();
        return Ok((Exec::Cpu, choice));
    };
    let refuse = |tried| Error::NoKernel {
        indirect: indirect.to_string(),
        tried,
    };
    let Some((problem, form)) = problem(indirect, operands, out_shape, options)? else {
        let reason = "the table holds products C[m,n] (=|+=) A[m,k] * B[k,n] with A dense, or sparse in row order; with one of them made of blocks, or both dense, \
                      also with axes swapped; \
                      Context::cpu() runs every expression";
        return Err(refuse(vec![Refusal {
            name: "spmm, block, wgmma".into(),
            reason: reason.into(),
        }]));
    };
    let choice = problem.candidates(device.machine(), options);
    let row = choice
        .candidates
        .first()
        .and_then(|c| crate::registry::find(c.name));
    let Some(row) = row else {
        return Err(refuse(choice.refused));
    };
    let matrix = match find(operands, &form.sparse)? {
        Operand::Sparse(a) => Matrix::Sparse {
            runs: a.runs().ok_or_else(|| refuse(vec![]))?,
            columns: crate::strips::block_columns(a.pattern()).unwrap_or(&[]),
            block: stored_block(&problem),
            stored: problem.work.index_slots as usize,
        },
        Operand::Dense(a) => Matrix::Dense {
            leading: a.leading(),
        },
        _ => {
            return Err(Error::Operand {
                name: form.sparse.clone(),
                reason: "upload it to the context before planning".into(),
            });
        }
    };
    let extents = Extents {
        m: problem.work.m,
        k: problem.work.k,
        n: problem.work.n,
        items: problem.work.items,
    };
    let launch = Launch::new(device, row, form.clone(), extents, matrix)?;
    Ok((Exec::Spmm(launch, Box::new(form)), choice))
}

/// A variant that the plan asks for has to exist.
pub(super) fn known_variant(indirect: &IndirectEinsum, options: &Options) -> Result<()> {
    match &options.variant {
        Some(name) if crate::registry::find(name).is_none() => Err(Error::NoKernel {
            indirect: indirect.to_string(),
            tried: vec![Refusal {
                name: name.clone(),
                reason: "the table has no kernel of this name".into(),
            }],
        }),
        _ => Ok(()),
    }
}

fn problem<T: Scalar>(
    indirect: &IndirectEinsum,
    operands: &[(&str, Operand<'_, T>)],
    out_shape: &[usize],
    options: &Options,
) -> Result<Option<(Problem, SpmmForm)>> {
    let Some(form) = indirect.as_spmm() else {
        return match indirect.as_gemm() {
            Some(form) => dense_problem(form, operands, out_shape, options),
            None => Ok(None),
        };
    };
    let host = match find(operands, &form.sparse)? {
        Operand::Sparse(a) => a.pattern(),
        Operand::HostSparse(a) => a,
        _ => return Ok(None),
    };
    let runs = match find(operands, &form.sparse)? {
        Operand::Sparse(a) => a.runs().cloned(),
        _ => crate::worklist::Runs::of(host).map(Into::into),
    };
    let Some(runs) = runs else { return Ok(None) };
    let order = form.order;
    let axis = usize::from(!order.transposed);
    let (items, rows, columns) = match *out_shape {
        [rows, columns] => (1, rows, columns),
        [items, rows, columns] if form.batched => (items, rows, columns),
        _ => return Ok(None),
    };
    let (m, n) = if order.out_columns {
        (columns, rows)
    } else {
        (rows, columns)
    };
    let k = host.shape()[axis];
    let (ldb, ldc) = (
        leading(
            operands,
            &form.dense,
            if order.dense_columns { k } else { n },
        ),
        leading(operands, &form.output, columns),
    );
    let (bm, bk) = block_of(&host.format());
    let block = if order.transposed { (bk, bm) } else { (bm, bk) };
    let work = Work {
        m,
        k,
        n,
        entries: runs.total * (block.0 * block.1) as u64,
        items,
        index_slots: index_slots(host, block),
        longest: u64::from(runs.longest),
        block,
        accumulate: form.mode == Mode::Accumulate,
    };
    let given = options.alignment.unwrap_or(16).max(1);
    let problem = Problem {
        format: Some(host.format()),
        order,
        gated: form.gate.is_some(),
        work,
        dtype: T::DTYPE,
        alignment: alignment_of(&[n, ldb, ldc, given]),
        b_alignment: alignment_of(&[ldb, given]),
    };
    Ok(Some((problem, form)))
}

/// Words that say where the entries (blocks) are: one each, for N:M one for 16.
fn index_slots<T: Scalar>(host: &AnySparse<T>, block: (usize, usize)) -> u64 {
    let each = match host {
        AnySparse::Nm(_) => 16,
        _ => block.0 * block.1,
    };
    (host.slots() / each.max(1)) as u64
}

/// Extents of a block of A as it is stored; those of `work` are the product's.
fn stored_block(problem: &Problem) -> (usize, usize) {
    let (m, k) = problem.work.block;
    if problem.order.transposed {
        (k, m)
    } else {
        (m, k)
    }
}

/// Elements from one row of an operand to the next; `width` for operands that are not on a device.
pub(super) fn leading<T: Scalar>(
    operands: &[(&str, Operand<'_, T>)],
    name: &str,
    width: usize,
) -> usize {
    match operands.iter().find(|(n, _)| *n == name) {
        Some((_, Operand::Dense(d))) => d.leading(),
        _ => width,
    }
}

/// A product of two dense matrices: every piece of A is there.
fn dense_problem<T: Scalar>(
    form: SpmmForm,
    operands: &[(&str, Operand<'_, T>)],
    out_shape: &[usize],
    options: &Options,
) -> Result<Option<(Problem, SpmmForm)>> {
    let &[m, n] = out_shape else {
        return Ok(None);
    };
    let order = form.order;
    let shape = find(operands, &form.sparse)?.shape();
    let (k, a_width) = (shape[usize::from(!order.transposed)], shape[1]);
    let b_width = if order.dense_columns { k } else { n };
    let (lda, ldb) = (
        leading(operands, &form.sparse, a_width),
        leading(operands, &form.dense, b_width),
    );
    let work = Work {
        m,
        k,
        n,
        entries: (m * k) as u64,
        items: 1,
        index_slots: 0,
        longest: k.div_ceil(64) as u64,
        block: (64, 64),
        accumulate: form.mode == Mode::Accumulate,
    };
    let given = options.alignment.unwrap_or(16).max(1);
    let problem = Problem {
        format: None,
        order,
        gated: form.gate.is_some(),
        work,
        dtype: T::DTYPE,
        alignment: alignment_of(&[n, lda, ldb, given]),
        b_alignment: alignment_of(&[lda, ldb, given]),
    };
    Ok(Some((problem, form)))
}

fn refusal(row: &Row, problem: &Problem, machine: &Machine, options: &Options) -> Option<String> {
    if let Some(wanted) = options.variant.as_ref().filter(|v| *v != row.name) {
        return Some(format!("the plan asks for {wanted}"));
    }
    let tiles = problem.work.n.div_ceil(row.columns as usize);
    if row.arch == "sm_90a" && machine.wgmma == 0.0 {
        return Some("is made of wgmma, which compute capability 9.0 has".into());
    }
    if tiles > MAX_GRID_Y {
        return Some(format!(
            "{tiles} column tiles are over the grid's {MAX_GRID_Y}"
        ));
    }
    if row.dtype == Dtype::Tf32 && options.precision == Precision::Full {
        return Some("rounds to TF32, and the plan asks for full precision".into());
    }
    match &problem.format {
        Some(format) => {
            if let Some(reason) = refuses(row.walk, format) {
                return Some(reason);
            }
        }
        None if row.family != "wgmma" => {
            return Some("walks a sparse A, which is dense here".into());
        }
        None => {}
    }
    if problem.order.transposed && row.walk != WalkKind::Block {
        return Some("walks rows of A, and the product takes its transpose".into());
    }
    let wide = ["wgmma", "nm"].contains(&row.family);
    if problem.work.items != 1 && !wide {
        return Some("computes one product at a time, not a batch".into());
    }
    if problem.gated && !wide {
        return Some("has no relu_grad".into());
    }
    let own = (row.order & B_COLUMNS != 0, row.order & C_COLUMNS != 0);
    if own != (problem.order.dense_columns, problem.order.out_columns) {
        let own = Orientation {
            transposed: problem.order.transposed,
            dense_columns: own.0,
            out_columns: own.1,
        };
        return Some(format!("computes {own}, wanted is {}", problem.order));
    }
    let (bm, bk) = stored_block(problem);
    if row.walk == WalkKind::Block && !takes_blocks(row, (bm, bk), problem.order.transposed) {
        let (pm, pk) = row.block;
        let what = if row.family == "wgmma" {
            "pieces"
        } else {
            "blocks"
        };
        let of = if problem.order.transposed {
            ", transposed"
        } else {
            ""
        };
        return Some(format!(
            "is for {pm} x {pk} {what}, the operand has {bm} x {bk}{of}"
        ));
    }
    if row.zeros == Zeros::Dense && options.zeros == ZerosRule::Strict {
        return Some("multiplies zeros inside blocks, and the plan asks for Zeros::Strict".into());
    }
    let (what, alignment) = match row.walk {
        WalkKind::Block | WalkKind::Nm => ("rows of B", problem.b_alignment),
        _ => ("rows of B and C and their length", problem.alignment),
    };
    if !alignment.is_multiple_of(row.vector as usize) {
        return Some(format!(
            "moves {} elements at once, {what} are aligned to {alignment}",
            row.vector
        ));
    }
    None
}
