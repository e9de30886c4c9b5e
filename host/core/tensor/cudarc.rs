//! Memory and streams of the crate `cudarc`: ownership is transferred in both directions, or borrowed. Nothing is
//! copied.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use ::cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop,
};

use super::{Storage, Tensor};
use crate::context::Context;
use crate::device::Device;
use crate::driver::{DevicePtr as Address, PrimaryContext};
use crate::error::{Error, Result};
use crate::registry::Scalar;

/// Device of memory or a stream: the number of the GPU, and whether the context is the primary one.
#[derive(Clone, Copy, Debug)]
struct Of {
    ordinal: usize,
    primary: bool,
}

impl Of {
    fn context(theirs: &CudaContext) -> Self {
        Of { ordinal: theirs.ordinal(), primary: theirs.is_primary() }
    }

    /// Error that an object is not of the context's GPU `ours`. `None` is a CPU context.
    fn elsewhere(self, what: &str, ours: Option<u32>) -> Error {
        let Of { ordinal, primary } = self;
        let expected = ours.map_or("the CPU, the context".into(), |own| {
            format!("the primary context of GPU {own}")
        });
        let found = match ours {
            Some(own) if own as usize == ordinal && !primary => {
                format!("a context of GPU {own} that is not its primary one")
            }
            Some(own) if own as usize == ordinal => format!("another context of GPU {own}"),
            _ => format!("GPU {ordinal}"),
        };
        Error::context(what, expected, found)
    }
}

/// The GPU of `ours`, if its primary context is `theirs`.
fn shared<'c>(ours: &'c Context, theirs: &CudaContext, what: &str) -> Result<&'c Arc<Device>> {
    let of = Of::context(theirs);
    let device = ours.device().ok_or_else(|| of.elsewhere(what, None))?;
    match device.context().as_raw() == theirs.cu_ctx().cast() {
        true => Ok(device),
        false => Err(of.elsewhere(what, Some(device.facts().ordinal))),
    }
}

/// # Errors
/// If the number of elements differs from that of the shape.
fn check_len(len: usize, shape: &[usize]) -> Result<()> {
    let wanted = shape.iter().try_fold(1usize, |n, &e| n.checked_mul(e));
    if wanted == Some(len) {
        return Ok(());
    }
    Err(Error::Shape {
        index: "CudaSlice".into(),
        left: format!("the shape is {shape:?}"),
        right: format!("the slice has {len} elements"),
    })
}

impl Context {
    /// Opens the GPU of a `cudarc` context (feature `cudarc`). Both libraries work in its primary context and can share
    /// memory.
    ///
    /// # Errors
    /// [`Error::OtherContext`] if `theirs` is not the primary context; otherwise as [`Context::cuda`].
    pub fn from_cudarc(theirs: &CudaContext) -> Result<Context> {
        let of = Of::context(theirs);
        let ordinal = u32::try_from(of.ordinal).map_err(|_| of.elsewhere("CudaContext", None))?;
        if !of.primary {
            return Err(of.elsewhere("CudaContext", Some(ordinal)));
        }
        let ours = Context::cuda(ordinal)?;
        shared(&ours, theirs, "CudaContext").map(drop)?;
        Ok(ours)
    }
}

impl<T: Scalar> Tensor<T> {
    /// Creates a tensor that owns a slice of `cudarc` (feature `cudarc`), row-major and without gaps. Waits for the
    /// work of the GPU. When the tensor is dropped, it waits again and drops the slice.
    ///
    /// # Errors
    /// [`Error::Shape`] if the slice has another number of elements, [`Error::OtherContext`] if it is outside of the
    /// context.
    pub fn from_cudarc(context: &Context, slice: CudaSlice<T>, shape: &[usize]) -> Result<Self> {
        let device = shared(context, slice.context(), "CudaSlice")?;
        check_len(slice.len(), shape)?;
        device.context().synchronize()?;
        let stream = Arc::clone(slice.stream());
        let address = slice.device_ptr(&stream).0;
        let held = Held { slice: Some(slice), context: Arc::clone(device.context()) };
        // SAFETY: the slice has the elements of the shape (`check_len`) at this address, in the context that was
        // compared above. It is dropped when the GPU is done.
        unsafe { Self::from_raw(context, address, shape, width(shape), held) }
    }

    /// Returns the slice that was passed to [`from_cudarc`](Self::from_cudarc), after the work of the GPU is done.
    ///
    /// # Errors
    /// [`Error::Operand`] if the tensor was not created from a slice; [`Error::Cuda`] if work of the GPU failed.
    pub fn into_cudarc(self) -> Result<CudaSlice<T>> {
        let none = || Error::operand("CudaSlice", "none was taken: the memory is our own");
        let Storage::Device(memory, device) = self.any.storage else {
            return Err(none());
        };
        device.context().synchronize()?;
        let held = memory.into_owner().and_then(|owner| owner.into_held::<Held<T>>());
        held.and_then(|mut held| held.slice.take()).ok_or_else(none)
    }

