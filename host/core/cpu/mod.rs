//! Parallel CPU executor. It runs every indirect Einsum under the contract of the library.
//!
//! Sums are kept in the accumulator type of the element type and rounded once. A long sum is added in runs, and 16 runs
//! at a time are combined. Its rounding error therefore grows with the logarithm of the number of terms. One thread
//! finishes each element of the output, in an order that depends only on the problem. Results therefore do not depend
//! on the number of threads.

mod bind;
mod cascade;
mod epilogue;
mod expr;
mod inner;
mod levels;
pub(crate) mod listed;
mod nest;
mod operands;
mod order;
mod panel;
mod rows;
mod shared;
mod spmm;

use einsparse_formats::{Accumulator, Element, allocate};

pub(crate) use bind::check_slots;
pub use cascade::longest_chain;
pub(crate) use cascade::{RUN, in_runs};
pub use epilogue::{activate, gelu, gelu_slope};
pub use listed::run_listed;
pub(crate) use listed::{AIM, LEAST_CUT};
pub(crate) use operands::{AnyOperands, AnyOutput, as_long_as_its_shape};
pub use operands::{Operands, Output};

use rayon::prelude::*;

use crate::einsum::{Activation, Mode};
use crate::error::Result;
use crate::indirect::IndirectEinsum;
use crate::parallel;
use crate::registry::{Dtype, Scalar};
use crate::values::{Slice, Sum, sums_of, with_sums};
use nest::Nest;
use shared::Shared;

/// Runs `e` on the CPU, in the current rayon pool.
///
/// The shape of the output must be given. With [`Mode::Assign`], rows that no term reaches are written as well. With
/// [`Mode::Accumulate`], bias and ReLU are applied to the sum of an element before it is added. Terms are dropped and
/// never multiplied if their index slot is [`PAD`](einsparse_formats::PAD) or past the edge of a partial block. The
/// zeros that pad the blocks of a block format are dropped as well.
///
/// ```
/// use einsparse::cpu::{self, Operands, Output};
/// use einsparse::einsum::Einsum;
/// use einsparse::formats::{AnySparse, Csr, CsrPattern, Dense, Format};
/// use einsparse::indirect::rewrite;
///
/// let pattern = CsrPattern::new(2, 3, vec![0, 1, 2], vec![2, 0])?;
/// let a = AnySparse::Csr(Csr::new(pattern, vec![10.0f32, 20.0])?);
/// let b = Dense::new([3, 2], vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
/// let e = rewrite(&Einsum::parse("C[m,n] = A[m,k] * B[k,n]")?, "A", &Format::Csr)?;
/// let mut operands = Operands::new();
/// operands.sparse(&e, &a)?.dense("B", &b);
/// let mut c = [0.0f32; 4];
/// cpu::run(&e, &operands, Output::new(&[2, 2], &mut c)?)?;
/// assert_eq!(c, [50.0, 60.0, 20.0, 40.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
///
/// # Errors
/// [`Error::MissingOperand`](crate::Error::MissingOperand) for a missing operand,
/// [`Error::StorageFormat`](crate::Error::StorageFormat) and [`Error::Operand`](crate::Error::Operand) for an
/// unsuitable one, [`Error::Shape`](crate::Error::Shape) for ranks and extents that disagree,
/// [`Error::InvalidIndex`](crate::Error::InvalidIndex) for an index past its axis,
/// [`Error::Overflow`](crate::Error::Overflow) for a scatter of more than 2^32 - 2 terms. On an error the output is not
/// modified.
pub fn run<T: Scalar>(
    e: &IndirectEinsum,
    operands: &Operands<'_, T>,
    out: Output<'_, T>,
) -> Result<()> {
    run_any(T::DTYPE, e, &operands.any, out.any())
}

/// Variant of [`run`] that always uses the general loop nest: the reference for the faster paths.
///
/// # Errors
/// As for [`run`].
pub fn run_nest<T: Scalar>(
    e: &IndirectEinsum,
    operands: &Operands<'_, T>,
    out: Output<'_, T>,
) -> Result<()> {
    sum(T::DTYPE, e, &operands.any, out.any(), Loops::Nest)
}

/// [`run`] for operands of type `dtype`. If the output has another type, sums are kept in f64.
pub(crate) fn run_any(
    dtype: Dtype,
    e: &IndirectEinsum,
    operands: &AnyOperands<'_>,
    out: AnyOutput<'_>,
) -> Result<()> {
    sum(dtype, e, operands, out, Loops::Any)
}

/// Computes an intermediate result with sums in the accumulator type `sums`. With `marks`, elements that no term reaches
/// become -0.0 ([`AnyOperands::set_partial`]).
pub(crate) fn run_step(
    sums: Dtype,
    e: &IndirectEinsum,
    operands: &AnyOperands<'_>,
    out: AnyOutput<'_>,
    marks: bool,
) -> Result<()> {
    let loops = if marks { Loops::Marking } else { Loops::Any };
    with_sums!(sums, A => sum_in::<A>(e, operands, out, loops))
}

