//! Assignment of terms to output elements: the terms of the scattered loops, sorted by their output index.
//!
//! Sorting assigns each output index to one thread: there are no races, and each sum has a fixed order.

use einsparse_formats::allocate;
use rayon::prelude::*;

use super::bind::Bound;
use super::expr::Expr;
use super::operands::volume;
use crate::error::{Error, Result};
use crate::parallel;

/// Key of a dropped term.
const DROPPED: u64 = u64::MAX;

/// Terms of the loops that determine the output index of a scatter, in runs with equal output index.
pub(super) struct Order {
    /// Scattered loop variables, or the one reduction that is iterated first.
    pub vars: Vec<usize>,
    /// Terms (numbered row-major over `vars`), run after run; `None` for 0, 1, 2, ...
    pub terms: Option<Vec<u32>>,
    /// Offset of each run in `terms`, and the end of the last run.
    pub starts: Vec<u32>,
}

impl Order {
    pub fn runs(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns the term at a position of the order.
    pub fn term(&self, at: usize) -> usize {
        self.terms.as_ref().map_or(at, |t| t[at] as usize)
    }
}

/// Loop variables that determine the output index of a scatter, closed under "shares an output axis with".
pub(super) fn scattered(bound: &Bound<'_>) -> Vec<usize> {
    let mut vars: Vec<usize> = Vec::new();
    loop {
        let before = vars.len();
        for axis in &bound.out {
            let new = match key_expr(&axis.expr, &vars) {
                Some(expr) => expr.vars(),
                None => continue,
            };
            vars.extend(new);
            vars.sort_unstable();
            vars.dedup();
        }
        if vars.len() == before {
            return vars;
        }
    }
}

/// Part of an output axis that depends on the scattered variables; `None` if the axis does not depend on them.
fn key_expr<'e, 'a>(expr: &'e Expr<'a>, vars: &[usize]) -> Option<&'e Expr<'a>> {
    match expr {
        Expr::Split { outer, inner, .. } if !vars.contains(inner) => {
            let shared = outer.vars().iter().any(|v| vars.contains(v));
            (outer.gathers() || shared).then_some(outer)
        }
        _ => (expr.gathers() || expr.vars().iter().any(|v| vars.contains(v))).then_some(expr),
    }
}

/// Sorts the terms over `vars` by their output index.
pub(super) fn order(bound: &Bound<'_>, vars: Vec<usize>) -> Result<Order> {
    let count = volume(vars.iter().map(|&v| bound.extents[v])) as u128;
    if count >= u128::from(u32::MAX) {
        let (what, limit) = ("terms of a scatter".into(), u128::from(u32::MAX) - 1);
        return Err(Error::Overflow { what, value: count, limit });
    }
    // Terms are elements of index arrays, or combinations of them.
    let longest = vars.iter().map(|&v| bound.extents[v]).max().unwrap_or(0);
    allocate::terms("terms of a scatter", count, 16, 4 * longest as u64)?;
    let count = count as usize;
    let parts = key_parts(bound, &vars)?;
    if parts.is_empty() {
        let starts = if count == 0 { vec![0] } else { vec![0, count as u32] };
        return Ok(Order { vars, terms: None, starts });
    }
    let keys = keys(bound, &vars, &parts, count)?;
    if keys.is_sorted() && keys.last() != Some(&DROPPED) {
        let starts = starts(count, |at| keys[at])?;
        return Ok(Order { vars, terms: None, starts });
    }
    let places: u64 = parts.iter().map(|(_, extent)| *extent).product();
    let terms = if places <= 4 * count as u64 + (1 << 16) {
        sort_counting(&keys, places as usize)?
    } else {
        sort_pairs(&keys)?
    };
    let starts = starts(terms.len(), |at| keys[terms[at] as usize])?;
    Ok(Order { vars, terms: Some(terms), starts })
}

/// Scattered parts of the output's axes, each with its extent.
fn key_parts<'e, 'a>(bound: &'e Bound<'a>, vars: &[usize]) -> Result<Vec<(&'e Expr<'a>, u64)>> {
    let mut parts = Vec::new();
    let mut places = 1u64;
    for axis in &bound.out {
        let Some(expr) = key_expr(&axis.expr, vars) else {
            continue;
        };
        let extent = match &axis.expr {
            Expr::Split { block, .. } if !std::ptr::eq(expr, &axis.expr) => {
                axis.extent.div_ceil(*block)
            }
            _ => axis.extent,
        };
        // `key_expr` finds no scatter in an axis of a plain output, so the reduction that is iterated first is not a
        // key.
        places = places.checked_mul(extent as u64).filter(|p| *p < DROPPED).ok_or_else(|| {
            Error::Overflow {
                what: "places of the output to scatter to".into(),
                value: u128::from(places) * extent as u128,
                limit: u128::from(DROPPED) - 1,
            }
        })?;
        parts.push((expr, extent as u64));
    }
    Ok(parts)
}

/// Decomposes the number of a term into the loop variables.
pub(super) fn set_vars(vars: &[usize], extents: &[usize], mut term: usize, at: &mut [usize]) {
    if let [var] = *vars {
        at[var] = term;
        return;
    }
    for &var in vars.iter().rev() {
        at[var] = term % extents[var];
        term /= extents[var];
    }
}

fn keys(
    bound: &Bound<'_>,
    vars: &[usize],
    parts: &[(&Expr<'_>, u64)],
    count: usize,
) -> Result<Vec<u64>> {
    const CHUNK: usize = 1 << 13;
    let mut keys = allocate::zeroed("places of terms", count)?;
    parallel::chunks(&mut keys, CHUNK, &|chunk, keys| {
        let mut at = vec![0; bound.extents.len()];
        for (i, key) in keys.iter_mut().enumerate() {
            set_vars(vars, &bound.extents, chunk * CHUNK + i, &mut at);
            let place = parts
                .iter()
                .try_fold(0u64, |key, (expr, extent)| Some(key * extent + expr.eval(&at)? as u64));
            *key = place.unwrap_or(DROPPED);
        }
    });
    Ok(keys)
}

fn starts(count: usize, key: impl Fn(usize) -> u64) -> Result<Vec<u32>> {
    let first = |&at: &usize| at == 0 || key(at) != key(at - 1);
    let runs = (0..count).filter(first).count();
    let mut starts = allocate::reserved("starts of places", runs + 1)?;
    starts.extend((0..count).filter(first).map(|at| at as u32));
    starts.push(count as u32);
    Ok(starts)
}

fn sort_counting(keys: &[u64], places: usize) -> Result<Vec<u32>> {
    let mut next: Vec<u32> = allocate::zeroed("places of a scatter", places + 1)?;
    for &key in keys.iter().filter(|k| **k != DROPPED) {
        next[key as usize + 1] += 1;
    }
    for place in 1..=places {
        next[place] += next[place - 1];
    }
    let mut terms = allocate::zeroed("terms of a scatter", next[places] as usize)?;
    for (term, &key) in keys.iter().enumerate().filter(|(_, k)| **k != DROPPED) {
        let at = &mut next[key as usize];
        terms[*at as usize] = term as u32;
        *at += 1;
    }
    Ok(terms)
}

fn sort_pairs(keys: &[u64]) -> Result<Vec<u32>> {
    let mut terms = allocate::reserved("terms of a scatter", keys.len())?;
    terms.extend((0..keys.len() as u32).filter(|&term| keys[term as usize] != DROPPED));
    terms.par_sort_unstable_by_key(|&term| (keys[term as usize], term));
    Ok(terms)
}
