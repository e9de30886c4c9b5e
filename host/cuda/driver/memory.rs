//! Device memory: owned allocations, stream-ordered allocations, and copies between addresses.

use std::sync::Arc;

#[cfg(feature = "testing")]
use super::trial;
use super::{DevicePtr, PrimaryContext, RawStream, check, check_allocation, sys};
use crate::error::Result;
use crate::owner::Owner;

/// Free and total device memory, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Free memory at the time of the call.
    pub free: u64,
    /// Total memory.
    pub total: u64,
}

/// Returns the free and total memory of the current context's device.
pub fn mem_get_info() -> Result<MemoryInfo> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both pointers can hold one usize.
    check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
    Ok(MemoryInfo { free: free as u64, total: total as u64 })
}

/// Allocates uninitialized memory in the current context, 256-byte aligned. Returns address 0 for 0 bytes.
pub fn mem_alloc(bytes: usize) -> Result<DevicePtr> {
    if bytes == 0 {
        return Ok(0);
    }
    #[cfg(feature = "testing")]
    {
        trial::alloc(bytes)
    }
    #[cfg(not(feature = "testing"))]
    {
        let mut address = 0;
        // SAFETY: `address` can hold one address.
        let code = unsafe { sys::cuMemAlloc_v2(&mut address, bytes) };
        check_allocation("cuMemAlloc", code, bytes)?;
        Ok(address)
    }
}

/// Frees memory that [`mem_alloc`] returned, and waits for the device. Address 0 is ignored.
///
/// # Safety
/// [`mem_alloc`] returned the address, it has not been freed, and no queued work uses it afterwards.
pub unsafe fn mem_free(address: DevicePtr) -> Result<()> {
    if address == 0 {
        return Ok(());
    }
    #[cfg(feature = "testing")]
    let address = trial::release(address)?;
    // SAFETY: guaranteed by the caller.
    check("cuMemFree", unsafe { sys::cuMemFree_v2(address) })
}

/// Allocates in stream order from the device's memory pool. Returns address 0 for 0 bytes.
pub fn mem_alloc_async(bytes: usize, stream: RawStream<'_>) -> Result<DevicePtr> {
    let mut address = 0;
    if bytes > 0 {
        #[cfg(feature = "testing")]
        trial::check_turn("cuMemAllocAsync", bytes)?;
        // SAFETY: `address` can hold one address, and the stream is valid by the contract of RawStream.
        let code = unsafe { sys::cuMemAllocAsync(&mut address, bytes, stream.handle()) };
        check_allocation("cuMemAllocAsync", code, bytes)?;
    }
    Ok(address)
}

/// Frees memory that [`mem_alloc_async`] returned, in stream order. Address 0 is ignored.
///
/// # Safety
/// The contract is that of [`mem_free`], where "afterwards" means the order of `stream`.
pub unsafe fn mem_free_async(address: DevicePtr, stream: RawStream<'_>) -> Result<()> {
    if address == 0 {
        return Ok(());
    }
    // SAFETY: guaranteed by the caller.
    check("cuMemFreeAsync", unsafe { sys::cuMemFreeAsync(address, stream.handle()) })
}

/// Sets `bytes` bytes to `value`.
///
/// # Safety
/// `address .. address + bytes` is device memory. No other queued work accesses it meanwhile.
pub unsafe fn memset_d8_async(
    address: DevicePtr,
    value: u8,
    bytes: usize,
    stream: RawStream<'_>,
) -> Result<()> {
    if bytes == 0 || stream.is_absent() {
        return Ok(());
    }
    // SAFETY: guaranteed by the caller.
    let code = unsafe { sys::cuMemsetD8Async(address, value, bytes, stream.handle()) };
    check("cuMemsetD8Async", code)
}

