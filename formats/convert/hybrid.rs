//! Conversion of CSR to hybrid GroupCOO, and back. Rows are ordered by class and copied completely.

use super::cost;
use super::tasks::{csr_by_rows, filled_by_rows, prefix_sum, spread};
use crate::error::*;
use crate::stats::{RowStats, class_of};
use crate::{
    AsSparse, Csr, Element, GroupClass, HybridGroupCoo, HybridGroupCooPattern, PAD, Pattern,
    Sparse, allocate,
};

/// Converts CSR to hybrid GroupCOO with the classes of [`RowStats::group_classes`].
///
/// # Errors
/// Returns an error if the number of slots exceeds u32, or allocation fails.
pub fn csr_to_hybrid_group_coo<T: Element>(csr: &Csr<T>) -> Result<HybridGroupCoo<T>> {
    let p = csr.pattern();
    let sizes = RowStats::of_rows(p).group_classes();
    let length = |row: u32| p.row(row as usize).len();
    let class: Vec<u8> = allocate::each("classes of rows", p.rows(), &|row| {
        class_of(length(row as u32), &sizes) as u8
    })?;
    let (mut order, mut classes) = (Vec::new(), Vec::new());
    for (at, &group) in sizes.iter().enumerate() {
        let own = (0..p.rows() as u32).filter(|&r| class[r as usize] == at as u8 && length(r) > 0);
        let first = order.len();
        order.extend(own);
        let groups = order[first..].iter().map(|&r| length(r).div_ceil(group));
        classes.push(GroupClass { group, groups: groups.sum() });
    }
    let group_of = |i: usize| sizes[class[order[i] as usize] as usize];
    let rows = order.len();
    let groups = (0..rows).map(|i| length(order[i]).div_ceil(group_of(i)));
    let groups = prefix_sum("groups", groups)?;
    let slots = (0..rows).map(|i| (groups[i + 1] - groups[i]) as usize * group_of(i));
    let slots = prefix_sum("slots", slots)?;
    let index =
        filled_by_rows("group_index", rows, |i| groups[i] as usize, |i, part| part.fill(order[i]))?;
    let at = |i: usize| slots[i] as usize;
    let row = |i: usize| p.row(order[i] as usize);
    let columns = spread("columns", rows, at, |i| &p.columns()[row(i)], PAD)?;
    let values = spread("values", rows, at, |i| &csr.values()[row(i)], T::ZERO)?;
    // SAFETY: rows ascend in each class, the columns of each row ascend, and padding follows the last entry of a row.
    let pattern = unsafe {
        HybridGroupCooPattern::new_unchecked(p.rows(), p.cols(), classes, index, columns)
    };
    Sparse::new(pattern, values)
}

/// Converts hybrid GroupCOO to CSR.
///
/// # Errors
/// Returns an error if allocation fails.
pub fn hybrid_group_coo_to_csr<T: Element>(hybrid: &HybridGroupCoo<T>) -> Result<Csr<T>> {
    cost::to_csr(hybrid.as_sparse())?;
    let p = hybrid.pattern();
    let spans = p.spans()?;
    let offsets = prefix_sum("entries", spans.iter().map(|s| s.1 as usize))?;
    // SAFETY: the entries of a valid matrix, row by row, in the order of their columns.
    let csr = unsafe {
        csr_by_rows((p.rows(), p.cols()), offsets, |row, columns, values| {
            let first = spans[row].0 as usize;
            let slots = first..first + columns.len();
            columns.copy_from_slice(&p.columns()[slots.clone()]);
            values.copy_from_slice(&hybrid.values()[slots]);
        })
    }?;
    debug_assert_eq!(csr.nnz(), p.nnz());
    Ok(csr)
}
