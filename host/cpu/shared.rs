//! A slice that several threads write to, each to its own elements.

use std::marker::PhantomData;

/// Bounds-checked, unsynchronized access to the elements of one slice.
pub(super) struct Shared<'a, V> {
    start: *mut V,
    len: usize,
    slice: PhantomData<&'a mut [V]>,
}

// SAFETY: the pointer was made from a `&mut [V]`; threads reach elements only through `update`, whose callers promise that
// no two threads reach one element at once.
unsafe impl<V: Send> Sync for Shared<'_, V> {}

impl<'a, V: Copy> Shared<'a, V> {
    pub fn new(slice: &'a mut [V]) -> Self {
        Shared { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// Replaces one element.
    ///
    /// # Safety
    /// Until this call returns, no other call for the same element is made: neither by another thread nor by `f`.
    ///
    /// # Panics
    /// For an element past the end.
    #[inline]
    pub unsafe fn update(&self, at: usize, f: impl FnOnce(V) -> V) {
        assert!(at < self.len, "element {at} of {}", self.len);
        // SAFETY: in bounds by the line above, valid and exclusively borrowed for 'a by construction, and not reached
        // from elsewhere meanwhile by the caller's promise.
        unsafe {
            let slot = self.start.add(at);
            slot.write(f(slot.read()));
        }
    }
}
