//! Dense tensors on the host, row-major.

use crate::parallel;
use crate::pattern::mapped;
use crate::{Element, FormatError, check};

/// A dense tensor, row-major: the last index runs fastest.
#[derive(Clone, Debug, PartialEq)]
pub struct Dense<T> {
    shape: Vec<usize>,
    values: Vec<T>,
}

/// The number of elements, if it and their bytes can be addressed.
fn elements<T>(shape: &[usize]) -> Result<usize, FormatError> {
    let n = shape.iter().fold(1u128, |n, &e| n.saturating_mul(e as u128));
    let limit = (isize::MAX as usize / size_of::<T>().max(1)) as u128;
    if n > limit {
        return Err(FormatError::Overflow { what: "elements", value: n, limit });
    }
    Ok(n as usize)
}

impl<T: Element> Dense<T> {
    /// Joins a shape with its values. An empty shape is a scalar.
    ///
    /// # Errors
    /// [`FormatError::Length`] unless there is one value for each element, [`FormatError::Overflow`] if they cannot be
    /// addressed.
    pub fn new(shape: impl Into<Vec<usize>>, values: Vec<T>) -> Result<Self, FormatError> {
        let shape = shape.into();
        check::length("values", values.len(), elements::<T>(&shape)?)?;
        Ok(Dense { shape, values })
    }

    /// All zeros.
    ///
    /// # Errors
    /// [`FormatError::Overflow`] or [`FormatError::Memory`] if the elements cannot be had.
    pub fn zeros(shape: impl Into<Vec<usize>>) -> Result<Self, FormatError> {
        let shape = shape.into();
        let values = check::zeroed("dense values", elements::<T>(&shape)?)?;
        Ok(Dense { shape, values })
    }

    /// Every element from its index.
    ///
    /// # Errors
    /// As [`Dense::zeros`].
    pub fn from_fn(
        shape: impl Into<Vec<usize>>,
        f: impl Fn(&[usize]) -> T + Sync,
    ) -> Result<Self, FormatError> {
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

    /// Extents.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Distance, in elements, between neighbours on each axis.
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

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The elements, row-major.
    pub fn values(&self) -> &[T] {
        &self.values
    }

    /// The elements, to be changed in place.
    pub fn values_mut(&mut self) -> &mut [T] {
        &mut self.values
    }

    /// Takes it apart.
    pub fn into_values(self) -> Vec<T> {
        self.values
    }

    /// One element; `None` outside the shape or for an index of another rank.
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

    /// Every element mapped, in parallel.
    pub fn map<U: Element>(&self, f: impl Fn(T) -> U + Sync) -> Dense<U> {
        let values = mapped(&self.values, f);
        Dense { shape: self.shape.clone(), values }
    }
}
