//! Tensors of the host as an absent GPU would hold them: extents, strides and alignment without elements.

use std::sync::Arc;

use super::{
    AnyOperand, AnySparseTensor, AnyTensor, DeviceArrays, SparsityHint, Storage, Tensor, columns_of,
};
use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::Result;
use crate::registry::Scalar;
use crate::values::Owner;

impl AnyTensor {
    /// A tensor of an absent GPU with the extents and the alignment of one of the host; of a tensor of a GPU an alias.
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
    /// [`AnyTensor::shadow`] with its type.
    pub(crate) fn shadow(&self) -> Tensor<T> {
        Tensor::of(self.any.shadow())
    }
}

impl AnySparseTensor {
    /// As that of a dense tensor. The pattern is shared.
    pub(crate) fn shadow(&self) -> Result<AnySparseTensor> {
        let own = self.device.as_ref();
        let device = own.map_or(Device::absent(), |own| &own.device);
        let [values, columns] = self.places();
        let memory = |address: u64, bytes: usize| {
            // SAFETY: nothing is launched that would read it; an owner is never freed.
            unsafe { DeviceMemory::foreign(device.context(), address, bytes, Owner::new(())) }
        };
        Ok(AnySparseTensor {
            dtype: self.dtype,
            pattern: self.pattern.clone(),
            values: None,
            pinned: None,
            runs: self.runs.clone(),
            batch: self.batch.clone(),
            device: Some(DeviceArrays {
                columns: memory(columns, columns_of(self.pattern()).map_or(0, size_of_val)),
                values: memory(values, self.pattern().slots() * self.dtype.bytes()),
                device: Arc::clone(device),
            }),
            spans: None,
        })
    }
}

/// An operand of a plan.
enum Held<'a> {
    Sparse(AnySparseTensor),
    Dense(AnyTensor),
    Dynamic(AnyTensor, SparsityHint),
    Other(AnyOperand<'a>),
}

impl Held<'_> {
    fn operand(&self) -> AnyOperand<'_> {
        match self {
            Held::Sparse(a) => AnyOperand::Sparse(a),
            Held::Dense(d) => AnyOperand::Dense(d),
            Held::Dynamic(d, hint) => AnyOperand::Dynamic(d, *hint),
            Held::Other(other) => *other,
        }
    }
}

/// Operands of a plan as a GPU that is not there would be given them.
pub(crate) struct ShadowOperands<'a>(Vec<(&'a str, Held<'a>)>);

impl<'a> ShadowOperands<'a> {
    /// `None` for operands in host memory, which a plan of a GPU does not take.
    pub(crate) fn of(operands: &[(&'a str, AnyOperand<'a>)]) -> Result<Option<Self>> {
        let mut all = Vec::with_capacity(operands.len());
        for &(name, operand) in operands {
            let held = match operand {
                // A plan of a GPU streams it, or refuses it.
                AnyOperand::Sparse(a) if a.is_pinned() => Held::Other(operand),
                AnyOperand::Sparse(a) => Held::Sparse(a.shadow()?),
                AnyOperand::Dense(d) => Held::Dense(d.shadow()),
                AnyOperand::Dynamic(d, hint) => Held::Dynamic(d.shadow(), hint),
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
