//! Tensors in host memory as a simulated GPU would store them: extents, strides and alignment without elements.

use std::sync::Arc;

use super::{
    AnyOperand, AnySparseTensor, AnyTensor, DeviceArrays, DynamicOptions, Storage, Tensor,
    columns_of,
};
use crate::context::Context;
use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::Result;
use crate::registry::Scalar;
use einsparse_cuda::owner::Owner;

impl AnyTensor {
    /// Creates a tensor of a simulated GPU with the extents and the alignment of this tensor. For a tensor of a GPU,
    /// the result is an alias.
    pub(crate) fn shadow(&self) -> AnyTensor {
        let device = self.device().unwrap_or_else(|| Device::absent());
        AnyTensor {
            dtype: self.dtype,
            shape: self.shape.clone(),
            leading: self.leading,
            part: None,
            storage: Storage::Borrowed(self.place(), Arc::clone(device)),
        }
    }
}

impl<T: Scalar> Tensor<T> {
    /// Creates a tensor without elements in memory, for planning only. It must not be passed to a run.
    pub(crate) fn of_shape(context: &Context, shape: &[usize]) -> Result<Self> {
        AnyTensor::of_shape(context.device(), T::DTYPE, shape).map(Tensor::of)
    }

    /// [`AnyTensor::shadow`] with its element type.
    #[doc(hidden)]
    pub fn shadow(&self) -> Tensor<T> {
        Tensor::of(self.any.shadow())
    }
}

impl AnySparseTensor {
    /// Creates a sparse tensor of a simulated GPU, as [`AnyTensor::shadow`] does for dense ones. The pattern is shared.
    pub(crate) fn shadow(&self) -> Result<AnySparseTensor> {
        let own = self.device.as_ref();
        let device = own.map_or(Device::absent(), |own| &own.device);
        let [values, columns] = self.places();
        let memory = |address: u64, bytes: usize| {
            // SAFETY: nothing is launched that would read it; an owner is never freed.
            unsafe { DeviceMemory::foreign(device.context(), address, bytes, Owner::new(())) }
        };
        let arrays = DeviceArrays {
            columns: memory(columns, columns_of(self.pattern()).map_or(0, size_of_val)).into(),
            values: memory(values, self.pattern().slots() * self.dtype.bytes()),
            device: Arc::clone(device),
        };
        // Arrays of a GPU stay with its tensors.
        let (spans, transposes) = (None, Arc::default());
        Ok(AnySparseTensor { spans, transposes, ..self.with_arrays(Some(arrays)) })
    }
}

/// Operand of a plan.
enum Held<'a> {
    Sparse(AnySparseTensor),
    Dense(AnyTensor),
    Dynamic(AnyTensor, DynamicOptions),
    Other(AnyOperand<'a>),
}

impl Held<'_> {
    fn operand(&self) -> AnyOperand<'_> {
        match self {
            Held::Sparse(a) => AnyOperand::Sparse(a),
            Held::Dense(d) => AnyOperand::Dense(d),
            Held::Dynamic(d, options) => AnyOperand::Dynamic(d, *options),
            Held::Other(other) => *other,
        }
    }
}

/// Operands of a plan as a simulated GPU would receive them.
pub(crate) struct ShadowOperands<'a>(Vec<(&'a str, Held<'a>)>);

impl<'a> ShadowOperands<'a> {
    /// `None` if an operand is in host memory, which plans of a GPU do not accept.
    pub(crate) fn of(operands: &[(&'a str, AnyOperand<'a>)]) -> Result<Option<Self>> {
        let mut all = Vec::with_capacity(operands.len());
        for &(name, operand) in operands {
            let held = match operand {
                // A plan of a GPU streams it, or refuses it.
                AnyOperand::Sparse(a) if a.is_pinned() => Held::Other(operand),
                AnyOperand::Sparse(a) => Held::Sparse(a.shadow()?),
                AnyOperand::Dense(d) => Held::Dense(d.shadow()),
                AnyOperand::Dynamic(d, options) => Held::Dynamic(d.shadow(), options),
                AnyOperand::HostSparse(..) | AnyOperand::HostDense(..) => return Ok(None),
                other => Held::Other(other),
            };
            all.push((name, held));
        }
        Ok(Some(ShadowOperands(all)))
    }

    pub(crate) fn operands(&self) -> Vec<(&str, AnyOperand<'_>)> {
        let all = self.0.iter();
        all.map(|(name, held)| (*name, held.operand())).collect()
    }
}
