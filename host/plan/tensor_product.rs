//! The family `tensor_product`: sums over a small sparse tensor of order 3 (or index arrays written by hand) whose operands
//! share a batch. Its entries are looked up when planned, their values when run.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use einsparse_formats::{AnySparse, PAD, Role};

use super::Operand;
use super::bind::{elsewhere, find, scalar_value, wrong};
use super::choose::Candidate;
use super::family::{Answer, Compiled, Offer, Question};
use crate::cost::tensor_product::{Couplings, predict_couplings};
use crate::device::{Device, Stream};
use crate::einsum::{Mode, Scalar as Factor};
use crate::error::{Error, Refusal, Result};
use crate::indirect::{Access, Index, IndirectEinsum, TensorProductForm, TensorProductKind};
use crate::launch::tensor_product::{
    CouplingLaunch, CouplingShape, Lists, RawCouplings, Term, row_for, shared_bytes,
};
use crate::registry::Scalar;
use crate::tensor::Tensor;

const NAME: &str = "tensor_product";
/// Entries at the most that are looked up one by one.
const MOST: usize = 1 << 16;
/// Shared memory that a thread block of Hopper may have: what is asked for without a GPU.
const SHARED: u32 = 227 << 10;

/// What this family can do for an expression.
pub(super) fn offers<'q, T: Scalar, Out: Scalar>(
    question: &'q Question<'q, '_, T>,
) -> Result<Answer<'q, T, Out>> {
    let refuse = |reason: String| {
        Ok(Answer::Refused(Refusal {
            name: NAME.into(),
            reason,
        }))
    };
    let form = match question.indirect.tensor_product() {
        Ok(form) => form,
        Err(reason) => return refuse(reason),
    };
    let row = row_for(form.kind, T::DTYPE).filter(|_| T::DTYPE == Out::DTYPE);
    let Some(row) = row else {
        return refuse(format!("has no kernel for {}", T::DTYPE.name()));
    };
    let found = match Bound::new(question, form)? {
        Ok(found) => found,
        Err(reason) => return refuse(reason),
    };
    let limit = question
        .context
        .device()
        .map_or(SHARED, |device| device.facts().smem_per_block_optin);
    if let Err(refusal) = shared_bytes(row, &found.shape, &found.lists, limit) {
        return Ok(Answer::Refused(refusal));
    }
    let candidate = Candidate {
        name: row.name,
        cost: predict_couplings(&found.work(T::DTYPE.bytes()), question.machine),
        zeros: row.zeros,
        kept: None,
    };
    let found = Arc::new(found);
    let make = move |device: &Arc<Device>| {
        let launch = CouplingLaunch::new(device, row, &found.shape, &found.lists)?;
        let made = Made {
            found: Arc::clone(&found),
            launch,
        };
        Ok(Box::new(made) as Box<dyn Compiled<T, Out>>)
    };
    Ok(Answer::Offers(vec![Offer {
        candidate,
        make: Box::new(make),
    }]))
}

/// An expression bound to its operands' patterns.
#[derive(Debug)]
struct Bound {
    shape: CouplingShape,
    lists: Lists,
    /// Names of A, Y, D and F.
    names: [Option<String>; 4],
    /// The operand that holds the entries' values.
    values: String,
    scalars: Vec<Factor>,
    /// Index arrays written by hand, and those of the sparse operand: their contents are part of what was planned.
    arrays: Vec<(String, Vec<u32>)>,
    pattern: Vec<(Role, Vec<u32>)>,
}

