//! Formats of single entries made where the context works: from a dense matrix, between CSR, COO, GroupCOO and ELL, and
//! transposed; patterns that the GPU made, checked there. What a conversion allocates and reads back is for the
//! plans, which keep the pattern on the host; [`EntryConverter`] and [`PatternTransposer`] do neither.

mod check;
mod tensors;

use std::marker::PhantomData;
use std::sync::Arc;

use einsparse_formats::FormatError;

use crate::context::Context;
use crate::device::Device;
use crate::driver::RawStream;
use crate::error::Result;
use crate::families::convert::{Conversion, Entries, SortOut, Steps, Transpose};
use crate::kernel::Queue;
use crate::registry::Scalar;

pub use crate::families::convert::{Order, RawEntries};
pub use einsparse_formats::convert::EntryChoice;

/// Converts matrices of one shape to and between formats of single entries on a GPU, as often as wanted, without
/// allocating and without waiting for the host: for matrices that the GPU itself makes, and for graphs.
#[derive(Debug)]
pub struct EntryConverter<T> {
    entries: Entries,
    element: PhantomData<T>,
}

impl<T: Scalar> EntryConverter<T> {
    /// For dense matrices of `m` x `k` to CSR: reads `source` and `leading`, writes `offsets`, `out_columns` and
    /// `out_values`.
    ///
    /// # Errors
    /// In a CPU context; for a threshold that makes no sense; where m times k does not fit u32.
    pub fn from_dense(
        context: &Context,
        (m, k): (usize, usize),
        choice: EntryChoice,
    ) -> Result<Self> {
        choice.check()?;
        let floor = match choice {
            EntryChoice::Above(threshold) => floor_bits::<T>(threshold),
            // Nothing is above it.
            EntryChoice::TopPerRow(0) => u64::MAX,
            _ => 0,
        };
        Self::new(context, (m, k), Conversion::Dense(choice), floor)
    }

    /// From CSR to COO: reads `offsets`, writes `rows`; the other arrays are the same.
    ///
    /// # Errors
    /// In a CPU context, and where a size does not fit.
    pub fn to_coo(context: &Context, (m, k): (usize, usize)) -> Result<Self> {
        Self::new(context, (m, k), Conversion::ToCoo, 0)
    }

    /// From COO, ordered by row, to CSR: reads `capacity` words of `rows`, writes `offsets`; the other arrays are the
    /// same.
    ///
    /// # Errors
    /// As [`EntryConverter::to_coo`].
    pub fn from_coo(context: &Context, (m, k): (usize, usize)) -> Result<Self> {
        Self::new(context, (m, k), Conversion::FromCoo, 0)
    }

    /// From CSR to GroupCOO with groups of `group`: reads `source`, `offsets` and `columns`, writes `rows`,
    /// `out_columns` and `out_values`.
    ///
    /// # Errors
    /// As [`EntryConverter::to_coo`], and for a group of 0.
    pub fn to_group_coo(context: &Context, (m, k): (usize, usize), group: usize) -> Result<Self> {
        if group == 0 {
            let (found, expected) = ("0".into(), "at least 1".into());
            let what = "group";
            return Err(FormatError::Shape {
                what,
                found,
                expected,
            }
            .into());
        }
        Self::new(context, (m, k), Conversion::GroupCoo(group), 0)
    }

    /// From CSR to ELL of this width: reads `source`, `offsets` and `columns`, writes `out_columns` and `out_values`.
    /// No row has more entries than the width.
    ///
    /// # Errors
    /// As [`EntryConverter::to_coo`].
    pub fn to_ell(context: &Context, (m, k): (usize, usize), width: usize) -> Result<Self> {
        Self::new(context, (m, k), Conversion::Ell(width), 0)
    }

    fn new(
        context: &Context,
        shape: (usize, usize),
        conversion: Conversion,
        floor: u64,
    ) -> Result<Self> {
        Self::on(context.expect_device()?, shape, conversion, floor)
    }

    fn on(
        device: &Arc<Device>,
        shape: (usize, usize),
        conversion: Conversion,
        floor: u64,
    ) -> Result<Self> {
        Ok(EntryConverter {
            entries: Entries::new(device, shape, T::DTYPE, conversion, floor)?,
            element: PhantomData,
        })
    }

    /// Queues one conversion. Slots without an entry hold the column 4294967295 and zero.
    ///
    /// # Safety
    /// The addresses hold what [`RawEntries`] says, of this converter's shape and element type, until the work is done;
    /// inputs follow the rules of their format. Runs of one converter share its workspace and must not overlap. The
    /// stream belongs to the GPU's primary context.
    ///
    /// # Errors
    /// For rows of a dense matrix that overlap, or a capacity that is no whole number of groups or does not fit.
    pub unsafe fn run_raw(&self, raw: &RawEntries, stream: RawStream<'_>) -> Result<()> {
        // SAFETY: the caller's promise.
        let queue = unsafe { Queue::new(stream) };
        self.entries.run(raw, queue)
    }

    /// First group of every row and the number of groups, of the last run to GroupCOO; empty for others. Waits for all
    /// work on the GPU.
    pub fn groups(&self) -> Result<Vec<u32>> {
        self.entries.starts()
    }
}

