//! Plans over an A in host memory, under a memory limit: A stays on the GPU if it fits, otherwise it is streamed in
//! chunks of rows.

mod host;
mod kept;
mod stream;

use std::fmt;

use einsparse_formats::AnyPattern;
use einsparse_kernels::table::Row;

use super::any::AnyPlan;
use super::joined::sparse_factors;
use crate::context::Context;
use crate::cost::{Cost, Work};
use crate::einsum::Extents as IndexExtents;
use crate::error::{Error, Refusal, Result};
use crate::families::spmm::slabs::{self, Layout, Streamed};
use crate::indirect::{SpmmForm, rewrite};
use crate::launch::Extents;
use crate::offer::{
    Candidate, Choice, Executable, PlannedPattern, Request, Source, SpmmSlots, wrong,
};
use crate::registry::Dtype;
use crate::tensor::{AnyOperand, HostArrays, columns_of};
use crate::worklist::Runs;
use host::OnHost;
use kept::Kept;
use stream::Streaming;

/// Reason for refusing a graph over an A that may be freed before the graph is launched.
const NOT_CAPTURED: &str =
    "is in memory that is not page-locked, and cannot be part of a graph; `Context::pin` locks it";
/// Name of these plans among refusals.
const NAME: &str = "streaming";
/// Bytes per second that 16 lanes of PCIe 5.0 copy from pinned memory.
const LINK: f64 = 55e9;
/// Bytes per second if host threads first copy to pinned memory.
const STAGED: f64 = 26e9;

/// Returns the arrays of an operand in host memory; on a CPU context all operands are.
fn given<'a>(operand: &AnyOperand<'a>) -> Option<HostArrays<'a>> {
    match *operand {
        AnyOperand::Sparse(a) => a.host_arrays(),
        AnyOperand::HostSparse(pattern, values) => {
            Some(HostArrays { columns: columns_of(pattern)?, values, pinned: false })
        }
        _ => None,
    }
}

/// Returns the arrays of A in a run. A must be in host memory and have the planned pattern.
fn given_in<'a>(
    planned: &PlannedPattern,
    dtype: Dtype,
    operand: &AnyOperand<'a>,
) -> Result<HostArrays<'a>> {
    let (Some(given), Some(pattern)) = (given(operand), operand.pattern()) else {
        return Err(wrong(planned.name(), "a sparse tensor in the memory of the host", operand));
    };
    planned.expect(planned.name(), pattern)?;
    // Types differ only through a bug in this crate.
    let found = given.values.dtype();
    match found == dtype {
        true => Ok(given),
        false => Err(Error::dtype(planned.name(), dtype.name(), found.name())),
    }
}

/// Predicted microseconds of a run.
#[derive(Clone, Copy, Debug)]
struct Predicted {
    copy: f64,
    product: f64,
    slabs: usize,
}

impl Predicted {
    /// Copies and products overlap, except for the first copy and the last product.
    fn run(&self) -> f64 {
        let ends = self.copy.min(self.product) / self.slabs as f64;
        self.copy.max(self.product) + ends
    }
}

/// Chunks of a plan for display.
struct Shown<'l> {
    layout: &'l Layout,
    element: usize,
    predicted: Predicted,
    limit: usize,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Layout { slabs, buffers, buffer_bytes, lists_streamed, .. } = self.layout;
        let lists = if *lists_streamed { "copied with them" } else { "kept" };
        let Predicted { copy, product, .. } = self.predicted;
        write!(
            f,
            "{} chunks of rows through {buffers} buffers of {buffer_bytes} bytes, lists {lists}, {} bytes copied in each \
             run, predicted copy {copy:.1} us under product {product:.1} us, {} bytes on the GPU of {} allowed",
            slabs.len(),
            self.layout.copied(self.element),
            self.layout.bytes(),
            self.limit
        )
    }
}

/// Request with an A in host memory, and the memory limit in bytes.
struct Limited<'q, 'a> {
    request: &'q Request<'q, 'a>,
    name: &'q str,
    given: HostArrays<'a>,
    pattern: AnyPattern<'a>,
    limit: usize,
}

