//! An allocator that counts and that has no more than a limit, for programs that hold what they take to a bound.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Counts what is taken.
pub struct Counting;

/// Bytes taken now.
pub static TAKEN: AtomicUsize = AtomicUsize::new(0);
/// The most since it was set last.
pub static MOST: AtomicUsize = AtomicUsize::new(0);
/// Bytes that may be taken. More fails as on a machine without memory: fallible allocations return an error, others
/// abort.
pub static LIMIT: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Blocks of up to so many bytes are given beyond the limit: messages and lists of threads, which follow no extent.
const SMALL: usize = 1 << 16;

/// Takes bytes if there are any.
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

/// Memory from `take`, if so many bytes are left.
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

// SAFETY: every call is passed to the system's allocator unchanged, or gives no memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract.
        counted(layout.size(), || unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract.
        counted(layout.size(), || unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, data: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Large blocks are moved by the page table: the old and the new are never there both.
        let (old, more) = (layout.size(), size.saturating_sub(layout.size()));
        // SAFETY: the caller keeps the contract.
        let data = counted(more, || unsafe { System.realloc(data, layout, size) });
        if !data.is_null() {
            TAKEN.fetch_sub(old.saturating_sub(size), Relaxed);
        }
        data
    }

    unsafe fn dealloc(&self, data: *mut u8, layout: Layout) {
        TAKEN.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(data, layout) }
    }
}