/// Sets `width` bytes to `value` in each of `height` rows, with a row stride of `pitch` bytes.
///
/// # Safety
/// The rows are device memory, and no other queued work accesses them meanwhile. `pitch` is at least `width`.
pub unsafe fn memset_2d_async(
    address: DevicePtr,
    pitch: usize,
    value: u8,
    [width, height]: [usize; 2],
    stream: RawStream<'_>,
) -> Result<()> {
    if width == 0 || height == 0 || stream.is_absent() {
        return Ok(());
    }
    // SAFETY: guaranteed by the caller.
    let code =
        unsafe { sys::cuMemsetD2D8Async(address, pitch, value, width, height, stream.handle()) };
    check("cuMemsetD2D8Async", code)
}

/// Sets `words` 32-bit words to `value`.
///
/// # Safety
/// `address .. address + 4 * words` is device memory, 4-byte aligned. No other queued work accesses it meanwhile.
pub unsafe fn memset_d32_async(
    address: DevicePtr,
    value: u32,
    words: usize,
    stream: RawStream<'_>,
) -> Result<()> {
    if words == 0 || stream.is_absent() {
        return Ok(());
    }
    // SAFETY: guaranteed by the caller.
    let code = unsafe { sys::cuMemsetD32Async(address, value, words, stream.handle()) };
    check("cuMemsetD32Async", code)
}

/// Copies a slice to device memory.
///
/// # Safety
/// The target holds `size_of_val(source)` bytes. `source` lives, unchanged, until the copy is done. The driver stages
/// pageable memory before the call returns, but not page-locked memory.
pub unsafe fn copy_htod_async<T: bytemuck::NoUninit>(
    target: DevicePtr,
    source: &[T],
    stream: RawStream<'_>,
) -> Result<()> {
    let bytes = size_of_val(source);
    if bytes == 0 || stream.is_absent() {
        return Ok(());
    }
    // SAFETY: the slice is readable for `bytes`. The caller guarantees the rest.
    let code = unsafe {
        sys::cuMemcpyHtoDAsync_v2(target, source.as_ptr().cast(), bytes, stream.handle())
    };
    check("cuMemcpyHtoDAsync", code)
}

/// Copies from device memory into a slice. Synchronize before you read the slice.
///
/// # Safety
/// The source holds `size_of_val(target)` bytes. `target` lives and is not read until the copy is done.
pub unsafe fn copy_dtoh_async<T: bytemuck::AnyBitPattern>(
    target: &mut [T],
    source: DevicePtr,
    stream: RawStream<'_>,
) -> Result<()> {
    let bytes = size_of_val(target);
    if bytes == 0 || stream.is_absent() {
        return Ok(());
    }
    // SAFETY: the slice is writable for `bytes`, and every bit pattern is a valid T. The caller guarantees the rest.
    let code = unsafe {
        sys::cuMemcpyDtoHAsync_v2(target.as_mut_ptr().cast(), source, bytes, stream.handle())
    };
    check("cuMemcpyDtoHAsync", code)
}

/// Copies `bytes` bytes between two device addresses.
///
/// # Safety
/// Both ranges are device memory and do not overlap.
pub unsafe fn copy_dtod_async(
    target: DevicePtr,
    source: DevicePtr,
    bytes: usize,
    stream: RawStream<'_>,
) -> Result<()> {
    if bytes == 0 || stream.is_absent() {
        return Ok(());
    }
    // SAFETY: guaranteed by the caller.
    let code = unsafe { sys::cuMemcpyDtoDAsync_v2(target, source, bytes, stream.handle()) };
    check("cuMemcpyDtoDAsync", code)
}

/// Bytes of a row, and the row stride in bytes.
pub type RowBytes = (usize, usize);

/// Describes rows with a stride of `pitch` bytes in host memory or in device memory. The unused address is 0 or null.
fn rows_at(host: *mut u8, device: DevicePtr, pitch: usize) -> sys::RowsPlace {
    sys::RowsPlace {
        x_in_bytes: 0,
        y: 0,
        memory_type: if host.is_null() { sys::MEMORY_DEVICE } else { sys::MEMORY_HOST },
        host: host.cast(),
        device,
        array: std::ptr::null_mut(),
        pitch,
    }
}

