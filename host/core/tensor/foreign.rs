//! Tensors in memory of another owner.

use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use super::{AnyTensor, Storage, Tensor, storage_len};
use crate::context::Context;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::registry::Scalar;
use crate::values::Buffer;
use einsparse_cuda::owner::Owner;

impl<T: Scalar> Tensor<T> {
    /// Creates a tensor in memory of another owner, without a copy: of the context's GPU, or of the host in a CPU
    /// context. `address` is that of the first element. The row stride is `leading` elements. `owner` is dropped with
    /// the tensor, or when this function fails.
    ///
    /// # Errors
    /// [`Error::RowStride`] if rows overlap, [`Error::MissingOperand`] if the address is null, [`Error::Alignment`] if
    /// it is not a multiple of the element size, [`Error::Overflow`] if the size exceeds the address space.
    ///
    /// # Safety
    /// - From the first to the last element, all memory is valid in the context until `owner` is dropped. Host memory
    ///   is initialized. On a GPU the last row is readable up to the next multiple of 16 bytes.
    /// - The tensor is not written if the memory is read-only. A write may also store, between rows, the values that it
    ///   read there.
    /// - Other code writes the memory, or reads data written to the tensor, only in the order of the streams on which
    ///   the tensor is used. Other code does not access host memory while a call uses it.
    /// - `owner` frees the memory after all work queued with the tensor, even if the tensor is dropped before that work
    ///   is done.
    ///
    /// ```
    /// use einsparse::{Context, Tensor};
    ///
    /// let values = vec![1.0f32, 2.0, 3.0, 4.0];
    /// let address = values.as_ptr() as u64;
    /// // SAFETY: the tensor keeps the vector, which is aligned, holds 2 x 2 values, and is used by nobody else.
    /// let tensor = unsafe { Tensor::<f32>::from_raw(&Context::cpu(), address, &[2, 2], 2, values)? };
    /// assert_eq!(tensor.to_dense()?.get(&[1, 0]), Some(3.0));
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    pub unsafe fn from_raw(
        context: &Context,
        address: u64,
        shape: &[usize],
        leading: usize,
        owner: impl Send + Sync + 'static,
    ) -> Result<Tensor<T>> {
        let owner = Owner::new(owner);
        // The last row is not followed by a gap.
        let width = shape.last().copied().unwrap_or(1);
        let len = match storage_len(shape, leading)? {
            _ if shape.contains(&0) => 0,
            0 => 0,
            len => len - (leading - width),
        };
        let bytes = size_of::<T>();
        const NAME: &str = "memory of another owner";
        if len > 0 && address == 0 {
            return Err(Error::at_zero(NAME));
        }
        if len > 0 && !address.is_multiple_of(bytes as u64) {
            return Err(Error::alignment(NAME, "address", address, bytes));
        }
        let storage = match context.device() {
            Some(device) => {
                // SAFETY: guaranteed by the caller.
                let memory =
                    unsafe { DeviceMemory::foreign(device.context(), address, len * bytes, owner) };
                Storage::Device(memory, Arc::clone(device))
            }
            None => {
                let start: *mut u8 = match len {
                    // No element is read, and the address may be null.
                    0 => ptr::NonNull::<u64>::dangling().as_ptr().cast(),
                    _ => ptr::with_exposed_provenance_mut(address as usize),
                };
                // SAFETY: guaranteed by the caller; null and alignment were checked.
                Storage::Host(unsafe { Buffer::foreign(T::DTYPE, start, len, owner) })
            }
        };
        let any =
            AnyTensor { dtype: T::DTYPE, shape: shape.to_vec(), leading, part: None, storage };
        let element = PhantomData;
        Ok(Tensor { any, element })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    struct Counted {
        _kept: Vec<f32>,
        drops: &'static AtomicUsize,
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.drops.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn tensor(
        values: Vec<f32>,
        of: (&[usize], usize),
        drops: &'static AtomicUsize,
    ) -> Result<Tensor<f32>> {
        let address = values.as_ptr() as u64;
        let _kept = values;
        let owner = Counted { _kept, drops };
        // SAFETY: the tensor keeps the vector alive. Tests use at most its length.
        unsafe { Tensor::from_raw(&Context::cpu(), address, of.0, of.1, owner) }
    }

    #[test]
    fn foreign_rows_are_read_and_written_in_place() {
        static DROPS: AtomicUsize = AtomicUsize::new(0);
        // Two rows of two elements with a row stride of three: the last row is not followed by a gap.
        let mut own = tensor(vec![1.0, 2.0, 9.0, 3.0, 4.0], (&[2, 2], 3), &DROPS).unwrap();
        assert_eq!(own.to_dense().unwrap().values(), [1.0, 2.0, 3.0, 4.0]);
        let ones = einsparse_formats::Dense::new([2, 2], vec![1.0f32; 4]).unwrap();
        own.write(&ones).unwrap();
        assert_eq!(own.to_storage().unwrap(), [1.0, 1.0, 9.0, 1.0, 1.0]);
        assert_eq!(DROPS.load(Ordering::Relaxed), 0);
        drop(own);
        assert_eq!(DROPS.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn owners_are_dropped_where_it_fails() {
        static DROPS: AtomicUsize = AtomicUsize::new(0);
        let overlap = tensor(vec![0.0; 4], (&[2, 2], 1), &DROPS).unwrap_err();
        assert!(matches!(overlap, Error::RowStride { found: 1, .. }), "{overlap}");
        let none = tensor(Vec::new(), (&[0, 2], 2), &DROPS).unwrap();
        assert!(none.to_dense().unwrap().values().is_empty());
        // SAFETY: the address is refused, and nothing is read.
        let odd = unsafe { Tensor::<f32>::from_raw(&Context::cpu(), 6, &[1], 1, ()) };
        let odd = odd.unwrap_err();
        assert!(matches!(odd, Error::Alignment { found: 6, required: 4, .. }), "{odd}");
        drop(none);
        assert_eq!(DROPS.load(Ordering::Relaxed), 2);
    }
}
