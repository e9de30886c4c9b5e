//! A slice that several threads write to, each to its own elements.

use std::marker::PhantomData;

/// Bounds-checked, unsynchronised access to the elements of one slice.
pub(crate) struct Shared<'a, V> {
    start: *mut V,
    len: usize,
    slice: PhantomData<&'a mut [V]>,
}

// SAFETY: the pointer stands for a `&mut [V]`; threads reach elements only through `update`, whose callers
// never touch one element from two threads (see there).
unsafe impl<V: Send> Sync for Shared<'_, V> {}

impl<'a, V: Copy> Shared<'a, V> {
    pub fn new(slice: &'a mut [V]) -> Self {
        Shared {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            slice: PhantomData,
        }
    }

    /// Replaces one element.
    ///
    /// Only this directory calls it: from `Nest::run`, which gives each element of the output to one unit of work, and
    /// each unit to one thread; from the softmax, which gives each row's slots to one thread; and from attention, which
    /// gives each row to one.
    #[inline]
    pub fn update(&self, at: usize, f: impl FnOnce(V) -> V) {
        assert!(at < self.len, "element {at} of {}", self.len);
        // SAFETY: in bounds by the line above, valid and exclusively borrowed for 'a by construction, and no other
        // thread touches this element by the rule for callers.
        unsafe {
            let slot = self.start.add(at);
            slot.write(f(slot.read()));
        }
    }

    /// One element, by the rule for callers of [`Shared::update`].
    #[inline]
    pub fn get(&self, at: usize) -> V {
        assert!(at < self.len, "element {at} of {}", self.len);
        // SAFETY: in bounds by the line above, valid for 'a by construction, and no other thread touches this element
        // by the rule for callers.
        unsafe { self.start.add(at).read() }
    }
}