/// Copies `height` rows of `width` bytes.
///
/// # Safety
/// The contracts of [`copy_htod_async`] and [`copy_dtoh_async`] hold for every row of source and target.
unsafe fn copy_rows_async(
    [source, target]: [sys::RowsPlace; 2],
    [width, height]: [usize; 2],
    stream: RawStream<'_>,
) -> Result<()> {
    if stream.is_absent() {
        return Ok(());
    }
    let copy = sys::RowsCopy { source, target, width_in_bytes: width, height };
    // SAFETY: guaranteed by the caller.
    let code = unsafe { sys::cuMemcpy2DAsync_v2(&copy, stream.handle()) };
    check("cuMemcpy2DAsync", code)
}

/// Owned device memory. It holds its context, so it may be dropped on any thread, unlike the buffers of cust.
///
/// ```
/// use einsparse::raw::DeviceMemory;
/// let ctx = einsparse::Context::new();
/// if let Some(device) = ctx.device() {
///     let stream = ctx.stream()?;
///     let memory = DeviceMemory::from_slice(device.context(), &[1u32, 2, 3], stream.raw())?;
///     let mut back = [0u32; 3];
///     memory.read(&mut back, stream.raw())?;
///     assert_eq!(back, [1, 2, 3]);
/// }
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct DeviceMemory {
    address: DevicePtr,
    bytes: usize,
    /// Owner of memory that this type did not allocate.
    owner: Option<Owner>,
    context: Arc<PrimaryContext>,
}

/// Address of all memory of an absent GPU. It is aligned as the driver aligns, and it is never read.
pub const ABSENT_ADDRESS: DevicePtr = 1 << 40;

impl DeviceMemory {
    /// Allocates `bytes` bytes of uninitialized memory.
    pub fn alloc(context: &Arc<PrimaryContext>, bytes: usize) -> Result<Self> {
        context.set_current()?;
        let address = match context.is_absent() {
            true if bytes > 0 => ABSENT_ADDRESS,
            true => 0,
            false => mem_alloc(bytes)?,
        };
        Ok(Self { address, bytes, owner: None, context: Arc::clone(context) })
    }

    /// Returns the owner of the memory, if this type did not allocate it.
    #[cfg(feature = "cudarc")]
    pub fn into_owner(mut self) -> Option<Owner> {
        let nobody = || Owner::new(());
        self.owner.as_mut().map(|owner| std::mem::replace(owner, nobody()))
    }

    /// Wraps memory of another owner. The owner frees it when this value is dropped.
    ///
    /// # Safety
    /// The `bytes` bytes from `address` on are memory of the context's GPU until the owner is dropped. Other users of
    /// the memory order their accesses with the streams that work with this value.
    pub unsafe fn foreign(
        context: &Arc<PrimaryContext>,
        address: DevicePtr,
        bytes: usize,
        owner: Owner,
    ) -> Self {
        Self { address, bytes, owner: Some(owner), context: Arc::clone(context) }
    }

    /// Allocates memory and copies `values` to it. Returns when the copy is done.
    pub fn from_slice<T: bytemuck::NoUninit>(
        context: &Arc<PrimaryContext>,
        values: &[T],
        stream: RawStream<'_>,
    ) -> Result<Self> {
        let memory = Self::alloc(context, size_of_val(values))?;
        memory.write(values, stream)?;
        Ok(memory)
    }

    /// Copies `values` to the start of the memory, after the work queued on `stream`. Returns when the copy is done.
    /// Returns an error if `values` is larger than the memory.
    pub fn write<T: bytemuck::NoUninit>(&self, values: &[T], stream: RawStream<'_>) -> Result<()> {
        self.fits(size_of_val(values))?;
        self.context.set_current()?;
        // SAFETY: the range was checked above. The borrow outlives the copy, because this function waits for it.
        unsafe { copy_htod_async(self.address, values, stream)? };
        stream.synchronize()
    }

