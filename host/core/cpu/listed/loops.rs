//! Loops outside the list: a stride or a table per loop, for the output and for each factor.

use std::borrow::Cow;

use einsparse_kernels::families::{EINSUM_FACTORS, EinsumDim};

use super::super::bind::Bound;
use super::space::{Atom, Space};
use super::terms::gathered;
use crate::error::Result;

/// Strides of the output, its bias and its gate, in elements, by axis of the output.
pub(super) struct OutStrides {
    pub(super) out: Vec<usize>,
    pub(super) bias: Vec<usize>,
    pub(super) gate: Vec<usize>,
}

/// Builder of loop descriptions and of the tables that they refer to, numbered from 1.
pub(super) struct Loops<'a> {
    pub(super) tables: Vec<Cow<'a, [u32]>>,
    /// Number in the expression of each factor, in the order of iteration.
    pub(super) order: Vec<usize>,
    pub(super) bytes: usize,
}

impl<'a> Loops<'a> {
    pub(super) fn table(&mut self, table: Cow<'a, [u32]>) -> u64 {
        self.tables.push(table);
        self.tables.len() as u64
    }

    /// Description of a part of the output index.
    pub(super) fn part(&self, atom: &Atom<'_, '_>, strides: &OutStrides) -> EinsumDim {
        let of = |strides: &[usize]| distance(atom.times, strides[atom.axis], self.bytes);
        EinsumDim {
            extent: atom.extent as u64,
            out: of(&strides.out),
            bias: of(&strides.bias),
            gate: of(&strides.gate),
            ..EinsumDim::default()
        }
    }

    /// Description of the loop of `var`.
    ///
    /// # Errors
    /// [`crate::Error::Overflow`] if a gather has more offsets than a table can number.
    pub(super) fn of_var(
        &mut self,
        bound: &Bound<'a>,
        space: &Space<'_, 'a>,
        strides: &OutStrides,
        var: usize,
    ) -> Result<EinsumDim> {
        let extent = bound.extents[var];
        let bytes = self.bytes;
        let along = |atom: &&Atom<'_, '_>| atom.var() == Some(var);
        let of = |strides: &[usize]| -> u64 {
            let own = space.out.iter().filter(along);
            let each = own.map(|a| distance(a.times, strides[a.axis], bytes));
            each.fold(0, u64::wrapping_add)
        };
        let mut dim = EinsumDim {
            extent: extent as u64,
            out: of(&strides.out),
            bias: of(&strides.bias),
            gate: of(&strides.gate),
            ..EinsumDim::default()
        };
        for (slot, &factor) in self.order.clone().iter().enumerate() {
            let stride =
                |a: &Atom<'_, '_>| a.times.wrapping_mul(bound.factors[factor][a.axis].stride);
            let own = space.factors[factor].iter();
            let own: Vec<&Atom<'_, 'a>> = own.filter(|a| a.place.vars().contains(&var)).collect();
            if own.iter().all(|a| a.var().is_some()) {
                let stride = own.iter().map(|a| stride(a)).fold(0, usize::wrapping_add);
                dim.strides[slot] = stride.wrapping_mul(bytes) as u64;
                continue;
            }
            let (table, unit) = gathered(&[var], &bound.extents, &own, stride, extent)?;
            dim.strides[slot] = unit.wrapping_mul(bytes) as u64;
            dim.tables[slot] = self.table(Cow::Owned(table));
        }
        Ok(dim)
    }
}

/// Bytes between two steps along an axis. A tensor without elements may have strides past the address space: it is never
/// read or written, so the product may wrap.
fn distance(times: usize, stride: usize, bytes: usize) -> u64 {
    times.wrapping_mul(stride).wrapping_mul(bytes) as u64
}

/// Sorts loops by descending stride and merges adjacent loops that are equivalent to one loop.
pub(super) fn joined(mut dims: Vec<EinsumDim>, key: impl Fn(&EinsumDim) -> u64) -> Vec<EinsumDim> {
    dims.retain(|d| d.extent != 1 || d.tables.iter().any(|t| *t != 0));
    dims.sort_by_key(|d| std::cmp::Reverse(key(d)));
    let mut out: Vec<EinsumDim> = Vec::new();
    for dim in dims {
        match out.last_mut() {
            Some(last) if are_one(last, &dim) => {
                let extent = last.extent * dim.extent;
                *last = EinsumDim { extent, ..dim };
            }
            _ => out.push(dim),
        }
    }
    out
}

/// Whether each step of `outer` equals the full extent of `inner`, for all tensors.
fn are_one(outer: &EinsumDim, inner: &EinsumDim) -> bool {
    let whole = |outer: u64, step: u64| outer == step.wrapping_mul(inner.extent);
    let factors = (0..EINSUM_FACTORS).all(|f| whole(outer.strides[f], inner.strides[f]));
    let plain = |dim: &EinsumDim| dim.tables.iter().all(|t| *t == 0);
    let fits = outer.extent.checked_mul(inner.extent);
    factors
        && plain(outer)
        && plain(inner)
        && fits.is_some_and(|e| u32::try_from(e).is_ok())
        && whole(outer.out, inner.out)
        && whole(outer.bias, inner.bias)
        && whole(outer.gate, inner.gate)
}