    /// Borrows memory of `cudarc` (feature `cudarc`) as a tensor: `&slice` or a view of one, row-major and without
    /// gaps. `stream` waits for earlier writes of the memory, if cudarc tracks events.
    ///
    /// # Safety
    /// Until the returned value is dropped, work on the tensor is queued on `stream` only. The value is dropped and not
    /// forgotten, because its drop reports the work to `cudarc`.
    ///
    /// # Errors
    /// As [`from_cudarc`](Self::from_cudarc), also for the stream.
    pub unsafe fn borrow_cudarc<'a>(
        context: &Context,
        slice: &'a impl DevicePtr<T>,
        shape: &[usize],
        stream: &'a CudaStream,
    ) -> Result<impl Deref<Target = Tensor<T>>> {
        check_place(context, slice, shape, stream)?;
        let (address, done) = slice.device_ptr(stream);
        Lent::new(context, address, shape, done)
    }

    /// As [`borrow_cudarc`](Self::borrow_cudarc), for writing. `stream` also waits for earlier reads of the memory.
    ///
    /// # Safety
    /// As [`borrow_cudarc`](Self::borrow_cudarc). In addition, the tensor is not replaced by another one
    /// (`std::mem::swap`).
    ///
    /// # Errors
    /// As [`borrow_cudarc`](Self::borrow_cudarc).
    pub unsafe fn borrow_cudarc_mut<'a>(
        context: &Context,
        slice: &'a mut impl DevicePtrMut<T>,
        shape: &[usize],
        stream: &'a CudaStream,
    ) -> Result<impl DerefMut<Target = Tensor<T>>> {
        check_place(context, slice, shape, stream)?;
        let (address, done) = slice.device_ptr_mut(stream);
        Lent::new(context, address, shape, done)
    }
}

/// Row stride of a shape without gaps between rows.
fn width(shape: &[usize]) -> usize {
    shape.last().copied().unwrap_or(1)
}

/// A slice owned by a tensor. It is dropped after the GPU is done with it.
struct Held<T> {
    slice: Option<CudaSlice<T>>,
    context: Arc<PrimaryContext>,
}

impl<T> Drop for Held<T> {
    fn drop(&mut self) {
        if self.slice.is_some()
            && let Err(error) = self.context.synchronize()
        {
            tracing::warn!(%error, "a slice of cudarc was dropped before its GPU was done");
        }
    }
}

/// Checks that a slice and a stream are of the context.
fn check_place<T>(
    context: &Context,
    slice: &impl DeviceSlice<T>,
    shape: &[usize],
    stream: &CudaStream,
) -> Result<()> {
    shared(context, slice.stream().context(), "CudaSlice")?;
    check_len(slice.len(), shape)?;
    shared(context, stream.context(), "CudaStream").map(drop)
}

/// A tensor in borrowed memory. Its drop reports the work on it to the slice.
struct Lent<'a, T> {
    tensor: Tensor<T>,
    _done: SyncOnDrop<'a>,
    slice: PhantomData<&'a mut T>,
}

impl<'a, T: Scalar> Lent<'a, T> {
    fn new(
        context: &Context,
        address: Address,
        shape: &[usize],
        done: SyncOnDrop<'a>,
    ) -> Result<Self> {
        Ok(Lent {
            // SAFETY: the slice is borrowed for 'a and has the elements of the shape (`check_len`) at this address.
            tensor: unsafe { Tensor::from_raw(context, address, shape, width(shape), ())? },
            _done: done,
            slice: PhantomData,
        })
    }
}

impl<T> Deref for Lent<'_, T> {
    type Target = Tensor<T>;

    fn deref(&self) -> &Tensor<T> {
        &self.tensor
    }
}

impl<T> DerefMut for Lent<'_, T> {
    fn deref_mut(&mut self) -> &mut Tensor<T> {
        &mut self.tensor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_gpu_is_told_with_its_number() {
        let of = |ordinal, primary| Of { ordinal, primary };
        let text = |of: Of, ours| of.elsewhere("CudaSlice", ours).to_string();
        for (text, words) in [
            (text(of(1, true), Some(0)), ["GPU 1", "GPU 0"]),
            (text(of(2, true), None), ["GPU 2", "CPU"]),
            (text(of(0, false), Some(0)), ["GPU 0", "primary"]),
            (text(of(0, true), Some(0)), ["GPU 0", "another context"]),
        ] {
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
    }

    #[test]
    fn another_number_of_elements_is_told() {
        assert!(check_len(6, &[2, 3]).is_ok() && check_len(1, &[]).is_ok());
        let text = check_len(5, &[2, 3]).unwrap_err().to_string();
        assert!(text.contains("[2, 3]") && text.contains("5 elements"), "{text}");
        assert!(check_len(0, &[usize::MAX, 2]).is_err());
    }
}
