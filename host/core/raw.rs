//! Raw addresses and the driver, for programs that own their memory and streams. Functions on addresses are `unsafe`:
//! they check shapes and alignment, but cannot check the memory itself.

pub use crate::converter::RawConversion;
pub use crate::device::Device;
pub use crate::driver::{DeviceMemory, RawStream};
pub use crate::families::attention::RawAttention;
pub use crate::families::softmax::RawSoftmax;
pub use crate::launch::{RawOperands, RawSddmm, RawSpmm};
