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
use crate::offer::{
    AnyOut, Executable, Offer, Offers, Request, Run, Slot, ZerosRule, multiplied_as, refuse,
    write_kernel, wrong,
};
use crate::registry::Dtype;
use crate::tensor::{AnyOperand, DynamicOptions};
use bound::Bound;

/// Name of the family in refusals.
const NAME: &str = "pit";

/// Returns the offers for an expression with a dynamic operand.
pub(crate) fn offers<'q>(request: &'q Request<'q, '_>) -> Result<Offers<'q>> {
    if request.dynamic.is_empty() {
        return Ok(Offers::new());
    }
    let refused = |reason: &str| Err(refuse(NAME, reason));
    let missing = "skips micro-tiles of the first matrix, and that is not dynamic";
    let pit = PitForm::new(request, (NAME, |form| &form.sparse, missing), extents)?;
    let (items, extents @ [m, k, n]) = (pit.items, pit.extents);
    // With few rows, a micro-tile has the rows of A.
    let expected = pit.dynamic.expected;
    let share = |row: &Row| expected.share(if finds_columns(row) { m } else { height(row) });
    let turned = pit.form.order.transposed;
    if turned && items > 1 {
        return refused("computes batches with A[z,m,k], not with A[z,k,m]");
    }
    let few = few_rows(request.types.operands).filter(|_| !turned && items == 1);
    let dtype = multiplied_as(request.types.operands, request.options.precision);
    let rows = rows(dtype, turned).chain(few);
    let Some(first) = rows.clone().next() else {
        return refused(
            "computes f16 and bf16, and with A[m,k] f32 if the plan has Precision::Tf32",
        );
    };
    let wanted = request.options.variant.as_deref();
    let machine = request.machine;
    // A requested kernel that this GPU cannot run is refused with the reason.
    let runs = |row: &&Row| wanted == Some(row.name) || machine.lacks(row).is_none();
    let mut rows = rows.filter(runs).peekable();
    if rows.peek().is_none() {
        return refused(&machine.lacks(first).unwrap_or_default());
    }
    // Micro-tiles must end where an item ends.
    let ends = |row: &&Row| items == 1 || m.is_multiple_of(height(row));
    let is_refused = rows.clone().any(|row| wanted == Some(row.name) && !ends(&row));
    let mut rows = rows.filter(ends).peekable();
    if is_refused || rows.peek().is_none() {
        return refused(&format!("requires items of whole micro-tiles, and items have {m} rows"));
    }
    let rows = rows.filter(|row| few::is_offered(row, extents, wanted, machine));
    let gains = |row: &&Row| wanted == Some(row.name) || is_worth_it(row, share(row));
    let mut rows = rows.filter(gains).peekable();
    if rows.peek().is_none() {
        return refused("gains nothing where nearly all micro-tiles hold something");
    }
    let offers = rows.map(|row| {
        let cost = predict(row, [items.saturating_mul(m), k, n], share(row), machine);
        Ok(offer(request, row, pit.clone(), cost))
    });
    Ok(offers.collect())
}

/// Requested product.
#[derive(Clone)]
struct PitForm {
    form: SpmmForm,
    /// Slots of A and B.
    slots: [Slot; 2],
    /// Options of the dynamic matrix.
    dynamic: DynamicOptions,
    items: usize,
    /// `[m, k, n]` of an item.
    extents: [usize; 3],
}

/// Items, and `[m, k, n]` of an item.
type Extents = (usize, [usize; 3]);

impl PitForm {
    /// Returns the requested product, or the reason why the kernels of the family `name` do not support it. `dynamic`
    /// selects the matrix that must be dynamic; `missing` is the reason if it is not.
    fn new(
        request: &Request<'_, '_>,
        (name, dynamic, missing): (&str, fn(&SpmmForm) -> &String, &str),
        extents: fn(&Request<'_, '_>, &SpmmForm) -> Result<Extents>,
    ) -> Result<PitForm> {
        if request.options.zeros == ZerosRule::Strict {
            let reason = "multiplies zeros inside micro-tiles, but the plan requires Zeros::Strict";
            return Err(refuse(name, reason));
        }
        let product = request.indirect;
        let form = product.as_gemm().or_else(|| product.as_gemm_batch()).filter(plain);
        let form = form.filter(|_| request.types.alike()).ok_or_else(|| {
            let reason = "computes C[m,n] = A[m,k] * B[k,n], or with A[k,m], or batches C[z,m,n] of these, without \
                factors and epilogue in the type of the operands";
            refuse(name, reason)
        })?;
        let mut all = request.dynamic.iter();
        let found = all.find(|(name, _)| name == dynamic(&form));
        let (_, dynamic) = *found.ok_or_else(|| refuse(name, missing))?;
        let slots = [request.slot(&form.sparse)?, request.slot(&form.dense)?];
        let (items, extents) = extents(request, &form)?;
        Ok(PitForm { form, slots, dynamic, items, extents })
    }
}

