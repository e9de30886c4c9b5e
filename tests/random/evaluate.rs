//! Result of a random expression, term by term in f64.

use std::collections::BTreeMap;

use einsparse::einsum::{Access, Einsum, IndexExpr, Term};
use einsparse::formats::reference::{self, Factor};
use einsparse::formats::{AnySparse, Dense, Entries};

use super::draw::Draw;

/// Value of an index; `None` if its array does not exist.
fn value(draw: &Draw, index: &IndexExpr, at: &BTreeMap<&str, usize>) -> Option<usize> {
    match index {
        IndexExpr::Name(n) => Some(at[n.as_str()]),
        IndexExpr::Access(access) => {
            let (_, shape, data) = draw.arrays.iter().find(|(n, ..)| *n == access.tensor)?;
            let own = place(draw, access, at)?;
            let flat = own.iter().zip(shape).fold(0, |sum, (i, n)| sum * n + i);
            Some(data[flat] as usize)
        }
        IndexExpr::Sum(terms) => {
            let term = |t: &Term| t.factor * at[t.index.as_str()];
            Some(terms.iter().map(term).sum())
        }
    }
}

fn place(draw: &Draw, access: &Access, at: &BTreeMap<&str, usize>) -> Option<Vec<usize>> {
    access.indices.iter().map(|i| value(draw, i, at)).collect()
}

/// Computes the result, term by term in f64.
pub fn evaluate(draw: &Draw) -> Vec<f64> {
    let e = Einsum::parse(&draw.text).unwrap_or_else(|e| panic!("{draw}: {e}"));
    let entries: Option<Entries> = draw.sparse.as_ref().map(AnySparse::entries);
    let extents = draw.extents(&e);
    let names: Vec<&str> = extents.keys().map(String::as_str).collect();
    let mut sums = vec![0.0; draw.shape.iter().product()];
    let mut at: BTreeMap<&str, usize> = BTreeMap::new();
    for mut point in 0..extents.values().product::<usize>() {
        for &name in names.iter().rev() {
            at.insert(name, point % extents[name]);
            point /= extents[name];
        }
        let Some(out) = place(draw, &e.out, &at) else {
            continue;
        };
        let factor = |access: &Access| -> Option<f64> {
            let own = place(draw, access, &at)?;
            match (&entries, access.tensor.as_str()) {
                (Some(entries), "A") => entries.get(&own).copied(),
                (_, name) => draw.tensor(name).get(&own),
            }
        };
        if let Some(term) = e.factors.iter().map(factor).product::<Option<f64>>() {
            let flat = out.iter().zip(&draw.shape).fold(0, |sum, (i, n)| sum * n + i);
            sums[flat] += term;
        }
    }
    if draw.arrays.is_empty() {
        agrees(draw, &e, &extents, entries.as_ref(), &sums);
    }
    finish(draw, &e, sums)
}

/// Checks expressions without gathers against the reference of the formats.
fn agrees(
    draw: &Draw,
    e: &Einsum,
    extents: &BTreeMap<String, usize>,
    entries: Option<&Entries>,
    sums: &[f64],
) {
    let number = |index: &IndexExpr| match index {
        IndexExpr::Name(n) => extents.keys().position(|name| name == n).unwrap(),
        _ => unreachable!("no arrays"),
    };
    let numbers = |access: &Access| access.indices.iter().map(number).collect::<Vec<_>>();
    let own: Vec<Vec<usize>> = e.factors.iter().map(numbers).collect();
    let factors: Vec<(&[usize], Factor<'_>)> = e
        .factors
        .iter()
        .zip(&own)
        .map(|(access, own)| match (entries, access.tensor.as_str()) {
            (Some(entries), "A") => (own.as_slice(), Factor::Sparse(entries)),
            (_, name) => (own.as_slice(), Factor::Dense(draw.tensor(name))),
        })
        .collect();
    let extents: Vec<usize> = extents.values().copied().collect();
    let other = reference::einsum(&extents, &numbers(&e.out), &factors).unwrap();
    let same = |(a, b): (&f64, &f64)| a == b || a.is_nan() && b.is_nan();
    assert!(sums.iter().zip(other.values()).all(same), "{draw}");
}

/// Applies scalars and the epilogue.
fn finish(draw: &Draw, e: &Einsum, sums: Vec<f64>) -> Vec<f64> {
    let text = &draw.text;
    let mut alpha = if text.contains("-3 *") { -3.0 } else { 1.0 };
    alpha *= draw.scalars.iter().map(|(_, v)| v).product::<f64>();
    let dense = Dense::new(draw.shape.clone(), sums).unwrap();
    let one = |flat: usize| {
        let mut left = flat;
        let mut at = vec![0; draw.shape.len()];
        for axis in (0..at.len()).rev() {
            at[axis] = left % draw.shape[axis];
            left /= draw.shape[axis];
        }
        let mut x = alpha * dense.values()[flat];
        if let Some(bias) = &e.epilogue.bias {
            let axis = e.out.indices.iter().position(|i| *i == bias.indices[0]);
            x += draw.tensor("bias").values()[at[axis.unwrap()]];
        }
        if text.contains("relu(") && x < 0.0 {
            x = 0.0;
        }
        if text.contains("relu_grad(") {
            let open = draw.tensor("G").values()[flat] > 0.0;
            x = if open { x } else { 0.0 };
        }
        if text.contains("+=") { x + draw.start[flat] } else { x }
    };
    (0..dense.values().len()).map(one).collect()
}
