//! Addresses and the driver: for programs that own their memory and streams. What takes addresses is `unsafe`: it
//! checks shapes and alignment, and cannot see what lies there.

pub use crate::converter::RawConversion;
pub use crate::device::Device;
pub use crate::driver::{DeviceMemory, RawStream};
pub use crate::families::attention::RawAttention;
pub use crate::families::softmax::RawSoftmax;
pub use crate::launch::{RawOperands, RawSddmm, RawSpmm};
