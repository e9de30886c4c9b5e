//! Rewriting of an Einsum to an IndirectEinsum, with one substitution per format.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use einsparse_formats::{Format, Role};

use super::{Access, ArrayName, Bias, Index, IndirectEinsum, Range, SparseOperand};
use crate::einsum::{self, Einsum, IndexExpr};
use crate::error::{Error, Result};

/// Replaces the sparse `operand` by the arrays of its `format`.
///
/// The operand must be exactly one factor, with plain indices; a repeated index reads its diagonal. COO supports any
/// order, GroupCOO orders from 2, the other formats matrices. Affine indices of other operands become index arrays
/// ([`Einsum::with_arrays`]).
///
/// # Errors
/// - Errors of [`Einsum::validate`].
/// - [`Error::Operand`] if the operand is not a factor, is used more than once, or has a gather among its indices.
///   [`Error::UnknownOperand`] if `e` does not name it; [`Error::Shape`] if the format does not support its order.
pub fn rewrite(e: &Einsum, operand: &str, format: &Format) -> Result<IndirectEinsum> {
    e.validate()?;
    let factor = find(e, operand)?;
    let names = plain_indices(&e.factors[factor])?;
    let e = &*arrays_for_sums(e);
    check_order(operand, format, names.len())?;
    let mut layout = Layout::new(e, operand, &names);
    let values = layout.write(format);
    let sparse = SparseOperand {
        name: operand.to_owned(),
        format: *format,
        factor,
        values: layout.values.clone(),
        arrays: layout.arrays,
        coordinates: layout.coordinates,
    };
    let mut map: BTreeMap<&str, Index> = BTreeMap::new();
    let mut equalities = Vec::new();
    for (name, place) in names.iter().zip(&sparse.coordinates) {
        match map.get(name) {
            Some(first) => equalities.push((first.clone(), place.clone())),
            None => drop(map.insert(name, place.clone())),
        }
    }
    let mut out = substitute_all(e, &map);
    if format.holds_fill() {
        out.filled.push(factor);
    }
    out.factors[factor] = Access { tensor: layout.values, indices: values };
    Ok(IndirectEinsum { ranges: layout.ranges, equalities, sparse: Some(sparse), ..out })
}

/// Rewrites an expression without sparse operands. It may contain gathers and scatters. Affine indices become index
/// arrays ([`Einsum::with_arrays`]).
///
/// # Errors
/// Those of [`Einsum::validate`].
pub fn rewrite_dense(e: &Einsum) -> Result<IndirectEinsum> {
    e.validate()?;
    Ok(substitute_all(&arrays_for_sums(e), &BTreeMap::new()))
}

/// Replaces affine indices by index arrays ([`Einsum::with_arrays`]).
fn arrays_for_sums(e: &Einsum) -> Cow<'_, Einsum> {
    match e.has_sums() {
        true => Cow::Owned(e.with_arrays()),
        false => Cow::Borrowed(e),
    }
}

/// Returns the position of the only factor that is `operand`.
fn find(e: &Einsum, operand: &str) -> Result<usize> {
    let mut uses = 0;
    let mut count = |a: &einsum::Access| uses += usize::from(a.tensor == operand);
    e.out.for_each_access(&mut count);
    e.right().for_each(|a| a.for_each_access(&mut count));
    let factor = e.factors.iter().position(|a| a.tensor == operand);
    match (factor, uses) {
        (Some(f), 1) => Ok(f),
        (Some(_), n) => Err(Error::operand(
            operand,
            format!("is sparse and used {n} times in `{e}`; once is possible"),
        )),
        (None, 0) => Err(Error::unknown(operand, e)),
        (None, _) => Err(Error::operand(operand, format!("is sparse, but not a factor of `{e}`"))),
    }
}

/// Returns the index names of an access to a sparse operand.
///
/// # Errors
/// An index is a gather or a sum.
pub fn plain_indices(access: &einsum::Access) -> Result<Vec<&str>> {
    let indices = access.indices.iter();
    indices
        .map(|index| match index {
            IndexExpr::Name(n) => Ok(n.as_str()),
            IndexExpr::Access(a) => {
                let reason = format!("is sparse, and cannot be read through `{a}` in `{access}`");
                Err(Error::operand(&access.tensor, reason))
            }
            IndexExpr::Sum(_) => {
                let reason = format!("is sparse, and cannot be read at `{index}` in `{access}`");
                Err(Error::operand(&access.tensor, reason))
            }
        })
        .collect()
}

