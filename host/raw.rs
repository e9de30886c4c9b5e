//! Addresses and the driver: for programs that own their memory and streams. What takes addresses is `unsafe`: it
//! checks shapes and alignment, and cannot see what lies there.

pub use crate::device::Device;
pub use crate::driver::{DeviceMemory, OwnedStream, RawStream};
pub use crate::entries::RawTranspose;
pub use crate::families::attention::{RawAttention, RawHeads};
pub use crate::families::convert::{RawBlocks, RawEntries};
pub use crate::families::softmax::RawSoftmax;
pub use crate::launch::{RawOperands, RawSddmm, RawSpmm};
