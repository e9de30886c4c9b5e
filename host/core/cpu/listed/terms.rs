//! List of the terms of the tied loops, sorted by output index, with the offset of each term in each factor.

use std::borrow::Cow;

use einsparse_formats::{PAD, allocate};
use rayon::prelude::*;

use super::super::bind::Bound;
use super::super::expr::Expr;
use super::super::operands::volume;
use super::super::order::set_vars;
use super::space::{Atom, Place, Space};
use crate::error::{Error, Result};
use crate::parallel;

/// Maximum number of output indices of a scatter, and of terms of a list.
const MOST_PLACES: u64 = 1 << 27;
const MOST_TERMS: u64 = 1 << 31;
/// Key of a dropped term.
const DROPPED: u64 = u64::MAX;

/// Offset of term `t` in a factor: `table[t]`, or `t` without a table, times the stride, in elements.
pub(super) struct Walk<'a> {
    pub(super) table: Option<Cow<'a, [u32]>>,
    pub(super) stride: usize,
}

/// List of terms.
pub(super) struct Terms<'a> {
    /// Offset of the first term of each output index, and the end of the last.
    pub(super) starts: Vec<u32>,
    pub(super) walks: Vec<Walk<'a>>,
}

fn beyond(what: &str, value: u128, limit: u64) -> Error {
    Error::Overflow { what: what.into(), value, limit: u128::from(limit) }
}

/// Parts of the output's axes that the list determines.
pub(super) fn parts<'s, 'b, 'a>(space: &'s Space<'b, 'a>) -> Vec<&'s Atom<'b, 'a>> {
    let listed = |a: &&Atom<'b, 'a>| a.place.vars().iter().any(|v| space.list.contains(v));
    space.out.iter().filter(listed).collect()
}

/// Creates the list of terms.
pub(super) fn list<'a>(bound: &Bound<'a>, space: &Space<'_, 'a>) -> Result<Terms<'a>> {
    let extents = &bound.extents;
    let count = volume(space.list.iter().map(|&v| extents[v])) as u64;
    if count > MOST_TERMS {
        return Err(beyond("terms of a list", u128::from(count), MOST_TERMS));
    }
    let (lead, tail) = space.list.split_at(space.deciding());
    let leads = volume(lead.iter().map(|&v| extents[v]));
    let tails = volume(tail.iter().map(|&v| extents[v]));
    let longest = space.list.iter().map(|&v| extents[v]).max().unwrap_or(0);
    allocate::terms("terms of a list", count.into(), 16, 4 * longest as u64)?;
    let keys = keys(bound, space, lead, leads)?;
    let parts = parts(space);
    let places: u128 = parts.iter().map(|a| a.extent as u128).product();
    if places > u128::from(MOST_PLACES) {
        return Err(beyond("places of a scatter", places, MOST_PLACES));
    }
    let natural = keys.par_windows(2).all(|w| w[0] <= w[1]) && keys.last() != Some(&DROPPED);
    let mut starts = starts(&keys, places as usize)?;
    let order = match natural {
        true => None,
        false => Some(sorted(&keys, &starts)?),
    };
    for start in &mut starts {
        *start *= tails as u32;
    }
    let walk = |factor: usize| {
        let own = listed_atoms(space, factor);
        let strides = |axis: usize| bound.factors[factor][axis].stride;
        let walk = in_order(bound, space, &own, strides, count as usize)?;
        Ok(match &order {
            None => walk,
            Some(order) => reordered(walk, order, tails)?,
        })
    };
    let walks = (0..bound.factors.len()).map(walk).collect::<Result<Vec<_>>>()?;
    Ok(Terms { starts, walks })
}

/// Parts of a factor's axes that the list determines.
fn listed_atoms<'s, 'b, 'a>(space: &'s Space<'b, 'a>, factor: usize) -> Vec<&'s Atom<'b, 'a>> {
    let listed = |a: &&Atom<'b, 'a>| a.place.vars().iter().any(|v| space.list.contains(v));
    space.factors[factor].iter().filter(listed).collect()
}

