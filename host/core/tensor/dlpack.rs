//! DLPack: exchange of tensors with other libraries, without a copy.

use dlpark::ffi::{DLDataType, DLDevice, DLDeviceType};
use dlpark::metadata::Dynamic;
use dlpark::{Managed, ManagedTensorBase};

use super::Tensor;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::registry::{Dtype, Scalar};

impl<T: Scalar> Tensor<T> {
    /// Uses a tensor of another library without a copy: of the context's GPU (`kDLCUDA`, `kDLCUDAManaged`), or of the
    /// host in a CPU context (`kDLCPU`, `kDLCUDAHost`). The last axis must be contiguous. Rows may have gaps; all outer
    /// axes must be without gaps. The other library's deleter is called when the tensor is dropped, or when this
    /// function fails.
    ///
    /// Requires the feature `dlpack`. `tensor` is a `versioned::Dlpack` or `legacy::Dlpack` of the crate `dlpark`.
    ///
    /// # Errors
    /// [`Error::OtherContext`] if the device differs, [`Error::ElementType`] if the type differs, [`Error::Alignment`]
    /// if the address is not aligned to the elements, [`Error::Operand`] if the strides are not supported. All have the
    /// expected and the given value.
    ///
    /// # Safety
    /// - The description in `tensor` is correct, and its memory satisfies the requirements of [`Tensor::from_raw`].
    /// - The writes of its data are ordered before the streams that read it.
    /// - A tensor with the read-only flag is not written.
    /// - The deleter frees the memory in the order of those streams.
    ///
    /// ```
    /// use dlpark::versioned::Dlpack;
    /// use einsparse::formats::Dense;
    /// use einsparse::{Context, Tensor};
    ///
    /// let ctx = Context::cpu();
    /// let ours = ctx.upload_dense(&Dense::new([2, 2], vec![1.0f32, 2.0, 3.0, 4.0])?)?;
    /// let there: Dlpack = ours.into_dlpack()?; // for another library
    /// // SAFETY: nobody else has it.
    /// let back = unsafe { Tensor::<f32>::from_dlpack(&ctx, there)? };
    /// assert_eq!(back.to_dense()?.values(), [1.0, 2.0, 3.0, 4.0]);
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    pub unsafe fn from_dlpack<M: ManagedTensorBase + 'static>(
        context: &Context,
        tensor: Managed<M>,
    ) -> Result<Tensor<T>> {
        let view = tensor.validate().map_err(|e| wrong(e.to_string()))?;
        check_device(context, view.device())?;
        let (own, given) = (dtype(T::DTYPE), view.dtype());
        if !given.matches(own) {
            return Err(Error::dtype(NAME, T::DTYPE.name(), describe(given)));
        }
        let strides = view.strides_or_compact();
        let strides = strides.map_err(|e| wrong(e.to_string()))?;
        let leading = leading(view.shape(), &strides)?;
        // Negative extents have been refused above.
        let shape: Vec<usize> = view.shape().iter().map(|&e| e as usize).collect();
        let start = view.data_ptr().expose_provenance() as u64;
        let address = start.checked_add(view.byte_offset());
        let address = address.ok_or_else(|| {
            wrong(format!("{} bytes behind {start:#x} there is nothing", view.byte_offset()))
        })?;
        // SAFETY: guaranteed by the caller.
        unsafe { Tensor::from_raw(context, address, &shape, leading, tensor) }
    }

    /// Exports this tensor to another library without a copy, with the strides of [`Tensor::strides`]. The memory
    /// exists until the other library calls the deleter, which may be on any thread. For memory of this library, the
    /// deleter waits for work that still uses it. Memory of another owner is returned to that owner, who may not permit
    /// writes. The writes of the tensor must be ordered before the other library's work: by the stream, or by waiting
    /// for it.
    ///
    /// Requires the feature `dlpack`. The result is a `versioned::Dlpack` or `legacy::Dlpack` of the crate `dlpark`.
    ///
    /// # Errors
    /// [`Error::Overflow`] if an extent or a stride exceeds 63 bits.
    pub fn into_dlpack<M: ManagedTensorBase>(mut self) -> Result<Managed<M>> {
        let device = match self.device() {
            None => DLDevice::CPU,
            Some(device) => DLDevice::cuda(device.facts().ordinal as i32),
        };
        let data = match self.address() {
            Some(address) => std::ptr::with_exposed_provenance_mut(address as usize),
            None => match self.host_mut() {
                Some(values) => values.as_mut_ptr().cast(),
                None => return Err(wrong("it has no device")),
            },
        };
        let layout = Dynamic::new(self.shape().to_vec(), self.strides());
        let prepared = layout.prepare_as::<M>().map_err(|_| Error::Overflow {
            what: "an extent or a stride of a DLPack tensor".into(),
            value: self.shape().iter().chain(&self.strides()).max().map_or(0, |&n| n as u128),
            limit: i64::MAX as u128,
        })?;
        let mut made = prepared.initialize(Box::new(self));
        made.set_data(data).set_device(device).set_dtype(dtype(T::DTYPE));
        // SAFETY: the box keeps the memory until the deleter is called. Extents and strides are those of the tensor.
        Ok(unsafe { made.finish() })
    }
}