fn check_order(operand: &str, format: &Format, order: usize) -> Result<()> {
    let wanted = match *format {
        Format::Coo if order >= 1 => return Ok(()),
        Format::Coo => "at least 1",
        Format::GroupCoo { axis, .. } if order >= 2 && axis < order => return Ok(()),
        Format::GroupCoo { .. } if order < 2 => "at least 2",
        Format::GroupCoo { .. } => "more than the grouped axis",
        _ if order == 2 => return Ok(()),
        _ => "2",
    };
    Err(Error::shape(operand, format!("order {order}"), format!("{format} requires {wanted}")))
}

/// Returns a name that is not in `taken`: `base`, `base'`, `base''`, ...
pub fn fresh(taken: &mut BTreeSet<String>, base: &str) -> String {
    let mut name = base.to_owned();
    while !taken.insert(name.clone()) {
        name.push('\'');
    }
    name
}

/// Names of loop indices and arrays, and the coordinates of a nonzero, during the substitution.
struct Layout<'a> {
    operand: &'a str,
    names: &'a [&'a str],
    tensors: BTreeSet<String>,
    loops: BTreeSet<String>,
    values: String,
    arrays: Vec<ArrayName>,
    coordinates: Vec<Index>,
    ranges: Vec<Range>,
}

impl<'a> Layout<'a> {
    fn new(e: &Einsum, operand: &'a str, names: &'a [&'a str]) -> Self {
        let mut tensors: BTreeSet<String> = e.names().into_iter().map(str::to_owned).collect();
        let loops = e.index_names().into_iter().map(str::to_owned).collect();
        let values = fresh(&mut tensors, &format!("{operand}V"));
        let (arrays, coordinates, ranges) = (Vec::new(), Vec::new(), Vec::new());
        Layout { operand, names, tensors, loops, values, arrays, coordinates, ranges }
    }

    /// Sets coordinates, arrays and ranges; returns the indices of the array of values.
    fn write(&mut self, format: &Format) -> Vec<Index> {
        match *format {
            Format::Csr => self.compressed(0, None),
            Format::Csc => self.compressed(1, None),
            Format::Bsr { block } => self.compressed(0, Some(block)),
            Format::Coo | Format::Bitmap | Format::Bytemap => self.listed(None, None),
            Format::GroupCoo { axis, .. } => self.listed(Some(axis), None),
            Format::HybridGroupCoo => self.ragged(),
            Format::BlockCoo { block } => self.listed(None, Some(block)),
            Format::BlockGroupCoo { block, .. } => self.listed(Some(0), Some(block)),
            Format::Ell => self.ell(),
            Format::Nm { m, .. } => self.n_of_m(m),
            Format::SlicedEll => self.sliced(),
        }
    }

    fn fresh_loop(&mut self, base: &str) -> String {
        fresh(&mut self.loops, base)
    }

    /// Returns the slot of the coordinate array of `axis`.
    fn coordinate(&mut self, axis: usize, indices: &[&String]) -> Index {
        self.array(Role::Coordinate { axis }, axis, indices)
    }

    /// Returns the slot of an array named after `axis`.
    fn array(&mut self, role: Role, axis: usize, indices: &[&String]) -> Index {
        let base = format!("{}{}", self.operand, self.names[axis].to_uppercase());
        let name = fresh(&mut self.tensors, &base);
        self.arrays.push(ArrayName { name: name.clone(), role });
        let indices = indices.iter().map(|n| Index::Name(n.to_string())).collect();
        Index::Access(Access { tensor: name, indices })
    }

    /// Splits both coordinates into the block and the offset in the block; returns the offsets.
    fn split(&mut self, block: Option<(usize, usize)>) -> Vec<Index> {
        let Some((bm, bk)) = block else {
            return Vec::new();
        };
        let mut inner_indices = Vec::new();
        for (axis, extent) in [(0, bm), (1, bk)] {
            let inner = Index::Name(self.fresh_loop(&format!("b{}", self.names[axis])));
            inner_indices.push(inner.clone());
            let outer = Box::new(self.coordinates[axis].clone());
            self.coordinates[axis] = Index::Split { outer, inner: Box::new(inner), extent };
        }
        inner_indices
    }

    /// CSR, CSC and BSR: the nonzeros of one slice along `axis` are `offsets[x] <= p < offsets[x+1]`.
    fn compressed(&mut self, axis: usize, block: Option<(usize, usize)>) -> Vec<Index> {
        let offsets = fresh(&mut self.tensors, &format!("{}P", self.operand));
        self.arrays.push(ArrayName { name: offsets.clone(), role: Role::Offsets { axis } });
        let p = self.fresh_loop("p");
        let over = match block {
            Some(_) => self.fresh_loop(self.names[axis]),
            None => self.names[axis].to_owned(),
        };
        self.ranges.push(Range { index: p.clone(), offsets, over: over.clone() });
        let other = self.coordinate(1 - axis, &[&p]);
        let slice = Index::Name(over);
        self.coordinates = if axis == 0 { vec![slice, other] } else { vec![other, slice] };
        let mut values = vec![Index::Name(p)];
        values.extend(self.split(block));
        values
    }

    /// COO, and its grouped and blocked variants: each nonzero (block) has its coordinates. A group shares the
    /// coordinate along the grouped axis.
    fn listed(&mut self, grouped: Option<usize>, block: Option<(usize, usize)>) -> Vec<Index> {
        let p = self.fresh_loop("p");
        let slot = match grouped {
            Some(_) => vec![p.clone(), self.fresh_loop("q")],
            None => vec![p.clone()],
        };
        let slot: Vec<&String> = slot.iter().collect();
        for axis in 0..self.names.len() {
            let indices = if grouped == Some(axis) { &[&p][..] } else { &slot[..] };
            let place = self.coordinate(axis, indices);
            self.coordinates.push(place);
        }
        let mut values: Vec<Index> = slot.into_iter().map(|n| Index::Name(n.clone())).collect();
        values.extend(self.split(block));
        values
    }

    /// Groups of several sizes: the nonzeros of group p are `starts[p] <= q < starts[p+1]`.
    fn ragged(&mut self) -> Vec<Index> {
        let starts = fresh(&mut self.tensors, &format!("{}G", self.operand));
        self.arrays.push(ArrayName { name: starts.clone(), role: Role::Starts });
        let (p, q) = (self.fresh_loop("p"), self.fresh_loop("q"));
        self.ranges.push(Range { index: q.clone(), offsets: starts, over: p.clone() });
        let row = self.coordinate(0, &[&p]);
        let column = self.coordinate(1, &[&q]);
        self.coordinates = vec![row, column];
        vec![Index::Name(q)]
    }

    /// ELL: the row is a loop index, and q numbers its nonzeros.
    fn ell(&mut self) -> Vec<Index> {
        let q = self.fresh_loop("q");
        let row = self.names[0].to_owned();
        let column = self.coordinate(1, &[&row, &q]);
        self.coordinates = vec![Index::Name(row.clone()), column];
        vec![Index::Name(row), Index::Name(q)]
    }

    /// Sliced ELLPACK: each slot belongs to a row of its slice, and to a column of the window of its chunk.
    fn sliced(&mut self) -> Vec<Index> {
        let p = self.fresh_loop("p");
        let row = self.array(Role::Order { axis: 0 }, 0, &[&p]);
        let column = self.array(Role::Positions { axis: 1 }, 1, &[&p]);
        self.coordinates = vec![row, column];
        vec![Index::Name(p)]
    }

    /// N:M: a row consists of groups of `m` columns. Each slot stores its position in the group.
    fn n_of_m(&mut self, m: usize) -> Vec<Index> {
        let (group, q) = (self.fresh_loop("g"), self.fresh_loop("q"));
        let row = self.names[0].to_owned();
        let place = self.array(Role::Positions { axis: 1 }, 1, &[&row, &group, &q]);
        let slot = vec![Index::Name(row.clone()), Index::Name(group.clone()), Index::Name(q)];
        let column =
            Index::Split { outer: Box::new(Index::Name(group)), inner: Box::new(place), extent: m };
        self.coordinates = vec![Index::Name(row), column];
        slot
    }
}

fn substitute(access: &einsum::Access, map: &BTreeMap<&str, Index>) -> Access {
    let index = |index: &IndexExpr| match index {
        IndexExpr::Name(n) => {
            map.get(n.as_str()).cloned().unwrap_or_else(|| Index::Name(n.clone()))
        }
        IndexExpr::Access(a) => Index::Access(substitute(a, map)),
        IndexExpr::Sum(_) => unreachable!("sums are index arrays here"),
    };
    Access { tensor: access.tensor.clone(), indices: access.indices.iter().map(index).collect() }
}

/// Replaces the indices of this map in all accesses, and returns the indirect Einsum.
pub fn substitute_all(e: &Einsum, map: &BTreeMap<&str, Index>) -> IndirectEinsum {
    // `validate` has checked that every index of the bias is an index of the output.
    let axis = |index| e.out.indices.iter().position(|o| o == index);
    let bias = e.epilogue.bias.as_ref().map(|b| Bias {
        tensor: b.tensor.clone(),
        axes: b.indices.iter().filter_map(axis).collect(),
    });
    IndirectEinsum {
        out: substitute(&e.out, map),
        mode: e.mode,
        scalars: e.scalars.clone(),
        factors: e.factors.iter().map(|a| substitute(a, map)).collect(),
        bias,
        activation: e.epilogue.activation,
        gate: e.epilogue.gate.as_ref().map(|g| g.tensor.clone()),
        ranges: Vec::new(),
        equalities: Vec::new(),
        sparse: None,
        filled: Vec::new(),
    }
}