/// Output index of each term of the deciding loops.
fn keys(
    bound: &Bound<'_>,
    space: &Space<'_, '_>,
    lead: &[usize],
    count: usize,
) -> Result<Vec<u64>> {
    const CHUNK: usize = 1 << 13;
    let parts = parts(space);
    let guards: Vec<&Expr<'_>> = space.guards.clone();
    let mut keys = allocate::zeroed("places of terms", count)?;
    let fill = |chunk: usize, keys: &mut [u64]| {
        let mut at = vec![0; bound.extents.len()];
        for (i, key) in keys.iter_mut().enumerate() {
            set_vars(lead, &bound.extents, chunk * CHUNK + i, &mut at);
            let there = guards.iter().all(|g| g.eval(&at).is_some())
                && space.equalities.iter().all(|(left, right)| {
                    let left = left.eval(&at);
                    left.is_some() && left == right.eval(&at)
                });
            let place = parts.iter().try_fold(0u64, |key, atom| {
                let own = atom.place.eval(&at)? as u64;
                Some(key.wrapping_mul(atom.extent as u64).wrapping_add(own))
            });
            *key = place.filter(|_| there).unwrap_or(DROPPED);
        }
    };
    parallel::chunks(&mut keys, CHUNK, &fill);
    Ok(keys)
}

/// Offset of the first term of each output index.
fn starts(keys: &[u64], places: usize) -> Result<Vec<u32>> {
    let mut starts: Vec<u32> = allocate::zeroed("places of a scatter", places + 1)?;
    for &key in keys.iter().filter(|k| **k != DROPPED) {
        starts[key as usize + 1] += 1;
    }
    for place in 1..=places {
        starts[place] += starts[place - 1];
    }
    Ok(starts)
}

/// Sorts terms by output index. The sort is stable.
fn sorted(keys: &[u64], starts: &[u32]) -> Result<Vec<u32>> {
    let mut next = allocate::collected("places of a scatter", starts.iter().copied())?;
    let count = starts[starts.len() - 1] as usize;
    let mut terms = allocate::zeroed("terms of a list", count)?;
    for (term, &key) in keys.iter().enumerate().filter(|(_, k)| **k != DROPPED) {
        let at = &mut next[key as usize];
        terms[*at as usize] = term as u32;
        *at += 1;
    }
    Ok(terms)
}

/// Offsets of the terms in a factor, in the order of the loops.
fn in_order<'a>(
    bound: &Bound<'a>,
    space: &Space<'_, 'a>,
    own: &[&Atom<'_, 'a>],
    strides: impl Fn(usize) -> usize,
    count: usize,
) -> Result<Walk<'a>> {
    let stride_of = |a: &Atom<'_, '_>| a.times.wrapping_mul(strides(a.axis));
    if let Some(stride) = as_numbered(bound, space, own, &stride_of) {
        let table = None;
        return Ok(Walk { table, stride });
    }
    if let [atom] = own
        && let Some(array) = array_of(bound, space, atom)
    {
        let (table, stride) = (Some(Cow::Borrowed(array)), stride_of(atom));
        return Ok(Walk { table, stride });
    }
    let (table, stride) = gathered(&space.list, &bound.extents, own, stride_of, count)?;
    Ok(Walk { table: Some(Cow::Owned(table)), stride })
}

/// Offsets of these loops in a factor. Returns a table of offsets, with `PAD` for dropped terms, and their unit in
/// elements.
pub(super) fn gathered(
    vars: &[usize],
    extents: &[usize],
    own: &[&Atom<'_, '_>],
    stride_of: impl Fn(&Atom<'_, '_>) -> usize,
    count: usize,
) -> Result<(Vec<u32>, usize)> {
    let unit = own.iter().fold(0, |unit, a| gcd(unit, stride_of(a))).max(1);
    let reach: u128 = own
        .iter()
        .map(|a| a.extent.saturating_sub(1) as u128 * (stride_of(a) / unit) as u128)
        .sum();
    if reach >= u128::from(PAD) {
        return Err(beyond("places of a gather", reach, u64::from(PAD)));
    }
    let steps: Vec<(Place<'_, '_>, usize)> =
        own.iter().map(|a| (a.place, stride_of(a) / unit)).collect();
    Ok((evaluated(vars, extents, &steps, count)?, unit))
}