    /// Copies from the start of the memory into `values`, after the work queued on `stream`. Returns when the copy is
    /// done. Returns an error if `values` is larger than the memory.
    pub fn read<T: bytemuck::AnyBitPattern>(
        &self,
        values: &mut [T],
        stream: RawStream<'_>,
    ) -> Result<()> {
        self.fits(size_of_val(values))?;
        self.context.set_current()?;
        // SAFETY: the range was checked above. The borrow outlives the copy, because this function waits for it.
        unsafe { copy_dtoh_async(values, self.address, stream)? };
        stream.synchronize()
    }

    /// Copies `values`, which are contiguous rows, to strided rows from byte `first` on, after the work queued on
    /// `stream`. Returns when the copy is done. Gaps between rows are unchanged. Returns an error if a row ends after
    /// the memory.
    pub fn write_rows(
        &self,
        first: usize,
        rows: RowBytes,
        values: &[u8],
        stream: RawStream<'_>,
    ) -> Result<()> {
        let Some(([width, height], pitch)) = self.rows(first, rows, values.len())? else {
            return Ok(());
        };
        let source = rows_at(values.as_ptr().cast_mut(), 0, width);
        let target = rows_at(std::ptr::null_mut(), self.address + first as u64, pitch);
        // SAFETY: the rows were checked above, and this function waits for the copy. The source is only read.
        unsafe { copy_rows_async([source, target], [width, height], stream)? };
        stream.synchronize()
    }

    /// Copies strided rows from byte `first` on into `values`, like [`Self::write_rows`] in the other direction.
    pub fn read_rows(
        &self,
        first: usize,
        rows: RowBytes,
        values: &mut [u8],
        stream: RawStream<'_>,
    ) -> Result<()> {
        let Some(([width, height], pitch)) = self.rows(first, rows, values.len())? else {
            return Ok(());
        };
        let source = rows_at(std::ptr::null_mut(), self.address + first as u64, pitch);
        let target = rows_at(values.as_mut_ptr(), 0, width);
        // SAFETY: the rows were checked above, and this function waits for the copy.
        unsafe { copy_rows_async([source, target], [width, height], stream)? };
        stream.synchronize()
    }

    /// Returns width and number of the rows, and their pitch, or `None` for 0 bytes. Rows without gaps are one row,
    /// because the driver limits the pitch.
    fn rows(
        &self,
        first: usize,
        (width, pitch): RowBytes,
        bytes: usize,
    ) -> Result<Option<([usize; 2], usize)>> {
        if bytes == 0 {
            return Ok(None);
        }
        self.context.set_current()?;
        let height = bytes / width.max(1);
        self.fits(first + (height.max(1) - 1) * pitch + width)?;
        Ok(Some(match width == pitch || height == 1 {
            true => ([bytes, 1], bytes),
            false => ([width, height], pitch),
        }))
    }

    fn fits(&self, bytes: usize) -> Result<()> {
        if bytes <= self.bytes {
            return Ok(());
        }
        Err(crate::Error::Overflow {
            what: "bytes copied to or from device memory".into(),
            value: bytes as u128,
            limit: self.bytes as u128,
        })
    }

    /// Returns the address, or 0 for zero bytes.
    pub fn address(&self) -> DevicePtr {
        self.address
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the context of the memory.
    pub fn context(&self) -> &Arc<PrimaryContext> {
        &self.context
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.owner.is_some() || self.context.is_absent() {
            return;
        }
        // SAFETY: this value owns the address, which is freed once. `cuMemFree` waits for work that still uses it.
        let freed = self.context.set_current().and_then(|()| unsafe { mem_free(self.address) });
        if let Err(error) = freed {
            tracing::warn!(%error, bytes = self.bytes, "device memory was not freed");
        }
    }
}