/// Index arrays by the names they have in the expression: extents and contents.
type Arrays<'a> = BTreeMap<&'a str, (Vec<usize>, &'a [u32])>;

impl Bound {
    fn new<T: Scalar>(
        question: &Question<'_, '_, T>,
        form: TensorProductForm,
    ) -> Result<std::result::Result<Bound, String>> {
        let indirect = question.indirect;
        let (arrays, sparse) = arrays(question)?;
        let entries = Entries::new(indirect, &form, &arrays);
        let count = entries
            .extents
            .iter()
            .try_fold(1usize, |n, e| n.checked_mul(*e));
        let count = match count {
            Some(count) if count <= MOST => count,
            _ => {
                return Ok(Err(format!(
                    "takes up to {MOST} entries, not {:?}",
                    entries.extents
                )));
            }
        };
        let holder = &indirect.factors[form.values];
        let (values, value_shape, strides) = match sparse {
            Some((name, tensor)) => {
                let shape = tensor.value_shape();
                (name.to_owned(), shape.clone(), row_major(&shape))
            }
            None => match find(question.operands, &holder.tensor)? {
                Operand::Dense(d) => (holder.tensor.clone(), d.shape().to_vec(), d.strides()),
                Operand::HostDense(d) => (holder.tensor.clone(), d.shape().to_vec(), d.strides()),
                _ => return Ok(Err("wants its values in a tensor".into())),
            },
        };
        let shapes = shapes(question, &form)?;
        let mut terms = Vec::with_capacity(count);
        for point in 0..count {
            let place = entries.point(point);
            if let Some(mut term) = term(indirect, &form, (&entries, &place), &shapes)? {
                let holder = holder.indices.iter().zip(&strides);
                let mut at = 0;
                for (index, stride) in holder {
                    at += entries.at(index, &place)?.unwrap_or(0) as usize * stride;
                }
                term.place = at as u32;
                terms.push(term);
            }
        }
        let slots = value_shape
            .iter()
            .zip(&strides)
            .map(|(e, s)| e.saturating_sub(1) * s);
        let slots = if value_shape.contains(&0) {
            0
        } else {
            slots.sum::<usize>() + 1
        };
        let named = form
            .factors
            .map(|f| f.map(|f| indirect.factors[f].tensor.clone()));
        let pattern = sparse
            .map(|(_, tensor)| tensor.arrays())
            .unwrap_or_default();
        let pattern = pattern.iter().map(|a| (a.role, a.data.to_vec())).collect();
        let by_hand = question.operands.iter().filter_map(|(name, o)| match o {
            Operand::Index(_, data) => Some((name.to_string(), data.to_vec())),
            _ => None,
        });
        let arrays = by_hand.collect();
        Ok(
            Bound::sorted(terms, &form, &shapes, slots, indirect.mode).map(
                |(shape, lists, swapped)| {
                    let [a, y, d, f] = named;
                    Bound {
                        shape,
                        lists,
                        names: if swapped { [d, y, a, f] } else { [a, y, d, f] },
                        values,
                        scalars: indirect.scalars.clone(),
                        arrays,
                        pattern,
                    }
                },
            ),
        )
    }

    /// The lists, and whether A and D change places: of two operands with channels that one scales segments which makes fewer.
    fn sorted(
        mut terms: Vec<Term>,
        form: &TensorProductForm,
        shapes: &[Vec<usize>; 5],
        slots: usize,
        mode: Mode,
    ) -> std::result::Result<(CouplingShape, Lists, bool), String> {
        let rows = |of: usize| match (form.kind, of, &shapes[of][..]) {
            (_, _, []) => 0,
            (kind, of, shape) if is_matrix(kind, of) => shape[0],
            (_, _, shape) => shape[1],
        };
        let mut rows = [0, 1, 2, 3, 4].map(rows);
        let widths = match form.kind {
            TensorProductKind::Items => (1, 1),
            TensorProductKind::Sums => (shapes[0][2], 1),
            TensorProductKind::Traces => (shapes[0][2], shapes[3][2]),
            _ => (shapes[0][2], shapes[4][2]),
        };
        let there = (form.factors[2].is_some(), form.factors[3].is_some());
        let lists = |terms: &[Term]| Lists::new(form.kind, terms, rows[4], there);
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
        let CouplingShape {
            items,
            rows,
            widths: (a, out),
            ..
        } = self.shape;
        let [ra, ry, rd, rf, ro] = rows;
        let elements = match self.shape.kind {
            TensorProductKind::Connected => items * (ra * a + ry + ro * out) + rd * a * out,
            TensorProductKind::Traces => items * (ra * a + rf * out + ro) + rd * a * out,
            TensorProductKind::Weights => items * (ra * a + ry + rf * out) + ro * a * out,
            _ => items * ((ra + rd + rf) * a + ry + ro * out),
        };
        Couplings {
            kind: self.shape.kind,
            items,
            widths: self.shape.widths,
            counts: self.lists.counts,
            bytes: elements as f64 * element as f64,
        }
    }
}

/// Whether A (0), Y, D, F or the output (4) is matrices that no item has for itself.
fn is_matrix(kind: TensorProductKind, of: usize) -> bool {
    match kind {
        TensorProductKind::Connected | TensorProductKind::Traces => of == 2,
        TensorProductKind::Weights => of == 4,
        _ => false,
    }
}

fn row_major(shape: &[usize]) -> Vec<usize> {
    let behind = |axis: usize| shape[axis + 1..].iter().product();
    (0..shape.len()).map(behind).collect()
}

/// Shapes of A, Y, D, F and the output; empty for what is not there.
fn shapes<T: Scalar>(
    question: &Question<'_, '_, T>,
    form: &TensorProductForm,
) -> Result<[Vec<usize>; 5]> {
    let mut all: [Vec<usize>; 5] = Default::default();
    for (to, factor) in all.iter_mut().zip(form.factors) {
        if let Some(factor) = factor {
            let name = &question.indirect.factors[factor].tensor;
            *to = find(question.operands, name)?.shape().to_vec();
        }
    }
    all[4] = question.extents.out().to_vec();
    Ok(all)
}

/// Every index array of the expression, and the sparse operand.
#[allow(clippy::type_complexity)]
fn arrays<'q, T: Scalar>(
    question: &'q Question<'q, '_, T>,
) -> Result<(Arrays<'q>, Option<(&'q str, &'q AnySparse<T>)>)> {
    let mut found = Arrays::new();
    for (name, operand) in question.operands {
        if let Operand::Index(shape, data) = operand {
            found.insert(name, (shape.to_vec(), *data));
        }
    }
    let Some(sparse) = &question.indirect.sparse else {
        return Ok((found, None));
    };
    let tensor = match find(question.operands, &sparse.name)? {
        Operand::Sparse(s) => s.pattern(),
        Operand::HostSparse(s) => s,
        other => return Err(wrong(&sparse.name, "a sparse tensor", other)),
    };
    for array in tensor.arrays() {
        if let Some(named) = sparse.arrays.iter().find(|a| a.role == array.role) {
            found.insert(&named.name, (array.shape, array.data));
        }
    }
    Ok((found, Some((&sparse.name, tensor))))
}

