//! Device memory: owned, stream-ordered, and copies between addresses.

use std::sync::Arc;

use super::{DevicePtr, PrimaryContext, RawStream, check, check_allocation, sys, trial};
use crate::error::Result;
use crate::values::Owner;

/// Free and total device memory, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Free at the time of the call.
    pub free: u64,
    /// Total.
    pub total: u64,
}

/// Free and total memory of the current context's device.
pub fn mem_get_info() -> Result<MemoryInfo> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: places for one usize each.
    check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
    Ok(MemoryInfo { free: free as u64, total: total as u64 })
}

/// Allocates in the current context; 256-byte aligned, not initialised. Zero bytes give address 0.
pub fn mem_alloc(bytes: usize) -> Result<DevicePtr> {
    if bytes == 0 {
        return Ok(0);
    }
    trial::alloc(bytes)
}

/// Frees what [`mem_alloc`] gave; waits for the device. Address 0 is ignored.
///
/// # Safety
/// The address is one that [`mem_alloc`] gave, not freed before, and no queued work uses it afterwards.
pub unsafe fn mem_free(address: DevicePtr) -> Result<()> {
    if address == 0 {
        return Ok(());
    }
    let address = trial::release(address)?;
    // SAFETY: the caller's promise.
    check("cuMemFree", unsafe { sys::cuMemFree_v2(address) })
}

/// Allocates in stream order from the device's pool. Zero bytes give address 0.
pub fn mem_alloc_async(bytes: usize, stream: RawStream<'_>) -> Result<DevicePtr> {
    let mut address = 0;
    if bytes > 0 {
        trial::check_turn("cuMemAllocAsync", bytes)?;
        // SAFETY: a place for one address; the stream is valid by RawStream's contract.
        let code = unsafe { sys::cuMemAllocAsync(&mut address, bytes, stream.handle()) };
        check_allocation("cuMemAllocAsync", code, bytes)?;
    }
    Ok(address)
}

/// Frees in stream order what [`mem_alloc_async`] gave. Address 0 is ignored.
///
/// # Safety
/// As [`mem_free`], with "afterwards" in the order of `stream`.
pub unsafe fn mem_free_async(address: DevicePtr, stream: RawStream<'_>) -> Result<()> {
    if address == 0 {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    check("cuMemFreeAsync", unsafe { sys::cuMemFreeAsync(address, stream.handle()) })
}

/// Sets `bytes` bytes to `value`.
///
/// # Safety
/// `address .. address + bytes` is device memory that no other queued work touches meanwhile.
pub unsafe fn memset_d8_async(
    address: DevicePtr,
    value: u8,
    bytes: usize,
    stream: RawStream<'_>,
) -> Result<()> {
    if bytes == 0 || stream.is_absent() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    let code = unsafe { sys::cuMemsetD8Async(address, value, bytes, stream.handle()) };
    check("cuMemsetD8Async", code)
}

/// Sets `width` bytes to `value` in each of `height` rows, which lie `pitch` bytes apart.
///
/// # Safety
/// The rows are device memory that no other queued work touches meanwhile; `pitch` is at least `width`.
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
    // SAFETY: the caller's promise.
    let code =
        unsafe { sys::cuMemsetD2D8Async(address, pitch, value, width, height, stream.handle()) };
    check("cuMemsetD2D8Async", code)
}

/// Sets `words` 32-bit words to `value`.
///
/// # Safety
/// `address .. address + 4 * words` is device memory, 4-byte aligned, that no other queued work touches meanwhile.
pub unsafe fn memset_d32_async(
    address: DevicePtr,
    value: u32,
    words: usize,
    stream: RawStream<'_>,
) -> Result<()> {
    if words == 0 || stream.is_absent() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    let code = unsafe { sys::cuMemsetD32Async(address, value, words, stream.handle()) };
    check("cuMemsetD32Async", code)
}

/// Copies a slice to the device.
///
/// # Safety
/// The target holds `size_of_val(source)` bytes; `source` lives, unchanged, until the copy is done
/// (pageable memory is staged before the call returns, page-locked memory is not).
pub unsafe fn copy_htod_async<T: bytemuck::NoUninit>(
    target: DevicePtr,
    source: &[T],
    stream: RawStream<'_>,
) -> Result<()> {
    let bytes = size_of_val(source);
    if bytes == 0 || stream.is_absent() {
        return Ok(());
    }
    // SAFETY: the slice is readable for `bytes`; the rest is the caller's promise.
    let code = unsafe {
        sys::cuMemcpyHtoDAsync_v2(target, source.as_ptr().cast(), bytes, stream.handle())
    };
    check("cuMemcpyHtoDAsync", code)
}

/// Copies from the device into a slice. Synchronise before reading it.
///
/// # Safety
/// The source holds `size_of_val(target)` bytes; `target` lives and is not read until the copy is done.
pub unsafe fn copy_dtoh_async<T: bytemuck::AnyBitPattern>(
    target: &mut [T],
    source: DevicePtr,
    stream: RawStream<'_>,
) -> Result<()> {
    let bytes = size_of_val(target);
    if bytes == 0 || stream.is_absent() {
        return Ok(());
    }
    // SAFETY: the slice is writable for `bytes` and any bits are a T; the rest is the caller's promise.
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
    // SAFETY: the caller's promise.
    let code = unsafe { sys::cuMemcpyDtoDAsync_v2(target, source, bytes, stream.handle()) };
    check("cuMemcpyDtoDAsync", code)
}

