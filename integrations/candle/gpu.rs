//! Products on a GPU, in candle's memory and on candle's stream.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::CudaDType;
use candle_core::cuda_backend::cudarc::driver::{
    CudaStream, CudaView, DevicePtr, DevicePtrMut, DeviceRepr, result,
};
use candle_core::{CudaStorage, Layout, Result};
use einsparse::formats::{Csr, CsrPattern};
use einsparse::{Context, Operand, Plan, Scalar, SparseTensor, Stream, Tensor};

use crate::wrapped;

/// Key of a plan: the expression, the columns of its dense operands, and the alignment of two addresses in zero bits.
type Planned = (&'static str, usize, [u32; 2]);

/// A matrix and its plans, for one stream and one element type.
struct Kept<T: Scalar> {
    context: Context,
    matrix: SparseTensor<T>,
    plans: HashMap<Planned, Plan<T>>,
}

impl<T: Scalar> Kept<T> {
    fn new(pattern: &Arc<CsrPattern>, stream: &CudaStream) -> einsparse::Result<Self> {
        let context = Context::from_cudarc(stream.context())?;
        let zeros = vec![T::ZERO; pattern.columns().len()];
        Ok(Kept {
            matrix: context.upload(Csr::new(pattern.clone(), zeros)?)?,
            plans: HashMap::new(),
            context,
        })
    }

    /// Returns the address of the matrix's values.
    fn values(&self) -> Result<u64> {
        let address = self.matrix.values_address();
        address.ok_or_else(|| wrapped("the matrix is not on a GPU"))
    }
}

/// Matrices and plans by GPU, stream and type. Work on one stream is ordered, so runs may share a matrix.
#[derive(Default)]
pub(crate) struct Gpu(Mutex<HashMap<(usize, usize, TypeId), Box<dyn Any + Send>>>);

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gpu")
    }
}

/// An operand: its storage and its layout.
type Given<'a> = (&'a CudaStorage, &'a Layout);

/// Returns the elements of a contiguous operand.
fn view<'s, T: CudaDType + DeviceRepr>((storage, layout): Given<'s>) -> Result<CudaView<'s, T>> {
    let Some((start, end)) = layout.contiguous_offsets() else {
        let shape = layout.dims();
        return Err(wrapped(format!("an operand {shape:?} is not contiguous")));
    };
    Ok(storage.as_cuda_slice::<T>()?.slice(start..end))
}

/// Copies `len` elements between two addresses, in stream order.
///
/// # Safety
/// Both addresses must point to `len` elements in the stream's context.
unsafe fn copy<T>(to: u64, from: u64, len: usize, stream: &CudaStream) -> Result<()> {
    // SAFETY: guaranteed by the caller.
    let queued =
        unsafe { result::memcpy_dtod_async(to, from, len * size_of::<T>(), stream.cu_stream()) };
    queued.map_err(wrapped)
}

fn aligned(addresses: [u64; 2]) -> [u32; 2] {
    addresses.map(|address| address.trailing_zeros().min(8))
}