/// Loops over the entries.
struct Entries<'a> {
    loops: &'a [String],
    extents: Vec<usize>,
    arrays: &'a Arrays<'a>,
}

impl<'a> Entries<'a> {
    fn new(
        indirect: &'a IndirectEinsum,
        form: &'a TensorProductForm,
        arrays: &'a Arrays<'a>,
    ) -> Entries<'a> {
        let mut entries = Entries {
            loops: &form.loops,
            extents: vec![0; form.loops.len()],
            arrays,
        };
        for access in indirect.factors.iter().chain([&indirect.out]) {
            access
                .indices
                .iter()
                .for_each(|index| entries.measure(index));
        }
        entries
    }

    /// A loop runs over the axis of the array that it indexes.
    fn measure(&mut self, index: &Index) {
        let Index::Access(access) = index else { return };
        let shape = self.arrays.get(access.tensor.as_str()).map(|a| &a.0);
        for (axis, index) in access.indices.iter().enumerate() {
            self.measure(index);
            let at = match index {
                Index::Name(name) => self.loops.iter().position(|l| l == name),
                _ => None,
            };
            if let (Some(at), Some(&extent)) = (at, shape.and_then(|s| s.get(axis))) {
                self.extents[at] = extent;
            }
        }
    }

    /// The loops' values at a point, the last loop fastest.
    fn point(&self, mut number: usize) -> Vec<usize> {
        let mut place = vec![0; self.extents.len()];
        for (at, extent) in place.iter_mut().zip(&self.extents).rev() {
            (*at, number) = (number % extent, number / extent);
        }
        place
    }

    /// What stands at an axis; `None` for a slot that drops the term.
    fn at(&self, index: &Index, place: &[usize]) -> Result<Option<u32>> {
        match index {
            Index::Name(name) => {
                let at = self.loops.iter().position(|l| l == name);
                Ok(at.map(|at| place[at] as u32))
            }
            Index::Split { .. } => Ok(None),
            Index::Access(access) => self.look_up(access, place),
        }
    }

    fn look_up(&self, access: &Access, place: &[usize]) -> Result<Option<u32>> {
        let Some((shape, data)) = self.arrays.get(access.tensor.as_str()) else {
            return Ok(None);
        };
        let mut at = 0;
        for (index, &extent) in access.indices.iter().zip(shape.iter()) {
            let Some(value) = self.at(index, place)? else {
                return Ok(None);
            };
            check(&access.tensor, (index, value), extent)?;
            at = at * extent + value as usize;
        }
        Ok(data.get(at).copied().filter(|&v| v != PAD))
    }
}

