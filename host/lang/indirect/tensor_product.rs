//! Detection of products of a small sparse tensor and dense operands with a common batch, in an indirect Einsum, by its
//! structure; names do not matter.

use std::collections::BTreeSet;

use einsparse_formats::Format;

use super::{Access, Index, IndirectEinsum};
use crate::einsum::Activation;

/// Kernels that compute the product. `s` is a coordinate of a nonzero of the sparse tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorProductKind {
    /// `out[b,s] = v * A[b,s] * Y[b,s]`
    Items,
    /// `out[b,s,u] = v * A[b,s,u] * Y[b,s] (* D[b,s,u])`
    Channels,
    /// `out[b,s] = v * A[b,s,u] * D[b,s,u] (* F[b,s,u])`
    Sums,
    /// `out[b,s,w] = v * A[b,s,u] * Y[b,s] * D[s,u,w]`, or D as `[s,w,u]`; with a batch D is `[b,s,u,w]`
    Connected,
    /// `out[b,s] = v * A[b,s,u] * F[b,s,w] * D[s,u,w]`, or D as `[s,w,u]`
    Traces,
    /// `out[s,u,w] = v * A[b,s,u] * Y[b,s] * F[b,s,w]`
    Weights,
}

/// Sum over the nonzeros of a small sparse tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorProductForm {
    /// Kind of the product.
    pub kind: TensorProductKind,
    /// Position of the factor with the values of the nonzeros.
    pub values: usize,
    /// Positions of the factors A, Y, D and F.
    pub factors: [Option<usize>; 4],
    /// Whether D is stored as the transpose of the matrix in the product: `[s,w,u]`, for `Traces` `[s,u,w]`.
    pub transposed: bool,
    /// Whether the matrices (D or the output) have a leading batch axis.
    pub own: bool,
    /// Loop indices over the nonzeros.
    pub loops: Vec<String>,
}

/// Dense indices of an access. The axis with a coordinate of the nonzero is omitted.
#[derive(Clone, Debug, PartialEq)]
enum Shape<'a> {
    /// `[b,s]`
    Rows(&'a str),
    /// `[b,s,u]`
    Channels(&'a str, &'a str),
    /// `[s,u,w]`, or with a batch `[b,s,u,w]`
    Matrices(Option<&'a str>, &'a str, &'a str),
}

impl IndirectEinsum {
    /// Returns the tensor product that this computes.
    ///
    /// # Errors
    /// The reason why it is not a tensor product.
    pub fn tensor_product(&self) -> Result<TensorProductForm, String> {
        let bare = self.bias.is_none() && self.gate.is_none();
        if !bare || self.activation != Activation::Identity {
            return Err("has no epilogue".into());
        }
        // Other formats store coordinates as bits, codes or block numbers, which cannot be looked up per nonzero.
        let by_entry =
            |format: &Format| matches!(format, Format::Coo | Format::Ell | Format::GroupCoo { .. });
        let kept = self.sparse.as_ref().is_none_or(|s| by_entry(&s.format));
        if !kept || !self.ranges.is_empty() || !self.equalities.is_empty() {
            return Err("takes coo, ell and groupcoo without repeated indices".into());
        }
        let loops = self.entry_loops();
        let of_entries = |access: &Access| {
            let own = |index: &Index| matches!(index, Index::Name(n) if loops.contains(n.as_str()));
            !access.indices.is_empty() && access.indices.iter().all(own)
        };
        let mut holders = (0..self.factors.len()).filter(|&f| of_entries(&self.factors[f]));
        let (Some(values), None) = (holders.next(), holders.next()) else {
            return Err("requires one factor with a value for each entry".into());
        };
        let out = shape(&self.out, &loops)?;
        let mut others = Vec::new();
        for (at, factor) in self.factors.iter().enumerate().filter(|(at, _)| *at != values) {
            others.push((at, shape(factor, &loops)?));
        }
        let (kind, factors, transposed, own) = kind(&out, &others).ok_or_else(|| {
            "takes out[b,o] = v * A[b,i] * Y[b,j], and forms of it with channels".to_string()
        })?;
        let loops = loops.into_iter().map(str::to_owned).collect();
        Ok(TensorProductForm { kind, values, factors, transposed, own, loops })
    }

    /// Returns the loop indices inside of nested accesses.
    fn entry_loops(&self) -> BTreeSet<&str> {
        let mut found = BTreeSet::new();
        for access in self.factors.iter().chain([&self.out]) {
            for index in &access.indices {
                if !matches!(index, Index::Name(_)) {
                    index.for_each_name(&mut |name| {
                        found.insert(name);
                    });
                }
            }
        }
        found
    }
}

fn shape<'a>(access: &'a Access, loops: &BTreeSet<&str>) -> Result<Shape<'a>, String> {
    let dense = |index: &'a Index| match index {
        Index::Name(n) if !loops.contains(n.as_str()) => Ok(Some(n.as_str())),
        Index::Split { .. } => Err(format!("takes no blocks, as in `{access}`")),
        _ => Ok(None),
    };
    let axes = access.indices.iter().map(dense).collect::<Result<Vec<_>, _>>()?;
    match axes[..] {
        [Some(b), None] => Ok(Shape::Rows(b)),
        [Some(b), None, Some(u)] if b != u => Ok(Shape::Channels(b, u)),
        [None, Some(u), Some(w)] if u != w => Ok(Shape::Matrices(None, u, w)),
        [Some(b), None, Some(u), Some(w)] if b != u && b != w && u != w => {
            Ok(Shape::Matrices(Some(b), u, w))
        }
        _ => Err(format!(
            "takes [batch,entry], [batch,entry,channel], [entry,channel,channel] and [batch,entry,channel,channel], \
             not `{access}`"
        )),
    }
}