/// Bytes of a row, and from one row to the next.
pub(crate) type RowBytes = (usize, usize);

/// Rows that lie so many bytes apart, on the host or on the device: the other address is 0.
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
/// As [`copy_htod_async`] and [`copy_dtoh_async`], for every row at both places.
unsafe fn copy_rows_async(
    [source, target]: [sys::RowsPlace; 2],
    [width, height]: [usize; 2],
    stream: RawStream<'_>,
) -> Result<()> {
    if stream.is_absent() {
        return Ok(());
    }
    let copy = sys::RowsCopy { source, target, width_in_bytes: width, height };
    // SAFETY: the caller's promise.
    let code = unsafe { sys::cuMemcpy2DAsync_v2(&copy, stream.handle()) };
    check("cuMemcpy2DAsync", code)
}

/// Owned device memory. Unlike cust's buffers it holds its context, so it may be dropped on any thread.
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
    /// Of memory that was not allocated here.
    owner: Option<Owner>,
    context: Arc<PrimaryContext>,
}

/// Where all memory of a GPU that is not there begins: nothing is read from it, and it is aligned as the driver aligns.
pub(crate) const ABSENT_ADDRESS: DevicePtr = 1 << 40;

impl DeviceMemory {
    /// Allocates `bytes` bytes, not initialised.
    pub fn alloc(context: &Arc<PrimaryContext>, bytes: usize) -> Result<Self> {
        context.set_current()?;
        let address = match context.is_absent() {
            true if bytes > 0 => ABSENT_ADDRESS,
            true => 0,
            false => mem_alloc(bytes)?,
        };
        Ok(Self { address, bytes, owner: None, context: Arc::clone(context) })
    }

    /// Whose memory it is, where that is somebody else.
    #[cfg(feature = "cudarc")]
    pub(crate) fn into_owner(mut self) -> Option<Owner> {
        let nobody = || Owner::new(());
        self.owner.as_mut().map(|owner| std::mem::replace(owner, nobody()))
    }

    /// Memory of somebody else, which its owner frees when this is dropped.
    ///
    /// # Safety
    /// So many bytes from `address` on are memory of the context's GPU until the owner is dropped. Whoever else uses
    /// them does so in the order of the streams that work with this.
    pub(crate) unsafe fn foreign(
        context: &Arc<PrimaryContext>,
        address: DevicePtr,
        bytes: usize,
        owner: Owner,
    ) -> Self {
        Self { address, bytes, owner: Some(owner), context: Arc::clone(context) }
    }

    /// Allocates and copies `values`; returns when the copy is done.
    pub fn from_slice<T: bytemuck::NoUninit>(
        context: &Arc<PrimaryContext>,
        values: &[T],
        stream: RawStream<'_>,
    ) -> Result<Self> {
        let memory = Self::alloc(context, size_of_val(values))?;
        memory.write(values, stream)?;
        Ok(memory)
    }

    /// Copies `values` to the start after the work queued on `stream`; returns when the copy is done.
    /// Longer than the memory: an error.
    pub fn write<T: bytemuck::NoUninit>(&self, values: &[T], stream: RawStream<'_>) -> Result<()> {
        self.fits(size_of_val(values))?;
        self.context.set_current()?;
        // SAFETY: the range was just checked and the borrow outlasts the copy, which is waited for.
        unsafe { copy_htod_async(self.address, values, stream)? };
        stream.synchronize()
    }

    /// Copies from the start into `values` after the work queued on `stream`; returns when the copy is done.
    /// Longer than the memory: an error.
    pub fn read<T: bytemuck::AnyBitPattern>(
        &self,
        values: &mut [T],
        stream: RawStream<'_>,
    ) -> Result<()> {
        self.fits(size_of_val(values))?;
        self.context.set_current()?;
        // SAFETY: the range was just checked and the borrow outlasts the copy, which is waited for.
        unsafe { copy_dtoh_async(values, self.address, stream)? };
        stream.synchronize()
    }

    /// Copies `values`, rows side by side, to rows from byte `first` on, after the work queued on `stream`; returns when the
    /// copy is done. What lies between the rows is left as it is. Past the end of the memory: an error.
    pub(crate) fn write_rows(
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
        // SAFETY: the rows were just checked and the borrow outlasts the copy, which is waited for. The source is only read.
        unsafe { copy_rows_async([source, target], [width, height], stream)? };
        stream.synchronize()
    }

    /// The way back.
    pub(crate) fn read_rows(
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
        // SAFETY: the rows were just checked and the borrow outlasts the copy, which is waited for.
        unsafe { copy_rows_async([source, target], [width, height], stream)? };
        stream.synchronize()
    }

    /// Width and number of the rows that make up so many bytes, and their pitch; none without bytes. Rows without gaps are
    /// one: the driver bounds how far apart they may lie.
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

    /// The address; 0 for zero bytes.
    pub fn address(&self) -> DevicePtr {
        self.address
    }

    /// Size, bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Arc<PrimaryContext> {
        &self.context
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.owner.is_some() || self.context.is_absent() {
            return;
        }
        // SAFETY: the address is ours, freed once; cuMemFree waits for work that still uses it.
        let freed = self.context.set_current().and_then(|()| unsafe { mem_free(self.address) });
        if let Err(error) = freed {
            tracing::warn!(%error, bytes = self.bytes, "device memory was not freed");
        }
    }
}
