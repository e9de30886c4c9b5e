//! Copies of A in prepacked plans: made from its pattern, without values, and with the position of each value.

use std::sync::Arc;

use einsparse_formats::{AnyPattern, AnySparse, Csr, CsrPattern, Format};

use super::leading_of;
use crate::context::Context;
use crate::device::Device;
use crate::error::{Elsewhere, Error, Result};
use crate::families::convert::{Expand, Placed, Scatter, SliceValues};
use crate::kernel::Queue;
use crate::registry::Dtype;
use crate::tensor::{AnyOperand, AnySparseTensor, AnyTensor, DeviceArrays};
use crate::worklist::Runs;

/// A in the form that a plan stores.
#[derive(Debug)]
pub(super) enum Copy {
    Dense(AnyTensor),
    Sparse(AnySparseTensor),
}

impl Copy {
    pub(super) fn operand(&self) -> AnyOperand<'_> {
        match self {
            Copy::Dense(tensor) => AnyOperand::Dense(tensor),
            Copy::Sparse(tensor) => AnyOperand::Sparse(tensor),
        }
    }

    /// Returns the address of its columns; 0 for a dense copy.
    pub(super) fn columns(&self) -> u64 {
        match self {
            Copy::Dense(_) => 0,
            Copy::Sparse(tensor) => tensor.device().map_or(0, |d| d.columns.address()),
        }
    }

    pub(super) fn address(&self) -> Result<u64> {
        let address = match self {
            Copy::Dense(tensor) => tensor.address(),
            Copy::Sparse(tensor) => tensor.values_address(),
        };
        address.or_elsewhere("A")
    }
}

/// Conversion of the values of A to those of a copy.
#[derive(Debug)]
pub(super) enum Refill {
    /// Writes the whole copy, including zeros.
    Dense(Expand),
    /// Writes each value to its position.
    Places(Scatter),
    /// Copies contiguous values, in the order of the rows.
    Slices(SliceValues, Arc<Device>),
}

/// Returns the pattern in CSR. The value of each nonzero is its slot number, counted from 1.
pub(super) fn numbered(shape: &[usize], runs: &Runs, columns: &[u32]) -> Result<Csr<i32>> {
    let &[m, k] = shape else {
        unreachable!("matrices in row order have two axes");
    };
    counted(columns.len())?;
    let (mut offsets, mut own, mut slots) = (vec![0], Vec::new(), Vec::new());
    for &(start, len) in &runs.rows {
        let row = start as usize..(start + len) as usize;
        own.extend_from_slice(&columns[row.clone()]);
        slots.extend(row.map(|slot| slot as i32 + 1));
        offsets.push(own.len() as u32);
    }
    Ok(Csr::new(CsrPattern::new(m, k, offsets, own)?, slots)?)
}

/// Returns a pattern without padding, with its slots numbered as in [`numbered`].
pub(super) fn all_slots(pattern: AnyPattern<'_>) -> Result<AnySparse<i32>> {
    let slots = pattern.slots();
    counted(slots)?;
    let numbers = (1..=slots as i32).collect();
    Ok(pattern.shared().with_values(numbers)?)
}

/// Checks that i32 can number all slots.
fn counted(slots: usize) -> Result<()> {
    let most = i32::MAX as u64 - 1;
    if slots as u64 <= most {
        return Ok(());
    }
    Err(Error::Overflow {
        what: "slots of a matrix that a plan keeps".into(),
        value: slots as u128,
        limit: u128::from(most),
    })
}

/// Creates a dense copy, and the conversion to it.
pub(super) fn dense(
    (context, dtype): (&Context, Dtype),
    a: &AnySparseTensor,
    (runs, arrays): (&Runs, &DeviceArrays),
) -> Result<(Copy, Refill)> {
    let &[m, k] = a.shape() else {
        unreachable!("matrices in row order have two axes");
    };
    let device = &arrays.device;
    let leading = leading_of(k, dtype.bytes());
    let copy = AnyTensor::zeros(context.device(), dtype, &[m, k], leading)?;
    let uploaded;
    let spans = match a.spans() {
        Some(spans) => spans,
        None => {
            uploaded = device.upload(&runs.spans())?;
            &uploaded
        }
    };
    let pattern = Placed {
        columns: arrays.columns.address(),
        slots: a.pattern().slots(),
        spans: spans.address(),
        rows: m,
    };
    // SAFETY: columns and spans belong to a checked pattern, and are borrowed until the stream is synchronized.
    // `Expand` is made for this pattern.
    let queue = unsafe { Queue::new(device.after_all()?) };
    let expand = Expand::new(device, dtype, pattern, leading, queue)?;
    queue.stream().synchronize()?;
    Ok((Copy::Dense(copy), Refill::Dense(expand)))
}

/// Creates a copy in sliced ELLPACK. Values of a row stay in order, so no positions are stored.
pub(super) fn sliced(
    (device, dtype): (&Arc<Device>, Dtype),
    entries: &AnySparse<i32>,
) -> Result<(Copy, Refill)> {
    let converted = entries.convert(Format::SlicedEll)?;
    let AnySparse::SlicedEll(matrix) = &converted else {
        unreachable!("converted to slices");
    };
    let values = SliceValues::new(device, dtype.bytes(), matrix.pattern(), matrix.values())?;
    let copy = zeros(device, dtype, &converted)?;
    Ok((Copy::Sparse(copy), Refill::Slices(values, Arc::clone(device))))
}

/// Creates a copy in another sparse format, and the position of each value.
pub(super) fn sparse(
    (device, dtype): (&Arc<Device>, Dtype),
    entries: &AnySparse<i32>,
    format: Format,
    slots: usize,
) -> Result<(Copy, Vec<u32>)> {
    let converted = entries.convert(format)?;
    let places = Scatter::places(converted.values(), slots)?;
    let copy = zeros(device, dtype, &converted)?;
    Ok((Copy::Sparse(copy), places))
}

/// Creates a copy without values.
fn zeros(device: &Arc<Device>, dtype: Dtype, of: &AnySparse<i32>) -> Result<AnySparseTensor> {
    AnySparseTensor::new(Some(device), of.pattern().shared(), (dtype, None))
}