type Found = (TensorProductKind, [Option<usize>; 4], bool, bool);

/// Returns the kind of these shapes. D is the second operand with channels.
fn kind(out: &Shape<'_>, others: &[(usize, Shape<'_>)]) -> Option<Found> {
    let (mut rows, mut wide, mut matrices) = (Vec::new(), Vec::new(), Vec::new());
    for (at, shape) in others {
        match shape {
            Shape::Rows(b) => rows.push((*at, *b)),
            Shape::Channels(b, u) => wide.push((*at, *b, *u)),
            Shape::Matrices(of, u, w) => matrices.push((*at, *of, *u, *w)),
        }
    }
    match (out, &rows[..], &wide[..], &matrices[..]) {
        (Shape::Rows(b), &[(a, p), (y, q)], [], []) if [p, q] == [*b; 2] => {
            Some((TensorProductKind::Items, [Some(a), Some(y), None, None], false, false))
        }
        (Shape::Channels(b, u), &[(y, p)], [(a, ..), rest @ ..], [])
            if p == *b && rest.len() < 2 && wide.iter().all(|w| (w.1, w.2) == (*b, *u)) =>
        {
            let d = rest.first().map(|w| w.0);
            Some((TensorProductKind::Channels, [Some(*a), Some(y), d, None], false, false))
        }
        (Shape::Rows(b), [], [(a, _, u), (d, ..), rest @ ..], [])
            if rest.len() < 2 && wide.iter().all(|w| (w.1, w.2) == (*b, *u)) =>
        {
            let f = rest.first().map(|w| w.0);
            Some((TensorProductKind::Sums, [Some(*a), None, Some(*d), f], false, false))
        }
        _ => with_matrices(out, &rows, &wide, &matrices),
    }
}

/// Returns the kind of shapes with matrices.
fn with_matrices<'a>(
    out: &Shape<'a>,
    rows: &[(usize, &'a str)],
    wide: &[(usize, &'a str, &'a str)],
    matrices: &[(usize, Option<&'a str>, &'a str, &'a str)],
) -> Option<Found> {
    match (out, rows, wide, matrices) {
        (Shape::Channels(b, w), &[(y, p)], &[(a, q, u)], &[(d, of, first, second)])
            if [p, q, of.unwrap_or(b)] == [*b; 3] && u != *w =>
        {
            let transposed = (first, second) == (*w, u);
            let fits = transposed || (first, second) == (u, *w);
            let found = (
                TensorProductKind::Connected,
                [Some(a), Some(y), Some(d), None],
                transposed,
                of.is_some(),
            );
            fits.then_some(found)
        }
        (Shape::Rows(b), [], &[(a, p, u), (f, q, w)], &[(d, of, first, second)])
            if [p, q, of.unwrap_or(b)] == [*b; 3] && u != w =>
        {
            let as_given = (first, second) == (u, w);
            let fits = as_given || (first, second) == (w, u);
            // If D is `[s,u,w]`, its rows are columns of the matrix that multiplies F.
            let factors = [Some(a), None, Some(d), Some(f)];
            let found = (TensorProductKind::Traces, factors, as_given, of.is_some());
            fits.then_some(found)
        }
        (Shape::Matrices(of, u, w), &[(y, b)], &[one, other], [])
            if [one.1, other.1, of.unwrap_or(b)] == [b; 3] =>
        {
            let (a, f) = if one.2 == *u { (one, other) } else { (other, one) };
            let factors = [Some(a.0), Some(y), None, Some(f.0)];
            let found = (TensorProductKind::Weights, factors, false, of.is_some());
            ((a.2, f.2) == (*u, *w)).then_some(found)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::einsum::Einsum;
    use crate::indirect::rewrite;

    #[test]
    fn places_are_looked_up_where_the_format_keeps_them() {
        let e = Einsum::parse("Z[n,k] = A[i,k] * X[n,i] * Y[n,i]").unwrap();
        let takes = |format: &str| {
            let written = rewrite(&e, "A", &format.parse().unwrap()).unwrap();
            written.tensor_product().is_ok()
        };
        for format in ["coo", "ell", "groupcoo"] {
            assert!(takes(format), "{format}");
        }
        for format in ["csr", "sell", "bitmap", "bytemap", "nm:2:4", "bsr:4x4"] {
            assert!(!takes(format), "{format}");
        }
    }
}
