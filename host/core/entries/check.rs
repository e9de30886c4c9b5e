//! Patterns that the GPU made: checked there, and taken.

use einsparse_formats::{CsrPattern, FormatError};

use super::tensors::copied;
use crate::context::Context;
use crate::driver::{DeviceMemory, copy_dtod_async, copy_dtoh_async};
use crate::error::Result;
use crate::families::convert::{Steps, check};
use crate::operator::run_alone;
use crate::registry::Scalar;
use crate::tensor::SparseTensor;

impl Context {
    /// Takes CSR arrays that the GPU made: checks them there, by the rules of [`CsrPattern::new`], and copies them.
    /// Waits for all work on the GPU.
    ///
    /// # Safety
    /// `offsets` holds m + 1 words, `columns` as many as `entries`, and `values` as many elements, in the memory of
    /// this context's GPU, and no work that is still queued writes them.
    ///
    /// # Errors
    /// In a CPU context; [`Error::Format`](crate::Error::Format) with array, place and numbers where a rule is broken;
    /// where a size does not fit.
    pub unsafe fn csr_from_raw<T: Scalar>(
        &self,
        [m, k]: [usize; 2],
        entries: usize,
        [offsets, columns, values]: [u64; 3],
    ) -> Result<SparseTensor<T>> {
        let device = self.expect_device()?;
        let steps = Steps::new(device, T::DTYPE)?;
        let report = device.zeros(8)?;
        let arrays = [offsets, columns, report.address()];
        run_alone(device, |queue| check(&steps, (m, k, entries), arrays, queue))?;
        let mut found = [0u32; 2];
        device.read(&report, &mut found)?;
        let word = |array: u64, at: u32| -> Result<u32> {
            let one = DeviceMemory::alloc(device.context(), 4)?;
            let mut value = [0u32];
            // SAFETY: the report names places of the arrays.
            unsafe {
                copy_dtod_async(one.address(), array + u64::from(at) * 4, 4, device.after_all()?)?
            };
            device.read(&one, &mut value)?;
            Ok(value[0])
        };
        if let Some(fault) = fault((m, k, entries), found, |array, at| {
            word(if array == 0 { offsets } else { columns }, at)
        })? {
            return Err(fault.into());
        }
        let own = copied::<T>(device, entries, [columns, values])?;
        let mut starts = vec![0u32; m + 1];
        let mut of_entries = vec![0u32; entries];
        let stream = device.after_all()?;
        // SAFETY: the caller's promise; both are waited for.
        unsafe {
            copy_dtoh_async(&mut starts, offsets, stream)?;
            copy_dtoh_async(&mut of_entries, columns, stream)?;
        }
        stream.synchronize()?;
        // SAFETY: the GPU has found nothing against them.
        let pattern = unsafe { CsrPattern::new_unchecked(m, k, starts, of_entries) };
        SparseTensor::made(pattern, own)
    }
}

/// What the report means: offsets are judged first, then entries, as the host does.
fn fault(
    (m, k, entries): (usize, usize, usize),
    [offset, entry]: [u32; 2],
    word: impl Fn(usize, u32) -> Result<u32>,
) -> Result<Option<FormatError>> {
    if offset != u32::MAX {
        let value = word(0, offset)?;
        if offset == 0 && value != 0 {
            return Ok(Some(FormatError::InvalidIndex {
                array: "offsets",
                position: 0,
                value: value.into(),
                bound: 1,
            }));
        }
        let previous = if offset == 0 { 0 } else { word(0, offset - 1)? };
        if previous > value {
            return Ok(Some(FormatError::Order {
                array: "offsets",
                position: offset as usize,
                previous: previous.into(),
                value: value.into(),
            }));
        }
        debug_assert_eq!(offset as usize, m);
        return Ok(Some(FormatError::Length {
            array: "columns",
            found: entries,
            expected: value as usize,
        }));
    }
    if entry == u32::MAX {
        return Ok(None);
    }
    let value = word(1, entry)?;
    Ok(Some(if value as usize >= k {
        FormatError::InvalidIndex {
            array: "columns",
            position: entry as usize,
            value: value.into(),
            bound: k as u64,
        }
    } else {
        FormatError::Order {
            array: "columns",
            position: entry as usize,
            previous: word(1, entry - 1)?.into(),
            value: value.into(),
        }
    }))
}