/// Whether a result of [`run_step`] contains an element that no term has reached.
pub(crate) fn is_partial(values: Slice<'_>) -> bool {
    with_sums!(values.dtype(), A => {
        let is_absent = |v: &A| bind::Absent::NegativeZero.is(*v);
        values.typed::<A>().is_some_and(|values| values.par_iter().any(is_absent))
    })
}

/// Loops that may run.
#[derive(Clone, Copy, PartialEq)]
enum Loops {
    Any,
    Nest,
    /// Any loops; elements without a term become -0.0.
    Marking,
}

fn sum(
    dtype: Dtype,
    e: &IndirectEinsum,
    operands: &AnyOperands<'_>,
    out: AnyOutput<'_>,
    loops: Loops,
) -> Result<()> {
    with_sums!(sums_of(dtype, out.values.dtype()), A => sum_in::<A>(e, operands, out, loops))
}

/// Computes sums in `A`, rounded once to the type of the output.
fn sum_in<A: Sum + Element>(
    e: &IndirectEinsum,
    operands: &AnyOperands<'_>,
    out: AnyOutput<'_>,
    loops: Loops,
) -> Result<()> {
    let AnyOutput { shape, strides, values } = out;
    let values = match values.sums::<A>() {
        Ok(values) => {
            let out = Output { shape, strides, values };
            return store(e, operands, out, loops);
        }
        Err(values) => values,
    };
    let mut wide: Vec<A> = match e.mode {
        Mode::Assign => allocate::zeroed("sums of the output", values.len())?,
        Mode::Accumulate => values.view().widen().into_owned(),
    };
    let (rows, width, pitch) = lines(&shape, &strides);
    let out = Output { shape, strides, values: &mut wide };
    store(e, operands, out, loops)?;
    values.narrow((rows, width, pitch), &wide);
    Ok(())
}

fn store<A: Sum + Element>(
    e: &IndirectEinsum,
    operands: &AnyOperands<'_>,
    mut out: Output<'_, A>,
    loops: Loops,
) -> Result<()> {
    if let Some(form) =
        e.as_spmm().filter(|form| form.order.is_plain() && form.gate.is_none() && !form.batched)
        && loops != Loops::Nest
        && spmm::run(&form, e, operands, &mut out, loops == Loops::Marking)?
    {
        return Ok(());
    }
    let owners = bind::owners(e, operands)?;
    let has_epilogue = e.bias.is_some() || e.activation != Activation::Identity || e.gate.is_some();
    let values = |e: &IndirectEinsum| {
        let of = |name: &String| Ok(operands.tensor(name)?.values.widen::<A>());
        let all = e.factors.iter().map(|f| of(&f.tensor));
        all.collect::<Result<Vec<_>>>()
    };
    if has_epilogue {
        let epilogue = epilogue::Epilogue::bind(e, operands, &out.shape)?;
        let strides = operands::row_major(&out.shape);
        let bound = bind::bind(e, operands, &owners, &out.shape, &strides)?;
        let size = operands::volume(out.shape.iter().copied());
        let mut sums = allocate::zeroed("sums of the output", size)?;
        let sink = Shared::new(&mut sums);
        Nest::new(&bound, &values(e)?)?.run(&|at, step, sums| {
            let all = sums.iter().enumerate();
            // SAFETY: the nest assigns each output element to one unit of work, and each unit to one thread.
            all.for_each(|(i, &sum)| unsafe { sink.update(at + i * step, |_| sum) });
        });
        epilogue.store(&sums, e.mode, out);
        return Ok(());
    }
    let bound = bind::bind(e, operands, &owners, &out.shape, &out.strides)?;
    let values = values(e)?;
    let nest = Nest::new(&bound, &values)?;
    if e.mode == Mode::Assign {
        let none = match loops {
            Loops::Marking => -<A as Accumulator>::ZERO,
            Loops::Any | Loops::Nest => <A as Accumulator>::ZERO,
        };
        fill(none, &out.shape, &out.strides, out.values);
    }
    let sink = Shared::new(out.values);
    nest.run(&|at, step, sums| {
        for (i, &sum) in sums.iter().enumerate() {
            let new = |old: A| match e.mode {
                Mode::Assign => sum,
                Mode::Accumulate => old + sum,
            };
            // SAFETY: the nest assigns each output element to one unit of work, and each unit to one thread; rows of an
            // output do not overlap.
            unsafe { sink.update(at + i * step, new) };
        }
    });
    Ok(())
}

/// Number of rows of an output, row length, and row stride.
fn lines(shape: &[usize], strides: &[usize]) -> (usize, usize, usize) {
    if shape.contains(&0) {
        return (0, 0, 1);
    }
    let row = shape.last().copied().unwrap_or(1);
    let pitch = match strides {
        [.., pitch, _] => *pitch,
        _ => row,
    };
    (shape.iter().rev().skip(1).product(), row, pitch)
}

/// Sets all elements of the shape to one value. Elements between rows are not modified.
fn fill<A: Accumulator>(value: A, shape: &[usize], strides: &[usize], values: &mut [A]) {
    let (rows, width, pitch) = lines(shape, strides);
    let end = values.len().min(rows * pitch);
    parallel::chunks(&mut values[..end], pitch, &|_, row| {
        row[..width].fill(value);
    });
}
