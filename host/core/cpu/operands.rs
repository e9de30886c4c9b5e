//! Operands and output of a run: named views of the caller's arrays, validated when they are bound.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;

use einsparse_formats::{AnyPattern, AnySparse, Dense, Format, NmPattern, Role, SlicedEllPattern};

use crate::error::{Error, Result};
use crate::indirect::{IndirectEinsum, SparseOperand};
use crate::registry::Scalar;
pub(super) use crate::tensor::row_major;
use crate::values::{Slice, SliceMut};

/// Dense operand. Strides are in elements.
#[derive(Clone, Debug)]
pub(crate) struct View<'a> {
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
    pub values: Slice<'a>,
}

/// Row-major index array.
#[derive(Clone, Debug)]
pub(crate) struct IndexView<'a> {
    pub shape: Vec<usize>,
    pub data: Cow<'a, [u32]>,
}

/// Operands of one run, by their names in the indirect Einsum.
///
/// Bind sparse operands with [`Operands::sparse`], and index arrays of a hand-written indirect Einsum with
/// [`Operands::index`]. Values are not copied. Index arrays are copied only if they must be unpacked, such as the
/// positions of N:M.
#[derive(Clone, Debug)]
pub struct Operands<'a, T> {
    pub(super) any: AnyOperands<'a>,
    element: PhantomData<T>,
}

impl<T> Default for Operands<'_, T> {
    fn default() -> Self {
        Operands { any: AnyOperands::default(), element: PhantomData }
    }
}

impl<'a, T: Scalar> Operands<'a, T> {
    /// Creates an empty set of operands.
    pub fn new() -> Self {
        Self::default()
    }

    /// Binds a dense tensor.
    pub fn dense(&mut self, name: &str, tensor: &'a Dense<T>) -> &mut Self {
        let values = Slice::of(tensor.values());
        self.any.dense(name, tensor.shape(), tensor.strides(), values);
        self
    }

    /// Binds a dense tensor with strides in elements: a slice, a transpose, or a broadcast (stride 0).
    ///
    /// # Errors
    /// [`Error::Shape`] if `strides` has another rank than `shape`, or addresses elements past the end of `values`.
    pub fn strided(
        &mut self,
        name: &str,
        shape: &[usize],
        strides: &[usize],
        values: &'a [T],
    ) -> Result<&mut Self> {
        self.any.strided(name, shape, strides, Slice::of(values))?;
        Ok(self)
    }

    /// Binds a row-major index array. A slot that contains [`PAD`](einsparse_formats::PAD) drops its terms. Other
    /// values are validated against the axis that they index when a run starts.
    ///
    /// # Errors
    /// [`Error::Shape`] if the length of `data` differs from the number of elements of `shape`.
    pub fn index(&mut self, name: &str, shape: &[usize], data: &'a [u32]) -> Result<&mut Self> {
        self.any.index(name, shape, data)?;
        Ok(self)
    }

    /// Binds a named scalar.
    pub fn scalar(&mut self, name: &str, value: f64) -> &mut Self {
        self.any.scalar(name, value);
        self
    }

    /// Binds the sparse operand of `e`: its values and index arrays, under the names that the rewrite assigned.
    ///
    /// # Errors
    /// [`Error::Operand`] if `e` is without a sparse operand, [`Error::StorageFormat`] or [`Error::Shape`] if it is
    /// written for another format or order.
    pub fn sparse(&mut self, e: &IndirectEinsum, tensor: &'a AnySparse<T>) -> Result<&mut Self> {
        self.any.sparse(e, tensor.pattern(), Slice::of(tensor.values()))?;
        Ok(self)
    }
}

/// [`Operands`] of any element type.
#[derive(Clone, Debug, Default)]
pub(crate) struct AnyOperands<'a> {
    pub(super) tensors: BTreeMap<String, View<'a>>,
    pub(super) indices: BTreeMap<String, IndexView<'a>>,
    pub(super) scalars: BTreeMap<String, f64>,
    pub(super) sparse: Option<(String, AnyPattern<'a>)>,
    /// Tensors in which -0.0 marks elements that no term has reached ([`AnyOperands::set_partial`]).
    pub(super) partial: BTreeSet<String>,
}

impl<'a> AnyOperands<'a> {
    pub(crate) fn dense(
        &mut self,
        name: &str,
        shape: &[usize],
        strides: Vec<usize>,
        values: Slice<'a>,
    ) {
        let view = View { shape: shape.to_vec(), strides, values };
        self.tensors.insert(name.to_owned(), view);
    }

    pub(crate) fn strided(
        &mut self,
        name: &str,
        shape: &[usize],
        strides: &[usize],
        values: Slice<'a>,
    ) -> Result<()> {
        if shape.len() != strides.len() {
            let (axes, strides) = (shape.len(), strides.len());
            return Err(Error::shape(name, format!("{axes} axes"), format!("{strides} strides")));
        }
        if let Some(reach) = reach(shape, strides)
            && reach > values.len() as u128
        {
            let last = reach - 1;
            let found = format!("shape {shape:?} with strides {strides:?} reaches element {last}");
            return Err(Error::shape(name, found, format!("{} elements were given", values.len())));
        }
        self.dense(name, shape, strides.to_vec(), values);
        Ok(())
    }

