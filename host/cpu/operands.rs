//! What a run reads and writes: named views of the caller's arrays, checked when they are bound.

use std::borrow::Cow;
use std::collections::BTreeMap;

use einsparse_formats::{AnySparse, Dense, Element, Format, NmPattern, Role, SlicedEllPattern};

use crate::error::{Error, Result};
use crate::indirect::{IndirectEinsum, SparseOperand};

/// A dense operand: strides in elements.
#[derive(Clone, Debug)]
pub(super) struct View<'a, T> {
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
    pub values: &'a [T],
}

/// An index array, row-major.
#[derive(Clone, Debug)]
pub(super) struct IndexView<'a> {
    pub shape: Vec<usize>,
    pub data: Cow<'a, [u32]>,
}

/// The operands of one run, by the names the indirect Einsum has for them.
///
/// Sparse operands are bound with [`Operands::sparse`]; index arrays of a hand-written indirect Einsum with
/// [`Operands::index`]. Nothing is copied but the positions of N:M, which are unpacked.
#[derive(Clone, Debug)]
pub struct Operands<'a, T> {
    pub(super) tensors: BTreeMap<String, View<'a, T>>,
    pub(super) indices: BTreeMap<String, IndexView<'a>>,
    pub(super) scalars: BTreeMap<String, f64>,
    pub(super) sparse: Option<(String, &'a AnySparse<T>)>,
}

impl<T> Default for Operands<'_, T> {
    fn default() -> Self {
        Operands {
            tensors: BTreeMap::new(),
            indices: BTreeMap::new(),
            scalars: BTreeMap::new(),
            sparse: None,
        }
    }
}

impl<'a, T: Element> Operands<'a, T> {
    /// No operands yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Binds a dense tensor.
    pub fn dense(&mut self, name: &str, tensor: &'a Dense<T>) -> &mut Self {
        let view = View {
            shape: tensor.shape().to_vec(),
            strides: tensor.strides(),
            values: tensor.values(),
        };
        self.tensors.insert(name.to_owned(), view);
        self
    }

    /// Binds a dense tensor with strides, in elements: a slice, a transpose, a broadcast (stride 0).
    ///
    /// # Errors
    /// [`Error::Operand`] if the strides have another rank or lead past the end of `values`.
    pub fn strided(
        &mut self,
        name: &str,
        shape: &[usize],
        strides: &[usize],
        values: &'a [T],
    ) -> Result<&mut Self> {
        let fail = |reason| Err(operand(name, reason));
        if shape.len() != strides.len() {
            return fail(format!(
                "has {} axes and {} strides",
                shape.len(),
                strides.len()
            ));
        }
        if let Some(reach) = reach(shape, strides)
            && reach > values.len() as u128
        {
            return fail(format!(
                "reaches element {} of {}: shape {shape:?}, strides {strides:?}",
                reach - 1,
                values.len()
            ));
        }
        let view = View {
            shape: shape.to_vec(),
            strides: strides.to_vec(),
            values,
        };
        self.tensors.insert(name.to_owned(), view);
        Ok(self)
    }

    /// Binds an index array, row-major. A slot that holds [`PAD`](einsparse_formats::PAD) drops its terms; the
    /// other values are checked against the axis they index when a run starts.
    ///
    /// # Errors
    /// [`Error::Operand`] if `data` has not the length of `shape`.
    pub fn index(&mut self, name: &str, shape: &[usize], data: &'a [u32]) -> Result<&mut Self> {
        let wanted = shape
            .iter()
            .fold(1u128, |n, &e| n.saturating_mul(e as u128));
        if wanted != data.len() as u128 {
            let reason = format!(
                "has shape {shape:?} and {} values, {wanted} wanted",
                data.len()
            );
            return Err(operand(name, reason));
        }
        self.indices.insert(
            name.to_owned(),
            IndexView {
                shape: shape.to_vec(),
                data: Cow::Borrowed(data),
            },
        );
        Ok(self)
    }

    /// Binds a named scalar.
    pub fn scalar(&mut self, name: &str, value: f64) -> &mut Self {
        self.scalars.insert(name.to_owned(), value);
        self
    }