/// Returns the number of matrices in an operand, and their extents.
fn matrices(name: &str, shape: &[usize]) -> Result<(usize, [usize; 2])> {
    match *shape {
        [rows, columns] => Ok((1, [rows, columns])),
        [items, rows, columns] => Ok((items, [rows, columns])),
        _ => Err(refuse(name, "multiplies matrices")),
    }
}

/// Returns the offer of one of the kernels.
fn offer<'q>(
    request: &'q Request<'q, '_>,
    row: &'static Row,
    pit: PitForm,
    cost: Cost,
) -> Offer<'q> {
    if finds_columns(row) {
        return Offer::of(row, cost, move |device| few::PitFewProduct::new(device, row, &pit));
    }
    // If the values of a full A do not fit in memory, a dense kernel may be selected.
    Offer::with_room(row, cost, move |device| PitProduct::new(device, row, &pit, request))
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

/// Returns items and `[m, k, n]`, or the reason why the kernels do not support these operands.
fn extents(request: &Request<'_, '_>, form: &SpmmForm) -> Result<Extents> {
    let (a, b) = (request.operand(&form.sparse)?, request.operand(&form.dense)?);
    let AnyOperand::Dense(rows) = b else {
        return Err(wrong(&form.dense, "an uploaded dense tensor", b));
    };
    let ((items, [first, second]), (_, [_, n])) =
        (matrices(NAME, a.shape())?, matrices(NAME, b.shape())?);
    let turned = form.order.transposed;
    let (m, k) = if turned { (second, first) } else { (first, second) };
    let vector = 16 / request.types.operands.bytes();
    let whole = |x: usize| x.is_multiple_of(vector);
    let given = request.options.alignment.unwrap_or(vector).max(1);
    if !whole(n) || !whole(rows.leading()) || !whole(given) {
        return Err(refuse(NAME, "gathers rows of B by 16 bytes, which it is not a multiple of"));
    }
    let gathered = |a: &AnyOperand<'_>| match a {
        AnyOperand::Dense(a) => whole(m) && whole(a.leading()),
        _ => false,
    };
    if turned && !gathered(a) {
        let reason = "gathers pieces of rows of A by 16 bytes, which it is not a multiple of";
        return Err(refuse(NAME, reason));
    }
    Ok((items, [m, k, n]))
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
struct PitProduct {
    row: &'static Row,
    detect: DetectLaunch,
    product: PitLaunch,
    lists: DeviceLists,
    /// Serializes runs, which share the lists.
    turns: Turns,
    /// Whether there is one item.
    single: bool,
    bound: Bound,
}

impl PitProduct {
    fn new(
        device: &Arc<Device>,
        row: &'static Row,
        pit: &PitForm,
        request: &Request<'_, '_>,
    ) -> Result<Self> {
        let work = PitWork {
            items: pit.items,
            turned: pit.form.order.transposed,
            ..PitWork::single(pit.extents, height(row))
        };
        let how = (pit.dynamic.threshold, request.options.determinism);
        let types = (request.types.operands, row.dtype);
        let (detect, product) = kernels_as(device, types, work, how)?;
        Ok(PitProduct {
            row,
            lists: detect.lists(device)?,
            detect,
            product,
            turns: Turns::new(device)?,
            single: pit.items == 1,
            bound: Bound::new(pit),
        })
    }
}

impl Executable for PitProduct {
    fn variant(&self) -> &'static str {
        self.row.name
    }

    fn bytes(&self) -> usize {
        self.lists.bytes()
    }

    fn run(&self, run: &Run<'_>, out: AnyOut<'_>) -> Result<()> {
        let out = run.dense(out)?;
        let queue = run.queue(out)?;
        let [a, b, c] = self.bound.matrices(run, out)?;
        // All errors are detected before anything is queued.
        let product = self.product.params(&self.lists, Some(a), b, c)?;
        let next = self.single.then_some(b);
        self.turns.queue(true, queue.stream(), || {
            self.detect.run_ahead_of(next, a, &self.lists, queue)?;
            self.product.start(&product, queue)
        })
    }
}

impl fmt::Display for PitProduct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_kernel(f, self.row, format_args!("micro-tiles found by {}", self.detect.name()))
    }
}
