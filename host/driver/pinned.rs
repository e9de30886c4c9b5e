//! A word of the host's memory that kernels write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{DevicePtr, PrimaryContext, check, sys, trial};
use crate::error::Result;

/// 8 bytes of page-locked memory, at the same address on both sides (unified addressing). What a kernel stores is read
/// at any time, without waiting for it.
#[derive(Debug)]
pub struct PinnedWord {
    word: *mut u64,
    context: Arc<PrimaryContext>,
}

// SAFETY: the address is of no thread; what is behind it is read by atomic loads.
unsafe impl Send for PinnedWord {}
// SAFETY: as above.
unsafe impl Sync for PinnedWord {}

impl PinnedWord {
    /// A word of 0.
    pub fn new(context: &Arc<PrimaryContext>) -> Result<Self> {
        context.set_current()?;
        trial::check_turn("cuMemAllocHost", size_of::<u64>())?;
        let mut word = std::ptr::null_mut();
        // SAFETY: `word` is a place for one address.
        let code = unsafe { sys::cuMemAllocHost_v2(&mut word, size_of::<u64>()) };
        check("cuMemAllocHost", code)?;
        let word = word.cast::<u64>();
        // SAFETY: 8 bytes that the driver just gave, aligned to more.
        unsafe { word.write(0) };
        Ok(PinnedWord {
            word,
            context: Arc::clone(context),
        })
    }

    /// Where kernels find it.
    pub fn address(&self) -> DevicePtr {
        self.word as DevicePtr
    }

    /// What was stored last.
    pub fn load(&self) -> u64 {
        // SAFETY: the word is alive, aligned to 8 bytes, and touched by atomic loads and by the GPU's 8-byte stores
        // only.
        let word = unsafe { AtomicU64::from_ptr(self.word) };
        word.load(Ordering::Acquire)
    }
}

impl Drop for PinnedWord {
    fn drop(&mut self) {
        // Work that writes it may be queued still.
        let idle = self
            .context
            .set_current()
            .and_then(|()| self.context.synchronize());
        let freed = idle.and_then(|()| {
            // SAFETY: ours, freed once, and in its context.
            let code = unsafe { sys::cuMemFreeHost(self.word.cast()) };
            check("cuMemFreeHost", code)
        });
        if let Err(error) = freed {
            tracing::warn!(%error, "a pinned word was not freed");
        }
    }
}
