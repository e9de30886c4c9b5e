//! An expression over given operands, against plain loops in f64 that use no index arrays. Operands are integers, so
//! that every sum is exact.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::OnceLock;

use einsparse::einsum::{Access, Activation, Einsum, IndexExpr, Mode, Scalar as Factor};
use einsparse::formats::{AnySparse, Csr, Dense};
use einsparse::{Context, Operand, Options, Plan, Scalar, SparseTensor, Tensor};
use rayon::prelude::*;

use super::dense::{nan, strided};
use super::runs::finish;
use super::{GUARD, assert_matrix, stored};

/// An operand on the host.
#[derive(Clone)]
pub enum Given<T: Scalar> {
    Dense(Dense<T>),
    /// A dense operand with this row stride.
    Apart(Dense<T>, usize),
    Sparse(AnySparse<T>),
    Number(f64),
}

impl<T: Scalar> Given<T> {
    /// Integers from -3 to 3 by position.
    pub fn integers(shape: &[usize], seed: usize) -> Self {
        Given::Dense(integers(shape, seed))
    }

    /// Transposes a matrix.
    pub fn transposed(&self) -> Self {
        match self {
            Given::Dense(dense) => Given::Dense(super::dense::transposed(dense)),
            _ => panic!("no dense matrix"),
        }
    }
}

/// Integers from -3 to 3 by position. A matrix of them is not symmetric, so that a transposed one differs.
fn integers<T: Scalar>(shape: &[usize], seed: usize) -> Dense<T> {
    let at = |i: &[usize]| i.iter().zip([31, 13, 5, 3]).map(|(i, by)| i * by).sum::<usize>();
    Dense::from_fn(shape, |i: &[usize]| T::from_f64(integer(at(i) + seed))).unwrap()
}

/// An integer from -3 to 3.
pub fn integer(i: usize) -> f64 {
    (i * 7919 % 7) as f64 - 3.0
}

/// An operand in the memory of a context.
enum There<T: Scalar> {
    Dense(Tensor<T>),
    Sparse(SparseTensor<T>),
    Number(f64),
}

impl<T: Scalar> There<T> {
    fn operand(&self) -> Operand<'_, T> {
        match self {
            There::Dense(dense) => dense.into(),
            There::Sparse(sparse) => sparse.into(),
            There::Number(number) => (*number).into(),
        }
    }
}

/// Row stride for which rows begin at multiples of 16 bytes, with a gap between them.
pub fn apart<T>(columns: usize) -> usize {
    let unit = if size_of::<T>() == 1 { 16 } else { 8 };
    columns.next_multiple_of(unit) + unit
}

/// Strides of these indices in a tensor.
fn strides(access: &Access, shape: &[usize], names: &[&str]) -> Vec<usize> {
    let mut strides = vec![0; names.len()];
    let mut stride = 1;
    for (index, extent) in access.indices.iter().zip(shape).rev() {
        let mut add = |name: &str, factor: usize| {
            let at = names.iter().position(|own| *own == name).expect("an index");
            strides[at] += factor * stride;
        };
        match index {
            IndexExpr::Name(name) => add(name, 1),
            IndexExpr::Sum(terms) => terms.iter().for_each(|term| add(&term.index, term.factor)),
            IndexExpr::Access(array) => panic!("{array}: no arrays here"),
        }
        stride *= extent;
    }
    strides
}

/// One tensor in the loops: its values and the strides of all indices.
struct Walk<'a> {
    values: &'a [f64],
    strides: Vec<usize>,
}

/// Sum over the remaining indices.
fn sum(walks: &[Walk<'_>], extents: &[usize], level: usize, at: &[usize]) -> f64 {
    if level == extents.len() {
        return walks.iter().zip(at).map(|(walk, &at)| walk.values[at]).product();
    }
    let mut at = at.to_vec();
    let mut all = 0.0;
    let is_last = level + 1 == extents.len();
    for _ in 0..extents[level] {
        all += match is_last {
            true => walks.iter().zip(&at).map(|(walk, &at)| walk.values[at]).product(),
            false => sum(walks, extents, level + 1, &at),
        };
        at.iter_mut().zip(walks).for_each(|(at, walk)| *at += walk.strides[level]);
    }
    all
}

/// Product of the scalar factors.
fn alpha(e: &Einsum, numbers: &BTreeMap<String, f64>) -> f64 {
    let number = |scalar: &Factor| match scalar {
        Factor::Literal(x) => *x,
        Factor::Name(name) => numbers[name],
    };
    e.scalars.iter().map(number).product()
}

/// Operands in the memory of a context, their elements, and the numbers.
type Uploaded<'a, T> =
    (Vec<(&'a str, There<T>)>, BTreeMap<String, Dense<f64>>, BTreeMap<String, f64>);

fn upload_all<'a, T: Scalar>(context: &Context, given: &[(&'a str, Given<T>)]) -> Uploaded<'a, T> {
    let (mut values, mut numbers) = (BTreeMap::new(), BTreeMap::new());
    let gap = match T::from_f64(f64::NAN) {
        gap if gap.to_f64().is_nan() => gap,
        _ => T::ONE,
    };
    let mut there = Vec::new();
    for (name, operand) in given {
        let dense = match operand {
            Given::Dense(dense) => {
                let own = match *dense.shape() {
                    [.., _, last] => strided(context, dense, apart::<T>(last), gap),
                    _ => context.upload_dense(dense).unwrap(),
                };
                there.push((*name, There::Dense(own)));
                dense.map(T::to_f64)
            }
            Given::Apart(dense, leading) => {
                there.push((*name, There::Dense(strided(context, dense, *leading, gap))));
                dense.map(T::to_f64)
            }
            Given::Sparse(sparse) => {
                there.push((*name, There::Sparse(context.upload(sparse).unwrap())));
                sparse.to_dense().unwrap().map(T::to_f64)
            }
            Given::Number(number) => {
                there.push((*name, There::Number(*number)));
                numbers.insert((*name).to_owned(), *number);
                continue;
            }
        };
        values.insert((*name).to_owned(), dense);
    }
    (there, values, numbers)
}

