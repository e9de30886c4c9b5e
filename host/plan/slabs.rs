//! Plans over an A in the memory of the host, under a memory limit: kept on the GPU where it fits, else streamed in
//! slabs of rows.

mod host;
mod kept;
mod stream;

use std::collections::BTreeMap;
use std::fmt;

use super::Options;
use super::any::AnyPlan;
use super::joined::sparse_factors;
use crate::context::Context;
use crate::cost::Cost;
use crate::einsum::{Einsum, Extents as IndexExtents};
use crate::error::{Error, Refusal, Result};
use crate::families::spmm::slabs::{self, Layout, Streamed};
use crate::indirect::rewrite;
use crate::launch::Extents;
use crate::offer::bind::{find, wrong};
use crate::offer::{
    Candidate, Choice, Compiled, Expression, PlannedPattern, Question, Types, gate,
};
use crate::registry::Dtype;
use crate::tensor::{AnyOperand, HostArrays, columns_of};
use crate::worklist::Runs;
use host::OnHost;
use kept::Kept;
use stream::Streaming;

/// Of an A that may be gone when a graph is replayed.
const NOT_CAPTURED: &str = "lies in memory that is not page-locked, and cannot be part of a graph: `Context::pin` locks it";
/// Its name among refusals.
const NAME: &str = "slabs";
/// Bytes a second that a link of 16 lanes of PCIe 5.0 moves out of page-locked memory.
const LINK: f64 = 55e9;
/// The same where threads of the host copy to such memory first.
const STAGED: f64 = 20e9;

/// An A in the memory of the host.
#[derive(Clone, Copy)]
struct Given<'a> {
    arrays: HostArrays<'a>,
    operand: AnyOperand<'a>,
}

/// The operand, if it lies in the memory of the host; on a CPU context everything does.
fn given<'a>(operand: &AnyOperand<'a>) -> Option<Given<'a>> {
    let arrays = match *operand {
        AnyOperand::Sparse(a) => a.host_arrays()?,
        AnyOperand::HostSparse(pattern, values) => HostArrays {
            columns: columns_of(pattern)?,
            values,
            pinned: false,
        },
        _ => return None,
    };
    Some(Given {
        arrays,
        operand: *operand,
    })
}

/// The A of a run, which has the planned pattern and lies in the memory of the host.
fn given_in<'a>(
    planned: &PlannedPattern,
    dtype: Dtype,
    operands: &[(&str, AnyOperand<'a>)],
) -> Result<HostArrays<'a>> {
    let operand = find(operands, planned.name())?;
    let (Some(given), Some(pattern)) = (given(operand), operand.pattern()) else {
        return Err(wrong(
            planned.name(),
            "a sparse tensor in the memory of the host",
            operand,
        ));
    };
    planned.expect(planned.name(), pattern)?;
    // Of another type only by a mistake of ours.
    match given.arrays.values.dtype() == dtype {
        true => Ok(given.arrays),
        false => Err(Error::other_pattern(planned.name())),
    }
}

/// What a run is predicted to take, in microseconds.
#[derive(Clone, Copy, Debug)]
struct Predicted {
    copy: f64,
    product: f64,
    slabs: usize,
}

impl Predicted {
    fn new(bytes: usize, pinned: bool, (product, slabs): (f64, usize)) -> Self {
        let rate = if pinned { LINK } else { STAGED };
        Predicted {
            copy: bytes as f64 / rate * 1e6,
            product,
            slabs: slabs.max(1),
        }
    }

    /// Both at once, but for the first copy and the last product.
    fn run(&self) -> f64 {
        let ends = self.copy.min(self.product) / self.slabs as f64;
        self.copy.max(self.product) + ends
    }
}

/// How slabs lie, for whoever prints a plan.
struct Shown<'l> {
    layout: &'l Layout,
    element: usize,
    predicted: Predicted,
    limit: usize,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Layout {
            slabs,
            buffers,
            buffer_bytes,
            lists_streamed,
            ..
        } = self.layout;
        let lists = if *lists_streamed {
            "copied with them"
        } else {
            "kept"
        };
        let Predicted { copy, product, .. } = self.predicted;
        write!(
            f,
            "{} slabs of rows through {buffers} buffers of {buffer_bytes} bytes, lists {lists}, {} bytes copied in each \
             run, predicted copy {copy:.1} us under product {product:.1} us, {} bytes on the GPU of {} allowed",
            slabs.len(),
            self.layout.copied(self.element),
            self.layout.bytes(),
            self.limit
        )
    }
}

