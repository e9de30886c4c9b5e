//! Sparse-sparse join: one row for each combination of nonzeros that agrees on all shared indices. Planning makes it
//! from the patterns alone. On a GPU, kernels `join` make the same rows in the same order.

mod cpu;
mod on_device;

use std::sync::Arc;

use einsparse_formats::{AnyPattern, PAD, allocate};
use rayon::prelude::*;

use crate::device::Device;
use crate::error::{Error, Refusal, Result};

/// Rows of positions: the slot in each tensor, and the value of each index.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    /// Access of each tensor, for messages.
    pub(crate) tensors: Vec<String>,
    /// For each tensor, the slot of every row, and the number of slots.
    pub(crate) slots: Vec<(Vec<u32>, usize)>,
    pub(crate) names: Vec<String>,
    pub(crate) extents: Vec<usize>,
    /// For each index, its value in every row.
    pub(crate) values: Vec<Vec<u32>>,
}

/// Two columns of keys, one for each side of a join.
pub(crate) type Keys<'a> = [&'a [u64]; 2];

/// Max number of rows: `u32::MAX` is not a position.
pub(crate) const MOST_ROWS: u64 = u32::MAX as u64 - 1;

/// Error of a list that exceeds the range of positions.
pub(crate) fn too_long(rows: u128) -> Error {
    Error::Overflow {
        what: "combinations of entries with equal shared indices".into(),
        value: rows,
        limit: MOST_ROWS.into(),
    }
}

/// Returns an error for too many pairs or too much memory. Memory includes the two positions of a pair, its order, and,
/// for each tensor, a slot and the values of the indices.
pub(crate) fn check_pairs(pairs: u128, [left, right]: [usize; 2]) -> Result<()> {
    if pairs > MOST_ROWS.into() {
        return Err(too_long(pairs));
    }
    let held = 12 * (left as u64 + right as u64);
    Ok(allocate::terms("pairs of entries with equal shared indices", pairs, 40, held)?)
}

impl Table {
    /// Makes a row of every slot of a tensor, including padding, in the order of its values.
    pub(crate) fn whole(access: &str, names: &[&str], tensor: AnyPattern<'_>) -> Result<Table> {
        let values = tensor.coordinates()?;
        let slots = tensor.slots();
        Ok(Table {
            tensors: vec![access.to_owned()],
            slots: vec![(allocate::collected("positions", 0..slots as u32)?, slots)],
            names: names.iter().map(|n| n.to_string()).collect(),
            extents: tensor.shape().to_vec(),
            values,
        })
    }

    /// Makes a row of every nonzero of a tensor. If the tensor has an index twice, only of the diagonal.
    pub(crate) fn entries(access: &str, names: &[&str], tensor: AnyPattern<'_>) -> Result<Table> {
        let mut table = Table::whole(access, names, tensor)?;
        let first = |axis: usize| names.iter().position(|n| *n == names[axis]);
        let twice: Vec<(usize, usize)> = (0..names.len())
            .filter_map(|axis| first(axis).filter(|&f| f < axis).map(|f| (f, axis)))
            .collect();
        let counts = |slot: usize| {
            let value = |axis: usize| table.values[axis][slot];
            table.values.iter().all(|v| v[slot] != PAD)
                && twice.iter().all(|&(a, b)| value(a) == value(b))
        };
        let kept: Vec<u32> = (0..tensor.slots() as u32)
            .into_par_iter()
            .filter(|&slot| counts(slot as usize))
            .collect();
        if kept.len() < tensor.slots() {
            let values = table.values.iter().map(|v| gather(v, &kept));
            table.values = values.collect::<Result<_>>()?;
            table.slots[0].0 = kept;
        }
        for &(_, axis) in twice.iter().rev() {
            table.names.remove(axis);
            table.extents.remove(axis);
            table.values.remove(axis);
        }
        Ok(table)
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.slots[0].0.len()
    }

    /// Whether the tables share an index.
    pub(crate) fn meets(&self, other: &Table) -> bool {
        self.names.iter().any(|n| other.names.contains(n))
    }

    /// Joins the rows of both tables that agree on all shared indices. `order` lists indices, the most significant
    /// first; equal rows keep their order. Without `order`, the result is in the order of the rows.
    pub(crate) fn join(
        self,
        other: Table,
        order: Option<&[&str]>,
        device: Option<&Arc<Device>>,
    ) -> Result<Table> {
        let shared: Vec<&str> = self.names.iter().map(String::as_str).collect();
        let shared: Vec<&str> = shared.into_iter().filter(|n| other.column(n).is_some()).collect();
        let keys = self.keys(&other, &shared, true)?;
        let order = match order {
            Some(names) => Some(self.keys(&other, names, false)?),
            None => None,
        };
        // The join emits rows in the order of the left table. No sort is required if this order is the requested one.
        let order =
            order.filter(|[left, right]| right.iter().any(|&k| k != 0) || !left.is_sorted());
        let keys = [&keys[0][..], &keys[1][..]];
        let order = order.as_ref().map(|[left, right]| [&left[..], &right[..]]);
        let found = match device {
            Some(device) if !device.is_absent() => on_device::join(device, keys, order),
            _ => cpu::join(keys, order),
        };
        let of = || [&self.tensors[..], &other.tensors].concat().join(" * ");
        let (left, right) = found.map_err(|error| match error {
            Error::Format(error) => {
                Error::no_kernel(of(), [Refusal::of("join", error.to_string())])
            }
            other => other,
        })?;
        self.merged(other, &left, &right)
    }