/// Computes an expression without index arrays by a loop for each index. `start`: what `+=` adds to.
pub fn evaluate(
    e: &Einsum,
    given: &BTreeMap<String, Dense<f64>>,
    numbers: &BTreeMap<String, f64>,
    start: Option<&Dense<f64>>,
) -> Vec<f64> {
    let shapes = given.iter().map(|(name, dense)| (name.clone(), dense.shape().to_vec()));
    let extents = e.check(&shapes.collect()).unwrap();
    let out_names: Vec<&str> = e
        .out
        .indices
        .iter()
        .map(|index| match index {
            IndexExpr::Name(name) => name.as_str(),
            other => panic!("{other:?}: plain indices only"),
        })
        .collect();
    let inner: Vec<(&str, usize)> =
        extents.iter().filter(|(name, _)| !out_names.contains(name)).collect();
    let names: Vec<&str> = inner.iter().map(|(name, _)| *name).chain(out_names.clone()).collect();
    let walk = |access: &Access| {
        let dense = &given[&access.tensor];
        Walk { values: dense.values(), strides: strides(access, dense.shape(), &names) }
    };
    let factors: Vec<Walk<'_>> = e.factors.iter().map(walk).collect();
    let bias = e.epilogue.bias.as_ref().map(walk);
    let gate = e.epilogue.gate.as_ref().map(walk);
    let alpha = alpha(e, numbers);
    let loops: Vec<usize> = inner.iter().map(|(_, extent)| *extent).collect();
    let shape = extents.out().to_vec();
    // Nonzeros of the first factor, by the offset of its row.
    let positions = factors[0].values.len().max(1);
    let nonzeros: Vec<OnceLock<Vec<(usize, f64)>>> =
        (0..positions).map(|_| OnceLock::new()).collect();
    let element = |flat: usize| {
        let mut place = vec![0; shape.len()];
        let mut left = flat;
        for (place, extent) in place.iter_mut().zip(&shape).rev() {
            *place = left % extent;
            left /= extent;
        }
        let base = |walk: &Walk<'_>| -> usize {
            walk.strides[loops.len()..].iter().zip(&place).map(|(stride, i)| stride * i).sum()
        };
        let at: Vec<usize> = factors.iter().map(base).collect();
        let sum = match (&factors[..], &loops[..]) {
            // Zeros of a matrix are skipped.
            ([a, b], &[extent]) if extent > 0 => {
                let own = nonzeros[at[0]].get_or_init(|| {
                    let value = |i: usize| (i, a.values[at[0] + i * a.strides[0]]);
                    (0..extent).map(value).filter(|(_, x)| *x != 0.0).collect()
                });
                own.iter().map(|(i, x)| x * b.values[at[1] + i * b.strides[0]]).sum()
            }
            _ => sum(&factors, &loops, 0, &at),
        };
        let mut value = alpha * sum;
        value += bias.as_ref().map_or(0.0, |walk| walk.values[base(walk)]);
        value = match e.epilogue.activation {
            Activation::Identity => value,
            Activation::Relu => value.max(0.0),
            other => panic!("{other:?}"),
        };
        if gate.as_ref().is_some_and(|walk| walk.values[base(walk)] <= 0.0) {
            value = 0.0;
        }
        value + start.map_or(0.0, |start| start.values()[flat])
    };
    (0..shape.iter().product()).into_par_iter().map(element).collect()
}

