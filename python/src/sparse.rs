//! Sparse matrix or tensor of SciPy or PyTorch, in a format of einsparse.

use std::any::Any;

use dlpark::ffi::DLDataType;
use einsparse::Scalar;
use einsparse::formats::{
    AnySparse, Bsr, BsrPattern, Coo, Csc, CscPattern, Csr, CsrPattern, FormatError,
};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::exchange::{indices, type_of, values, without_gradient};
use crate::with_element;

/// Sparse operand, converted and validated once for any number of plans.
///
/// `einsparse.sparse` creates it.
#[pyclass(frozen, module = "einsparse")]
pub struct Sparse {
    /// [`AnySparse`] with elements of type `dtype`.
    of: Box<dyn Any + Send + Sync>,
    pub dtype: DLDataType,
    pub gpu: Option<u32>,
    pub order: Slots,
    shape: Vec<usize>,
    format: String,
    entries: usize,
}

/// Source of the value of each slot.
#[derive(Clone)]
pub struct Slots {
    /// Number of given values.
    given: usize,
    /// For each slot the position of its value, counted from 1, or 0 for padding. `None` if the order is unchanged.
    from: Option<Vec<u32>>,
}

impl Slots {
    /// Whether the slots contain the values in the given order.
    pub fn are_in_order(&self) -> bool {
        self.from.is_none()
    }

    /// Arranges given values in the order of the slots.
    pub fn fill<T: Scalar>(&self, name: &str, values: Vec<T>) -> PyResult<Vec<T>> {
        if values.len() != self.given {
            return Err(PyValueError::new_err(format!(
                "operand `{name}`: {} values, and it was made of {}",
                values.len(),
                self.given
            )));
        }
        let Some(from) = &self.from else {
            return Ok(values);
        };
        let slot = |&from: &u32| from.checked_sub(1).map_or(T::ZERO, |at| values[at as usize]);
        Ok(from.iter().map(slot).collect())
    }
}

impl Sparse {
    pub fn typed<T: Scalar>(&self) -> Option<&AnySparse<T>> {
        self.of.downcast_ref()
    }
}

#[pymethods]
impl Sparse {
    /// Creates a sparse operand. `kind` is csr, csc or bsr (offsets, indices), or coo (an array for each axis). `gpu`
    /// is the GPU of the values. Errors contain `name`.
    // Only `einsparse.sparse` calls it.
    #[allow(clippy::too_many_arguments)]
    #[new]
    fn new(
        kind: &str,
        matrix: Bound<'_, PyAny>,
        index: Vec<Bound<'_, PyAny>>,
        given: Bound<'_, PyAny>,
        format: Option<&str>,
        gpu: Option<u32>,
        name: &str,
    ) -> PyResult<Self> {
        without_gradient(&matrix, name)?;
        let shape: Vec<usize> = matrix.getattr("shape")?.extract()?;
        let wrong = |error: FormatError| refused(name, error);
        let index = index.iter().enumerate().map(|(at, array)| {
            let what = index_array(kind, at);
            indices(array, (name, &what)).map(|(_, found)| found)
        });
        let index: Vec<Vec<u32>> = index.collect::<PyResult<_>>()?;
        let extents: Vec<usize> = given.getattr("shape")?.extract()?;
        let count = extents.iter().product();
        if u32::try_from(count).is_err() {
            let reason = format!("has {count} values, over the limit of {}", u32::MAX);
            return Err(refused(name, reason));
        }
        let mut places = places((kind, name), (&shape, &extents), index)?;
        if let Some(format) = format {
            places = places.convert(format.parse().map_err(wrong)?).map_err(wrong)?;
        }
        let (format, entries) = (places.format().to_string(), places.nnz());
        let (pattern, places) = places.into_parts();
        let in_order =
            places.len() == count && (1..).zip(&places).all(|(at, &place)| place == f64::from(at));
        let from = (!in_order).then(|| places.iter().map(|&place| place as u32).collect());
        let order = Slots { given: count, from };
        let dtype = type_of(&given, name)?;
        let of = with_element!(dtype, name, T => {
            let slots = order.fill(name, values::<T>(&given, name)?)?;
            let made = pattern.with_values(slots).map_err(wrong)?;
            Ok(Box::new(made) as Box<dyn Any + Send + Sync>)
        })?;
        Ok(Sparse { of, dtype, gpu, order, shape, format, entries })
    }

