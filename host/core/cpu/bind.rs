//! Binding of names: extents of the loops, views of the operands, index arrays validated once.

use std::collections::{BTreeMap, BTreeSet};

use einsparse_formats::{Accumulator, PAD, allocate};

use super::expr::Expr;
use super::operands::{AnyOperands, View, row_major};
use crate::einsum::Scalar;
use crate::error::{Error, Result};
use crate::indirect::{Access, Index, IndirectEinsum};
use crate::parallel;

/// Loop variable of a compressed axis, determined by the position of a nonzero.
pub(super) struct Owner<'e> {
    over: &'e str,
    index: &'e str,
    rows: usize,
    of_entry: Vec<u32>,
}

/// Inverts `offsets[x] <= p < offsets[x+1]`: computes x for every p.
///
/// A compressed axis then becomes a gather or a scatter, and all loops are rectangular.
pub(super) fn owners<'e>(
    e: &'e IndirectEinsum,
    operands: &AnyOperands<'_>,
) -> Result<Vec<Owner<'e>>> {
    let of_range = |range: &'e crate::indirect::Range| {
        let view = operands.index_array(&range.offsets)?;
        let data = view.data.as_ref();
        let ascending = data.first() == Some(&0) && data.windows(2).all(|w| w[0] <= w[1]);
        if view.shape.len() != 1 || !ascending {
            let reason = "must be one-dimensional, start at 0 and ascend";
            return Err(Error::operand(&range.offsets, reason));
        }
        let mut of_entry: Vec<u32> =
            allocate::zeroed("rows of entries", data[data.len() - 1] as usize)?;
        for (row, w) in data.windows(2).enumerate() {
            of_entry[w[0] as usize..w[1] as usize].fill(row as u32);
        }
        Ok(Owner { over: &range.over, index: &range.index, rows: data.len() - 1, of_entry })
    };
    e.ranges.iter().map(of_range).collect()
}

/// One axis of an operand.
#[derive(Clone, Debug)]
pub(super) struct Axis<'a> {
    pub expr: Expr<'a>,
    pub extent: usize,
    pub stride: usize,
}

/// Indirect Einsum with bound operands.
pub(super) struct Bound<'a> {
    pub extents: Vec<usize>,
    pub out: Vec<Axis<'a>>,
    /// Axes of each factor.
    pub factors: Vec<Vec<Axis<'a>>>,
    /// Index expressions that must be valid for a term to count, in addition to those of the factors and the output.
    pub guards: Vec<Expr<'a>>,
    pub equalities: Vec<(Expr<'a>, Expr<'a>)>,
    pub scalar: f64,
    /// Factors that contain values which must not be multiplied.
    pub partial: Vec<(usize, Absent)>,
}

/// Values of a factor that must not be multiplied.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Absent {
    /// Zeros, which pad blocks and groups of N:M.
    Zero,
    /// -0.0, which marks elements of an intermediate result that no term has reached.
    NegativeZero,
}

impl Absent {
    #[inline]
    pub fn is<A: Accumulator>(self, value: A) -> bool {
        value == A::ZERO && (self == Absent::Zero || value.to_f64().is_sign_negative())
    }
}

/// Product of the scalar factors.
pub(super) fn scalar(scalars: &[Scalar], operands: &AnyOperands<'_>) -> Result<f64> {
    let mut product = 1.0;
    for s in scalars {
        product *= match s {
            Scalar::Literal(v) => *v,
            Scalar::Name(n) => match operands.scalars.get(n) {
                Some(v) => *v,
                None => return Err(Error::missing_for(n, "it is a scalar factor")),
            },
        };
    }
    Ok(product)
}

pub(super) fn bind<'a>(
    e: &'a IndirectEinsum,
    operands: &'a AnyOperands<'a>,
    owners: &'a [Owner<'a>],
    out_shape: &[usize],
    out_strides: &[usize],
) -> Result<Bound<'a>> {
    let mut binder = Binder {
        operands,
        owners,
        names: BTreeMap::new(),
        extents: Vec::new(),
        checked: BTreeSet::new(),
    };
    for owner in owners {
        binder.extent(owner.index, owner.of_entry.len(), || "its offsets".into())?;
    }
    let mut factors = Vec::new();
    for access in &e.factors {
        let View { shape, strides, .. } = operands.tensor(&access.tensor)?;
        factors.push(binder.axes(access, shape, strides)?);
    }
    let out = binder.axes(&e.out, out_shape, out_strides)?;
    let (guards, equalities) = binder.guards(e)?;
    let scalar = scalar(&e.scalars, operands)?;
    Ok(Bound {
        extents: binder.extents,
        out,
        factors,
        guards,
        equalities,
        scalar,
        partial: partial(e, operands),
    })
}

fn partial(e: &IndirectEinsum, operands: &AnyOperands<'_>) -> Vec<(usize, Absent)> {
    let filled = e.filled.iter().map(|&f| (f, Absent::Zero));
    let own = e.factors.iter().enumerate();
    let own = own.filter(|(_, access)| operands.partial.contains(&access.tensor));
    filled.chain(own.map(|(f, _)| (f, Absent::NegativeZero))).collect()
}

struct Binder<'a> {
    operands: &'a AnyOperands<'a>,
    owners: &'a [Owner<'a>],
    names: BTreeMap<&'a str, (usize, String)>,
    extents: Vec<usize>,
    /// Index arrays (by address and length) and bounds that are already validated.
    checked: BTreeSet<(usize, usize, usize)>,
}

