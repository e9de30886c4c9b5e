//! Page-locked memory of the host: what copies run from while other work goes on, and a word that kernels write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{DevicePtr, PrimaryContext, check, sys, trial};
use crate::error::Result;

/// Page-locked memory, at the same address on both sides (unified addressing), aligned to pages.
#[derive(Debug)]
pub struct PinnedMemory {
    start: *mut u8,
    bytes: usize,
    context: Arc<PrimaryContext>,
}

// SAFETY: the memory is of no thread, and written through `&mut` alone.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// So many bytes of 0.
    pub fn zeros(context: &Arc<PrimaryContext>, bytes: usize) -> Result<Self> {
        context.set_current()?;
        // The driver gives none for nothing.
        let room = bytes.max(8);
        trial::check_turn("cuMemAllocHost", room)?;
        if context.is_absent() {
            let words = vec![0u64; room.div_ceil(8)].into_boxed_slice();
            return Ok(PinnedMemory {
                start: Box::into_raw(words).cast(),
                bytes,
                context: Arc::clone(context),
            });
        }
        let mut start = std::ptr::null_mut();
        // SAFETY: `start` is a place for one address.
        let code = unsafe { sys::cuMemAllocHost_v2(&mut start, room) };
        check(&format!("cuMemAllocHost of {room} bytes"), code)?;
        let start = start.cast::<u8>();
        // SAFETY: so many bytes that the driver just gave.
        unsafe { start.write_bytes(0, room) };
        Ok(PinnedMemory { start, bytes, context: Arc::clone(context) })
    }

    /// Where it begins; never null.
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// What it holds.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: ours, and initialised when it was made.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }

    /// The same, to be written: not while a copy is under way.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed by nobody else.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        if self.context.is_absent() {
            let words = self.bytes.max(8).div_ceil(8);
            let words = std::ptr::slice_from_raw_parts_mut(self.start.cast::<u64>(), words);
            // SAFETY: a boxed slice of so many words when it was made, freed once.
            drop(unsafe { Box::from_raw(words) });
            return;
        }
        // Work that reads or writes it may be queued still.
        let idle = self.context.set_current().and_then(|()| self.context.synchronize());
        let freed = idle.and_then(|()| {
            // SAFETY: ours, freed once, and in its context.
            let code = unsafe { sys::cuMemFreeHost(self.start.cast()) };
            check("cuMemFreeHost", code)
        });
        if let Err(error) = freed {
            tracing::warn!(%error, "pinned memory was not freed");
        }
    }
}

/// 8 bytes of page-locked memory. What a kernel stores is read at any time, without waiting for it.
#[derive(Debug)]
pub struct PinnedWord(PinnedMemory);

impl PinnedWord {
    /// A word of 0.
    pub fn new(context: &Arc<PrimaryContext>) -> Result<Self> {
        PinnedMemory::zeros(context, size_of::<u64>()).map(PinnedWord)
    }

    /// Where kernels find it.
    pub fn address(&self) -> DevicePtr {
        self.0.start as DevicePtr
    }

    /// What was stored last.
    pub fn load(&self) -> u64 {
        // SAFETY: the word is alive, aligned to 8 bytes, and touched by atomic loads and by the GPU's 8-byte stores
        // only.
        let word = unsafe { AtomicU64::from_ptr(self.0.start.cast()) };
        word.load(Ordering::Acquire)
    }
}
