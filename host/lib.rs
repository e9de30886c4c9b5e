//! Einsums over sparse tensors on NVIDIA GPUs. Device kernels and host code are written in Rust.
//!
//! A user writes the expression and states the storage format of the sparse operand. The library selects a kernel that
//! was compiled ahead of time for that format, tile and element type. Without a GPU, the same plan runs on all CPU
//! threads.
//!
//! ```
//! use einsparse::formats::{Csr, CsrPattern, Dense};
//! use einsparse::{Context, einsum};
//!
//! let a = Csr::new(CsrPattern::new(3, 3, vec![0, 2, 2, 3], vec![0, 2, 1])?, vec![1.0f32, 2.0, 3.0])?;
//! let b = Dense::from_fn(vec![3, 4], |i| (i[0] + i[1]) as f32)?;
//!
//! let ctx = Context::new(); // a GPU if there is one
//! let c = einsum!(ctx, "C[m,n] = A[m,k] * B[k,n]", A = &a, B = &b)?.to_dense()?;
//! assert_eq!(c.get(&[0, 1]), Some(1.0 + 2.0 * 3.0));
//! # Ok::<(), einsparse::Error>(())
//! ```
//!
//! An expression passes through these stages, each of which implements `Display`:
//! [`Einsum`](einsum::Einsum) -> [`IndirectEinsum`](indirect::IndirectEinsum) -> [`Plan`] -> launch.

pub use einsparse_formats as formats;

pub(crate) use einsparse_formats::parallel;

#[doc(hidden)]
pub use einsparse_lang::{einsum, error, indirect};

// Public items are exported below. Hidden modules serve the command, tests and benches, and may change.
#[doc(hidden)]
pub use einsparse_kernels as kernels;

#[doc(hidden)]
pub mod context;
#[doc(hidden)]
pub mod convert;
mod converter;
#[doc(hidden)]
pub mod cost;
#[doc(hidden)]
pub mod cpu;
#[doc(hidden)]
pub mod device;
#[doc(hidden)]
pub mod driver;
pub mod dynamic;
#[doc(hidden)]
pub mod entries;
mod families;
pub mod group;
mod kernel;
mod launch;
mod machine;
#[doc(hidden)]
pub mod module;
pub mod nn;
mod offer;
mod operator;
pub mod ops;
#[doc(hidden)]
pub mod plan;
pub mod raw;
#[doc(hidden)]
pub mod registry;
#[doc(hidden)]
pub mod tensor;
mod values;
#[doc(hidden)]
pub mod worklist;

pub use context::Context;
pub use converter::Converter;
pub use device::Stream;
pub use driver::Graph;
#[doc(inline)]
pub use einsparse_lang::{Error, Result};
pub use plan::{
    Choice, Determinism, FormatAdvice, Options, Output, Plan, PlanBuilder, Precision, Weights,
    ZerosRule,
};
pub use registry::Scalar;
pub use tensor::{Operand, SparseTensor, Tensor, TensorView, TensorViewMut};

/// Code of the README and of the guide, compiled and run with the documentation tests.
#[cfg(doctest)]
macro_rules! pages {
    ($($name:ident $file:literal)*) => {
        $(#[doc = include_str!($file)] struct $name;)*
    };
}

#[cfg(doctest)]
pages! {
    Readme "../README.md"
    Start "../docs/guide/start.md"
    Language "../docs/guide/language.md"
    Formats "../docs/guide/formats.md"
    Plans "../docs/guide/plans.md"
    Layers "../docs/guide/layers.md"
    Dynamic "../docs/guide/dynamic.md"
    Ranks "../docs/guide/ranks.md"
    Libraries "../docs/guide/libraries.md"
    Guarantees "../docs/guide/guarantees.md"
    Command "../docs/guide/command.md"
}
