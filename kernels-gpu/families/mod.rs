//! The list of families, which makes the table, and the kernels by family. `abi` is what host and device agree on, `rows`
//! the family's part of the table, the rest are bodies. A module of PTX is compiled by itself, and its `cfg` leaves the
//! bodies of all others unread. What families share is in `crate::abi` and `crate::device`; of each other they know no
//! more than a constant of `abi`. No module's hash covers this file: it holds lists and nothing else.

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

/// Calls `$m!` with every row, grouped by family and module: module, name of its `cfg`, params struct, least
/// architecture, operation.
#[macro_export]
macro_rules! for_each_kernel {
    ($m:ident) => {
        $crate::gather_rows! { [
            $m rows_spmm rows_gemm rows_gather_gemm rows_sddmm rows_softmax rows_attention rows_tensor rows_convert rows_discover
            rows_tutorial
        ] }
    };
}
