//! The table of kernels. One row is one kernel: name, walk, element, tile. A family keeps its rows in its own folder
//! (`families/<family>/rows.rs`), the only place where a kernel's name exists; `families/mod.rs` lists the families.
//! Device entries, launch bounds and the host's registry expand them.

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
mod arch;
#[cfg(not(target_arch = "nvptx64"))]
mod row;
#[cfg(not(target_arch = "nvptx64"))]
pub use arch::*;
#[cfg(not(target_arch = "nvptx64"))]
pub use row::*;