    pub(crate) fn index(&mut self, name: &str, shape: &[usize], data: &'a [u32]) -> Result<()> {
        as_long_as_its_shape(name, shape, data.len())?;
        self.indexed(name, shape.to_vec(), Cow::Borrowed(data));
        Ok(())
    }

    fn indexed(&mut self, name: &str, shape: Vec<usize>, data: Cow<'a, [u32]>) {
        let view = IndexView { shape, data };
        self.indices.insert(name.to_owned(), view);
    }

    /// Marks a tensor whose elements of -0.0 must not be multiplied. Sums start at +0.0 and are never -0.0, so -0.0
    /// marks elements of an intermediate result without a term.
    pub(crate) fn set_partial(&mut self, name: &str) {
        self.partial.insert(name.to_owned());
    }

    pub(crate) fn scalar(&mut self, name: &str, value: f64) {
        self.scalars.insert(name.to_owned(), value);
    }

    /// Binds the sparse operand. `values` may be empty if only the structure is needed.
    pub(crate) fn sparse(
        &mut self,
        e: &IndirectEinsum,
        pattern: AnyPattern<'a>,
        values: Slice<'a>,
    ) -> Result<()> {
        let Some(sparse) = &e.sparse else {
            return Err(Error::operand(&e.out.tensor, format!("`{e}` has no sparse operand")));
        };
        check_format(sparse, pattern)?;
        self.sparse = Some((sparse.name.clone(), pattern));
        let roles: Vec<(Role, Cow<'a, [u32]>)> = match pattern {
            AnyPattern::Nm(nm) => {
                self.groups(sparse, nm, values);
                return Ok(());
            }
            AnyPattern::SlicedEll(sell) => {
                self.slices(sparse, sell, values);
                return Ok(());
            }
            AnyPattern::HybridGroupCoo(a) => vec![(Role::Starts, Cow::Owned(a.group_starts()))],
            AnyPattern::Bitmap(a) => by_axis(a.coordinates()),
            AnyPattern::Bytemap(a) => by_axis(a.coordinates()),
            _ => Vec::new(),
        };
        for (role, data) in roles {
            if let Some(named) = sparse.arrays.iter().find(|a| a.role == role) {
                self.indexed(&named.name, vec![data.len()], data);
            }
        }
        for array in pattern.arrays() {
            if let Some(named) = sparse.arrays.iter().find(|a| a.role == array.role) {
                self.index(&named.name, &array.shape, array.data)?;
            }
        }
        let shape = pattern.value_shape();
        self.dense(&sparse.values, &shape, row_major(&shape), values);
        Ok(())
    }

    /// Binds the groups of N:M: values and positions `[rows, ceil(cols / 4), 2]`.
    fn groups(&mut self, sparse: &SparseOperand, nm: &NmPattern, values: Slice<'a>) {
        let shape = vec![nm.rows(), nm.groups(), 2];
        let strides = vec![nm.row_slots(), 2, 1];
        self.dense(&sparse.values, &shape, strides, values);
        let positions = |a: &&crate::indirect::ArrayName| a.role == Role::Positions { axis: 1 };
        if let Some(named) = sparse.arrays.iter().find(positions) {
            self.indexed(&named.name, shape, Cow::Owned(nm.unpacked()));
        }
    }

    /// Binds the slots of sliced ELLPACK: values, and the row and column of each slot.
    fn slices(&mut self, sparse: &SparseOperand, sell: &SlicedEllPattern, values: Slice<'a>) {
        let roles = [Role::Order { axis: 0 }, Role::Positions { axis: 1 }];
        let unpacked = sell.unpacked();
        let shape = vec![unpacked[0].len()];
        self.dense(&sparse.values, &shape, vec![1], values);
        for (role, data) in roles.into_iter().zip(unpacked) {
            if let Some(named) = sparse.arrays.iter().find(|a| a.role == role) {
                self.indexed(&named.name, shape.clone(), Cow::Owned(data));
            }
        }
    }

    pub(super) fn tensor(&self, name: &str) -> Result<&View<'a>> {
        self.tensors.get(name).ok_or_else(|| Error::missing(name))
    }

    pub(super) fn index_array(&self, name: &str) -> Result<&IndexView<'a>> {
        self.indices.get(name).ok_or_else(|| Error::missing_for(name, "it is an index array"))
    }
}

/// Checks that an index array has one slot per element of its shape.
pub(crate) fn as_long_as_its_shape(name: &str, shape: &[usize], slots: usize) -> Result<()> {
    let wanted = shape.iter().fold(1u128, |n, &extent| n.saturating_mul(extent as u128));
    if wanted == slots as u128 {
        return Ok(());
    }
    let expected = format!("shape {shape:?} requires {wanted} values");
    Err(Error::shape(name, expected, format!("{slots} values were given")))
}