impl Gpu {
    fn with<T: Scalar, R>(
        &self,
        pattern: &Arc<CsrPattern>,
        stream: &CudaStream,
        run: impl FnOnce(&mut Kept<T>) -> Result<R>,
    ) -> Result<R> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let gpu = stream.context().ordinal();
        let key = (gpu, stream.cu_stream() as usize, TypeId::of::<T>());
        let kept = match all.entry(key) {
            Entry::Occupied(kept) => kept.into_mut(),
            Entry::Vacant(place) => {
                let kept: Kept<T> = Kept::new(pattern, stream).map_err(wrapped)?;
                place.insert(Box::new(kept))
            }
        };
        match kept.downcast_mut() {
            Some(kept) => run(kept),
            None => Err(wrapped("a matrix of another type was kept")),
        }
    }

    /// Multiplies the matrix `A` with these values by `B`. `shape` is that of the product.
    pub(crate) fn spmm<T: Scalar + CudaDType + DeviceRepr>(
        &self,
        pattern: &Arc<CsrPattern>,
        (text, shape): (&'static str, [usize; 2]),
        (values, b): (Given<'_>, Given<'_>),
    ) -> Result<CudaStorage> {
        let device = b.0.device();
        let stream = device.cuda_stream();
        let (extents, values, b) = (b.1.dims(), view::<T>(values)?, view::<T>(b)?);
        // SAFETY: the product writes every element.
        let mut out = unsafe { device.alloc::<T>(shape[0] * shape[1])? };
        self.with(pattern, &stream, |kept: &mut Kept<T>| {
            let entries = pattern.columns().len();
            let (from, read) = values.device_ptr(&stream);
            // SAFETY: `cuda_fwd` checked that there is one value per nonzero; earlier runs precede on the stream.
            unsafe { copy::<T>(kept.values()?, from, entries, &stream)? };
            drop(read);
            let at = aligned([b.device_ptr(&stream).0, out.device_ptr_mut(&stream).0]);
            // SAFETY: it is used only on this stream, and dropped below.
            let b = unsafe { Tensor::borrow_cudarc(&kept.context, &b, extents, &stream) };
            let b = b.map_err(wrapped)?;
            // SAFETY: it is used only on this stream, and dropped below.
            let c = unsafe { Tensor::borrow_cudarc_mut(&kept.context, &mut out, &shape, &stream) };
            let mut c = c.map_err(wrapped)?;
            let operands: [(&str, Operand<'_, T>); 2] =
                [("A", (&kept.matrix).into()), ("B", (&*b).into())];
            let key = (text, shape[1], at);
            if !kept.plans.contains_key(&key) {
                let plan = kept.context.plan(text).operands(&operands).build();
                kept.plans.insert(key, plan.map_err(wrapped)?);
            }
            let queue = Stream::from_cudarc(&stream);
            let run = |plan: &Plan<T>| plan.run(&operands, &mut *c, &queue);
            kept.plans.get(&key).map_or(Ok(()), run).map_err(wrapped)
        })?;
        Ok(CudaStorage::wrap_cuda_slice(out, device.clone()))
    }

    /// Returns the values of `X` times the transpose of `Y` at the nonzeros of the pattern.
    pub(crate) fn sddmm<T: Scalar + CudaDType + DeviceRepr>(
        &self,
        pattern: &Arc<CsrPattern>,
        text: &'static str,
        (x, y): (Given<'_>, Given<'_>),
    ) -> Result<CudaStorage> {
        let device = x.0.device();
        let stream = device.cuda_stream();
        let (of_x, of_y) = (x.1.dims(), y.1.dims());
        let (x, y) = (view::<T>(x)?, view::<T>(y)?);
        let entries = pattern.columns().len();
        // SAFETY: the copy below writes every element.
        let mut out = unsafe { device.alloc::<T>(entries)? };
        self.with(pattern, &stream, |kept: &mut Kept<T>| {
            let at = aligned([x.device_ptr(&stream).0, y.device_ptr(&stream).0]);
            // SAFETY: it is used only on this stream, and dropped below.
            let x = unsafe { Tensor::borrow_cudarc(&kept.context, &x, of_x, &stream) };
            // SAFETY: it is used only on this stream, and dropped below.
            let y = unsafe { Tensor::borrow_cudarc(&kept.context, &y, of_y, &stream) };
            let (x, y) = (x.map_err(wrapped)?, y.map_err(wrapped)?);
            let operands: [(&str, Operand<'_, T>); 2] = [("X", (&*x).into()), ("Y", (&*y).into())];
            let key = (text, of_x.last().copied().unwrap_or(1), at);
            if !kept.plans.contains_key(&key) {
                let plan = kept.context.plan(text).operands(&operands);
                let plan = plan.sparse_output(&kept.matrix).build().map_err(wrapped)?;
                kept.plans.insert(key, plan);
            }
            let queue = Stream::from_cudarc(&stream);
            let (plans, matrix) = (&kept.plans, &mut kept.matrix);
            let run = |plan: &Plan<T>| plan.run(&operands, matrix, &queue);
            plans.get(&key).map_or(Ok(()), run).map_err(wrapped)?;
            let (to, written) = out.device_ptr_mut(&stream);
            // SAFETY: both contain one value per nonzero.
            unsafe { copy::<T>(to, kept.values()?, entries, &stream)? };
            drop(written);
            Ok(())
        })?;
        Ok(CudaStorage::wrap_cuda_slice(out, device.clone()))
    }
}
