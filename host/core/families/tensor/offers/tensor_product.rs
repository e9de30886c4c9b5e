//! Module `tensor_product`: sums over a small sparse tensor of order 3 (or index arrays of an indirect Einsum) whose
//! operands share a batch. Planning reads its nonzeros, and runs read their values.

mod entries;
mod product;

use std::sync::Arc;

use einsparse_formats::{AnyPattern, Role};
use einsparse_kernels::families::rows_of_piece;

use crate::einsum::Mode;
use crate::error::Result;
use crate::families::tensor::cost::tensor_product::{Couplings, predict_couplings};
use crate::families::tensor::tensor_product::{
    CouplingLaunch, CouplingShape, Lists, Term, row_for, shared_bytes,
};
use crate::indirect::{IndirectEinsum, TensorProductForm, TensorProductKind};
use crate::offer::{Offer, Offers, Request, Slot, refuse};
use crate::tensor::row_major;
use entries::{Entries, term};
use product::CouplingProduct;

const NAME: &str = "tensor_product";
/// Max number of nonzeros.
const MOST: usize = 1 << 16;

/// Returns the offers of this family for an expression.
pub(crate) fn offers<'q>(request: &'q Request<'q, '_>) -> Result<Offers<'q>> {
    let form = request.indirect.tensor_product().map_err(|reason| refuse(NAME, reason))?;
    let row =
        row_for((form.kind, form.own), request.types.operands).filter(|_| request.types.alike());
    let Some(row) = row else {
        let reason = format!("has no kernel for {}", request.types.operands.name());
        return Err(refuse(NAME, reason));
    };
    let piece = rows_of_piece(row.step, row.threads);
    let found = Bound::new(request, form, piece)?;
    let limit = request.machine.shared_bytes;
    if let Err(refusal) = shared_bytes(row, &found.shape, &found.lists, limit) {
        return Err(refuse(&refusal.name, refusal.reason));
    }
    let work = found.work(request.types.operands.bytes());
    let cost = predict_couplings(&work, request.machine);
    let found = Arc::new(found);
    Ok(vec![Ok(Offer::of(row, cost, move |device| {
        let launch = CouplingLaunch::new(device, row, &found.shape, &found.lists)?;
        let launch = launch.map_err(|refusal| refuse(&refusal.name, refusal.reason))?;
        Ok(CouplingProduct { found: Arc::clone(&found), launch })
    }))])
}

/// Expression bound to the patterns of its operands.
#[derive(Debug)]
struct Bound {
    shape: CouplingShape,
    lists: Lists,
    /// Slots of A, Y, D and F.
    slots: [Option<Slot>; 4],
    /// Slot of the operand that holds the values of the nonzeros.
    values: Slot,
    /// Strides of its axes, in elements.
    strides: Vec<usize>,
    /// Index arrays of the sparse operand. Runs compare their contents with the plan.
    pattern: Vec<(Role, Vec<u32>)>,
}

impl Bound {
    fn new(request: &Request<'_, '_>, form: TensorProductForm, piece: u32) -> Result<Bound> {
        let indirect = request.indirect;
        let (arrays, sparse) = entries::arrays(request)?;
        let entries = Entries::new(indirect, &form, &arrays);
        let count = entries.extents.iter().try_fold(1usize, |n, e| n.checked_mul(*e));
        let count = match count {
            Some(count) if count <= MOST => count,
            _ => {
                let reason = format!("takes up to {MOST} entries, not {:?}", entries.extents);
                return Err(refuse(NAME, reason));
            }
        };
        let holder = holder(request, &form, sparse)?;
        let holder = holder.ok_or_else(|| refuse(NAME, "requires its values in a tensor"))?;
        let shapes = shapes(request, &form)?;
        let terms = terms((indirect, &form), (&entries, count), &shapes, &holder)?;
        let slots = holder.slots();
        let mut named = [None; 4];
        for (slot, factor) in named.iter_mut().zip(form.factors) {
            let name = factor.map(|f| &indirect.factors[f].tensor);
            *slot = name.map(|name| request.slot(name)).transpose()?;
        }
        let pattern = sparse.map(|(_, tensor)| tensor.arrays()).unwrap_or_default();
        let pattern = pattern.iter().map(|a| (a.role, a.data.to_vec())).collect();
        let (shape, lists, swapped) =
            Bound::sorted(terms, (&form, piece), &shapes, slots, indirect.mode)
                .map_err(|reason| refuse(NAME, reason))?;
        let [a, y, d, f] = named;
        Ok(Bound {
            shape,
            lists,
            slots: if swapped { [d, y, a, f] } else { [a, y, d, f] },
            values: request.slot(&holder.name)?,
            strides: holder.strides,
            pattern,
        })
    }

