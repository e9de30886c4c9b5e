//! Plans with an operand of dynamic micro-tiles: `detect`, and the kernels of `PitParams`.

mod bound;
mod few;
pub(crate) mod right;

use std::fmt;
use std::sync::Arc;

use einsparse_kernels::table::Row;

use crate::cost::Cost;
use crate::device::Device;
use crate::einsum::{Activation, Mode};
use crate::error::Result;
use crate::families::discover::{DetectLaunch, DeviceLists};
use crate::families::gather_gemm::cost::pit::{finds_columns, is_worth_it, predict};
use crate::families::gather_gemm::found::kernels_as;
use crate::families::gather_gemm::{PitLaunch, PitWork, few_rows, pit_rows};
use crate::indirect::{Orientation, SpmmForm};
use crate::launch::Turns;
use crate::offer::bind::{find, wrong};
use crate::offer::{
    Answer, Compiled, Offer, Question, Run, Unfit, ZerosRule, multiplied_as, write_kernel,
};
use crate::registry::Dtype;
use crate::tensor::{AnyOperand, AnyTensor, SparsityHint};
use bound::Bound;

/// Returns the offers for an expression with a dynamic operand.
pub(crate) fn offers<'q>(question: &'q Question<'q, '_>) -> Result<Answer<'q>> {
    if question.dynamic.is_empty() {
        return Ok(Answer::default());
    }
    let refused = |reason: &str| Answer::refused("pit", reason);
    let missing = "skips micro-tiles of the first matrix, and that is not dynamic";
    let found = asked(question, (|form| &form.sparse, missing), extents);
    let (form, expected, extents) = match found {
        Ok(asked) => asked,
        Err(unfit) => return unfit.answer("pit"),
    };
    // With few rows, a micro-tile has the rows of A.
    let share =
        |row: &Row| expected.share(if finds_columns(row) { extents[0] } else { height(row) });
    let turned = form.order.transposed;
    let few = few_rows(question.types.operands).filter(|_| !turned);
    let dtype = multiplied_as(question.types.operands, question.options.precision);
    let rows = rows(dtype, turned).chain(few);
    let Some(first) = rows.clone().next() else {
        return refused(
            "computes f16 and bf16, and with A[m,k] f32 if the plan has Precision::Tf32",
        );
    };
    let asked = question.options.variant.as_deref();
    let machine = question.machine;
    // A requested kernel that this GPU cannot run is refused with the reason.
    let runs = |row: &&Row| asked == Some(row.name) || machine.lacks(row).is_none();
    let mut rows = rows.filter(runs).peekable();
    if rows.peek().is_none() {
        return refused(&machine.lacks(first).unwrap_or_default());
    }
    let rows = rows.filter(|row| few::is_offered(row, extents, asked, machine));
    let wanted = |row: &&Row| asked == Some(row.name) || is_worth_it(row, share(row));
    let mut rows = rows.filter(wanted).peekable();
    if rows.peek().is_none() {
        return refused("gains nothing where nearly all micro-tiles hold something");
    }
    let offers = rows.map(|row| {
        let cost = predict(row, extents, share(row), machine);
        offer(question, row, extents, (form.clone(), cost))
    });
    Answer::of(offers.collect())
}

/// Product, expected sparsity of the dynamic matrix, and `[m, k, n]`.
type Asked<'q> = (SpmmForm, &'q SparsityHint, [usize; 3]);

/// Returns the requested product, or the reason why the kernels of this module or of `pit_right` do not support it.
/// Inputs: the matrix that must be dynamic, the reason if it is not, and `extents`.
fn asked<'q>(
    question: &'q Question<'q, '_>,
    (dynamic, missing): (fn(&SpmmForm) -> &String, &str),
    extents: fn(&Question<'_, '_>, &SpmmForm) -> Result<[usize; 3], Unfit>,
) -> Result<Asked<'q>, Unfit> {
    if question.options.zeros == ZerosRule::Strict {
        let reason = "multiplies zeros inside micro-tiles, but the plan requires Zeros::Strict";
        return Err(reason.into());
    }
    let form = question.indirect.as_gemm().filter(plain);
    let form = form.filter(|_| question.types.alike()).ok_or(
        "computes C[m,n] = A[m,k] * B[k,n], or with A[k,m], without factors and epilogue in the type of the operands",
    )?;
    let mut all = question.dynamic.iter();
    let found = all.find(|(name, _)| name == dynamic(&form));
    let (_, expected) = found.ok_or(missing)?;
    let extents = extents(question, &form)?;
    Ok((form, expected, extents))
}

