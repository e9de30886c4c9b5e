//! Sparse arrays of any order: COO with one array of all coordinates, and vectors of one axis.

use super::super::{Fault, limits::Budget};
use super::Archive;
use super::sparse::{compressed, wrong_order};
use crate::error::*;
use crate::{AnySparse, Coo, CooPattern, Element};
use std::io::{Read, Seek};

/// Reads COO with the member `coords`, which has one row per axis.
pub(super) fn read<T: Element>(
    archive: &mut Archive<impl Read + Seek + Clone>,
    shape: Vec<usize>,
    name: &str,
) -> Result<AnySparse<T>> {
    let parts = coordinates(archive, &shape).and_then(|coords| {
        let entries = coords.first().map_or(0, Vec::len);
        let values = archive.member("data", |mut data, budget| {
            if data.shape != [entries] {
                return Err(format!("shape {:?}, [{entries}] expected", data.shape).into());
            }
            data.values::<T>(budget)
        })?;
        sortable::<T>(entries, shape.len(), &mut archive.budget)?;
        Ok((coords, values))
    });
    let (coords, values) = parts.map_err(|fault| fault.at(name))?;
    Ok(Coo::from_entries(shape, coords, values)?.into())
}

/// Reserves memory for sorting: keys with positions, and copies of both arrays.
fn sortable<T>(entries: usize, order: usize, budget: &mut Budget) -> Result<(), Fault> {
    let whole = |reason| Fault::member("coords", reason);
    budget.take::<(u64, u32, T)>(entries).map_err(whole)?;
    let coordinates = entries.saturating_mul(order);
    budget.take::<u32>(coordinates).map_err(whole)
}

/// Reads and validates the coordinates of each axis.
fn coordinates(
    archive: &mut Archive<impl Read + Seek + Clone>,
    shape: &[usize],
) -> Result<Vec<Vec<u32>>, Fault> {
    let order = shape.len();
    archive.member("coords", |mut array, budget| {
        let &[axes, entries] = &array.shape[..] else {
            return Err(wrong_order(2, &array.shape));
        };
        if axes != order {
            return Err(format!("coordinates of {axes} axes, {order} expected").into());
        }
        let turned = array.is_fortran();
        let axis_of = |at: usize| match turned {
            true => at % order,
            false => at / entries,
        };
        let mut at = 0;
        let all = array.indices(budget, |index| {
            let axis = axis_of(at);
            at += 1;
            match index {
                ..0 => Err(format!("index of axis {axis} is negative: {index}")),
                _ if index >= shape[axis] as i128 => {
                    Err(format!("index {index} of axis {axis} is past {}", shape[axis] as i64 - 1))
                }
                _ => Ok(()),
            }
        })?;
        budget.take::<u32>(all.len())?;
        let one = |axis: usize| -> Vec<u32> {
            match turned {
                true => all.iter().skip(axis).step_by(order).copied().collect(),
                false => all[axis * entries..][..entries].to_vec(),
            }
        };
        Ok((0..order).map(one).collect())
    })
}

/// Reads a CSR array of one axis, which SciPy stores as one row.
pub(super) fn read_vector<T: Element>(
    archive: &mut Archive<impl Read + Seek + Clone>,
    extent: usize,
    name: &str,
) -> Result<AnySparse<T>> {
    let parts = compressed::<T>(archive, ["row", "column"], [1, extent], false);
    let parts = parts.map_err(|fault| fault.at(name))?;
    let pattern = CooPattern::new(vec![extent], vec![parts.indices])?;
    Ok(Coo::new(pattern, parts.values)?.into())
}
