//! Plans of module `mttkrp` for products at nonzeros: rows are gathered through index arrays, multiplied, and summed
//! over the columns to one number per nonzero.

use std::borrow::Cow;

use einsparse_formats::PAD;
use einsparse_kernels::families::REDUCE_COLUMNS;
use einsparse_kernels::table::Row;
use rayon::prelude::*;

use super::rows::rows_of;
use super::{alignment, matrices};
use crate::einsum::Mode;
use crate::error::Result;
use crate::families::tensor::cost::rows::{RowsWork, predict_rows};
use crate::families::tensor::{DotsLaunch, RawDots};
use crate::indirect::DotsForm;
use crate::offer::bind::find;
use crate::offer::{Answer, Compiled, Offer, Question, Run, Unfit, of_launch};
use crate::registry::Dtype;
use crate::tensor::{AnyOperand, AnyTensor};

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
fn gathered<'q>(question: &'q Question<'q, '_>, form: &DotsForm) -> Result<Gathered<'q>, Unfit> {
    let (mut places, mut extents) = (Vec::new(), Vec::new());
    for (factor, array) in &form.factors {
        let &[rows, n] = find(question.operands(), factor)?.shape() else {
            return Err("gathers rows of matrices".into());
        };
        let AnyOperand::Index(_, data) = find(question.operands(), array)? else {
            return Err("gathers through index arrays".into());
        };
        places.push(*data);
        extents.push((rows, n));
    }
    Ok((places, extents))
}

/// Returns the kernels of the family that can run the expression.
pub(crate) fn offers<'q>(question: &'q Question<'q, '_>) -> Result<Answer<'q>> {
    let refused = |reason: &str| Answer::refused(FAMILY, reason);
    let Some(form) = question.indirect.as_dots() else {
        return refused(
            "multiplies rows of one to three dense matrices [array[p],r] at each p, summed over r, into [p]",
        );
    };
    if !question.types.alike() {
        return refused("its outputs have the type of the operands");
    }
    let (places, extents) = match gathered(question, &form) {
        Ok(gathered) => gathered,
        Err(unfit) => return unfit.answer(FAMILY),
    };
    if form.mode == Mode::Assign && places.iter().any(|own| is_padded(own)) {
        return refused("leaves entries that are dropped as they are, and `=` writes all of them");
    }
    let n = extents[0].1;
    let Some(row) = dots_row(
        question.types.operands,
        places.len(),
        n,
        alignment(question, form.factors.iter().map(|(name, _)| name), n),
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
    let cost = predict_rows(row, &work, question.machine);
    Answer::of(vec![Offer::of(row, cost, move |device| {
        let mut own: Vec<Cow<'_, [u32]>> = places.iter().map(|p| Cow::Borrowed(*p)).collect();
        mark_padding(&mut own);
        let own: Vec<&[u32]> = own.iter().map(|places| &**places).collect();
        Ok(Dots { launch: DotsLaunch::new(device, row, &own, n)?, form: form.clone() })
    })])
}

/// Kernel prepared for the index arrays of a plan.
#[derive(Debug)]
struct Dots {
    launch: DotsLaunch,
    form: DotsForm,
}

of_launch!(Dots);

impl Compiled for Dots {
    of_launch!();

    fn run(&self, run: &Run<'_>, out: &mut AnyTensor) -> Result<()> {
        let queue = run.queue(out)?;
        let mask = self.form.mask.as_ref();
        let mask = mask.map(|name| run.tensor(name)).transpose()?;
        let alpha = run.factor()?;
        let raw = RawDots {
            mask: mask.map_or(0, |(address, _)| address),
            factors: matrices(run, &self.form.factors)?,
            out: run.output(out)?.0,
            alpha,
            accumulate: self.form.mode == Mode::Accumulate,
        };
        self.launch.run(&raw, queue)
    }
}
