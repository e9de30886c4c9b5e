//! Reference for expressions with several sparse factors. Only positions where all of them have a nonzero are terms.

use std::collections::{HashMap, HashSet};

use einsparse::einsum::{Access, Activation, Einsum, Extents, IndexExpr, Scalar};
use einsparse::formats::Coo;

use super::super::Result;
use super::super::problem::{Data, Typed};

/// Sparse factor. `by_bound` maps coordinates on axes whose indices earlier factors bind to nonzeros.
struct Entries {
    coo: Coo<f64>,
    /// Index of each axis, as its number in the expression.
    axes: Vec<usize>,
    bound: Vec<usize>,
    by_bound: HashMap<Vec<u32>, Vec<usize>>,
}

/// Dense factor, with its strides along the indices of the expression.
struct Elements<'a> {
    values: &'a [f64],
    strides: Vec<usize>,
}

impl Elements<'_> {
    fn place(&self, at: &[u32]) -> usize {
        let pairs = self.strides.iter().zip(at);
        pairs.map(|(stride, &index)| stride * index as usize).sum()
    }
}

/// Enumeration of all terms.
struct Walk<'a> {
    sparse: Vec<Entries>,
    dense: Vec<Elements<'a>>,
    /// Indices that no sparse factor binds, and their extents.
    free: Vec<(usize, usize)>,
    out: Vec<usize>,
    sums: Vec<f64>,
}

/// Whether [`evaluate`] applies: several sparse factors, plain indices and no epilogue.
pub fn is_joined(typed: &Typed<f64>) -> bool {
    let einsum = &typed.einsum;
    let is_sparse = |factor: &&Access| matches!(typed.get(&factor.tensor), Some(Data::Sparse(_)));
    let is_plain = |access: &Access| {
        let mut indices = access.indices.iter();
        indices.all(|index| matches!(index, IndexExpr::Name(_)))
    };
    let epilogue = &einsum.epilogue;
    einsum.factors.iter().filter(is_sparse).count() > 1
        && epilogue.bias.is_none()
        && epilogue.gate.is_none()
        && epilogue.activation == Activation::Identity
        && einsum.factors.iter().chain([&einsum.out]).all(is_plain)
}

/// Adds all terms to `start`, an output of the given shape.
pub fn evaluate(
    typed: &Typed<f64>,
    extents: &Extents,
    shape: &[usize],
    start: Vec<f64>,
) -> Result<Vec<f64>> {
    let names = typed.einsum.index_names();
    let number = |name: &str| names.iter().position(|own| *own == name).unwrap_or_default();
    let axes = |access: &Access| -> Vec<usize> {
        let indices = access.indices.iter();
        indices
            .map(|index| match index {
                IndexExpr::Name(name) => number(name),
                _ => 0,
            })
            .collect()
    };
    let strides = |access: &Access, shape: &[usize]| {
        let (mut strides, mut step) = (vec![0; names.len()], 1);
        for (axis, extent) in axes(access).into_iter().zip(shape).rev() {
            strides[axis] += step;
            step *= extent;
        }
        strides
    };
    let (mut sparse, mut dense, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
    let mut factor = scalars(&typed.einsum, typed);
    for access in &typed.einsum.factors {
        match typed.get(&access.tensor) {
            Some(Data::Sparse(a)) => sparse.push(entries(a.to_coo()?, axes(access), &mut seen)),
            Some(Data::Dense(d)) => {
                dense.push(Elements { values: d.values(), strides: strides(access, d.shape()) })
            }
            Some(Data::Number(x)) => factor *= x,
            _ => return Err(format!("operand `{}` is not a tensor", access.tensor).into()),
        }
    }
    let free = names.iter().enumerate().filter(|(at, _)| !seen.contains(at));
    let free = free.map(|(at, name)| (at, extents.get(name).unwrap_or(1)));
    let mut walk = Walk {
        sparse,
        dense,
        free: free.collect(),
        out: strides(&typed.einsum.out, shape),
        sums: start,
    };
    walk.sparse(0, &mut vec![0; names.len()], factor);
    Ok(walk.sums)
}

fn scalars(einsum: &Einsum, typed: &Typed<f64>) -> f64 {
    let number = |scalar: &Scalar| match scalar {
        Scalar::Literal(x) => *x,
        Scalar::Name(name) => match typed.get(name) {
            Some(Data::Number(x)) => *x,
            _ => f64::NAN,
        },
    };
    einsum.scalars.iter().map(number).product()
}

fn entries(coo: Coo<f64>, axes: Vec<usize>, seen: &mut HashSet<usize>) -> Entries {
    let bound = (0..axes.len()).filter(|&axis| seen.contains(&axes[axis]));
    let bound: Vec<usize> = bound.collect();
    let mut by_bound: HashMap<Vec<u32>, Vec<usize>> = HashMap::new();
    let coords = coo.pattern().coords();
    let key = |entry: usize| bound.iter().map(|&axis| coords[axis][entry]).collect();
    for entry in 0..coo.values().len() {
        by_bound.entry(key(entry)).or_default().push(entry);
    }
    seen.extend(&axes);
    Entries { coo, axes, bound, by_bound }
}

impl Walk<'_> {
    /// Iterates over the nonzeros of factor `depth` that match the indices bound by earlier factors.
    fn sparse(&mut self, depth: usize, at: &mut Vec<u32>, product: f64) {
        let Some(own) = self.sparse.get(depth) else {
            return self.dense(0, at, product);
        };
        let key: Vec<u32> = own.bound.iter().map(|&axis| at[own.axes[axis]]).collect();
        for entry in own.by_bound.get(&key).cloned().unwrap_or_default() {
            let own = &self.sparse[depth];
            let coords = own.coo.pattern().coords();
            let value = own.coo.values()[entry];
            let pairs = || own.axes.iter().zip(coords);
            pairs().for_each(|(&index, axis)| at[index] = axis[entry]);
            // An index that occurs twice selects the diagonal.
            if pairs().all(|(&index, axis)| at[index] == axis[entry]) {
                self.sparse(depth + 1, at, product * value);
            }
        }
    }

    fn dense(&mut self, depth: usize, at: &mut Vec<u32>, product: f64) {
        if let Some(&(index, extent)) = self.free.get(depth) {
            for value in 0..extent as u32 {
                at[index] = value;
                self.dense(depth + 1, at, product);
            }
            return;
        }
        let values = self.dense.iter().map(|d| d.values[d.place(at)]);
        let term = product * values.product::<f64>();
        let pairs = self.out.iter().zip(at.iter());
        let place: usize = pairs.map(|(stride, &index)| stride * index as usize).sum();
        self.sums[place] += term;
    }
}