const NAME: &str = "DLPack tensor";

fn wrong(reason: impl Into<String>) -> Error {
    Error::operand(NAME, reason)
}

fn check_device(context: &Context, given: DLDevice) -> Result<()> {
    let here = match context.device() {
        None => [DLDeviceType::CPU, DLDeviceType::CUDAHOST].contains(&given.device_type),
        Some(device) => {
            let own = i32::try_from(device.facts().ordinal);
            [DLDeviceType::CUDA, DLDeviceType::CUDAMANAGED].contains(&given.device_type)
                && own == Ok(given.device_id)
        }
    };
    if here {
        return Ok(());
    }
    let kind = match given.device_type {
        DLDeviceType::CPU => "the host".into(),
        DLDeviceType::CUDAHOST => "page-locked memory of the host".into(),
        DLDeviceType::CUDA => format!("CUDA device {}", given.device_id),
        DLDeviceType::CUDAMANAGED => format!("managed memory of CUDA device {}", given.device_id),
        DLDeviceType(kind) => format!("device {} of type {kind}", given.device_id),
    };
    Err(Error::context(NAME, format!("the context {context}"), kind))
}

fn dtype(own: Dtype) -> DLDataType {
    match own {
        Dtype::F32 | Dtype::Tf32 => DLDataType::F32,
        Dtype::F64 => DLDataType::F64,
        Dtype::F16 => DLDataType::scalar(dlpark::ffi::DLDataTypeCode::FLOAT, 16),
        Dtype::Bf16 => DLDataType::BF16,
        Dtype::E4m3 => DLDataType::F8E4M3FN,
        Dtype::E5m2 => DLDataType::F8E5M2,
        Dtype::Int8 => DLDataType::I8,
        Dtype::Int32 => DLDataType::I32,
    }
}

fn describe(given: DLDataType) -> String {
    let known = Dtype::ALL.iter().find(|own| dtype(**own).matches(given));
    known.map_or_else(
        || format!("of type {}, {} bits, {} lanes", given.code.0, given.bits, given.lanes),
        |own| own.name().into(),
    )
}

/// Row stride in elements. Strides of axes with one element are ignored.
fn leading(shape: &[i64], strides: &[i64]) -> Result<usize> {
    let Some((&width, outer)) = shape.split_last() else {
        return Ok(1);
    };
    let none = shape.contains(&0);
    let stride = strides[outer.len()];
    if width > 1 && stride != 1 && !none {
        return Err(wrong(format!(
            "elements of the last axis lie {stride} apart, and have to lie side by side: shape {shape:?}, strides \
             {strides:?}"
        )));
    }
    let mut rows = None;
    // Number of rows per index of this axis.
    let mut inner = 1i64;
    for (axis, &extent) in outer.iter().enumerate().rev() {
        let stride = strides[axis];
        if extent > 1 && !none {
            let own = *rows.get_or_insert_with(|| stride / inner);
            if own < width || own.checked_mul(inner) != Some(stride) {
                return Err(wrong(format!(
                    "axis {axis} has stride {stride}, and rows of {width} have to lie side by side or evenly apart: \
                     shape {shape:?}, strides {strides:?}"
                )));
            }
        }
        inner = inner.saturating_mul(extent);
    }
    Ok(rows.unwrap_or(width) as usize)
}

#[cfg(test)]
mod tests {
    use super::leading;

    #[test]
    fn strides_of_rows_are_read() {
        let of = |shape: &[i64], strides: &[i64]| leading(shape, strides).ok();
        assert_eq!(of(&[], &[]), Some(1));
        assert_eq!(of(&[5], &[1]), Some(5));
        assert_eq!(of(&[5], &[2]), None);
        assert_eq!(of(&[1], &[7]), Some(1));
        assert_eq!(of(&[3, 4], &[4, 1]), Some(4));
        assert_eq!(of(&[3, 4], &[9, 1]), Some(9));
        assert_eq!(of(&[3, 4], &[1, 3]), None);
        assert_eq!(of(&[3, 4], &[0, 1]), None);
        assert_eq!(of(&[3, 4], &[-4, 1]), None);
        assert_eq!(of(&[3, 1], &[8, 5]), Some(8));
        assert_eq!(of(&[1, 4], &[77, 1]), Some(4));
        assert_eq!(of(&[2, 3, 4], &[18, 6, 1]), Some(6));
        assert_eq!(of(&[2, 3, 4], &[19, 6, 1]), None);
        assert_eq!(of(&[2, 1, 4], &[6, 2, 1]), Some(6));
        assert_eq!(of(&[2, 0, 4], &[5, 3, 2]), Some(4));
    }
}
