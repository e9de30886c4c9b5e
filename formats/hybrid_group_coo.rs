//! Hybrid GroupCOO: rows are divided by length into a few classes, and each class has its own group size. The classes
//! are stored one after the other in the same arrays. Rows of 7 and rows of 100 entries then need no common divisor.

use rayon::prelude::*;

use crate::error::*;
use crate::pattern::matrix;
use crate::{Format, IndexArray, PAD, Pattern, allocate, check};

/// Class of rows with one group size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupClass {
    /// Slots per group.
    pub group: usize,
    /// Number of groups.
    pub groups: usize,
}

matrix! {
    /// Pattern of a hybrid GroupCOO matrix: `C[AM[p],n] += AV[q] * B[AK[q],n], AG[p] <= q < AG[p+1]`. The starts AG of the
    /// groups follow from the classes and are not stored.
    HybridGroupCooPattern,
    /// A hybrid GroupCOO matrix.
    HybridGroupCoo() {
        /// Classes, in the order in which their groups are stored.
        classes: GroupClass,
        /// Row of every group.
        group_index: u32,
        /// Column of every slot.
        columns: u32,
    }
    p is Format::HybridGroupCoo;
    stores nnz: check::entries(&p.columns);
    nnz p.nnz;
    values [p.columns.len()];
    arrays [
        IndexArray::coordinate(0, [p.group_index.len()], &p.group_index),
        IndexArray::coordinate(1, [p.columns.len()], &p.columns),
    ]
}

/// Number of groups and slots of the classes.
fn sizes(classes: &[GroupClass]) -> Result<(usize, usize)> {
    let (mut groups, mut slots) = (0u128, 0u128);
    for class in classes {
        check::positive("group", class.group)?;
        groups += class.groups as u128;
        slots += class.groups as u128 * class.group as u128;
    }
    Ok((check::fits("groups", groups)?, check::fits("slots", slots)?))
}

impl HybridGroupCooPattern {
    /// Validates and stores the classes, the row of every group, and the column of every slot. [`PAD`] fills the slots
    /// after the last entry of a row.
    ///
    /// # Errors
    /// Returns an error if a group size is 0, a length is wrong, a row or column is outside the shape, the rows of a
    /// class descend, a row is in two classes, the columns of a row do not ascend, or padding is not at the end of a
    /// row.
    pub fn new(
        rows: usize,
        cols: usize,
        classes: Vec<GroupClass>,
        group_index: Vec<u32>,
        columns: Vec<u32>,
    ) -> Result<Self> {
        check::matrix(rows, cols)?;
        let (groups, slots) = sizes(&classes)?;
        check::length("group_index", group_index.len(), groups)?;
        check::length("columns", columns.len(), slots)?;
        let mut owners: Vec<(u32, u32)> = Vec::new();
        let (mut group, mut slot, mut nnz) = (0, 0, 0);
        for (number, class) in (0..).zip(&classes) {
            let index = &group_index[group..group + class.groups];
            let own = &columns[slot..slot + class.groups * class.group];
            let checked = check::Groups {
                index_name: "group_index",
                index,
                index_bound: rows,
                names: &["columns"],
                others: &[own],
                bounds: &[cols],
                group: class.group,
            };
            nnz += checked.check()?;
            owners.extend(index.chunk_by(|a, b| a == b).map(|same| (same[0], number)));
            (group, slot) = (group + class.groups, slot + own.len());
        }
        // Sorts the rows instead of marking them in an array of all rows: there may be many more rows than groups.
        owners.par_sort_unstable();
        if let Some(both) = owners.windows(2).find(|both| both[0].0 == both[1].0) {
            let [(row, known), (_, number)] = [both[0], both[1]];
            let found = format!("row {row} in classes {known} and {number}");
            return Err(check::shape("class of a row", found, "one"));
        }
        Ok(HybridGroupCooPattern { shape: [rows, cols], classes, group_index, columns, nnz })
    }

    /// First slot of every group, followed by the number of slots.
    pub fn group_starts(&self) -> Vec<u32> {
        let sizes = self.classes.iter();
        let sizes = sizes.flat_map(|c| std::iter::repeat_n(c.group, c.groups));
        let mut starts = vec![0];
        let mut sum = 0;
        for size in sizes {
            sum += size as u32;
            starts.push(sum);
        }
        starts
    }

    /// First slot and number of entries of every row.
    ///
    /// # Errors
    /// Returns [`FormatError::Limit`] if there are many more rows than entries, and [`FormatError::Memory`] if
    /// allocation fails.
    pub fn spans(&self) -> Result<Vec<(u32, u32)>> {
        let rows = self.shape[0];
        allocate::extent("rows", rows as u128, 8, allocate::bytes_of(&self.arrays()))?;
        let mut spans = allocate::filled("spans of rows", rows, (0, 0))?;
        let starts = self.group_starts();
        for (&row, w) in self.group_index.iter().zip(starts.windows(2)) {
            let span = &mut spans[row as usize];
            if span.1 == 0 {
                span.0 = w[0];
            }
            let slots = &self.columns[w[0] as usize..w[1] as usize];
            // Padding is at the end, so the search from the end is short.
            span.1 += slots.iter().rposition(|&c| c != PAD).map_or(0, |last| last as u32 + 1);
        }
        Ok(spans)
    }

    /// Row and column of every slot. Both are [`PAD`] for padding.
    pub fn coordinates(&self) -> [Vec<u32>; 2] {
        let mut rows = Vec::with_capacity(self.columns.len());
        for (&row, w) in self.group_index.iter().zip(self.group_starts().windows(2)) {
            let slots = self.columns[w[0] as usize..w[1] as usize].iter();
            rows.extend(slots.map(|&c| if c == PAD { PAD } else { row }));
        }
        [rows, self.columns.clone()]
    }
}