    /// Binds the sparse operand of `e`: its values and its index arrays, under the names the rewrite gave them.
    ///
    /// # Errors
    /// [`Error::Operand`] if `e` has no sparse operand, or it is written for another format or order.
    pub fn sparse(&mut self, e: &IndirectEinsum, tensor: &'a AnySparse<T>) -> Result<&mut Self> {
        let Some(sparse) = &e.sparse else {
            return Err(operand(
                &e.out.tensor,
                format!("`{e}` has no sparse operand"),
            ));
        };
        check_format(sparse, tensor)?;
        self.sparse = Some((sparse.name.clone(), tensor));
        match tensor {
            AnySparse::Nm(nm) => return Ok(self.groups(sparse, nm.pattern(), nm.values())),
            AnySparse::HybridGroupCoo(a) => {
                let data: Cow<'_, [u32]> = Cow::Owned(a.pattern().group_starts());
                let starts = sparse.arrays.iter().find(|a| a.role == Role::Starts);
                if let Some(named) = starts {
                    let shape = vec![data.len()];
                    self.indices
                        .insert(named.name.clone(), IndexView { shape, data });
                }
            }
            AnySparse::SlicedEll(sell) => {
                return Ok(self.slices(sparse, sell.pattern(), sell.values()));
            }
            _ => {}
        }
        let coordinates = match tensor {
            AnySparse::Bitmap(a) => Some(a.pattern().coordinates()),
            AnySparse::Bytemap(a) => Some(a.pattern().coordinates()),
            _ => None,
        };
        if let Some(coordinates) = coordinates {
            for (axis, data) in coordinates.into_iter().enumerate() {
                let role = Role::Coordinate { axis };
                if let Some(named) = sparse.arrays.iter().find(|a| a.role == role) {
                    let (shape, data) = (vec![data.len()], Cow::Owned(data));
                    self.indices
                        .insert(named.name.clone(), IndexView { shape, data });
                }
            }
        }
        for array in tensor.arrays() {
            if let Some(named) = sparse.arrays.iter().find(|a| a.role == array.role) {
                self.index(&named.name, &array.shape, array.data)?;
            }
        }
        let shape = tensor.value_shape();
        self.strided(&sparse.values, &shape, &row_major(&shape), tensor.values())?;
        Ok(self)
    }

    /// Binds the groups of N:M that hold columns: values and positions `[rows, ceil(cols / 4), 2]`.
    fn groups(&mut self, sparse: &SparseOperand, nm: &NmPattern, values: &'a [T]) -> &mut Self {
        let shape = vec![nm.rows(), nm.groups(), 2];
        let view = View {
            shape: shape.clone(),
            strides: vec![nm.row_slots(), 2, 1],
            values,
        };
        self.tensors.insert(sparse.values.clone(), view);
        let positions = |a: &&crate::indirect::ArrayName| a.role == Role::Positions { axis: 1 };
        if let Some(named) = sparse.arrays.iter().find(positions) {
            let data = Cow::Owned(nm.unpacked());
            self.indices
                .insert(named.name.clone(), IndexView { shape, data });
        }
        self
    }

    /// Binds the slots of sliced ELLPACK: values, and row and column of each.
    fn slices(
        &mut self,
        sparse: &SparseOperand,
        sell: &SlicedEllPattern,
        values: &'a [T],
    ) -> &mut Self {
        let view = View {
            shape: vec![values.len()],
            strides: vec![1],
            values,
        };
        self.tensors.insert(sparse.values.clone(), view);
        let roles = [Role::Order { axis: 0 }, Role::Positions { axis: 1 }];
        for (role, data) in roles.into_iter().zip(sell.unpacked()) {
            if let Some(named) = sparse.arrays.iter().find(|a| a.role == role) {
                let view = IndexView {
                    shape: vec![values.len()],
                    data: Cow::Owned(data),
                };
                self.indices.insert(named.name.clone(), view);
            }
        }
        self
    }

    pub(super) fn tensor(&self, name: &str) -> Result<&View<'a, T>> {
        self.tensors
            .get(name)
            .ok_or_else(|| operand(name, "was not given".into()))
    }

    pub(super) fn index_array(&self, name: &str) -> Result<&IndexView<'a>> {
        self.indices
            .get(name)
            .ok_or_else(|| operand(name, "is an index array and was not given".into()))
    }
}

