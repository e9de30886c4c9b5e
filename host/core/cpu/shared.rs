//! Slice that several threads write, each thread its own elements.

use std::marker::PhantomData;

/// Bounds-checked, unsynchronized access to the elements of one slice.
pub(super) struct Shared<'a, V> {
    start: *mut V,
    len: usize,
    slice: PhantomData<&'a mut [V]>,
}

// SAFETY: the pointer comes from a `&mut [V]`. Threads access elements only through `update`, whose callers guarantee
// that no two threads access one element at the same time.
unsafe impl<V: Send> Sync for Shared<'_, V> {}

impl<'a, V: Copy> Shared<'a, V> {
    pub fn new(slice: &'a mut [V]) -> Self {
        Shared { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// Replaces one element.
    ///
    /// # Safety
    /// Until this call returns, no other call may access the same element, neither from another thread nor from `f`.
    ///
    /// # Panics
    /// If `at` is past the end.
    #[inline]
    pub unsafe fn update(&self, at: usize, f: impl FnOnce(V) -> V) {
        assert!(at < self.len, "element {at} of {}", self.len);
        // SAFETY: in bounds by the assertion above; valid and exclusively borrowed for 'a by construction; the caller
        // guarantees that the element is not accessed elsewhere at the same time.
        unsafe {
            let slot = self.start.add(at);
            slot.write(f(slot.read()));
        }
    }
}
