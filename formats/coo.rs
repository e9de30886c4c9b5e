//! COO: the coordinates of every entry, one array per axis, sorted lexicographically. Tensors have order 1 or higher.

use crate::error::*;
use crate::{Element, Format, IndexArray, Pattern, Sparse, check};

/// Names of the coordinate arrays in errors. All axes from index 8 on share one name.
const NAMES: &str =
    "coords[0] coords[1] coords[2] coords[3] coords[4] coords[5] coords[6] coords[7]";

pub(crate) fn names(order: usize) -> Vec<&'static str> {
    NAMES.split(' ').chain(std::iter::repeat("coords")).take(order).collect()
}

/// Validates lengths and bounds, but not the order of the entries. Returns the array names and the number of entries.
pub(crate) fn check_coords(
    shape: &[usize],
    coords: &[Vec<u32>],
) -> Result<(Vec<&'static str>, usize)> {
    if shape.is_empty() {
        return Err(check::shape("order", 0, "at least 1"));
    }
    check::length("coords", coords.len(), shape.len())?;
    let (names, entries) = (names(shape.len()), coords[0].len());
    check::extent("entries", entries)?;
    for ((axis, &n), name) in coords.iter().zip(shape).zip(&names) {
        check::extent("extent", n)?;
        check::length(name, axis.len(), entries)?;
        check::below(name, axis, n)?;
    }
    Ok((names, entries))
}

/// Pattern of a COO tensor: `C[AM[p],n] += AV[p] * B[AK[p],n]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CooPattern {
    shape: Vec<usize>,
    coords: Vec<Vec<u32>>,
}

/// A COO tensor.
pub type Coo<T> = Sparse<CooPattern, T>;

impl CooPattern {
    /// Validates and stores the coordinates, one array per axis.
    ///
    /// # Errors
    /// Returns an error if the shape has no axis, an array is missing or has the wrong length, a coordinate is outside
    /// the shape, or the entries are not strictly ascending in lexicographic order.
    pub fn new(shape: Vec<usize>, coords: Vec<Vec<u32>>) -> Result<Self> {
        let (names, _) = check_coords(&shape, &coords)?;
        let axes: Vec<&[u32]> = coords.iter().map(Vec::as_slice).collect();
        check::lexicographic(&names, &axes)?;
        Ok(CooPattern { shape, coords })
    }

    /// Stores the coordinates without validation.
    ///
    /// # Safety
    /// [`CooPattern::new`] would accept the arguments. Kernels and converters rely on this and index without bounds
    /// checks.
    pub unsafe fn new_unchecked(shape: Vec<usize>, coords: Vec<Vec<u32>>) -> Self {
        CooPattern { shape, coords }
    }

    /// Returns the coordinate arrays.
    pub(crate) fn into_coords(self) -> Vec<Vec<u32>> {
        self.coords
    }

    /// Coordinate arrays, one per axis.
    pub fn coords(&self) -> &[Vec<u32>] {
        &self.coords
    }
}

impl Pattern for CooPattern {
    fn format(&self) -> Format {
        Format::Coo
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn value_shape(&self) -> Vec<usize> {
        vec![self.coords[0].len()]
    }

    fn arrays(&self) -> Vec<IndexArray<'_>> {
        let arrays = self.coords.iter().enumerate();
        arrays.map(|(axis, data)| IndexArray::coordinate(axis, [data.len()], data)).collect()
    }
}

impl<T: Element> Coo<T> {
    /// Builds a tensor from entries in any order. Values of duplicate entries are summed in the order given.
    ///
    /// # Errors
    /// Returns the errors of [`CooPattern::new`], except those about the order of the entries. The number of values
    /// must equal the number of entries.
    pub fn from_entries(shape: Vec<usize>, coords: Vec<Vec<u32>>, values: Vec<T>) -> Result<Self> {
        crate::convert::sort_entries(shape, coords, values)
    }
}
