//! The kernels by family. `abi` is what host and device agree on, `rows` the family's part of the table, the rest are
//! bodies. A module of PTX is compiled by itself, and its `cfg` leaves the bodies of all others unread. What families
//! share is in `crate::abi` and `crate::device`; of each other they know no more than a constant of `abi`.

// A family may have the name of its first module.
#![allow(clippy::module_inception)]

pub mod attention;
pub mod convert;
pub mod discover;
pub mod gather_gemm;
pub mod gemm;
pub mod sddmm;
pub mod softmax;
pub mod spmm;
pub mod tensor;
pub mod tutorial;

pub use attention::abi::*;
pub use convert::abi::*;
pub use discover::abi::*;
pub use gather_gemm::abi::*;
pub use gemm::abi::*;
pub use sddmm::abi::*;
pub use softmax::abi::*;
pub use spmm::abi::*;
pub use tensor::abi::*;
pub use tutorial::abi::*;
