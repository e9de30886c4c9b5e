//! Tensors of the host as a GPU that is not there would hold them: extents, strides and alignment without elements.

use std::sync::Arc;

use super::{
    AnyOperand, AnySparseTensor, AnyTensor, DeviceArrays, SparseTensor, SparsityHint, Storage, Tensor,
};
use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::Result;
use crate::registry::Scalar;
use crate::values::Owner;

impl AnyTensor {
    /// Of a GPU that is not there, where this is on the host; where it is on a GPU, of that one.
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
    /// The same of any type.
    pub(crate) fn shadow(&self) -> Tensor<T> {
        Tensor::of(self.any.shadow())
    }
}

impl AnySparseTensor {
    /// As that of a dense tensor. The pattern is shared.
    pub(crate) fn shadow(&self) -> Result<AnySparseTensor> {
        let own = self.device.as_ref();
        let device = own.map_or_else(|| Device::absent(), |own| &own.device);
        let [values, columns] = self.places();
        let memory = |address: u64| {
            let bytes = usize::MAX;
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
                columns: memory(columns),
                values: memory(values),
                device: Arc::clone(device),
            }),
            spans: None,
        })
    }
}

impl<T: Scalar> SparseTensor<T> {
    /// The same of any type.
    pub(crate) fn shadow(&self) -> Result<SparseTensor<T>> {
        self.any.shadow().map(Self::of)
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
    /// `None` where one is in memory of the host that a GPU does not take as it is.
    pub(crate) fn of(operands: &[(&'a str, AnyOperand<'a>)]) -> Result<Option<Self>> {
        let mut all = Vec::with_capacity(operands.len());
        for &(name, operand) in operands {
            let held = match operand {
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