/// Sums the steps of every term of these loops; `PAD` for dropped terms.
fn evaluated(
    vars: &[usize],
    extents: &[usize],
    steps: &[(Place<'_, '_>, usize)],
    count: usize,
) -> Result<Vec<u32>> {
    const CHUNK: usize = 1 << 13;
    let mut table = allocate::zeroed("places of terms", count)?;
    let fill = |chunk: usize, slots: &mut [u32]| {
        let mut at = vec![0; extents.len()];
        for (i, slot) in slots.iter_mut().enumerate() {
            set_vars(vars, extents, chunk * CHUNK + i, &mut at);
            let place = steps
                .iter()
                .try_fold(0, |sum, (place, stride)| Some(sum + place.eval(&at)? * stride));
            *slot = place.map_or(PAD, |p| p as u32);
        }
    };
    parallel::chunks(&mut table, CHUNK, &fill);
    Ok(table)
}

/// Stride from one term to the next, if the terms have a constant stride.
fn as_numbered(
    bound: &Bound<'_>,
    space: &Space<'_, '_>,
    own: &[&Atom<'_, '_>],
    stride_of: &impl Fn(&Atom<'_, '_>) -> usize,
) -> Option<usize> {
    let vars = own.iter().map(|a| a.var()).collect::<Option<Vec<_>>>()?;
    let of = |v: usize| -> usize {
        let along = own.iter().zip(&vars).filter(|(_, own)| **own == v);
        along.map(|(a, _)| stride_of(a)).sum()
    };
    let mut terms = 1;
    let mut stride = None;
    for &v in space.list.iter().rev() {
        let extent = bound.extents[v];
        if extent > 1 {
            let first = *stride.get_or_insert(of(v));
            if of(v) != first * terms {
                return None;
            }
        }
        terms *= extent;
    }
    Some(stride.unwrap_or(0))
}

/// Index array with one slot per term, in the order of the terms.
fn array_of<'a>(
    bound: &Bound<'a>,
    space: &Space<'_, 'a>,
    atom: &Atom<'_, 'a>,
) -> Option<&'a [u32]> {
    let Place::Expr(expr) = atom.place else {
        return None;
    };
    match expr {
        Expr::Slot { array, var } => (*space.list == [*var]).then_some(*array),
        Expr::Load { array, args } => {
            if args.len() != space.list.len() {
                return None;
            }
            let mut terms = 1;
            for ((arg, stride), &v) in args.iter().zip(&space.list).rev() {
                let own = matches!(arg, Expr::Var(var) if *var == v);
                if !own || *stride != terms {
                    return None;
                }
                terms *= bound.extents[v];
            }
            Some(array)
        }
        _ => None,
    }
}

/// Reorders a walk: each element of `order` is followed by its `tails` terms.
fn reordered<'a>(walk: Walk<'a>, order: &[u32], tails: usize) -> Result<Walk<'a>> {
    if walk.table.is_none() && walk.stride == 0 {
        return Ok(walk);
    }
    let old = walk.table.as_deref();
    let of = |term: usize| old.map_or(term as u32, |t| t[term]);
    let mut table: Vec<u32> = allocate::zeroed("places of terms", order.len() * tails)?;
    if tails > 0 {
        table.par_chunks_mut(tails).zip(order).for_each(|(slots, &lead)| {
            for (tail, slot) in slots.iter_mut().enumerate() {
                *slot = of(lead as usize * tails + tail);
            }
        });
    }
    Ok(Walk { table: Some(Cow::Owned(table)), stride: walk.stride })
}

pub(super) fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
