//! Plans of module `mttkrp` for products at nonzeros: rows are gathered through index arrays, multiplied, and summed
//! over the columns to one number per nonzero.

use std::borrow::Cow;

use einsparse_formats::PAD;
use einsparse_kernels::families::REDUCE_COLUMNS;
use einsparse_kernels::table::Row;
use rayon::prelude::*;

use super::rows::rows_of;
use super::{alignment, matrices, slots};
use crate::einsum::Mode;
use crate::error::Result;
use crate::families::tensor::cost::rows::{RowsWork, predict_rows};
use crate::families::tensor::{DotsLaunch, RawDots};
use crate::indirect::DotsForm;
use crate::offer::{AnyOut, Executable, Offer, Offers, Request, Run, Slot, of_launch, refuse};
use crate::registry::Dtype;
use crate::tensor::AnyOperand;

const FAMILY: &str = "mttkrp";

/// Returns the kernel for `factors` factors of `n` columns whose addresses and rows are aligned to `alignment`
/// elements. Vectors precede single elements; of these, the kernel with the nearest number of columns is selected.
pub(crate) fn dots_row(
    dtype: Dtype,
    factors: usize,
    n: usize,
    alignment: usize,
) -> Option<&'static Row> {
    let fits = |row: &&Row| alignment.is_multiple_of(row.vector as usize);
    let waste = |columns: usize| columns.next_multiple_of(8).abs_diff(n.max(1));
    rows_of(dtype, factors, REDUCE_COLUMNS)
        .filter(fits)
        .min_by_key(|row| (row.vector == 1, waste(row.columns as usize)))
}

/// Sets the first index of padding slots to [`PAD`]. The kernels test only the first index.
pub(crate) fn mark_padding(axes: &mut [Cow<'_, [u32]>]) {
    let Some((first, others)) = axes.split_first_mut() else {
        return;
    };
    if others.iter().all(|axis| !is_padded(axis)) {
        return;
    }
    for axis in others.iter() {
        let places = first.to_mut().par_iter_mut().zip(axis.par_iter());
        places.for_each(|(first, &place)| *first = if place == PAD { PAD } else { *first });
    }
}

fn is_padded(places: &[u32]) -> bool {
    places.par_iter().any(|&place| place == PAD)
}

/// Index arrays, and the shapes of the matrices that they index.
type Gathered<'q> = (Vec<&'q [u32]>, Vec<(usize, usize)>);

/// Returns the index arrays and shapes of a form, or the reason why the kernels do not support it.
fn gathered<'q>(request: &'q Request<'q, '_>, form: &DotsForm) -> Result<Gathered<'q>> {
    let (mut places, mut extents) = (Vec::new(), Vec::new());
    for (factor, array) in &form.factors {
        let &[rows, n] = request.operand(factor)?.shape() else {
            return Err(refuse(FAMILY, "gathers rows of matrices"));
        };
        let AnyOperand::Index(_, data) = request.operand(array)? else {
            return Err(refuse(FAMILY, "gathers through index arrays"));
        };
        places.push(*data);
        extents.push((rows, n));
    }
    Ok((places, extents))
}

/// Returns the kernels of the family that can run the expression.
pub(crate) fn offers<'q>(request: &'q Request<'q, '_>) -> Result<Offers<'q>> {
    let refused = |reason: &str| Err(refuse(FAMILY, reason));
    let Some(form) = request.indirect.as_dots() else {
        return refused(
            "multiplies rows of one to three dense matrices [array[p],r] at each p, summed over r, into [p]",
        );
    };
    if !request.types.alike() {
        return refused("its outputs have the type of the operands");
    }
    let (places, extents) = gathered(request, &form)?;
    if form.mode == Mode::Assign && places.iter().any(|own| is_padded(own)) {
        return refused("leaves entries that are dropped as they are, and `=` writes all of them");
    }
    let n = extents[0].1;
    let Some(row) = dots_row(
        request.types.operands,
        places.len(),
        n,
        alignment(request, form.factors.iter().map(|(name, _)| name), n),
    ) else {
        return refused("computes f32, f64, f16 and bf16");
    };
    let work = RowsWork {
        entries: places[0].len() as u64,
        rows: 0,
        factor_rows: extents.iter().map(|(rows, _)| *rows as u64).sum(),
        factors: places.len() as u64,
        n,
        accumulate: form.mode == Mode::Accumulate,
        ordered: false,
    };
    let cost = predict_rows(row, &work, request.machine);
    Ok(vec![Ok(Offer::of(row, cost, move |device| {
        let mut own: Vec<Cow<'_, [u32]>> = places.iter().map(|p| Cow::Borrowed(*p)).collect();
        mark_padding(&mut own);
        let own: Vec<&[u32]> = own.iter().map(|places| &**places).collect();
        Ok(Dots {
            launch: DotsLaunch::new(device, row, &own, n)?,
            factors: slots(request, &form.factors)?,
            mask: form.mask.as_ref().map(|name| request.slot(name)).transpose()?,
            accumulate: form.mode == Mode::Accumulate,
        })
    }))])
}

/// Kernel prepared for the index arrays of a plan.
#[derive(Debug)]
struct Dots {
    launch: DotsLaunch,
    factors: Vec<Slot>,
    mask: Option<Slot>,
    accumulate: bool,
}

of_launch!(Dots);

impl Executable for Dots {
    of_launch!();

    fn run(&self, run: &Run<'_>, out: AnyOut<'_>) -> Result<()> {
        let out = run.dense(out)?;
        let queue = run.queue(out)?;
        let mask = self.mask.map(|mask| run.tensor(mask)).transpose()?;
        let alpha = run.factor()?;
        let raw = RawDots {
            mask: mask.map_or(0, |(address, _)| address),
            factors: matrices(run, &self.factors)?,
            out: run.output(out)?.0,
            alpha,
            accumulate: self.accumulate,
        };
        self.launch.run(&raw, queue)
    }
}
