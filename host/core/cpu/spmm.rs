//! Fast path for sparse matrix x dense matrix.
//!
//! Rows are split into pieces of equal work, which are distributed over threads. A piece is processed one tile of
//! columns after the other, so that the slice of the dense operand stays in L2. The sums of a row (or of four rows of a
//! block) stay in registers.

use std::borrow::Cow;

use einsparse_formats::{Accumulator, AnyPattern, Element, Format};

use super::bind;
use super::epilogue::activate;
use super::operands::{AnyOperands, Output};
use super::panel::{Task, row_tiles};
use super::rows::Rows;
use crate::einsum::{Activation, Mode};
use crate::error::Result;
use crate::indirect::{BiasAxis, IndirectEinsum, SpmmForm};
use crate::parallel;
use crate::values::Sum;

/// Epilogue of the sums of one row.
pub(super) struct Finish<A> {
    rows_bias: Option<Vec<A>>,
    cols_bias: Option<Vec<A>>,
    activation: Activation,
    mode: Mode,
}

impl<A: Accumulator> Finish<A> {
    /// Stores the sums of row `row`, columns `col..col + W`, to `out`.
    #[inline(always)]
    pub fn store<const W: usize>(&self, row: usize, col: usize, mut sums: [A; W], out: &mut [A]) {
        // One loop per part: a branch inside the loop would prevent vectorization.
        if let Some(bias) = &self.rows_bias {
            sums.iter_mut().for_each(|v| *v += bias[row]);
        }
        if let Some(bias) = &self.cols_bias {
            sums.iter_mut().zip(&bias[col..col + W]).for_each(|(v, b)| *v += *b);
        }
        match self.activation {
            Activation::Identity => {}
            Activation::Relu => sums.iter_mut().for_each(|v| *v = activate(Activation::Relu, *v)),
            Activation::Gelu => sums.iter_mut().for_each(|v| *v = activate(Activation::Gelu, *v)),
        }
        if self.mode == Mode::Accumulate {
            sums.iter_mut().zip(&*out).for_each(|(v, o)| *v = *o + *v);
        }
        out.copy_from_slice(&sums);
    }
}

/// Runs the SpMM. With `marks`, rows without nonzeros become -0.0. Returns false if this path does not support the
/// Einsum or if an operand does not fit (the general nest then reports the error).
pub(super) fn run<A: Sum + Element>(
    form: &SpmmForm,
    e: &IndirectEinsum,
    operands: &AnyOperands<'_>,
    out: &mut Output<'_, A>,
    marks: bool,
) -> Result<bool> {
    let (Some((name, pattern)), Some(dense)) =
        (&operands.sparse, operands.tensors.get(&form.dense))
    else {
        return Ok(false);
    };
    let own = e.sparse.as_ref();
    let Some(own) = own.and_then(|own| operands.tensors.get(&own.values)) else {
        return Ok(false);
    };
    let fits = *name == form.sparse
        && matches!((pattern.shape(), dense.shape.as_slice(), out.shape.as_slice()),
            ([m, k], [bk, n], [cm, cn]) if m == cm && k == bk && n == cn)
        && dense.strides[1] == 1
        && !operands.partial.contains(&form.dense)
        && out.shape.iter().all(|&n| n > 0);
    let scale = bind::scalar(&e.scalars, operands)?;
    let mut values = own.values.widen::<A>();
    // Sorting the nonzeros by row costs less than summing them in another order. Unpacking them once costs less than
    // unpacking them at every use.
    let by_row = match pattern.format() {
        Format::Csc | Format::Nm { .. } | Format::Bitmap | Format::Bytemap | Format::SlicedEll
            if fits =>
        {
            let whole = pattern.shared().with_values(values.into_owned())?;
            let (pattern, own) = whole.to_csr()?.into_parts();
            values = Cow::Owned(own);
            Some(pattern)
        }
        _ => None,
    };
    let pattern = by_row.as_ref().map_or(*pattern, AnyPattern::Csr);
    let (true, Some(finish)) = (fits, finish(form, operands, out)) else {
        return Ok(false);
    };
    // The output has the same number of rows, so the spans are in proportion to memory that is already allocated.
    let Some(rows) = Rows::new(pattern)? else {
        return Ok(false);
    };
    let (columns, pitch) = (out.shape[1], out.strides[0]);
    let block = match pattern.format() {
        Format::Bsr { block } | Format::BlockCoo { block } => block,
        Format::BlockGroupCoo { block, .. } => block,
        _ => (1, 1),
    };
    // In block formats, the values determine which rows have nonzeros.
    if marks && block != (1, 1) {
        return Ok(false);
    }
    let task = Task {
        rows: &rows,
        values: &values,
        block,
        shape: (pattern.shape()[0], pattern.shape()[1]),
        scale: <A as Accumulator>::from_f64(scale),
        b: &dense.values.widen(),
        b_stride: dense.strides[0],
        columns,
        finish: &finish,
    };
    let pieces = split(&rows, block.0, pitch, out.values);
    parallel::each_of(pieces, &|_, (piece, values)| {
        row_tiles(&task, piece.clone(), pitch, values);
        for (row, out) in piece.zip(values.chunks_mut(pitch)).filter(|_| marks) {
            let (start, end) = rows.spans[row];
            if start == end {
                out[..columns].fill(-<A as Accumulator>::ZERO);
            }
        }
    });
    Ok(true)
}

/// Splits the output by the pieces of rows.
fn split<'o, A>(
    rows: &Rows<'_>,
    block: usize,
    pitch: usize,
    mut values: &'o mut [A],
) -> Vec<(std::ops::Range<usize>, &'o mut [A])> {
    let take = |piece: std::ops::Range<usize>| {
        let end = (piece.len() * block * pitch).min(values.len());
        let (head, tail) = std::mem::take(&mut values).split_at_mut(end);
        values = tail;
        (piece, head)
    };
    rows.pieces().into_iter().map(take).collect()
}

fn finish<A: Sum>(
    form: &SpmmForm,
    operands: &AnyOperands<'_>,
    out: &Output<'_, A>,
) -> Option<Finish<A>> {
    let mut finish =
        Finish { rows_bias: None, cols_bias: None, activation: form.activation, mode: form.mode };
    if let Some((name, axis)) = &form.bias {
        let bias = operands.tensors.get(name)?;
        let extent = out.shape.get(usize::from(*axis == BiasAxis::Cols))?;
        if bias.shape.as_slice() != [*extent] {
            return None;
        }
        let values = bias.values.widen::<A>();
        let wide = (0..*extent).map(|i| values[i * bias.strides[0]]).collect();
        match axis {
            BiasAxis::Rows => finish.rows_bias = Some(wide),
            BiasAxis::Cols => finish.cols_bias = Some(wide),
        }
    }
    Some(finish)
}
