//! The parallel CPU executor: runs every indirect Einsum under the contract of the library.
//!
//! Sums are kept in the accumulator of the element type and rounded once. Each element of the output is the work of
//! one thread in an order that the problem decides, so results do not depend on the number of threads.

pub(crate) mod attention;
mod bind;
mod conv;
mod epilogue;
mod expr;
mod gathers;
mod inner;
mod levels;
pub(crate) mod listed;
mod message;
mod nest;
mod operands;
mod order;
mod panel;
mod rows;
pub(crate) mod sampled;
mod shared;
pub(crate) mod softmax;
mod spmm;

use einsparse_formats::{Accumulator, Element};
use rayon::prelude::*;

pub(crate) use bind::check_slots;
pub(crate) use conv::{HostConv, Rows as ConvRows, weight_gradient};
pub(crate) use epilogue::{activate, gelu};
pub(crate) use gathers::{Matrix, gathers};
pub use listed::run_listed;
pub(crate) use message::Largest;
pub use operands::{Operands, Output};

use crate::einsum::{Activation, Mode};
use crate::error::Result;
use crate::indirect::IndirectEinsum;
use nest::Nest;
use shared::Shared;

/// Runs `e` on the CPU, on the current rayon pool.
///
/// The output's shape must be given; rows that no term reaches are written too for [`Mode::Assign`]. A bias and a ReLU
/// are applied to the sum of each element before it is added for [`Mode::Accumulate`]. Terms whose index slot is
/// [`PAD`](einsparse_formats::PAD), or past the edge of a partial block, are dropped and never multiplied, as are the zeros that fill up
/// the blocks of a block format.
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
/// [`Error::Operand`](crate::Error::Operand) for an operand that is missing or does not fit,
/// [`Error::Shape`](crate::Error::Shape) for ranks and extents that disagree,
/// [`Error::InvalidIndex`](crate::Error::InvalidIndex) for an index past its axis,
/// [`Error::Overflow`](crate::Error::Overflow) for a scatter of more than 2^32 - 2 terms. The output is untouched then.
pub fn run<T: Element>(
    e: &IndirectEinsum,
    operands: &Operands<'_, T>,
    mut out: Output<'_, T>,
) -> Result<()> {
    if let Some(form) = e
        .as_spmm()
        .filter(|form| form.order.is_plain() && form.gate.is_none() && !form.batched)
        && spmm::run(&form, e, operands, &mut out)?
    {
        return Ok(());
    }
    run_nest(e, operands, out)
}

/// As [`run`], always by the general loop nest: the reference for the faster paths.
///
/// # Errors
/// As [`run`].
pub fn run_nest<T: Element>(
    e: &IndirectEinsum,
    operands: &Operands<'_, T>,
    out: Output<'_, T>,
) -> Result<()> {
    let owners = bind::owners(e, operands)?;
    let has_epilogue = e.bias.is_some() || e.activation != Activation::Identity || e.gate.is_some();
    if has_epilogue {
        let epilogue = epilogue::Epilogue::bind(e, operands, &out.shape)?;
        let strides = operands::row_major(&out.shape);
        let bound = bind::bind(e, operands, &owners, &out.shape, &strides)?;
        let mut sums = vec![T::Acc::ZERO; operands::volume(out.shape.iter().copied())];
        let sink = Shared::new(&mut sums);
        Nest::new(&bound)?.run(|at, sum| sink.update(at, |_| sum));
        epilogue.store(&sums, e.mode, out);
        return Ok(());
    }
    let bound = bind::bind(e, operands, &owners, &out.shape, &out.strides)?;
    let nest = Nest::new(&bound)?;
    if e.mode == Mode::Assign {
        fill_zero(&out.shape, &out.strides, out.values);
    }
    let sink = Shared::new(out.values);
    match e.mode {
        Mode::Assign => nest.run(|at, sum| sink.update(at, |_| T::from_acc(sum))),
        Mode::Accumulate => nest.run(|at, sum| {
            sink.update(at, |old: T| T::from_acc(old.to_acc() + sum));
        }),
    }
    Ok(())
}

/// Zero in every element of the shape; what lies between rows stays.
fn fill_zero<T: Element>(shape: &[usize], strides: &[usize], values: &mut [T]) {
    if shape.contains(&0) {
        return;
    }
    let row = shape.last().copied().unwrap_or(1);
    let pitch = match strides {
        [.., pitch, _] => *pitch,
        _ => row,
    };
    let rows: usize = shape.iter().rev().skip(1).product();
    values
        .par_chunks_mut(pitch)
        .take(rows)
        .for_each(|r| r[..row].fill(T::ZERO));
}
