//! Conversion of CSR to sliced ELLPACK in the memory of the tensor.

use std::sync::Arc;

use einsparse_formats::{AnyPattern, Format, FormatError, SlicedEllPattern};
use einsparse_kernels::families::{CHUNK_SLOTS, SLICE, SlicingParams};

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::families::convert::{fill_slices, survey_slices};
use crate::kernel::Queue;
use crate::registry::Scalar;
use crate::tensor::{DeviceArrays, SparseTensor, VECTOR_ENTRIES};

/// Returns the first chunk of each slice, from the number of chunks of each slice.
fn starts(counts: &[u32]) -> Result<Vec<u32>> {
    let mut starts = vec![0u32];
    let mut sum = 0u64;
    for &count in counts {
        sum += u64::from(count);
        starts.push(sum as u32);
    }
    let slots = u128::from(sum) * CHUNK_SLOTS as u128;
    if slots > u128::from(u32::MAX) {
        return Err(
            FormatError::Overflow { what: "slots", value: slots, limit: u32::MAX.into() }.into()
        );
    }
    Ok(starts)
}

impl<T: Scalar> SparseTensor<T> {
    /// Converts a CSR matrix to sliced ELLPACK (`sell`), on the device where it is stored. The arrays are bit-identical
    /// to those of [`AnySparse::convert`](crate::formats::AnySparse::convert). On a GPU, three kernels convert elements
    /// of 2, 4 and 8 bytes; the pattern is copied to the host for plans. Waits for all work on the GPU.
    ///
    /// ```
    /// use einsparse::Context;
    /// use einsparse::formats::{AnySparse, Csr, CsrPattern, Format};
    /// let csr = Csr::new(CsrPattern::new(2, 3, vec![0, 1, 3], vec![2, 0, 1])?, vec![2.0f32, 3.0, 4.0])?;
    /// let a = Context::new().upload(&csr)?;
    /// let sliced = a.to_sliced_ell()?;
    /// assert_eq!(sliced.to_host()?, AnySparse::from(csr).convert(Format::SlicedEll)?);
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the tensor is not in CSR, if its slots do not fit u32, or if memory does not suffice.
    pub fn to_sliced_ell(&self) -> Result<SparseTensor<T>> {
        let AnyPattern::Csr(p) = self.pattern() else {
            return Err(Error::format("sparse", "csr", self.format()));
        };
        let on_device = [2, 4, 8].contains(&T::DTYPE.bytes());
        let Some(arrays) = self.device().filter(|_| on_device) else {
            let device = self.device().map(|arrays| &arrays.device);
            return SparseTensor::new(device, self.to_host()?.convert(Format::SlicedEll)?);
        };
        let device = &arrays.device;
        let slices = p.rows().div_ceil(SLICE);
        let offsets = device.upload(p.offsets())?;
        let order = device.zeros(slices * SLICE * 4)?;
        let counts = device.zeros(slices * 4)?;
        let params = SlicingParams {
            offsets: offsets.address(),
            columns: arrays.columns.address(),
            values: arrays.values.address(),
            order: order.address(),
            counts: counts.address(),
            starts: 0,
            windows: 0,
            local_columns: 0,
            slot_values: 0,
            rows: p.rows() as u32,
            slices: slices as u32,
        };
        // SAFETY: the arrays are those of this tensor, which is borrowed until `read` has waited. The outputs are
        // allocated for their number of chunks.
        let queue = unsafe { Queue::new(device.after_all()?) };
        survey_slices(device, &params, queue)?;
        let starts = starts(&read(device, &counts, slices)?)?;
        let order = read(device, &order, slices * SLICE)?;
        fill((device, queue), p.cols(), params, (order, starts))
    }
}

/// Copies all words of `memory` to the host.
fn read(device: &Device, memory: &DeviceMemory, words: usize) -> Result<Vec<u32>> {
    let mut found = vec![0u32; words];
    device.read(memory, &mut found)?;
    Ok(found)
}

/// Fills the slices from their order and first chunks. The order is also still in device memory.
fn fill<T: Scalar>(
    (device, queue): (&Arc<Device>, Queue<'_>),
    cols: usize,
    params: SlicingParams,
    (order, starts): (Vec<u32>, Vec<u32>),
) -> Result<SparseTensor<T>> {
    let chunks = starts.last().map_or(0, |&chunks| chunks as usize);
    let slots = chunks * CHUNK_SLOTS;
    let first = device.upload(&starts)?;
    let windows = device.zeros(chunks * 8)?;
    let columns = device.zeros(slots * 2 + VECTOR_ENTRIES * 4)?;
    let values = device.zeros((slots + VECTOR_ENTRIES) * size_of::<T>())?;
    let params = SlicingParams {
        starts: first.address(),
        windows: windows.address(),
        local_columns: columns.address(),
        slot_values: values.address(),
        ..params
    };
    device.after_all()?;
    fill_slices(device, &params, size_of::<T>(), queue)?;
    let pattern = SlicedEllPattern::new(
        params.rows as usize,
        cols,
        order,
        starts,
        read(device, &windows, chunks * 2)?,
        read(device, &columns, slots / 2)?,
    )?;
    let arrays = DeviceArrays { columns: columns.into(), values, device: Arc::clone(device) };
    SparseTensor::made(pattern, arrays)
}
