//! Sparse products and mixtures of experts of einsparse as candle operations, with gradients.
//!
//! ```
//! use candle_core::{Device, Result, Tensor, Var};
//! use einsparse::formats::CsrPattern;
//! use einsparse_candle::SparseProduct;
//!
//! # fn main() -> Result<()> {
//! // [ 1 0 2 ]
//! // [ 0 3 0 ]
//! let pattern = CsrPattern::new(2, 3, vec![0, 2, 3], vec![0, 2, 1]).expect("a pattern");
//! let a = SparseProduct::new(pattern);
//! let values = Var::new(&[1f32, 2., 3.], &Device::Cpu)?;
//! let b = Tensor::new(&[[1f32, 2.], [3., 4.], [5., 6.]], &Device::Cpu)?;
//! let c = a.spmm(&values, &b)?;
//! assert_eq!(c.to_vec2::<f32>()?, [[11., 14.], [9., 12.]]);
//! let gradients = c.sum_all()?.backward()?;
//! let of_values = gradients.get(&values).expect("a gradient").to_vec1::<f32>()?;
//! assert_eq!(of_values, [3., 11., 7.]); // sums of the rows of b that each value meets
//! # Ok(())
//! # }
//! ```
//!
//! Tensors are stored on the CPU. With the feature `cuda`, tensors of products may also be stored on a GPU. On other
//! devices, operations return candle's error for a missing implementation.

#![cfg_attr(not(feature = "cuda"), forbid(unsafe_code))]

mod experts;
#[cfg(feature = "cuda")]
mod gpu;
mod products;

use candle_core::{CpuStorage, Layout, Result, WithDType};

pub use experts::Experts;
pub use products::SparseProduct;

/// Converts an error of einsparse to an error of candle.
fn wrapped(error: impl std::fmt::Display) -> candle_core::Error {
    candle_core::Error::msg(format!("einsparse: {error}"))
}

/// Returns the elements of a contiguous operand.
fn elements<'s, T: WithDType>(
    name: &str,
    storage: &'s CpuStorage,
    layout: &Layout,
) -> Result<&'s [T]> {
    let Some((start, end)) = layout.contiguous_offsets() else {
        let shape = layout.dims();
        return Err(wrapped(format!("`{name}` {shape:?} is not contiguous")));
    };
    Ok(&storage.as_slice::<T>()?[start..end])
}

/// Evaluates `$body` with `$t` as the Rust type of the elements of a storage: f32, f64, f16 or bf16.
macro_rules! for_dtype {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            ::candle_core::DType::F32 => {
                type $t = f32;
                $body
            }
            ::candle_core::DType::F64 => {
                type $t = f64;
                $body
            }
            ::candle_core::DType::F16 => {
                type $t = ::einsparse::formats::f16;
                $body
            }
            ::candle_core::DType::BF16 => {
                type $t = ::einsparse::formats::bf16;
                $body
            }
            other => Err($crate::wrapped(format!(
                "there is no product of {other:?}: f32, f64, f16 and bf16"
            ))),
        }
    };
}
use for_dtype;
