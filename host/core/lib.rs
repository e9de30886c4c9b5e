//! Core of einsparse: tensors, the CPU executor, the kernel families, plans, and operations. Users depend on `einsparse`,
//! which exports its public items.

pub use einsparse_formats as formats;

// Modules of the crates below, at the paths under which this crate uses them.
use einsparse_cuda::{device, driver, kernel, machine};
use einsparse_formats::parallel;
use einsparse_lang::{einsum, error, indirect};

/// Adds a method for each field that returns the value with another content of the field.
macro_rules! setters {
    ($of:ident { $($field:ident: $type:ty),+ $(,)? }) => {
        impl $of {
            $(
                #[doc = concat!("Returns this value with another content of the field `", stringify!($field), "`.")]
                #[must_use]
                pub fn $field(self, $field: $type) -> Self {
                    Self { $field, ..self }
                }
            )+
        }
    };
}

// Modules without documentation of every item are for the crates above; `einsparse` does not export them.
pub mod context;
pub mod convert;
mod converter;
pub mod cost;
pub mod cpu;
pub mod dynamic;
pub mod entries;
#[allow(missing_docs)]
pub mod families;
#[allow(missing_docs)]
pub mod launch;
mod offer;
#[allow(missing_docs)]
pub mod operator;
pub mod ops;
pub mod plan;
pub mod raw;
pub mod registry;
pub mod tensor;
#[allow(missing_docs)]
pub mod values;
pub mod worklist;

pub use context::Context;
pub use converter::Converter;
pub use device::Stream;
pub use driver::Graph;
pub use error::{Error, Result};
#[doc(hidden)]
pub use offer::multiplied_as;
pub use plan::{
    Choice, Determinism, FormatAdvice, Gradients, Options, Output, Plan, PlanBuilder, Precision,
    Weights, ZerosRule,
};
pub use registry::Scalar;
pub use tensor::{Operand, SparseTensor, Tensor, TensorView, TensorViewMut, ValuesMut};
