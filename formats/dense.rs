//! Row-major dense tensors in host memory.

use crate::error::*;
use crate::parallel;
use crate::pattern::mapped;
use crate::{Element, check};

/// Row-major dense tensor: the last index varies fastest.
#[derive(Clone, Debug, PartialEq)]
pub struct Dense<T> {
    shape: Vec<usize>,
    values: Vec<T>,
}

/// Returns the number of elements, or an error if the elements or their bytes cannot be addressed.
fn elements<T>(shape: &[usize]) -> Result<usize> {
    let n = shape.iter().fold(1u128, |n, &e| n.saturating_mul(e as u128));
    let limit = (isize::MAX as usize / size_of::<T>().max(1)) as u128;
    check::at_most("elements", n, limit).map(|()| n as usize)
}

impl<T: Element> Dense<T> {
    /// Creates a tensor from a shape and its values. An empty shape is a scalar.
    ///
    /// # Errors
    /// Returns [`FormatError::Length`] if the number of values is not the number of elements, and
    /// [`FormatError::Overflow`] if the elements cannot be addressed.
    pub fn new(shape: impl Into<Vec<usize>>, values: Vec<T>) -> Result<Self> {
        let shape = shape.into();
        check::length("values", values.len(), elements::<T>(&shape)?)?;
        Ok(Dense { shape, values })
    }

    /// Creates a tensor of zeros.
    ///
    /// # Errors
    /// Returns [`FormatError::Overflow`] if the elements cannot be addressed, and [`FormatError::Memory`] if
    /// allocation fails.
    pub fn zeros(shape: impl Into<Vec<usize>>) -> Result<Self> {
        let shape = shape.into();
        let values = check::zeroed("dense values", elements::<T>(&shape)?)?;
        Ok(Dense { shape, values })
    }

    /// Creates a tensor whose elements are `f` of their indices, in parallel.
    ///
    /// # Errors
    /// See [`Dense::zeros`].
    pub fn from_fn(shape: impl Into<Vec<usize>>, f: impl Fn(&[usize]) -> T + Sync) -> Result<Self> {
        let mut dense = Self::zeros(shape)?;
        let shape = &dense.shape;
        let row = shape.last().copied().unwrap_or(1).max(1);
        parallel::chunks(&mut dense.values, row, &|r, values: &mut [T]| {
            let mut index = vec![0; shape.len()];
            let mut rest = r;
            for (axis, &n) in shape.iter().enumerate().rev().skip(1) {
                index[axis] = rest % n;
                rest /= n;
            }
            for (i, value) in values.iter_mut().enumerate() {
                if let Some(last) = index.last_mut() {
                    *last = i;
                }
                *value = f(&index);
            }
        });
        Ok(dense)
    }

    /// Extents of the tensor.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Distance in elements between neighbors along each axis.
    pub fn strides(&self) -> Vec<usize> {
        let mut strides = vec![1usize; self.shape.len()];
        for axis in (1..self.shape.len()).rev() {
            strides[axis - 1] = strides[axis].saturating_mul(self.shape[axis]);
        }
        strides
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether the tensor has no elements.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Elements, row-major.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// Mutable elements, row-major.
    pub fn values_mut(&mut self) -> &mut [T] {
        &mut self.values
    }

    /// Converts the tensor into its elements, row-major.
    pub fn into_values(self) -> Vec<T> {
        self.values
    }

    /// Returns one element, or `None` if the index is outside the shape or has another rank.
    pub fn get(&self, index: &[usize]) -> Option<T> {
        if index.len() != self.shape.len() {
            return None;
        }
        let mut at = 0;
        for (&i, &n) in index.iter().zip(&self.shape) {
            if i >= n {
                return None;
            }
            at = at * n + i;
        }
        self.values.get(at).copied()
    }

    /// Returns a tensor with `f` applied to every element, in parallel.
    pub fn map<U: Element>(&self, f: impl Fn(T) -> U + Sync) -> Dense<U> {
        let values = mapped(&self.values, f);
        Dense { shape: self.shape.clone(), values }
    }
}