/// Bits of the largest magnitude of this type that is not above the threshold.
fn floor_bits<T: Scalar>(threshold: f64) -> u64 {
    // A zero of either sign is the threshold 0.
    let nearest = T::from_f64(threshold.abs());
    let mut bytes = [0; 8];
    let own = bytemuck::bytes_of(&nearest);
    bytes[..own.len()].copy_from_slice(own);
    let bits = u64::from_le_bytes(bytes);
    // Rounded up: one below. Bits of magnitudes ascend with them.
    if nearest.to_f64() > threshold {
        bits - 1
    } else {
        bits
    }
}

/// Brings patterns of one shape and number of entries to those of their transposes on a GPU, as often as wanted,
/// without allocating and without waiting for the host: a stable counting sort by column.
#[derive(Debug)]
pub struct PatternTransposer {
    transpose: Transpose,
    entries: usize,
}

/// Device addresses of one transposition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawTranspose {
    /// Row offsets, `u32[m + 1]`.
    pub offsets: u64,
    /// Columns, `u32[entries]`.
    pub columns: u64,
    /// Out: offsets of the transpose, `u32[k + 1]`.
    pub out_offsets: u64,
    /// Out: columns of the transpose, `u32[entries]`.
    pub out_columns: u64,
    /// Out: where each entry of the transpose stands in the matrix, `u32[entries]`.
    pub permutation: u64,
}

impl PatternTransposer {
    /// For CSR patterns of `m` x `k` with so many entries.
    ///
    /// # Errors
    /// In a CPU context, and where a size does not fit.
    pub fn new(context: &Context, shape: (usize, usize), entries: usize) -> Result<Self> {
        let dtype = crate::registry::Dtype::F32;
        let transpose = Transpose::new(context.expect_device()?, shape, entries, false, dtype)?;
        Ok(PatternTransposer { transpose, entries })
    }

    /// Device bytes of the workspace.
    pub fn bytes(&self) -> usize {
        self.transpose.bytes()
    }

    /// Queues one transposition.
    ///
    /// # Safety
    /// The addresses hold what [`RawTranspose`] says, of this shape, until the work is done, and the pattern follows
    /// the rules of [`CsrPattern`](einsparse_formats::CsrPattern). Runs must not overlap. The stream belongs to the
    /// GPU's primary context.
    ///
    /// # Errors
    /// If the driver refuses a launch.
    pub unsafe fn run_raw(&self, raw: &RawTranspose, stream: RawStream<'_>) -> Result<()> {
        let out = SortOut {
            first: raw.permutation,
            second: raw.out_columns,
            capacity: self.entries,
            ..SortOut::default()
        };
        let from = [raw.offsets, raw.columns];
        // SAFETY: the caller's promise.
        let queue = unsafe { Queue::new(stream) };
        self.transpose.run(from, raw.out_offsets, out, queue)
    }
}

/// Orders the rows of CSR matrices by length on a GPU: `order[i]` is the row that comes at place i.
#[derive(Debug)]
pub struct RowSorter {
    steps: Steps,
    sort: crate::families::convert::Sort,
    order: Order,
    k: usize,
}

impl RowSorter {
    /// For matrices of `m` x `k`.
    ///
    /// # Errors
    /// In a CPU context, and where a size does not fit.
    pub fn new(context: &Context, (m, k): (usize, usize), order: Order) -> Result<Self> {
        let device = context.expect_device()?;
        Ok(RowSorter {
            steps: Steps::new(device, crate::registry::Dtype::F32)?,
            sort: order.sort(device, m, k)?,
            order,
            k,
        })
    }

    /// Queues one sort of the rows that `offsets` are of into `out`, `u32[m]`.
    ///
    /// # Safety
    /// `offsets` holds m + 1 words that ascend and `out` has room for m until the work is done. Runs must not overlap.
    /// The stream belongs to the GPU's primary context.
    ///
    /// # Errors
    /// If the driver refuses a launch.
    pub unsafe fn run_raw(&self, offsets: u64, out: u64, stream: RawStream<'_>) -> Result<()> {
        // SAFETY: the caller's promise.
        let queue = unsafe { Queue::new(stream) };
        self.sort
            .rows(&self.steps, self.order, self.k, [offsets, out], queue)
    }
}

#[cfg(test)]
mod tests {
    use super::floor_bits;
    use einsparse_formats::f16;

    /// Every magnitude is above the threshold exactly where its bits are above these.
    #[test]
    fn thresholds_are_rounded_down() {
        assert_eq!(floor_bits::<f32>(0.0), 0);
        assert_eq!(floor_bits::<f32>(-0.0), 0);
        assert_eq!(floor_bits::<f32>(1.0), u64::from(1f32.to_bits()));
        let largest = u64::from(f16::MAX.to_bits());
        assert_eq!(floor_bits::<f16>(1e6), largest);
        assert_eq!(floor_bits::<f16>(f64::INFINITY), largest + 1);
        let above = 1.0 + 1e-12;
        assert_eq!(floor_bits::<f32>(above), u64::from(1f32.to_bits()));
        let below = 1.0 - 1e-12;
        assert_eq!(floor_bits::<f32>(below), u64::from(1f32.to_bits()) - 1);
    }
}
