//! Memory that somebody else owns.

use std::slice;

use einsparse_cuda::owner::Owner;

/// Words of our own, which align the bytes for every type, or bytes of somebody else.
#[derive(Debug)]
pub(super) enum Bytes {
    Own(Vec<u64>),
    Foreign(Foreign),
}

/// Bytes of somebody else on the host.
#[derive(Debug)]
pub(super) struct Foreign {
    start: *mut u8,
    len: usize,
    _owner: Owner,
}

// SAFETY: as with a vector of bytes: the memory is ours for as long as the owner is kept, which may go to any thread.
unsafe impl Send for Foreign {}
// SAFETY: as above.
unsafe impl Sync for Foreign {}

impl Bytes {
    /// # Safety
    /// `start` is not null and aligned for the elements that are read. So many bytes from it on are initialised, and
    /// nobody else writes them, or reads them while they are written, until the owner is dropped.
    pub(super) unsafe fn foreign(start: *mut u8, len: usize, owner: Owner) -> Self {
        Bytes::Foreign(Foreign { start, len, _owner: owner })
    }

    pub(super) fn view(&self) -> &[u8] {
        match self {
            Bytes::Own(words) => bytemuck::cast_slice(words),
            // SAFETY: the promise of `foreign`; the borrow keeps the owner.
            Bytes::Foreign(of) => unsafe { slice::from_raw_parts(of.start, of.len) },
        }
    }

    pub(super) fn view_mut(&mut self) -> &mut [u8] {
        match self {
            Bytes::Own(words) => bytemuck::cast_slice_mut(words),
            // SAFETY: as in `view`; the borrow is the only one.
            Bytes::Foreign(of) => unsafe { slice::from_raw_parts_mut(of.start, of.len) },
        }
    }
}

/// A copy is our own.
impl Clone for Bytes {
    fn clone(&self) -> Self {
        match self {
            Bytes::Own(words) => Bytes::Own(words.clone()),
            Bytes::Foreign(_) => {
                let bytes = self.view();
                let mut words = vec![0u64; bytes.len().div_ceil(8)];
                bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(bytes);
                Bytes::Own(words)
            }
        }
    }
}
