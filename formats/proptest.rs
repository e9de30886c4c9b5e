//! Strategies for property tests: shapes, COO and CSR with small integers as values, so that sums are exact in every
//! element type. Empty tensors, empty rows and one full row are drawn deliberately.

use ::proptest::collection::{btree_set, vec};
use ::proptest::prelude::*;

use crate::{Coo, CooPattern, Csr, CsrPattern, Element};

/// Integers from -4 to 4 without 0. Sums of up to 128 products are exact in f16.
pub fn values<T: Element>(len: usize) -> impl Strategy<Value = Vec<T>> {
    let value = prop_oneof![-4i32..=-1, 1i32..=4];
    vec(value.prop_map(|v| T::from_f64(f64::from(v))), len)
}

/// Extents of a tensor of this order, each from 0 to `most`. Extents 0 and 1 are frequent.
pub fn shape(order: usize, most: usize) -> impl Strategy<Value = Vec<usize>> {
    vec(prop_oneof![1 => Just(0), 2 => Just(1), 12 => 1..=most.max(1)], order)
}

/// Columns of the rows of a matrix: uniform, empty in most rows, or all in one row.
fn rows(rows: usize, cols: usize) -> BoxedStrategy<Vec<Vec<u32>>> {
    if rows == 0 || cols == 0 {
        return Just(vec![Vec::new(); rows]).boxed();
    }
    let row = move |most: usize| {
        btree_set(0..cols as u32, 0..=most.min(cols)).prop_map(|set| set.into_iter().collect())
    };
    let uniform = vec(row(cols), rows);
    let short = vec(prop_oneof![3 => Just(Vec::new()), 1 => row(4)], rows);
    let giant = (0..rows).prop_map(move |r| {
        let mut all = vec![Vec::new(); rows];
        all[r] = (0..cols as u32).collect();
        all
    });
    prop_oneof![4 => uniform, 3 => short, 1 => giant, 1 => Just(vec![Vec::new(); rows])].boxed()
}

/// Pattern of a CSR matrix with these extents.
pub fn csr_pattern(n_rows: usize, n_cols: usize) -> impl Strategy<Value = CsrPattern> {
    rows(n_rows, n_cols).prop_filter_map("a valid pattern", move |rows| {
        let mut offsets = vec![0];
        offsets.extend(rows.iter().scan(0, |sum, row| {
            *sum += row.len() as u32;
            Some(*sum)
        }));
        CsrPattern::new(n_rows, n_cols, offsets, rows.concat()).ok()
    })
}

/// CSR matrix of up to `most` rows and columns.
pub fn csr<T: Element>(most: usize) -> impl Strategy<Value = Csr<T>> {
    let pattern = shape(2, most).prop_flat_map(|shape| csr_pattern(shape[0], shape[1]));
    pattern.prop_flat_map(|pattern| {
        let len = pattern.columns().len();
        values(len).prop_filter_map("one value for each entry", move |values| {
            Csr::new(pattern.clone(), values).ok()
        })
    })
}

/// COO tensor of this order with extents up to `most`.
pub fn coo<T: Element>(order: usize, most: usize) -> impl Strategy<Value = Coo<T>> {
    let pattern = shape(order, most).prop_flat_map(|shape| {
        let space: usize = shape.iter().product();
        let places = btree_set(0..space.max(1), 0..=space.min(64));
        places.prop_filter_map("a valid pattern", move |places| {
            let mut coords = vec![Vec::new(); shape.len()];
            for mut place in places.into_iter().filter(|&place| place < space) {
                for (axis, &n) in shape.iter().enumerate().rev() {
                    coords[axis].push((place % n) as u32);
                    place /= n;
                }
            }
            CooPattern::new(shape.clone(), coords).ok()
        })
    });
    pattern.prop_flat_map(|pattern| {
        let len = pattern.coords().first().map_or(0, Vec::len);
        values(len).prop_filter_map("one value for each entry", move |values| {
            Coo::new(pattern.clone(), values).ok()
        })
    })
}

/// Rows and columns of a block, from 1 to `most`, rarely equal.
pub fn block(most: usize) -> impl Strategy<Value = (usize, usize)> {
    (1..=most, 1..=most)
}
