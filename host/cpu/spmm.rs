//! The fast path for sparse matrix x dense matrix.
//!
//! Rows in pieces of equal work over the threads; in a piece one tile of columns after the other, so that the slice
//! of the dense operand stays in L2; the sums of a row (or of four rows of a block) in registers.

use std::any::TypeId;
use std::borrow::Cow;

use einsparse_formats::{Accumulator, AnySparse, Element, bf16, f16};
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;

use super::epilogue::activate;
use super::operands::{Operands, Output, View};
use super::panel::{Task, row_tiles};
use super::rows::Rows;
use super::{bind, operands};
use crate::einsum::{Activation, Mode};
use crate::error::Result;
use crate::formats::Format;
use crate::indirect::{BiasAxis, IndirectEinsum, SpmmForm};

/// What happens to the sums of one row.
pub(super) struct Finish<A> {
    rows_bias: Option<Vec<A>>,
    cols_bias: Option<Vec<A>>,
    activation: Activation,
    mode: Mode,
}

impl<A: Accumulator> Finish<A> {
    /// Stores the sums of row `row`, columns `col..col + W`, to `out`.
    #[inline(always)]
    pub fn store<T: Element<Acc = A>, const W: usize>(
        &self,
        row: usize,
        col: usize,
        mut sums: [A; W],
        out: &mut [T],
    ) {
        // One loop for each part: a branch in the loop would keep it from vector code.
        if let Some(bias) = &self.rows_bias {
            sums.iter_mut().for_each(|v| *v += bias[row]);
        }
        if let Some(bias) = &self.cols_bias {
            sums.iter_mut()
                .zip(&bias[col..col + W])
                .for_each(|(v, b)| *v += *b);
        }
        match self.activation {
            Activation::Identity => {}
            Activation::Relu => sums
                .iter_mut()
                .for_each(|v| *v = activate(Activation::Relu, *v)),
            Activation::Gelu => sums
                .iter_mut()
                .for_each(|v| *v = activate(Activation::Gelu, *v)),
        }
        if self.mode == Mode::Accumulate {
            sums.iter_mut()
                .zip(&*out)
                .for_each(|(v, o)| *v = o.to_acc() + *v);
        }
        out.iter_mut()
            .zip(sums)
            .for_each(|(slot, v)| *slot = T::from_acc(v));
    }
}

/// Runs the SpMM; false if this path has no way for it, or something does not fit (the general nest says what).
pub(super) fn run<T: Element>(
    form: &SpmmForm,
    e: &IndirectEinsum,
    operands: &Operands<'_, T>,
    out: &mut Output<'_, T>,
) -> Result<bool> {
    let (Some((name, tensor)), Some(dense)) = (&operands.sparse, operands.tensors.get(&form.dense))
    else {
        return Ok(false);
    };
    let fits = *name == form.sparse
        && matches!((tensor.shape(), dense.shape.as_slice(), out.shape.as_slice()),
            ([m, k], [bk, n], [cm, cn]) if m == cm && k == bk && n == cn)
        && dense.strides[1] == 1
        && out.shape.iter().all(|&n| n > 0);
    let scale = bind::scalar(&e.scalars, operands)?;
    let by_row = match tensor.format() {
        // Sorting the entries by row costs less than adding them up in any other order, and unpacking them once less
        // than at every use.
        Format::Csc | Format::Nm { .. } | Format::Bitmap | Format::Bytemap | Format::SlicedEll
            if fits =>
        {
            Cow::Owned(AnySparse::Csr(tensor.to_csr()?))
        }
        _ => Cow::Borrowed(*tensor),
    };
    let tensor = by_row.as_ref();
    let finish = finish(form, operands, out);
    let (true, Some(finish), Some(rows)) = (fits, finish, Rows::new(tensor)) else {
        return Ok(false);
    };
    let (columns, pitch) = (out.shape[1], out.strides[0]);
    let (b, b_stride) = widen_dense(dense);
    let block = match tensor.format() {
        Format::Bsr { block } | Format::BlockCoo { block } => block,
        Format::BlockGroupCoo { block, .. } => block,
        _ => (1, 1),
    };
    let task = Task {
        rows: &rows,
        values: &widen(tensor.values()),
        block,
        shape: (tensor.shape()[0], tensor.shape()[1]),
        scale,
        b: &b,
        b_stride,
        columns,
        finish: &finish,
    };
    let pieces = split(&rows, block.0, pitch, out.values);
    pieces
        .into_par_iter()
        .for_each(|(piece, values)| row_tiles(&task, piece, pitch, values));
    Ok(true)
}