impl AnyPlan {
    /// Returns a plan over an A in host memory under a memory limit; `None` without such an A, or if the CPU processes
    /// it whole.
    pub(super) fn limited(source: &Source<'_, '_>, extents: &IndexExtents) -> Result<Option<Self>> {
        let Source { context, einsum, options, .. } = *source;
        let factors = sparse_factors(einsum, source.operands);
        let named = factors.iter().find_map(|&factor| {
            let name = einsum.factors[factor].tensor.as_str();
            let operand = *source.operand(name).ok()?;
            operand.lies_on_host().then_some((name, operand))
        });
        let Some((name, operand)) = named else {
            return Ok(None);
        };
        let Some(limit) = options.memory_limit else {
            return without_limit(context, name, &operand).map(|()| None);
        };
        let refuse = |refused: Vec<Refusal>| match (context.device(), operand) {
            // A CPU context processes it like a tensor in device memory.
            (None, AnyOperand::Sparse(_)) => Ok(None),
            _ => Err(Error::no_kernel(einsum.to_string(), refused)),
        };
        let (Some(given), Some(pattern), 1) = (given(&operand), operand.pattern(), factors.len())
        else {
            return refuse(vec![Refusal::of(NAME, slabs::STREAMED)]);
        };
        let indirect = rewrite(einsum, name, &pattern.format())?;
        let machine = context.machine();
        let request = Request::new(source, &indirect, (extents, None), &machine)?;
        let taken = request.product()?.filter(|(problem, form)| slabs::takes(problem, form));
        let Some((problem, form)) = taken else {
            return refuse(vec![Refusal::of(NAME, slabs::STREAMED)]);
        };
        let rows = match slabs::rows(&request, problem) {
            Ok(rows) => rows,
            Err(refused) => return refuse(refused),
        };
        let limited = Limited { request: &request, name, given, pattern, limit };
        limited.plan(form, (&rows, problem.work))
    }
}

impl Limited<'_, '_> {
    fn plan(
        &self,
        form: &SpmmForm,
        (rows, work): (&[(&'static Row, Cost)], Work),
    ) -> Result<Option<AnyPlan>> {
        let Request { context, extents, machine, .. } = *self.request;
        let source = &self.request.source();
        let Some(runs) = Runs::of_pattern(self.pattern)? else {
            let found = self.pattern.format();
            return Err(Error::format(self.name, "a format that stores rows", found));
        };
        let of = Streamed {
            row: rows[0].0,
            runs: &runs,
            extents: Extents { m: work.m, k: work.k, n: work.n, items: 1 },
            slots: self.pattern.slots(),
        };
        let [whole, own] = of.whole(machine);
        if whole > self.limit {
            let layout = Layout::new(&of, self.limit, machine)?;
            let (made, choice) = self.streamed(form, &of, (rows, layout))?;
            let of = (self.request.indirect.clone(), extents.out());
            return AnyPlan::with(source, of, made, choice).map(Some);
        }
        let Some(device) = context.device() else {
            return Ok(None);
        };
        let kept = Kept::new(device, self, self.limit - own)?;
        AnyPlan::holding(source, extents, kept, Kept::plan).map(Some)
    }

    /// Returns the plan over chunks, and its candidate kernels.
    fn streamed(
        &self,
        form: &SpmmForm,
        of: &Streamed<'_>,
        (rows, layout): (&[(&'static Row, Cost)], Layout),
    ) -> Result<(Box<dyn Executable>, Choice)> {
        let (context, element) = (self.request.context, self.request.types.operands.bytes());
        let pinned = self.given.pinned;
        // On a CPU context, the prediction is for a GPU and pinned memory.
        let rate = if pinned || !context.is_cuda() { LINK } else { STAGED };
        let predict = |cost: &Cost| Predicted {
            copy: layout.copied(element) as f64 / rate * 1e6,
            product: cost.us,
            slabs: layout.slabs.len().max(1),
        };
        let candidate = |(row, cost): &(&'static Row, Cost)| {
            let us = predict(cost).run();
            Candidate::of(row, Cost { us, ..*cost })
        };
        let choice = Choice {
            candidates: rows.iter().map(candidate).collect(),
            taken: context.is_cuda(),
            refused: Vec::new(),
        };
        let shown = (predict(&rows[0].1), self.limit);
        let pattern = PlannedPattern::new(self.name, self.pattern);
        let slots = SpmmSlots::new(self.request, form)?;
        let made: Box<dyn Executable> = match context.device() {
            Some(device) => {
                let product = slabs::SlabProduct::new(device, form.clone(), of, layout)?;
                Box::new(Streaming::new(device, product, (slots, pattern, pinned), shown)?)
            }
            None => {
                let pattern = (slots.a, pattern);
                Box::new(OnHost::new(self.request, form, (layout, element), pattern, shown)?)
            }
        };
        Ok((made, choice))
    }
}

/// Refuses a pinned A on a GPU without a memory limit. Other host tensors are refused when they are bound.
fn without_limit(context: &Context, name: &str, operand: &AnyOperand<'_>) -> Result<()> {
    match operand {
        AnyOperand::Sparse(a) if a.is_pinned() && context.is_cuda() => Err(Error::context(
            name,
            "device memory: `Context::upload` copies it, `Options::memory_limit` streams it",
            "host memory",
        )),
        _ => Ok(()),
    }
}