    /// Returns shape, lists, and whether A and D were swapped. If both have channels, the operand that results in fewer
    /// segments scales the segments.
    fn sorted(
        mut terms: Vec<Term>,
        (form, piece): (&TensorProductForm, u32),
        shapes: &[Vec<usize>; 5],
        slots: usize,
        mode: Mode,
    ) -> std::result::Result<(CouplingShape, Lists, bool), String> {
        let rows = |of: usize| match (form.kind, of, &shapes[of][..]) {
            (_, _, []) => 0,
            (_, of, shape) if is_matrix(form, of) => shape[0],
            (_, _, shape) => shape[1],
        };
        let mut rows = [0, 1, 2, 3, 4].map(rows);
        let widths = match form.kind {
            TensorProductKind::Items => (1, 1),
            TensorProductKind::Sums => (shapes[0][2], 1),
            TensorProductKind::Traces | TensorProductKind::Weights => (shapes[0][2], shapes[3][2]),
            _ => (shapes[0][2], shapes[4][2]),
        };
        let there = (form.factors[2].is_some(), form.factors[3].is_some());
        let kind = (form.kind, form.own);
        let lists = |terms: &[Term]| Lists::new(kind, terms, (rows[4], piece), there);
        let mut found = lists(&terms);
        let mut swapped = false;
        if form.kind == TensorProductKind::Channels && there.0 {
            terms.iter_mut().for_each(|t| (t.a, t.d) = (t.d, t.a));
            let other = lists(&terms);
            let segments = |lists: &Option<Lists>| lists.as_ref().map(|l| l.counts[0]);
            if segments(&other) < segments(&found) {
                (found, swapped) = (other, true);
                rows.swap(0, 2);
            }
        }
        let found = found.ok_or("has more entries or rows than 16 bits tell apart")?;
        let shape = CouplingShape {
            kind: form.kind,
            transposed: form.transposed,
            own: form.own,
            accumulate: mode == Mode::Accumulate,
            items: match form.kind {
                TensorProductKind::Weights => shapes[0][0],
                _ => shapes[4][0],
            },
            widths,
            rows,
            slots,
        };
        Ok((shape, found, swapped))
    }

    fn work(&self, element: usize) -> Couplings {
        let CouplingShape { items, rows, widths: (a, out), .. } = self.shape;
        let [ra, ry, rd, rf, ro] = rows;
        let each = if self.shape.own { items } else { 1 };
        let elements = match self.shape.kind {
            TensorProductKind::Connected => items * (ra * a + ry + ro * out) + each * rd * a * out,
            TensorProductKind::Traces => items * (ra * a + rf * out + ro) + each * rd * a * out,
            TensorProductKind::Weights => items * (ra * a + ry + rf * out) + each * ro * a * out,
            _ => items * ((ra + rd + rf) * a + ry + ro * out),
        };
        Couplings {
            kind: self.shape.kind,
            own: self.shape.own,
            items,
            widths: self.shape.widths,
            counts: self.lists.totals,
            bytes: elements as f64 * element as f64,
        }
    }
}

/// Whether operand `of` (A = 0, Y, D, F, output = 4) consists of matrices that all items share.
fn is_matrix(form: &TensorProductForm, of: usize) -> bool {
    match form.kind {
        _ if form.own => false,
        TensorProductKind::Connected | TensorProductKind::Traces => of == 2,
        TensorProductKind::Weights => of == 4,
        _ => false,
    }
}

/// Tensor that holds the values of the nonzeros.
struct Holder {
    name: String,
    shape: Vec<usize>,
    strides: Vec<usize>,
}

impl Holder {
    /// Number of elements from its first to its last element.
    fn slots(&self) -> usize {
        if self.shape.contains(&0) {
            return 0;
        }
        let steps = self.shape.iter().zip(&self.strides);
        1 + steps.map(|(e, s)| (e - 1) * s).sum::<usize>()
    }
}

/// Returns the terms of `count` nonzeros, each with the offset of its value.
fn terms(
    (indirect, form): (&IndirectEinsum, &TensorProductForm),
    (entries, count): (&Entries<'_>, usize),
    shapes: &[Vec<usize>; 5],
    holder: &Holder,
) -> Result<Vec<Term>> {
    let mut terms = Vec::with_capacity(count);
    for point in 0..count {
        let place = entries.point(point);
        if let Some(mut term) = term(indirect, form, (entries, &place), shapes)? {
            let indices = &indirect.factors[form.values].indices;
            for (index, stride) in indices.iter().zip(&holder.strides) {
                term.place += entries.at(index, &place)?.unwrap_or(0) * *stride as u32;
            }
            terms.push(term);
        }
    }
    Ok(terms)
}

fn holder(
    request: &Request<'_, '_>,
    form: &TensorProductForm,
    sparse: Option<(&str, AnyPattern<'_>)>,
) -> Result<Option<Holder>> {
    let factor = &request.indirect.factors[form.values].tensor;
    let (name, shape, strides) = match sparse {
        Some((name, tensor)) => {
            let shape = tensor.value_shape();
            let strides = row_major(&shape);
            (name, shape, strides)
        }
        None => {
            let operand = request.operand(factor)?;
            let Some(strides) = operand.strides() else {
                return Ok(None);
            };
            (factor.as_str(), operand.shape().to_vec(), strides)
        }
    };
    Ok(Some(Holder { name: name.to_owned(), shape, strides }))
}

/// Returns the shapes of A, Y, D, F and the output; empty for absent operands.
fn shapes(request: &Request<'_, '_>, form: &TensorProductForm) -> Result<[Vec<usize>; 5]> {
    let mut all: [Vec<usize>; 5] = Default::default();
    for (to, factor) in all.iter_mut().zip(form.factors) {
        if let Some(factor) = factor {
            let name = &request.indirect.factors[factor].tensor;
            *to = request.operand(name)?.shape().to_vec();
        }
    }
    all[4] = request.extents.out().to_vec();
    Ok(all)
}
