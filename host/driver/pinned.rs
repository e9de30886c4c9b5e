//! A word of the host's memory that kernels write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cust::memory::LockedBuffer;

use super::{DevicePtr, PrimaryContext, refused};
use crate::error::Result;

/// 8 bytes of page-locked memory, at the same address on both sides (unified addressing). What a kernel stores is read at any time, without
/// waiting for it.
#[derive(Debug)]
pub struct PinnedWord {
    // Freed in its context.
    word: Option<LockedBuffer<u64>>,
    context: Arc<PrimaryContext>,
}

impl PinnedWord {
    /// A word of 0.
    pub fn new(context: &Arc<PrimaryContext>) -> Result<Self> {
        context.set_current()?;
        let word = LockedBuffer::new(&0u64, 1).map_err(refused("cuMemAllocHost"))?;
        Ok(PinnedWord {
            word: Some(word),
            context: Arc::clone(context),
        })
    }

    /// Where kernels find it.
    pub fn address(&self) -> DevicePtr {
        self.word
            .as_ref()
            .map_or(0, |word| word.as_slice().as_ptr() as DevicePtr)
    }

    /// What was stored last.
    pub fn load(&self) -> u64 {
        let Some(word) = &self.word else { return 0 };
        let at = word.as_slice().as_ptr().cast_mut();
        // SAFETY: the word is alive, aligned to 8 bytes, and touched by atomic loads and by the GPU's 8-byte stores only.
        let word = unsafe { AtomicU64::from_ptr(at) };
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
        match (idle, self.word.take()) {
            (Ok(()), word) => drop(word),
            (Err(error), word) => {
                tracing::warn!(%error, "a pinned word was not freed");
                std::mem::forget(word);
            }
        }
    }
}
