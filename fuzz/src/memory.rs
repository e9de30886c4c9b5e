//! An allocator with a counter and a limit, for programs that check the bound of their memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Allocator that counts allocated bytes.
pub struct Counting;

/// Bytes allocated now.
pub static TAKEN: AtomicUsize = AtomicUsize::new(0);
/// Maximum since it was last reset.
pub static MOST: AtomicUsize = AtomicUsize::new(0);
/// Limit in bytes. Beyond it, fallible allocations return an error and others abort, as on a machine without free
/// memory.
pub static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Blocks of up to this size are allocated beyond the limit: messages and lists of threads, whose sizes do not depend
/// on extents.
const SMALL: usize = 1 << 16;

/// Reserves bytes if the limit allows it.
fn add(bytes: usize) -> bool {
    let limit = if bytes > SMALL { LIMIT.load(Relaxed) } else { usize::MAX };
    let more = |taken: usize| taken.checked_add(bytes).filter(|&all| all <= limit);
    match TAKEN.fetch_update(Relaxed, Relaxed, more) {
        Ok(before) => {
            MOST.fetch_max(before + bytes, Relaxed);
            true
        }
        Err(_) => false,
    }
}

/// Calls `take` for memory, if the limit allows this many bytes.
fn counted(bytes: usize, take: impl FnOnce() -> *mut u8) -> *mut u8 {
    if !add(bytes) {
        return std::ptr::null_mut();
    }
    let data = take();
    if data.is_null() {
        TAKEN.fetch_sub(bytes, Relaxed);
    }
    data
}

// SAFETY: every call is passed to the system allocator unchanged, or returns null.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract.
        counted(layout.size(), || unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract.
        counted(layout.size(), || unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, data: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // The page table moves large blocks: the old and the new block never take memory together.
        let (old, more) = (layout.size(), size.saturating_sub(layout.size()));
        // SAFETY: the caller upholds the contract.
        let data = counted(more, || unsafe { System.realloc(data, layout, size) });
        if !data.is_null() {
            TAKEN.fetch_sub(old.saturating_sub(size), Relaxed);
        }
        data
    }

    unsafe fn dealloc(&self, data: *mut u8, layout: Layout) {
        TAKEN.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(data, layout) }
    }
}
