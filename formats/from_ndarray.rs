//! Conversions between `Dense` and ndarray's dynamic arrays of any memory order.

use ::ndarray::{ArrayBase, ArrayD, Data, Dimension, IxDyn};

use crate::error::*;
use crate::{Dense, Element};

impl<T, S, D> TryFrom<&ArrayBase<S, D>> for Dense<T>
where
    T: Element,
    S: Data<Elem = T>,
    D: Dimension,
{
    type Error = FormatError;

    /// Copies the elements in row-major order.
    fn try_from(array: &ArrayBase<S, D>) -> Result<Self> {
        let values = match array.as_slice() {
            Some(slice) => slice.to_vec(),
            None => array.iter().copied().collect(),
        };
        Dense::new(array.shape(), values)
    }
}

impl<T: Element> TryFrom<Dense<T>> for ArrayD<T> {
    type Error = FormatError;

    fn try_from(dense: Dense<T>) -> Result<Self> {
        let shape = dense.shape().to_vec();
        ArrayD::from_shape_vec(IxDyn(&shape), dense.into_values()).map_err(|error| {
            FormatError::Unsupported {
                what: format!("array of shape {shape:?}"),
                reason: error.to_string(),
            }
        })
    }
}
