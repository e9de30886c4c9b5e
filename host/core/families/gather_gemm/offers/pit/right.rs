//! Plans with a dynamic right operand: `detect`, `transpose`, and the kernels of `PitParams`.

use std::fmt;
use std::sync::Arc;

use einsparse_kernels::table::Row;

use super::bound::Bound;
use super::{Asked, Extents, asked, matrices};
use crate::device::Device;
use crate::error::Result;
use crate::families::discover::DeviceLists;
use crate::families::gather_gemm::cost::pit::{is_worth_it, predict, transposition_us};
use crate::families::gather_gemm::found::{RightKernels, WIDTH};
use crate::families::gather_gemm::pit_rows;
use crate::indirect::SpmmForm;
use crate::launch::Turns;
use crate::offer::bind::{find, wrong};
use crate::offer::{Answer, Compiled, Determinism, Offer, Question, Run, Unfit, write_kernel};
use crate::tensor::{AnyOperand, AnyTensor};

/// Returns the offers for an expression whose right factor is dynamic.
pub(crate) fn offers<'q>(question: &'q Question<'q, '_>) -> Result<Answer<'q>> {
    if question.dynamic.is_empty() {
        return Ok(Answer::default());
    }
    let (asked, row, share) = match found(question) {
        Ok(found) => found,
        Err(unfit) => return unfit.answer("pit_right"),
    };
    let ([m, k, n], machine) = (asked.extents, question.machine);
    let all = |extent: usize| asked.items.saturating_mul(extent);
    let mut cost = predict(row, [all(n), k, m], share, machine);
    if !asked.form.order.transposed {
        let us = transposition_us([all(m), k], question.types.operands.bytes(), machine);
        cost.us += us;
        cost.hbm_us += us;
    }
    let determinism = question.options.determinism;
    // If the transpose does not fit in memory, a dense kernel may be selected.
    Answer::of(vec![Offer::with_room(row, cost, move |device| {
        Made::new(device, row, &asked, determinism)
    })])
}

/// Product, kernel, and expected share of nonempty micro-tiles.
type Found = (Asked, &'static Row, f64);

/// Returns the requested product, or the reason why the kernels do not support it.
fn found(question: &Question<'_, '_>) -> Result<Found, Unfit> {
    let missing = "skips pieces of rows of the second matrix, and that is not dynamic";
    let product = asked(question, (|form| &form.dense, missing), extents)?;
    let mut rows = pit_rows(question.types.operands, true, true);
    let first = rows.clone().next().ok_or("computes f16 and bf16")?;
    let wanted = question.options.variant.as_deref();
    let machine = question.machine;
    // A requested kernel that this GPU cannot run is refused with the reason.
    let runs = |row: &&Row| wanted == Some(row.name) || machine.lacks(row).is_none();
    let Some(row) = rows.find(runs) else {
        return Err(machine.lacks(first).unwrap_or_default().as_str().into());
    };
    let share = product.dynamic.expected.share(WIDTH);
    if wanted != Some(row.name) && !is_worth_it(row, share) {
        return Err("gains nothing where nearly all micro-tiles hold something".into());
    }
    Ok((product, row, share))
}

/// Returns items and `[m, k, n]`, or the reason why the kernels do not support these operands.
fn extents(question: &Question<'_, '_>, form: &SpmmForm) -> Result<Extents, Unfit> {
    let (a, b) =
        (find(question.operands(), &form.sparse)?, find(question.operands(), &form.dense)?);
    let AnyOperand::Dense(rows) = a else {
        return Err(wrong(&form.sparse, "an uploaded dense tensor", a).into());
    };
    let AnyOperand::Dense(pieces) = b else {
        return Err(wrong(&form.dense, "an uploaded dense tensor", b).into());
    };
    let ((items, [first, second]), (_, [_, n])) = (matrices(a.shape())?, matrices(b.shape())?);
    let vector = 16 / question.types.operands.bytes();
    let whole = |x: usize| x.is_multiple_of(vector);
    let given = question.options.alignment.unwrap_or(vector).max(1);
    if !whole(n) || !whole(pieces.leading()) || !whole(given) {
        return Err("gathers pieces of rows of B by 16 bytes, which it is not a multiple of".into());
    }
    if !form.order.transposed {
        return Ok((items, [first, second, n]));
    }
    if !whole(rows.leading()) {
        return Err("gathers rows of A by 16 bytes, which it is not a multiple of".into());
    }
    Ok((items, [second, first, n]))
}

/// Detection, transpose and product, and the lists that they share.
#[derive(Debug)]
struct Made {
    row: &'static Row,
    kernels: RightKernels,
    lists: DeviceLists,
    /// Serializes runs, which share the lists and the transpose.
    turns: Turns,
    bound: Bound,
}

impl Made {
    fn new(
        device: &Arc<Device>,
        row: &'static Row,
        asked: &Asked,
        determinism: Determinism,
    ) -> Result<Self> {
        let (items, by_columns) = (asked.items, asked.form.order.transposed);
        let how = (asked.dynamic.threshold, determinism);
        let kernels = RightKernels::new(device, row.dtype, items, asked.extents, by_columns, how)?;
        Ok(Made {
            row,
            lists: kernels.detect.lists(device)?,
            kernels,
            turns: Turns::new(device)?,
            bound: Bound::new(asked),
        })
    }
}

impl Compiled for Made {
    fn variant(&self) -> &'static str {
        self.row.name
    }

    fn bytes(&self) -> usize {
        self.lists.bytes() + self.kernels.bytes()
    }

    fn run(&self, run: &Run<'_>, out: &mut AnyTensor) -> Result<()> {
        let queue = run.queue(out)?;
        let all = self.bound.matrices(run, out)?;
        self.kernels
            .run(&self.lists, all, queue, |launch| self.turns.queue(true, queue.stream(), launch))
    }
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.kernels.names();
        let behind = names[..names.len() - 1].join(", ");
        let geometry = format_args!("of the transposes, behind {behind}");
        write_kernel(f, self.row, geometry)
    }
}
