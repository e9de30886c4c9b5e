//! The list of kernels. One row is one kernel: name, walk, element, tile. This is the only place
//! where a kernel's name exists; device entries, launch bounds and the host's registry expand it.
//!
//! A file holds related families; each hands what it got and its own rows on to the next.

mod applications;
mod cuda_cores;
mod dynamic;
mod formats;
mod general;
mod sampled;
mod tensor_cores;

/// Calls `$m!` with every row, grouped by family: module, name of its `cfg`, params struct, least architecture, operation.
#[macro_export]
macro_rules! for_each_kernel {
    ($m:ident) => {
        $crate::table_cuda_cores! { $m }
    };
}

#[cfg(not(target_arch = "nvptx64"))]
mod row;
#[cfg(not(target_arch = "nvptx64"))]
pub use row::*;