fn by_axis<'a>(coordinates: [Vec<u32>; 2]) -> Vec<(Role, Cow<'a, [u32]>)> {
    let roles = [0, 1].map(|axis| Role::Coordinate { axis });
    let data = coordinates.into_iter().map(Cow::Owned);
    roles.into_iter().zip(data).collect()
}

fn check_format(sparse: &SparseOperand, tensor: AnyPattern<'_>) -> Result<()> {
    let (wanted, found) = (sparse.format, tensor.format());
    let same = match (wanted, found) {
        (Format::GroupCoo { axis: a, group: None }, Format::GroupCoo { axis: b, .. }) => a == b,
        (
            Format::BlockGroupCoo { block: a, group: None },
            Format::BlockGroupCoo { block: b, .. },
        ) => a == b,
        _ => wanted == found,
    };
    if !same {
        let expected = format!("{wanted}, for which the expression is written");
        return Err(Error::format(&sparse.name, expected, found));
    }
    if tensor.shape().len() != sparse.coordinates.len() {
        return Err(Error::Shape {
            index: sparse.name.clone(),
            left: format!("{} indices in the expression", sparse.coordinates.len()),
            right: format!("the operand has {} axes, {:?}", tensor.shape().len(), tensor.shape()),
        });
    }
    Ok(())
}

/// Product of extents; 0 if any extent is 0, even if the product of the others overflows.
pub(super) fn volume(extents: impl Iterator<Item = usize> + Clone) -> usize {
    if extents.clone().any(|e| e == 0) {
        return 0;
    }
    extents.fold(1, usize::saturating_mul)
}

/// Number of elements from the first to the last one addressed; `None` for an empty shape.
fn reach(shape: &[usize], strides: &[usize]) -> Option<u128> {
    if shape.contains(&0) {
        return None;
    }
    let last = |(&n, &s): (&usize, &usize)| (n as u128 - 1).saturating_mul(s as u128);
    Some(1 + shape.iter().zip(strides).map(last).fold(0, u128::saturating_add))
}

/// Output of one run: row-major, with adjacent rows `row_stride` elements apart.
#[derive(Debug)]
pub struct Output<'a, T> {
    pub(super) shape: Vec<usize>,
    pub(super) strides: Vec<usize>,
    pub(super) values: &'a mut [T],
}

impl<'a, T: Scalar> Output<'a, T> {
    /// Creates an output of a whole tensor.
    ///
    /// # Errors
    /// [`Error::Shape`] if the length of `values` differs from the number of elements of `shape`.
    pub fn new(shape: &[usize], values: &'a mut [T]) -> Result<Self> {
        as_long_as_its_shape("output", shape, values.len())?;
        Ok(Output { shape: shape.to_vec(), strides: row_major(shape), values })
    }

    /// Creates an output whose rows (runs along the last axis) start `row_stride` elements apart. Elements between rows
    /// are not modified.
    ///
    /// # Errors
    /// [`Error::RowStride`] if rows overlap, [`Error::Shape`] if they extend past the end of `values`.
    pub fn with_row_stride(
        shape: &[usize],
        row_stride: usize,
        values: &'a mut [T],
    ) -> Result<Self> {
        let strides = row_strides(shape, row_stride, values.len())?;
        Ok(Output { shape: shape.to_vec(), strides, values })
    }

    pub(super) fn any(self) -> AnyOutput<'a> {
        AnyOutput { shape: self.shape, strides: self.strides, values: SliceMut::of(self.values) }
    }
}

/// [`Output`] of any element type.
pub(crate) struct AnyOutput<'a> {
    pub(super) shape: Vec<usize>,
    pub(super) strides: Vec<usize>,
    pub(super) values: SliceMut<'a>,
}

impl<'a> AnyOutput<'a> {
    /// [`Output::with_row_stride`] for any element type.
    pub(crate) fn new(shape: &[usize], row_stride: usize, values: SliceMut<'a>) -> Result<Self> {
        Ok(AnyOutput {
            shape: shape.to_vec(),
            strides: row_strides(shape, row_stride, values.len())?,
            values,
        })
    }
}

/// Strides of a tensor of at most `len` elements whose rows start `row_stride` elements apart.
fn row_strides(shape: &[usize], row_stride: usize, len: usize) -> Result<Vec<usize>> {
    let row = shape.last().copied().unwrap_or(1);
    if row_stride < row {
        return Err(Error::stride("output", row_stride, format!("at least {row}")));
    }
    let mut padded = shape.to_vec();
    if let Some(last) = padded.last_mut() {
        *last = row_stride;
    }
    let strides = row_major(&padded);
    match reach(shape, &strides) {
        Some(reach) if reach > len as u128 => {
            let found = format!(
                "shape {shape:?} with row stride {row_stride} reaches element {}",
                reach - 1
            );
            Err(Error::shape("output", found, format!("{len} elements were given")))
        }
        _ => Ok(strides),
    }
}
