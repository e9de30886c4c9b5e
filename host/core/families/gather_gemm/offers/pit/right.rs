//! Plans with a dynamic right operand: `detect`, `transpose`, and the kernels of `PitParams`.

use std::fmt;
use std::sync::Arc;

use einsparse_kernels::table::Row;

use super::bound::Bound;
use super::{Extents, PitForm, matrices};
use crate::device::Device;
use crate::error::Result;
use crate::families::discover::DeviceLists;
use crate::families::gather_gemm::cost::pit::{is_worth_it, predict, transposition_us};
use crate::families::gather_gemm::found::{RightKernels, WIDTH};
use crate::families::gather_gemm::pit_rows;
use crate::indirect::SpmmForm;
use crate::launch::Turns;
use crate::offer::{
    AnyOut, Determinism, Executable, Offer, Offers, Request, Run, refuse, write_kernel, wrong,
};
use crate::tensor::AnyOperand;

/// Name of the family in refusals.
const NAME: &str = "pit_right";

/// Returns the offers for an expression whose right factor is dynamic.
pub(crate) fn offers<'q>(request: &'q Request<'q, '_>) -> Result<Offers<'q>> {
    if request.dynamic.is_empty() {
        return Ok(Offers::new());
    }
    let (pit, row, share) = found(request)?;
    let ([m, k, n], machine) = (pit.extents, request.machine);
    let all = |extent: usize| pit.items.saturating_mul(extent);
    let mut cost = predict(row, [all(n), k, m], share, machine);
    if !pit.form.order.transposed {
        let us = transposition_us([all(m), k], request.types.operands.bytes(), machine);
        cost.us += us;
        cost.hbm_us += us;
    }
    let determinism = request.options.determinism;
    // If the transpose does not fit in memory, a dense kernel may be selected.
    Ok(vec![Ok(Offer::with_room(row, cost, move |device| {
        PitRightProduct::new(device, row, &pit, determinism)
    }))])
}

/// Product, kernel, and expected share of nonempty micro-tiles.
type Found = (PitForm, &'static Row, f64);

/// Returns the requested product, or the reason why the kernels do not support it.
fn found(request: &Request<'_, '_>) -> Result<Found> {
    let missing = "skips pieces of rows of the second matrix, and that is not dynamic";
    let product = PitForm::new(request, (NAME, |form| &form.dense, missing), extents)?;
    let mut rows = pit_rows(request.types.operands, true, true);
    let first = rows.clone().next().ok_or_else(|| refuse(NAME, "computes f16 and bf16"))?;
    let wanted = request.options.variant.as_deref();
    let machine = request.machine;
    // A requested kernel that this GPU cannot run is refused with the reason.
    let runs = |row: &&Row| wanted == Some(row.name) || machine.lacks(row).is_none();
    let Some(row) = rows.find(runs) else {
        return Err(refuse(NAME, machine.lacks(first).unwrap_or_default()));
    };
    let share = product.dynamic.expected.share(WIDTH);
    if wanted != Some(row.name) && !is_worth_it(row, share) {
        return Err(refuse(NAME, "gains nothing where nearly all micro-tiles hold something"));
    }
    Ok((product, row, share))
}

/// Returns items and `[m, k, n]`, or the reason why the kernels do not support these operands.
fn extents(request: &Request<'_, '_>, form: &SpmmForm) -> Result<Extents> {
    let (a, b) = (request.operand(&form.sparse)?, request.operand(&form.dense)?);
    let AnyOperand::Dense(rows) = a else {
        return Err(wrong(&form.sparse, "an uploaded dense tensor", a));
    };
    let AnyOperand::Dense(pieces) = b else {
        return Err(wrong(&form.dense, "an uploaded dense tensor", b));
    };
    let ((items, [first, second]), (_, [_, n])) =
        (matrices(NAME, a.shape())?, matrices(NAME, b.shape())?);
    let vector = 16 / request.types.operands.bytes();
    let whole = |x: usize| x.is_multiple_of(vector);
    let given = request.options.alignment.unwrap_or(vector).max(1);
    if !whole(n) || !whole(pieces.leading()) || !whole(given) {
        let reason = "gathers pieces of rows of B by 16 bytes, which it is not a multiple of";
        return Err(refuse(NAME, reason));
    }
    if !form.order.transposed {
        return Ok((items, [first, second, n]));
    }
    if !whole(rows.leading()) {
        return Err(refuse(NAME, "gathers rows of A by 16 bytes, which it is not a multiple of"));
    }
    Ok((items, [second, first, n]))
}

/// Detection, transpose and product, and the lists that they share.
#[derive(Debug)]
struct PitRightProduct {
    row: &'static Row,
    kernels: RightKernels,
    lists: DeviceLists,
    /// Serializes runs, which share the lists and the transpose.
    turns: Turns,
    bound: Bound,
}

impl PitRightProduct {
    fn new(
        device: &Arc<Device>,
        row: &'static Row,
        pit: &PitForm,
        determinism: Determinism,
    ) -> Result<Self> {
        let (items, by_columns) = (pit.items, pit.form.order.transposed);
        let how = (pit.dynamic.threshold, determinism);
        let kernels = RightKernels::new(device, row.dtype, items, pit.extents, by_columns, how)?;
        Ok(PitRightProduct {
            row,
            lists: kernels.detect.lists(device)?,
            kernels,
            turns: Turns::new(device)?,
            bound: Bound::new(pit),
        })
    }
}

impl Executable for PitRightProduct {
    fn variant(&self) -> &'static str {
        self.row.name
    }

    fn bytes(&self) -> usize {
        self.lists.bytes() + self.kernels.bytes()
    }

    fn run(&self, run: &Run<'_>, out: AnyOut<'_>) -> Result<()> {
        let out = run.dense(out)?;
        let queue = run.queue(out)?;
        let all = self.bound.matrices(run, out)?;
        self.kernels
            .run(&self.lists, all, queue, |launch| self.turns.queue(true, queue.stream(), launch))
    }
}

impl fmt::Display for PitRightProduct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.kernels.names();
        let behind = names[..names.len() - 1].join(", ");
        let geometry = format_args!("of the transposes, behind {behind}");
        write_kernel(f, self.row, geometry)
    }
}