/// Plans an expression, runs it twice, and checks every element of C and the gaps between its rows. Dense operands have NaN
/// between their rows. C starts as NaN, or as integers for `+=`; `leading`: its row stride.
pub fn agrees<T: Scalar, Out: Scalar>(
    context: &Context,
    text: &str,
    given: &[(&str, Given<T>)],
    options: &Options,
    (leading, what): (impl Fn(usize) -> usize, &dyn Debug),
) -> Plan<T, Out> {
    let e = Einsum::parse(text).unwrap();
    let (there, values, numbers) = upload_all(context, given);
    let shapes = values.iter().map(|(name, dense)| (name.clone(), dense.shape().to_vec()));
    let shape = e.check(&shapes.collect()).unwrap().out().to_vec();
    let start = match e.mode {
        Mode::Accumulate => integers(&shape, 4),
        Mode::Assign => nan::<Out>(&shape),
    };
    let columns = shape.last().copied().unwrap_or(1);
    let leading = leading(columns);
    let mut c = strided(context, &start, leading, Out::from_f64(GUARD));
    let operands: Vec<(&str, Operand<'_, T>)> =
        there.iter().map(|(name, there)| (*name, there.operand())).collect();
    let mut planned = operands.clone();
    // A plan reads the row stride of C, if C has the type of the operands.
    if let Some(c) = (&c as &dyn Any).downcast_ref::<Tensor<T>>() {
        planned.push((&e.out.tensor, c.into()));
    }
    let plan = context.plan::<T>(text).operands(&planned).output::<Out>().options(options);
    let plan = plan.build().unwrap_or_else(|error| panic!("{what:?}, {text}: {error}"));
    drop(planned);
    // A run must not depend on what an earlier one left.
    for _ in 0..2 {
        c.write(&start).unwrap();
        finish(context, |stream| plan.run(&operands, &mut c, stream));
    }
    let start = (e.mode == Mode::Accumulate).then(|| start.map(Out::to_f64));
    let wanted = evaluate(&e, &values, &numbers, start.as_ref());
    let rows = shape[..shape.len().saturating_sub(1)].iter().product();
    let found = c.to_storage().unwrap();
    let what = (what, text, T::NAME, Out::NAME, plan.variant());
    assert_matrix(&what, &found, (rows, columns, leading), |r, j| {
        Out::from_f64(wanted[r * columns + j])
    });
    plan
}

/// Plans and runs an expression into the entries of S, and checks every entry. `old`: pattern and previous values of S;
/// `mask`: values of P at the same entries; `format`: how both are stored.
pub fn samples_agree<T: Scalar, Out: Scalar>(
    context: &Context,
    text: &str,
    given: &[(&str, Given<T>)],
    (old, mask, format): (&Csr<Out>, &Csr<T>, &str),
    (options, what): (&Options, &dyn Debug),
) -> Plan<T, Out> {
    let e = Einsum::parse(text).unwrap();
    let mut s = context.upload(stored(old.clone(), format)).unwrap();
    let masked = e.factors.iter().any(|access| access.tensor == "P");
    let p = masked.then(|| context.upload(stored(mask.clone(), format)).unwrap());
    let (there, values, numbers) = upload_all(context, given);
    let mut operands: Vec<(&str, Operand<'_, T>)> =
        there.iter().map(|(name, there)| (*name, there.operand())).collect();
    operands.extend(p.as_ref().map(|p| ("P", p.into())));
    let plan = context.plan::<T>(text).operands(&operands).sparse_output(&s).options(options);
    let plan = plan.build().unwrap_or_else(|error| panic!("{what:?}, {text}: {error}"));
    finish(context, |stream| plan.run(&operands, &mut s, stream));
    let found = s.to_host().unwrap().to_dense().unwrap();

    let [row, column] = &e.out.indices[..] else { panic!("{text}: a matrix") };
    let name = |index: &IndexExpr| match index {
        IndexExpr::Name(name) => name.clone(),
        other => panic!("{other:?}: plain indices only"),
    };
    let (row, column) = (name(row), name(column));
    let inner = e.index_names().into_iter().find(|name| *name != row && *name != column).unwrap();
    let names = [inner, row.as_str(), column.as_str()];
    let factors: Vec<Walk<'_>> = e
        .factors
        .iter()
        .filter(|access| access.tensor != "P")
        .map(|access| {
            let dense = &values[&access.tensor];
            Walk { values: dense.values(), strides: strides(access, dense.shape(), &names) }
        })
        .collect();
    let shapes = values.iter().map(|(name, dense)| (name.clone(), dense.shape().to_vec()));
    let mut shapes: BTreeMap<String, Vec<usize>> = shapes.collect();
    shapes.extend(masked.then(|| ("P".to_owned(), old.shape().to_vec())));
    let extent = e.check(&shapes).unwrap().get(inner).unwrap();
    let alpha = alpha(&e, &numbers);
    let pattern = old.pattern();
    let places = (0..pattern.rows()).flat_map(|r| pattern.row(r).map(move |at| (r, at)));
    for (r, at) in places {
        let c = pattern.columns()[at] as usize;
        let from: Vec<usize> =
            factors.iter().map(|walk| walk.strides[1] * r + walk.strides[2] * c).collect();
        let mut wanted = alpha * sum(&factors, &[extent], 0, &from);
        wanted *= if masked { mask.values()[at].to_f64() } else { 1.0 };
        wanted += if e.mode == Mode::Accumulate { old.values()[at].to_f64() } else { 0.0 };
        let place = (what, text, format, T::NAME, Out::NAME, plan.variant(), r, c);
        assert_eq!(found.get(&[r, c]), Some(Out::from_f64(wanted)), "{place:?}");
    }
    plan
}