impl AnyPlan {
    /// A plan over an A in the memory of the host, where a limit is given; `None` where there is no such A, or where a
    /// plan of the CPU has it whole.
    pub(super) fn limited(
        (context, types): (&Context, Types),
        (einsum, shapes): (&Einsum, &BTreeMap<String, Vec<usize>>),
        extents: &IndexExtents,
        operands: &[(&str, AnyOperand<'_>)],
        options: &Options,
    ) -> Result<Option<Self>> {
        let factors = sparse_factors(einsum, operands);
        let of_host = |f: &&usize| {
            let operand = find(operands, &einsum.factors[**f].tensor);
            operand.is_ok_and(|operand| lies_on_host(operand))
        };
        let Some(&factor) = factors.iter().find(of_host) else {
            return Ok(None);
        };
        let name = einsum.factors[factor].tensor.as_str();
        let operand = find(operands, name)?;
        let Some(limit) = options.memory_limit else {
            // What a GPU plan says of other host tensors is said where it binds them.
            let pinned = matches!(operand, AnyOperand::Sparse(a) if a.is_pinned());
            return match context.is_cuda() && pinned {
                true => Err(Error::operand(
                    name,
                    "lies in the memory of the host: `Options::memory_limit` streams it, `Context::upload` copies it",
                )),
                false => Ok(None),
            };
        };
        let refuse = |refused: Vec<Refusal>| Error::no_kernel(einsum.to_string(), refused);
        let Some(pattern) = operand.pattern().filter(|_| factors.len() == 1) else {
            let reason = "streams one sparse factor alone";
            return Err(refuse(vec![Refusal::of(NAME, reason)]));
        };
        let indirect = rewrite(einsum, name, &pattern.format())?;
        let checked = gate::pass(&indirect, operands, extents.out())?;
        let machine = context.machine();
        let question = Question::new(
            (context, types),
            (einsum, &indirect),
            (checked, &[]),
            extents,
            (options, &machine),
        );
        let product = question.product()?;
        let taken = product.filter(|(problem, form)| {
            slabs::refusal(problem, form).is_none() && form.sparse == name
        });
        let (Some((problem, form)), Some(given), Some(runs)) =
            (taken, given(operand), Runs::of_pattern(pattern))
        else {
            let reason = product.and_then(|(problem, form)| slabs::refusal(problem, form));
            let reason = reason.unwrap_or("streams A of C[m,n] (= | +=) A[m,k] * B[k,n] alone");
            return Err(refuse(vec![Refusal::of(NAME, reason)]));
        };
        let rows = slabs::rows(&question, problem).map_err(refuse)?;
        let (row, cost) = rows[0];
        let of = Streamed {
            row,
            runs: &runs,
            extents: Extents {
                m: problem.work.m,
                k: problem.work.k,
                n: problem.work.n,
                items: 1,
            },
            slots: pattern.slots(),
        };
        let [whole, own] = of.whole(&machine);
        if whole <= limit {
            let Some(device) = context.device() else {
                return Ok(None);
            };
            let kept = Kept::new(
                device,
                (context, types),
                einsum,
                (name, given, operands),
                (options, limit - own),
            )?;
            let of = (einsum.clone(), shapes.clone());
            return Ok(Some(Self::holding(
                (context, types),
                of,
                extents,
                kept,
                Kept::plan,
            )));
        }
        let layout = Layout::new(&of, limit, &machine)?;
        let predict = |cost: Cost| {
            let copied = layout.copied(types.operands.bytes());
            Predicted::new(
                copied,
                given.arrays.pinned || !context.is_cuda(),
                (cost.us, layout.slabs.len()),
            )
        };
        let candidate = |&(row, cost): &(_, Cost)| {
            let us = predict(cost).run();
            Candidate::of(row, Cost { us, ..cost })
        };
        let choice = Choice {
            candidates: rows.iter().map(candidate).collect(),
            taken: context.is_cuda(),
            refused: Vec::new(),
        };
        let predicted = predict(cost);
        let planned = PlannedPattern::new(name, pattern);
        let made: Box<dyn Compiled> = match context.device() {
            Some(device) => {
                let product = slabs::SlabProduct::new(device, form.clone(), &of, layout)?;
                let names = (
                    form.dense.clone(),
                    form.bias.as_ref().map(|(name, _)| name.clone()),
                );
                let a = (planned, given.arrays.pinned);
                Box::new(Streaming::new(
                    device,
                    product,
                    names,
                    a,
                    (predicted, limit),
                )?)
            }
            None => Box::new(OnHost::new(
                context,
                (einsum, form),
                (layout, types.operands.bytes()),
                planned,
                (predicted, limit),
            )?),
        };
        let expression = Expression {
            types,
            context: context.clone(),
            einsum: einsum.clone(),
            indirect,
            out_shape: extents.out().to_vec(),
            shapes: shapes.clone(),
        };
        Ok(Some(AnyPlan {
            expression,
            made,
            choice,
        }))
    }
}

fn lies_on_host(operand: &AnyOperand<'_>) -> bool {
    match operand {
        AnyOperand::Sparse(a) => a.device().is_none(),
        AnyOperand::HostSparse(..) => true,
        _ => false,
    }
}