/// Is a value within the axis it stands at?
fn check(tensor: &str, (index, value): (&Index, u32), extent: usize) -> Result<()> {
    if (value as usize) < extent {
        return Ok(());
    }
    Err(Error::Operand {
        name: tensor.into(),
        reason: format!(
            "is indexed by `{index}`, which holds {value}, past its extent of {extent}"
        ),
    })
}

/// The term at a point; `None` where a slot drops it.
fn term(
    indirect: &IndirectEinsum,
    form: &TensorProductForm,
    (entries, place): (&Entries<'_>, &[usize]),
    shapes: &[Vec<usize>; 5],
) -> Result<Option<Term>> {
    let mut rows = [0; 5];
    let own = form.factors.map(|f| f.map(|f| &indirect.factors[f]));
    let [a, y, d, f] = own;
    for (of, access) in [a, y, d, f, Some(&indirect.out)].into_iter().enumerate() {
        let Some(access) = access else { continue };
        // Matrices have their place in front, the others behind the batch.
        let axis = usize::from(!is_matrix(form.kind, of));
        let index = &access.indices[axis];
        let Some(value) = entries.at(index, place)? else {
            return Ok(None);
        };
        check(&access.tensor, (index, value), shapes[of][axis])?;
        rows[of] = value;
    }
    let [a, y, d, f, out] = rows;
    Ok(Some(Term {
        out,
        d,
        a,
        f,
        y,
        place: 0,
    }))
}

/// The kernel with the names of its operands.
#[derive(Debug)]
struct Made {
    found: Arc<Bound>,
    launch: CouplingLaunch,
}

impl Made {
    /// Index arrays are part of what was planned.
    fn check_arrays<T: Scalar>(&self, operands: &[(&str, Operand<'_, T>)]) -> Result<()> {
        let differ = |name: &str| Error::Operand {
            name: name.into(),
            reason: "holds other indices than planned".into(),
        };
        for (name, operand) in operands {
            let planned = |array: &str| self.found.arrays.iter().find(|(n, _)| n == array);
            if let Operand::Index(_, data) = operand
                && planned(name).is_some_and(|(_, planned)| planned != data)
            {
                return Err(differ(name));
            }
        }
        Ok(())
    }
}

impl<T: Scalar, Out: Scalar> Compiled<T, Out> for Made {
    fn variant(&self) -> &'static str {
        self.launch.row().name
    }

    fn bytes(&self) -> usize {
        self.launch.bytes()
    }

    fn run(
        &self,
        operands: &[(&str, Operand<'_, T>)],
        out: &mut Tensor<Out>,
        stream: &Stream,
    ) -> Result<()> {
        self.check_arrays(operands)?;
        let mut raw = RawCouplings {
            values: 0,
            operands: [(0, 0); 5],
            alpha: 1.0,
        };
        raw.values = match find(operands, &self.found.values)? {
            Operand::Sparse(s) => {
                let arrays = s.device().ok_or_else(|| elsewhere(&self.found.values))?;
                self.check_pattern(s.pattern())?;
                arrays.values.address()
            }
            Operand::Dense(d) => d.address().ok_or_else(|| elsewhere(&self.found.values))?,
            other => return Err(wrong(&self.found.values, "an uploaded tensor", other)),
        };
        for (to, name) in raw.operands.iter_mut().zip(&self.found.names) {
            if let Some(name) = name {
                *to = super::bind::device_tensor(operands, name)?;
            }
        }
        raw.operands[4] = (
            out.address().ok_or_else(|| elsewhere("output"))?,
            out.leading(),
        );
        for factor in &self.found.scalars {
            raw.alpha *= scalar_value(operands, factor)?;
        }
        // SAFETY: shapes and places were checked by the plan, the pattern here; the tensors are borrowed for the call, and
        // device memory is freed only after the work queued on the context.
        unsafe { self.launch.run(&raw, stream.raw()) }
    }
}

impl Made {
    /// Is this the pattern whose entries were looked up?
    fn check_pattern<T: Scalar>(&self, tensor: &AnySparse<T>) -> Result<()> {
        let found = tensor.arrays();
        let planned = self
            .found
            .pattern
            .iter()
            .map(|(role, data)| (*role, &data[..]));
        if planned.eq(found.iter().map(|a| (a.role, a.data))) {
            return Ok(());
        }
        Err(Error::Operand {
            name: self.found.values.clone(),
            reason: "has not the pattern that was planned".into(),
        })
    }
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = self.launch.row();
        write!(
            f,
            "{}: zeros = {:?}, {}",
            row.name,
            row.zeros,
            self.launch.describe()
        )
    }
}
