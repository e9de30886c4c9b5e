//! Reference implementations for tests: naive, in f64.

use crate::error::*;
use crate::{AnySparse, Dense, Element, Entries};

/// A factor of an Einsum.
#[derive(Clone, Copy, Debug)]
pub enum Factor<'a> {
    /// Dense factor: all elements are multiplied.
    Dense(&'a Dense<f64>),
    /// Sparse factor: only entries are multiplied, and terms without an entry are skipped.
    Sparse(&'a Entries),
}

/// Computes `out[output] = sum of products`. Indices are numbers; `extents[i]` is the extent of index `i`.
///
/// # Errors
/// Returns an error if the output cannot be allocated.
pub fn einsum(
    extents: &[usize],
    output: &[usize],
    factors: &[(&[usize], Factor<'_>)],
) -> Result<Dense<f64>> {
    let pick = |names: &[usize], at: &[usize]| names.iter().map(|&i| at[i]).collect::<Vec<_>>();
    let mut out = Dense::zeros(pick(output, extents))?;
    let strides = out.strides();
    let mut at = vec![0; extents.len()];
    for mut point in 0..extents.iter().product::<usize>() {
        for (i, &n) in extents.iter().enumerate().rev() {
            (at[i], point) = (point % n, point / n);
        }
        let value = |&(names, factor): &(&[usize], Factor<'_>)| match factor {
            Factor::Dense(dense) => dense.get(&pick(names, &at)),
            Factor::Sparse(entries) => entries.get(&pick(names, &at)).copied(),
        };
        if let Some(term) = factors.iter().map(value).product::<Option<f64>>() {
            let place: usize = pick(output, &at).iter().zip(&strides).map(|(i, s)| i * s).sum();
            out.values_mut()[place] += term;
        }
    }
    Ok(out)
}

/// Computes `C[m,n] = A[m,k] * B[k,n]` over the entries of A. B must be a matrix with as many rows as A has columns.
///
/// # Errors
/// Returns an error if the output cannot be allocated.
pub fn spmm<T: Element>(a: &AnySparse<T>, b: &Dense<T>) -> Result<Dense<f64>> {
    let n = b.shape()[1];
    let mut c = Dense::zeros([a.shape()[0], n])?;
    for (index, value) in a.entries() {
        for j in 0..n {
            c.values_mut()[index[0] * n + j] += value * b.values()[index[1] * n + j].to_f64();
        }
    }
    Ok(c)
}