fn check_format<T: Element>(sparse: &SparseOperand, tensor: &AnySparse<T>) -> Result<()> {
    let (wanted, found) = (sparse.format, tensor.format());
    let same = match (wanted, found) {
        (
            Format::GroupCoo {
                axis: a,
                group: None,
            },
            Format::GroupCoo { axis: b, .. },
        ) => a == b,
        (
            Format::BlockGroupCoo {
                block: a,
                group: None,
            },
            Format::BlockGroupCoo { block: b, .. },
        ) => a == b,
        _ => wanted == found,
    };
    if !same {
        let reason = format!("is stored as {found}, and the expression is written for {wanted}");
        return Err(operand(&sparse.name, reason));
    }
    if tensor.shape().len() != sparse.coordinates.len() {
        return Err(Error::Shape {
            index: sparse.name.clone(),
            left: format!("{} indices in the expression", sparse.coordinates.len()),
            right: format!(
                "the operand has {} axes, {:?}",
                tensor.shape().len(),
                tensor.shape()
            ),
        });
    }
    Ok(())
}

pub(super) fn operand(name: &str, reason: String) -> Error {
    Error::Operand {
        name: name.to_owned(),
        reason,
    }
}

pub(super) fn row_major(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(shape[axis]);
    }
    strides
}

/// Product of extents; 0 if one of them is, however large the others.
pub(super) fn volume(extents: impl Iterator<Item = usize> + Clone) -> usize {
    if extents.clone().any(|e| e == 0) {
        return 0;
    }
    extents.fold(1, usize::saturating_mul)
}

/// Elements from the first to the last one addressed; `None` if there is none.
fn reach(shape: &[usize], strides: &[usize]) -> Option<u128> {
    if shape.contains(&0) {
        return None;
    }
    let last = |(&n, &s): (&usize, &usize)| (n as u128 - 1).saturating_mul(s as u128);
    Some(
        1 + shape
            .iter()
            .zip(strides)
            .map(last)
            .fold(0, u128::saturating_add),
    )
}

/// The output of one run: row-major, neighbouring rows `row_stride` elements apart.
#[derive(Debug)]
pub struct Output<'a, T> {
    pub(super) shape: Vec<usize>,
    pub(super) strides: Vec<usize>,
    pub(super) values: &'a mut [T],
}

impl<'a, T: Element> Output<'a, T> {
    /// A whole tensor.
    ///
    /// # Errors
    /// [`Error::Operand`] unless `values` has one element for each of `shape`.
    pub fn new(shape: &[usize], values: &'a mut [T]) -> Result<Self> {
        let wanted = shape
            .iter()
            .fold(1u128, |n, &e| n.saturating_mul(e as u128));
        if wanted != values.len() as u128 {
            let reason = format!(
                "has shape {shape:?} and {} elements, {wanted} wanted",
                values.len()
            );
            return Err(operand("output", reason));
        }
        Ok(Output {
            shape: shape.to_vec(),
            strides: row_major(shape),
            values,
        })
    }

    /// A tensor whose rows (runs along the last axis) start `row_stride` elements apart; what lies between them
    /// is not touched.
    ///
    /// # Errors
    /// [`Error::Operand`] if rows would overlap or reach past the end of `values`.
    pub fn with_row_stride(
        shape: &[usize],
        row_stride: usize,
        values: &'a mut [T],
    ) -> Result<Self> {
        let row = shape.last().copied().unwrap_or(1);
        if row_stride < row {
            let reason = format!("row stride {row_stride} is less than a row of {row}");
            return Err(operand("output", reason));
        }
        let mut padded = shape.to_vec();
        if let Some(last) = padded.last_mut() {
            *last = row_stride;
        }
        let strides = row_major(&padded);
        match reach(shape, &strides) {
            Some(reach) if reach > values.len() as u128 => {
                let reason = format!("reaches element {} of {}", reach - 1, values.len());
                Err(operand("output", reason))
            }
            _ => Ok(Output {
                shape: shape.to_vec(),
                strides,
                values,
            }),
        }
    }
}