impl<'a> Binder<'a> {
    fn axes(
        &mut self,
        access: &'a Access,
        shape: &[usize],
        strides: &[usize],
    ) -> Result<Vec<Axis<'a>>> {
        if access.indices.len() != shape.len() {
            return Err(Error::Shape {
                index: access.tensor.clone(),
                left: format!("`{access}` has {} indices", access.indices.len()),
                right: format!("the operand has {} axes, {shape:?}", shape.len()),
            });
        }
        let mut axes = Vec::new();
        for (axis, index) in access.indices.iter().enumerate() {
            let extent = shape[axis];
            let expr = self.expr(index, extent, &|| format!("axis {axis} of `{access}`"))?;
            axes.push(Axis { expr, extent, stride: strides[axis] });
        }
        Ok(axes)
    }

    /// Number of the loop variable `name` of the given extent.
    fn extent(
        &mut self,
        name: &'a str,
        extent: usize,
        place: impl Fn() -> String,
    ) -> Result<usize> {
        let Some((var, first)) = self.names.get(name) else {
            let var = self.extents.len();
            self.names.insert(name, (var, place()));
            self.extents.push(extent);
            return Ok(var);
        };
        if self.extents[*var] != extent {
            return Err(Error::Shape {
                index: name.to_owned(),
                left: format!("{} in {first}", self.extents[*var]),
                right: format!("{extent} in {}", place()),
            });
        }
        Ok(*var)
    }

    /// Resolves `index` along an axis of `bound` elements.
    fn expr(
        &mut self,
        index: &'a Index,
        bound: usize,
        place: &dyn Fn() -> String,
    ) -> Result<Expr<'a>> {
        match index {
            Index::Name(n) => {
                let Some(owner) = self.owners.iter().find(|o| o.over == n) else {
                    return Ok(Expr::Var(self.extent(n, bound, place)?));
                };
                if owner.rows != bound {
                    return Err(Error::Shape {
                        index: n.clone(),
                        left: format!("{} in its offsets", owner.rows),
                        right: format!("{bound} in {}", place()),
                    });
                }
                let var = self.extent(owner.index, owner.of_entry.len(), place)?;
                Ok(Expr::Slot { array: &owner.of_entry, var })
            }
            Index::Access(access) => self.load(access, bound, place),
            Index::Split { outer, inner, extent } => {
                let outer = Box::new(self.expr(outer, bound.div_ceil(*extent), place)?);
                let block = *extent;
                Ok(match self.expr(inner, block, place)? {
                    Expr::Var(inner) => Expr::Split { outer, inner, block, bound },
                    inner => Expr::Position { outer, inner: Box::new(inner), block, bound },
                })
            }
        }
    }

    fn load(
        &mut self,
        access: &'a Access,
        bound: usize,
        place: &dyn Fn() -> String,
    ) -> Result<Expr<'a>> {
        let view = self.operands.index_array(&access.tensor)?;
        let array = view.data.as_ref();
        if self.checked.insert((array.as_ptr() as usize, array.len(), bound)) {
            check_slots(&access.tensor, array, (bound, place))?;
        }
        let axes = self.axes(access, &view.shape, &row_major(&view.shape))?;
        if let [Axis { expr: Expr::Var(var), .. }] = axes.as_slice() {
            return Ok(Expr::Slot { array, var: *var });
        }
        let args = axes.into_iter().map(|a| (a.expr, a.stride)).collect();
        Ok(Expr::Load { array, args })
    }

    #[expect(clippy::type_complexity, reason = "two lists, named where they are taken apart")]
    fn guards(
        &mut self,
        e: &'a IndirectEinsum,
    ) -> Result<(Vec<Expr<'a>>, Vec<(Expr<'a>, Expr<'a>)>)> {
        let (mut guards, mut equalities) = (Vec::new(), Vec::new());
        let Some(sparse) = &e.sparse else {
            return Ok((guards, equalities));
        };
        let Some((_, tensor)) = self.operands.sparse.as_ref().filter(|(n, _)| *n == sparse.name)
        else {
            return Err(Error::missing_for(&sparse.name, "it is the sparse factor"));
        };
        let mut bound_of = BTreeMap::new();
        for (axis, place) in sparse.coordinates.iter().enumerate() {
            let bound = tensor.shape()[axis];
            let expr = self.expr(place, bound, &|| format!("axis {axis} of `{}`", sparse.name))?;
            bound_of.insert(axis, bound);
            let read = |a: &Access| a.indices.contains(place);
            if !matches!(expr, Expr::Var(_)) && !e.factors.iter().any(read) && !read(&e.out) {
                guards.push(expr);
            }
        }
        for (left, right) in &e.equalities {
            let mut side = |index: &'a Index| {
                let axis = sparse.coordinates.iter().position(|c| c == index);
                let bound = axis.map_or(usize::MAX, |a| bound_of[&a]);
                self.expr(index, bound, &|| format!("the diagonal of `{}`", sparse.name))
            };
            equalities.push((side(left)?, side(right)?));
        }
        Ok((guards, equalities))
    }
}

/// Checks that every slot is below `bound` or PAD. After this check, no index is outside its operand.
pub(crate) fn check_slots(
    name: &str,
    array: &[u32],
    (bound, of): (usize, &dyn Fn() -> String),
) -> Result<()> {
    const CHUNK: usize = 1 << 14;
    let bad = parallel::collect(array.len().div_ceil(CHUNK), 1, &|chunk| {
        let slots = array[chunk * CHUNK..].iter().take(CHUNK);
        let mut slots = slots.map(|&v| v != PAD && v as usize >= bound);
        slots.position(|bad| bad).map(|at| chunk * CHUNK + at)
    });
    let bad = bad.into_iter().flatten().next();
    match bad {
        None => Ok(()),
        Some(position) => Err(Error::InvalidIndex {
            array: name.to_owned(),
            position,
            value: u64::from(array[position]),
            of: of(),
            bound: bound as u64,
        }),
    }
}