    fn column(&self, name: &str) -> Option<usize> {
        self.names.iter().position(|n| n == name)
    }

    /// Returns, for each row of both tables, its part of the mixed-radix number of these indices, the most significant
    /// first. `both`: the key of a table includes all its indices, also those that the other table has.
    fn keys(&self, other: &Table, names: &[&str], both: bool) -> Result<[Vec<u64>; 2]> {
        let zeros = |table: &Table| allocate::zeroed("keys of entries", table.rows());
        let mut keys: [Vec<u64>; 2] = [zeros(self)?, zeros(other)?];
        let extent = |name: &&str| {
            let of = |t: &Table| t.column(name).map(|c| t.extents[c].max(1) as u128);
            of(self).or_else(|| of(other)).unwrap_or(1)
        };
        let places = names.iter().map(extent).fold(1, u128::saturating_mul);
        if places > 1 << 64 {
            return Err(places_overflow(names, places));
        }
        let mut stride = 1u128;
        for name in names.iter().rev() {
            let places = [self, other].map(|t| t.column(name).map(|c| (t, c)));
            let Some((table, column)) = places.iter().flatten().next() else {
                continue;
            };
            let own = u64::try_from(stride).map_err(|_| places_overflow(names, stride))?;
            stride *= table.extents[*column].max(1) as u128;
            let mut used = false;
            for (keys, place) in keys.iter_mut().zip(places) {
                let Some((table, column)) = place.filter(|_| both || !used) else {
                    continue;
                };
                used = true;
                let values = &table.values[column];
                let add = |(key, &value): (&mut u64, &u32)| *key += u64::from(value) * own;
                keys.par_iter_mut().zip(values).with_min_len(1 << 12).for_each(add);
            }
        }
        Ok(keys)
    }

    /// Combines the rows `left` of this table with the rows `right` of the other table.
    fn merged(self, other: Table, left: &[u32], right: &[u32]) -> Result<Table> {
        let (mut names, mut extents, mut values) = (Vec::new(), Vec::new(), Vec::new());
        for (table, at) in [(&self, left), (&other, right)] {
            for (column, name) in table.names.iter().enumerate() {
                if !names.contains(name) {
                    names.push(name.clone());
                    extents.push(table.extents[column]);
                    values.push(gather(&table.values[column], at)?);
                }
            }
        }
        let mut slots = Vec::new();
        for (table, at) in [(&self, left), (&other, right)] {
            for (of_tensor, count) in &table.slots {
                slots.push((gather(of_tensor, at)?, *count));
            }
        }
        let mut tensors = self.tensors;
        tensors.extend(other.tensors);
        Ok(Table { tensors, slots, names, extents, values })
    }
}

fn places_overflow(names: &[&str], places: u128) -> Error {
    Error::Overflow {
        what: format!("places of the indices {}", names.join(", ")),
        value: places,
        limit: 1 << 64,
    }
}

/// Returns `data` at each of these positions.
fn gather(data: &[u32], at: &[u32]) -> Result<Vec<u32>> {
    Ok(allocate::each("positions", at.len(), &|row| data[at[row] as usize])?)
}

/// Joins all tables, one after the other. Each next table shares an index with the previous ones, if such a table
/// exists. Tables without shared indices result in the Cartesian product of their rows.
///
/// # Errors
/// Returns `Overflow` for lists that exceed the range of positions, and `NoKernel` for lists that exceed the memory
/// limit.
pub(crate) fn join_all(
    tables: Vec<Table>,
    order: Option<&[&str]>,
    device: Option<&Arc<Device>>,
) -> Result<Table> {
    let mut rest: Vec<(usize, Table)> = tables.into_iter().enumerate().collect();
    let (first, mut all) = rest.remove(0);
    let mut joined = vec![first];
    while !rest.is_empty() {
        let next = rest.iter().position(|(_, t)| all.meets(t)).unwrap_or(0);
        let last = rest.len() == 1;
        let (number, next) = rest.remove(next);
        joined.push(number);
        all = all.join(next, order.filter(|_| last), device)?;
    }
    // Restores the order in which the tensors were given.
    let mut tensors: Vec<_> = all.tensors.into_iter().zip(all.slots).zip(joined).collect();
    tensors.sort_by_key(|(_, number)| *number);
    (all.tensors, all.slots) = tensors.into_iter().map(|(tensor, _)| tensor).unzip();
    Ok(all)
}
