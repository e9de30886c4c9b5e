//! Page-locked host memory: buffers for asynchronous copies.

use std::sync::Arc;

use super::{PrimaryContext, check, sys};
use crate::error::Result;

/// Page-locked memory, aligned to pages. It has the same address on host and device (unified addressing).
#[derive(Debug)]
pub struct PinnedMemory {
    start: *mut u8,
    bytes: usize,
    context: Arc<PrimaryContext>,
}

// SAFETY: the memory is not bound to a thread, and it is only written through `&mut`.
unsafe impl Send for PinnedMemory {}
// SAFETY: it is only written through `&mut`.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Allocates `bytes` bytes, all zero.
    pub fn zeros(context: &Arc<PrimaryContext>, bytes: usize) -> Result<Self> {
        context.set_current()?;
        // The driver rejects an allocation of 0 bytes.
        let room = bytes.max(8);
        #[cfg(feature = "testing")]
        super::trial::check_turn("cuMemAllocHost", room)?;
        if context.is_absent() {
            let words = vec![0u64; room.div_ceil(8)].into_boxed_slice();
            return Ok(PinnedMemory {
                start: Box::into_raw(words).cast(),
                bytes,
                context: Arc::clone(context),
            });
        }
        let mut start = std::ptr::null_mut();
        // SAFETY: `start` can hold one address.
        let code = unsafe { sys::cuMemAllocHost_v2(&mut start, room) };
        check(&format!("cuMemAllocHost of {room} bytes"), code)?;
        let start = start.cast::<u8>();
        // SAFETY: the driver just allocated `room` bytes there.
        unsafe { start.write_bytes(0, room) };
        Ok(PinnedMemory { start, bytes, context: Arc::clone(context) })
    }

    /// Returns the address of the memory, which is never null.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// Returns the contents.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: this value owns the memory, which was initialized on creation.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }

    /// Returns the contents for writing. Do not write while a copy is in flight.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: this value owns the initialized memory, and `&mut self` excludes other borrows.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if self.context.is_absent() {
            let words = self.bytes.max(8).div_ceil(8);
            let words = std::ptr::slice_from_raw_parts_mut(self.start.cast::<u64>(), words);
            // SAFETY: the memory was created as a boxed slice of this length, and it is freed once.
            drop(unsafe { Box::from_raw(words) });
            return;
        }
        // Queued work may still read or write the memory.
        let idle = self.context.set_current().and_then(|()| self.context.synchronize());
        let freed = idle.and_then(|()| {
            // SAFETY: this value owns the memory, which is freed once and in its context.
            let code = unsafe { sys::cuMemFreeHost(self.start.cast()) };
            check("cuMemFreeHost", code)
        });
        if let Err(error) = freed {
            tracing::warn!(%error, "pinned memory was not freed");
        }
    }
}