    /// Shape of the matrix or tensor.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.shape)
    }

    /// Name of the format, with its block and group sizes.
    #[getter]
    fn format(&self) -> &str {
        &self.format
    }

    /// Number of stored entries without padding.
    #[getter]
    fn nnz(&self) -> usize {
        self.entries
    }

    fn __repr__(&self) -> String {
        format!(
            "einsparse.Sparse({}, shape={:?}, {} entries)",
            self.format, self.shape, self.entries
        )
    }
}

fn refused(name: &str, reason: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(format!("operand `{name}`: {reason}"))
}

/// Name of an index array for error messages.
fn index_array(kind: &str, at: usize) -> String {
    match (kind, at) {
        ("coo", axis) => format!("indices of axis {axis}"),
        (_, 0) => "offsets".into(),
        _ => "indices".into(),
    }
}

/// Builds the tensor with the position of each given value, counted from 1, as its value.
fn places(
    (kind, name): (&str, &str),
    (shape, extents): (&[usize], &[usize]),
    mut index: Vec<Vec<u32>>,
) -> PyResult<AnySparse<f64>> {
    let wrong = |error: FormatError| refused(name, error);
    let count: usize = extents.iter().product();
    if kind == "coo" {
        let places = (1..=count).map(|at| at as f64).collect();
        let coo = Coo::from_entries(shape.to_vec(), index, places).map_err(wrong)?;
        return match coo.values().len() == count {
            true => Ok(coo.into()),
            false => Err(refused(
                name,
                "places are given more than once: sum their values first (`sum_duplicates`, `coalesce`)",
            )),
        };
    }
    let (&[rows, columns], Some(mut of), Some(starts)) = (shape, index.pop(), index.pop()) else {
        let reason = format!("a matrix in {kind} has two axes and two arrays, given is {shape:?}");
        return Err(refused(name, reason));
    };
    let blocks = sort(&starts, &mut of);
    let size = count / blocks.len().max(1);
    let places =
        blocks.iter().flat_map(|&block| (1..=size).map(move |at| (block * size + at) as f64));
    let places = places.collect();
    let made: Result<AnySparse<f64>, FormatError> = match (kind, extents) {
        ("csr", _) => CsrPattern::new(rows, columns, starts, of)
            .and_then(|pattern| Ok(Csr::new(pattern, places)?.into())),
        ("csc", _) => CscPattern::new(rows, columns, starts, of)
            .and_then(|pattern| Ok(Csc::new(pattern, places)?.into())),
        ("bsr", &[_, height, width]) => BsrPattern::new(rows, columns, (height, width), starts, of)
            .and_then(|pattern| Ok(Bsr::new(pattern, places)?.into())),
        _ => {
            let reason = format!("`{kind}` with values of {extents:?} is not known");
            return Err(refused(name, reason));
        }
    };
    made.map_err(wrong)
}

/// Sorts the indices of each row, and returns the old position of each. The pattern rejects invalid offsets later.
fn sort(starts: &[u32], index: &mut [u32]) -> Vec<usize> {
    let mut from: Vec<usize> = (0..index.len()).collect();
    for row in starts.windows(2) {
        let range = row[0] as usize..row[1] as usize;
        let Some(own) = index.get(range.clone()).filter(|own| !own.is_sorted()) else {
            continue;
        };
        let mut pairs: Vec<_> = own.iter().copied().zip(range.clone()).collect();
        pairs.sort_unstable();
        for (at, (column, place)) in range.zip(pairs) {
            (index[at], from[at]) = (column, place);
        }
    }
    from
}
