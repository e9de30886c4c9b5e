//! The list of families, from which the table is made, and the kernels by family. In each family, `abi` is shared by host
//! and device, `rows` is the family's part of the table, and the other files are kernel bodies. Each PTX module is compiled
//! separately: `cfg`s exclude the bodies of all other modules, and all other families except those whose constants it uses.
//! Code that several families share is in `crate::abi` and `crate::device`. Families use nothing of each other but constants
//! of `abi`. This file contains only lists, so no module's hash covers it.

// A family may have the name of its first module.
#![allow(clippy::module_inception)]

#[cfg(any(not(target_arch = "nvptx64"), family = "attention"))]
pub mod attention;
#[cfg(any(not(target_arch = "nvptx64"), family = "conv2d"))]
pub mod conv2d;
#[cfg(any(not(target_arch = "nvptx64"), family = "convert"))]
pub mod convert;
#[cfg(any(not(target_arch = "nvptx64"), family = "discover", family = "gather_gemm"))]
pub mod discover;
#[cfg(any(not(target_arch = "nvptx64"), family = "elementwise"))]
pub mod elementwise;
#[cfg(any(not(target_arch = "nvptx64"), family = "gather_gemm"))]
pub mod gather_gemm;
#[cfg(any(not(target_arch = "nvptx64"), family = "gemm"))]
pub mod gemm;
#[cfg(any(not(target_arch = "nvptx64"), family = "optimizer"))]
pub mod optimizer;
#[cfg(any(not(target_arch = "nvptx64"), family = "sddmm"))]
pub mod sddmm;
#[cfg(any(not(target_arch = "nvptx64"), family = "softmax"))]
pub mod softmax;
#[cfg(any(not(target_arch = "nvptx64"), family = "spmm", family = "convert"))]
pub mod spmm;
#[cfg(any(not(target_arch = "nvptx64"), family = "tensor"))]
pub mod tensor;
#[cfg(any(not(target_arch = "nvptx64"), family = "tutorial"))]
pub mod tutorial;

#[cfg(any(not(target_arch = "nvptx64"), family = "attention"))]
pub use attention::abi::*;
#[cfg(any(not(target_arch = "nvptx64"), family = "conv2d"))]
pub use conv2d::abi::*;
#[cfg(any(not(target_arch = "nvptx64"), family = "convert"))]
pub use convert::abi::*;
#[cfg(any(not(target_arch = "nvptx64"), family = "discover", family = "gather_gemm"))]
pub use discover::abi::*;
#[cfg(any(not(target_arch = "nvptx64"), family = "elementwise"))]
pub use elementwise::abi::*;
#[cfg(any(not(target_arch = "nvptx64"), family = "gather_gemm"))]
pub use gather_gemm::abi::*;
#[cfg(any(not(target_arch = "nvptx64"), family = "gemm"))]
pub use gemm::abi::*;
#[cfg(any(not(target_arch = "nvptx64"), family = "optimizer"))]
pub use optimizer::abi::*;
#[cfg(any(not(target_arch = "nvptx64"), family = "sddmm"))]
pub use sddmm::abi::*;
#[cfg(any(not(target_arch = "nvptx64"), family = "softmax"))]
pub use softmax::abi::*;
#[cfg(any(not(target_arch = "nvptx64"), family = "spmm", family = "convert"))]
pub use spmm::abi::*;
#[cfg(any(not(target_arch = "nvptx64"), family = "tensor"))]
pub use tensor::abi::*;
#[cfg(any(not(target_arch = "nvptx64"), family = "tutorial"))]
pub use tutorial::abi::*;

#[path = "attention/rows.rs"]
mod attention_rows;
#[path = "conv2d/rows.rs"]
mod conv2d_rows;
#[path = "convert/rows.rs"]
mod convert_rows;
#[path = "discover/rows.rs"]
mod discover_rows;
#[path = "elementwise/rows.rs"]
mod elementwise_rows;
#[path = "gather_gemm/rows.rs"]
mod gather_gemm_rows;
#[path = "gemm/rows.rs"]
mod gemm_rows;
#[path = "optimizer/rows.rs"]
mod optimizer_rows;
#[path = "sddmm/rows.rs"]
mod sddmm_rows;
#[path = "softmax/rows.rs"]
mod softmax_rows;
#[path = "spmm/rows.rs"]
mod spmm_rows;
#[path = "tensor/rows.rs"]
mod tensor_rows;
#[path = "tutorial/rows.rs"]
mod tutorial_rows;

/// Calls `$m!` with every row, grouped by family and module: module, params struct, operation.
#[macro_export]
macro_rules! for_each_kernel {
    ($m:ident) => {
        $crate::gather_rows! { [
            $m rows_spmm rows_gemm rows_gather_gemm rows_sddmm rows_softmax rows_attention rows_tensor rows_convert rows_discover
            rows_optimizer rows_elementwise rows_conv2d rows_tutorial
        ] }
    };
}
