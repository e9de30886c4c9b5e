//! Table of kernels. A row is one kernel: name, element, walk, tile. Rows that differ in the element alone are in one
//! line. A module may have several groups of rows, each with params of its own. The rows of a family are in `families/<family>/rows.rs`, the only file that names its kernels;
//! `families/mod.rs` lists the families. Device entries, launch bounds and the host's registry are expanded from the
//! rows.

/// Collects the rows of all families: passes the rows so far to the macro of the next family `$next`, and those of all
/// families to macro `$m`.
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
