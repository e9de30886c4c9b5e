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

#[doc(inline)]
pub use einsparse_core::{
    Choice, Context, Converter, Determinism, Error, FormatAdvice, Gradients, Graph, Operand,
    Options, Output, Plan, PlanBuilder, Precision, Result, Scalar, SparseTensor, Stream, Tensor,
    TensorView, TensorViewMut, ValuesMut, Weights, ZerosRule, dynamic, einsum, ops, raw,
};
pub use einsparse_formats as formats;
#[doc(inline)]
#[cfg(feature = "group")]
pub use einsparse_group as group;
#[doc(inline)]
#[cfg(feature = "nn")]
pub use einsparse_nn as nn;

// Hidden modules serve the command, tests and benches, and may change.
#[doc(hidden)]
pub use einsparse_core::{context, convert, cost, cpu, entries, plan, registry, tensor, worklist};
#[doc(hidden)]
pub use einsparse_cuda::{device, driver, module};
#[doc(hidden)]
pub use einsparse_kernels as kernels;
#[doc(hidden)]
pub use einsparse_lang::{einsum, error, indirect};

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
    Derivatives "../docs/guide/gradients.md"
    Layers "../docs/guide/layers.md"
    Dynamic "../docs/guide/dynamic.md"
    Ranks "../docs/guide/ranks.md"
    Libraries "../docs/guide/libraries.md"
    Guarantees "../docs/guide/guarantees.md"
    Command "../docs/guide/command.md"
}