/// Returns the offer of one of the kernels.
fn offer<'q>(
    question: &'q Question<'q, '_>,
    row: &'static Row,
    extents: [usize; 3],
    (form, cost): (SpmmForm, Cost),
) -> Offer<'q> {
    if finds_columns(row) {
        return Offer::of(row, cost, move |device| few::Made::new(device, row, extents, &form));
    }
    // If the values of a full A do not fit in memory, a dense kernel may be selected.
    Offer::with_room(row, cost, move |device| Made::new(device, row, extents, (&form, question)))
}

/// Returns the kernels that multiply in this type, for A stored as `[m, k]`, or as `[k, m]` if `turned`.
fn rows(dtype: Dtype, turned: bool) -> impl Iterator<Item = &'static Row> + Clone {
    pit_rows(dtype, turned, false)
}

/// Returns whether a kernel of 16-bit types skips micro-tiles of the transpose of A.
pub(crate) fn skips(variant: &str) -> bool {
    let of_halves = [Dtype::F16, Dtype::Bf16].into_iter();
    of_halves.flat_map(|dtype| rows(dtype, true)).any(|row| row.name == variant)
}

/// Returns the rows of C per micro-tile of a kernel.
fn height(row: &Row) -> usize {
    row.block.0.max(row.block.1) as usize
}

/// Returns `[m, k, n]`, or the reason why the kernels do not support these operands.
fn extents(question: &Question<'_, '_>, form: &SpmmForm) -> Result<[usize; 3], Unfit> {
    let (a, b) =
        (find(question.operands(), &form.sparse)?, find(question.operands(), &form.dense)?);
    let AnyOperand::Dense(rows) = b else {
        return Err(wrong(&form.dense, "an uploaded dense tensor", b).into());
    };
    let (&[first, second], &[_, n]) = (a.shape(), b.shape()) else {
        return Err("multiplies matrices".into());
    };
    let turned = form.order.transposed;
    let (m, k) = if turned { (second, first) } else { (first, second) };
    let vector = 16 / question.types.operands.bytes();
    let whole = |x: usize| x.is_multiple_of(vector);
    let given = question.options.alignment.unwrap_or(vector).max(1);
    if !whole(n) || !whole(rows.leading()) || !whole(given) {
        return Err("gathers rows of B by 16 bytes, which it is not a multiple of".into());
    }
    let gathered = |a: &AnyOperand<'_>| match a {
        AnyOperand::Dense(a) => whole(m) && whole(a.leading()),
        _ => false,
    };
    if turned && !gathered(a) {
        return Err("gathers pieces of rows of A by 16 bytes, which it is not a multiple of".into());
    }
    Ok([m, k, n])
}

/// Returns whether the form has neither factor nor epilogue, and every operand is stored as written, except A, which
/// may be `[k, m]`.
fn plain(form: &SpmmForm) -> bool {
    form.mode == Mode::Assign
        && form.bias.is_none()
        && form.gate.is_none()
        && form.activation == Activation::Identity
        && form.scalars.is_empty()
        && Orientation { transposed: false, ..form.order }.is_plain()
}

/// Detection and product, and the lists that they share.
#[derive(Debug)]
struct Made {
    row: &'static Row,
    detect: DetectLaunch,
    product: PitLaunch,
    lists: DeviceLists,
    /// Serializes runs, which share the lists.
    turns: Turns,
    bound: Bound,
}

impl Made {
    fn new(
        device: &Arc<Device>,
        row: &'static Row,
        extents: [usize; 3],
        (form, question): (&SpmmForm, &Question<'_, '_>),
    ) -> Result<Self> {
        let work =
            PitWork { turned: form.order.transposed, ..PitWork::single(extents, height(row)) };
        let how = (0.0, question.options.determinism);
        let types = (question.types.operands, row.dtype);
        let (detect, product) = kernels_as(device, types, work, how)?;
        Ok(Made {
            row,
            lists: detect.lists(device)?,
            detect,
            product,
            turns: Turns::new(device)?,
            bound: Bound::new(form, extents, [extents[0], extents[1]]),
        })
    }
}

impl Compiled for Made {
    fn variant(&self) -> &'static str {
        self.row.name
    }

    fn bytes(&self) -> usize {
        self.lists.bytes()
    }

    fn run(&self, run: &Run<'_>, out: &mut AnyTensor) -> Result<()> {
        let queue = run.queue(out)?;
        let [a, b, c] = self.bound.matrices(run, out)?;
        // All errors are detected before anything is queued.
        let product = self.product.params(&self.lists, Some(a), b, c)?;
        self.turns.queue(true, queue.stream(), || {
            self.detect.run_ahead_of(Some(b), a, &self.lists, queue)?;
            self.product.start(&product, queue)
        })
    }
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_kernel(f, self.row, format_args!("micro-tiles found by {}", self.detect.name()))
    }
}