/// The output's rows of each piece.
fn split<'o, T>(
    rows: &Rows<'_>,
    block: usize,
    pitch: usize,
    mut values: &'o mut [T],
) -> Vec<(std::ops::Range<usize>, &'o mut [T])> {
    let take = |piece: std::ops::Range<usize>| {
        let end = (piece.len() * block * pitch).min(values.len());
        let (head, tail) = std::mem::take(&mut values).split_at_mut(end);
        values = tail;
        (piece, head)
    };
    rows.pieces().into_iter().map(take).collect()
}

fn finish<T: Element>(
    form: &SpmmForm,
    operands: &Operands<'_, T>,
    out: &Output<'_, T>,
) -> Option<Finish<T::Acc>> {
    let mut finish = Finish {
        rows_bias: None,
        cols_bias: None,
        activation: form.activation,
        mode: form.mode,
    };
    if let Some((name, axis)) = &form.bias {
        let View {
            shape,
            strides,
            values,
        } = operands.tensors.get(name)?;
        let extent = out.shape.get(usize::from(*axis == BiasAxis::Cols))?;
        if shape.as_slice() != [*extent] {
            return None;
        }
        let wide = (0..*extent)
            .map(|i| values[i * strides[0]].to_acc())
            .collect();
        match axis {
            BiasAxis::Rows => finish.rows_bias = Some(wide),
            BiasAxis::Cols => finish.cols_bias = Some(wide),
        }
    }
    Some(finish)
}

/// The dense operand in accumulators: half types are widened once, as each row is read for many entries.
fn widen_dense<'a, T: Element>(dense: &View<'a, T>) -> (Cow<'a, [T::Acc]>, usize) {
    let (rows, columns, stride) = (dense.shape[0], dense.shape[1], dense.strides[0]);
    let contiguous = operands::row_major(&dense.shape) == dense.strides;
    if TypeId::of::<T>() == TypeId::of::<T::Acc>() || contiguous {
        return (widen(dense.values), stride);
    }
    let mut wide = vec![T::Acc::ZERO; rows * columns];
    wide.par_chunks_mut(columns)
        .enumerate()
        .for_each(|(r, row)| widen_into(&dense.values[r * stride..r * stride + columns], row));
    (Cow::Owned(wide), columns)
}

fn widen<T: Element>(values: &[T]) -> Cow<'_, [T::Acc]> {
    if TypeId::of::<T>() == TypeId::of::<T::Acc>() {
        return Cow::Borrowed(bytemuck::cast_slice(values));
    }
    const CHUNK: usize = 1 << 14;
    let mut wide = vec![T::Acc::ZERO; values.len()];
    let chunks = wide.par_chunks_mut(CHUNK).zip(values.par_chunks(CHUNK));
    chunks.for_each(|(wide, values)| widen_into(values, wide));
    Cow::Owned(wide)
}

/// `half` converts slices with the vector instructions of the machine, single elements one by one.
fn widen_into<T: Element>(values: &[T], wide: &mut [T::Acc]) {
    if TypeId::of::<T>() == TypeId::of::<f16>() {
        bytemuck::cast_slice::<T, f16>(values).convert_to_f32_slice(bytemuck::cast_slice_mut(wide));
    } else if TypeId::of::<T>() == TypeId::of::<bf16>() {
        bytemuck::cast_slice::<T, bf16>(values)
            .convert_to_f32_slice(bytemuck::cast_slice_mut(wide));
    } else {
        wide.iter_mut()
            .zip(values)
            .for_each(|(w, v)| *w = v.to_acc());
    }
}
