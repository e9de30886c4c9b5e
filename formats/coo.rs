//! COO: the coordinates of every entry, one array for each axis, sorted lexicographically.
//! For tensors of any order from 1.

use crate::{Element, Format, FormatError, IndexArray, Pattern, Sparse, check};

/// Names of the coordinate arrays in errors; axes from the eighth share one.
const NAMES: [&str; 9] = [
    "coords[0]",
    "coords[1]",
    "coords[2]",
    "coords[3]",
    "coords[4]",
    "coords[5]",
    "coords[6]",
    "coords[7]",
    "coords",
];

pub(crate) fn names(order: usize) -> Vec<&'static str> {
    (0..order).map(|axis| NAMES[axis.min(NAMES.len() - 1)]).collect()
}

/// Lengths and bounds, without order: the names of the arrays and the number of entries.
pub(crate) fn check_coords(
    shape: &[usize],
    coords: &[Vec<u32>],
) -> Result<(Vec<&'static str>, usize), FormatError> {
    if shape.is_empty() {
        let (found, expected) = ("0".into(), "at least 1".into());
        return Err(FormatError::Shape { what: "order", found, expected });
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

/// Where the entries of a COO tensor are: `C[AM[p],n] += AV[p] * B[AK[p],n]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CooPattern {
    shape: Vec<usize>,
    coords: Vec<Vec<u32>>,
}

/// A COO tensor.
pub type Coo<T> = Sparse<CooPattern, T>;

impl CooPattern {
    /// Checks and takes the coordinates, one array for each axis.
    ///
    /// # Errors
    /// If the shape has no axis, an array is missing or of another length, a coordinate is outside the shape,
    /// or the entries do not ascend lexicographically, each once.
    pub fn new(shape: Vec<usize>, coords: Vec<Vec<u32>>) -> Result<Self, FormatError> {
        let (names, _) = check_coords(&shape, &coords)?;
        let axes: Vec<&[u32]> = coords.iter().map(Vec::as_slice).collect();
        check::lexicographic(&names, &axes)?;
        Ok(CooPattern { shape, coords })
    }

    /// Takes the coordinates unchecked.
    ///
    /// # Safety
    /// [`CooPattern::new`] would accept the arguments. Kernels and converters index without checks on the strength of
    /// it.
    pub unsafe fn new_unchecked(shape: Vec<usize>, coords: Vec<Vec<u32>>) -> Self {
        CooPattern { shape, coords }
    }

    /// The coordinate arrays, taken out.
    pub(crate) fn into_coords(self) -> Vec<Vec<u32>> {
        self.coords
    }

    /// The coordinate arrays, one for each axis.
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
    /// Builds a tensor from entries in any order; entries given more than once are summed, in the order given.
    ///
    /// # Errors
    /// As [`CooPattern::new`], but for the order of the entries; and if there is not one value for each.
    pub fn from_entries(
        shape: Vec<usize>,
        coords: Vec<Vec<u32>>,
        values: Vec<T>,
    ) -> Result<Self, FormatError> {
        crate::convert::sort_entries(shape, coords, values)
    }
}
