//! The list of kernels. One row is one kernel: name, walk, element, tile. A family keeps its rows in its own folder
//! (`families/<family>/rows.rs`), the only place where a kernel's name exists; device entries, launch bounds and the
//! host's registry expand them.

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

/// Hands what families have added to the next one, and in the end to what was asked for.
#[doc(hidden)]
#[macro_export]
macro_rules! gather_rows {
    ([$m:ident] $($all:tt)*) => { $m! { $($all)* } };
    ([$m:ident $next:ident $($rest:ident)*] $($before:tt)*) => {
        $crate::$next! { [$m $($rest)*] $($before)* }
    };
}

#[cfg(not(target_arch = "nvptx64"))]
mod row;
#[cfg(not(target_arch = "nvptx64"))]
pub use row::*;
