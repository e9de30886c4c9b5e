//! Conversions of CSR and COO to GroupCOO, and back to COO. Entries of a run are already in order, so grouping is a
//! count, a prefix sum and copies of whole rows.

use rayon::prelude::*;

use super::cost;
use super::entries::{gather, sorted_positions};
use super::tasks::{filled_by_rows, prefix_sum, spread};
use crate::error::*;
use crate::group_coo::check_axis;
use crate::stats::RowStats;
use crate::{
    Coo, CooPattern, Csr, Element, GroupCoo, GroupCooPattern, PAD, Pattern, Sparse, check,
};

/// Non-empty rows, the starts of their entries, and the starts of their groups.
struct Runs {
    rows: Vec<u32>,
    offsets: Vec<u32>,
    group: usize,
    starts: Vec<u32>,
}

impl Runs {
    fn new<T: Element>(
        rows: Vec<u32>,
        offsets: Vec<u32>,
        group: Option<usize>,
        held: u64,
    ) -> Result<Self> {
        let count = |w: &[u32]| (w[1] - w[0]) as usize;
        let group = match group {
            Some(g) => g,
            None => RowStats::from_counts(offsets.windows(2).map(count)).group(),
        };
        check::positive("group", group)?;
        let starts = prefix_sum("groups", offsets.windows(2).map(|w| count(w).div_ceil(group)))?;
        let groups = starts.last().map_or(0, |&n| n as usize);
        let slots = check::product("slots", &[groups, group])?;
        cost::slots::<T>(slots, slots, held)?;
        Ok(Runs { rows, offsets, group, starts })
    }

    /// Row of every group.
    fn group_index(&self) -> Result<Vec<u32>> {
        let at = |r: usize| self.starts[r] as usize;
        filled_by_rows("group_index", self.rows.len(), at, |r, part| part.fill(self.rows[r]))
    }

    /// Expands an array with one element per entry to one element per slot.
    fn spread<U: bytemuck::Pod + Send + Sync>(
        &self,
        what: &'static str,
        entries: &[U],
        pad: U,
    ) -> Result<Vec<U>> {
        let at = |r: usize| self.starts[r] as usize * self.group;
        let row = |r: usize| &entries[self.offsets[r] as usize..self.offsets[r + 1] as usize];
        spread(what, self.rows.len(), at, row, pad)
    }
}

/// Converts CSR to GroupCOO grouped on the rows. `None` selects the group size of [`RowStats::group`].
///
/// # Errors
/// Returns an error if `group` is 0, the number of slots exceeds u32, or allocation fails.
pub fn csr_to_group_coo<T: Element>(csr: &Csr<T>, group: Option<usize>) -> Result<GroupCoo<T>> {
    let p = csr.pattern();
    let filled = |r: &u32| p.offsets()[*r as usize] < p.offsets()[*r as usize + 1];
    let rows: Vec<u32> = (0..p.rows() as u32).into_par_iter().filter(filled).collect();
    let mut offsets: Vec<u32> = rows.par_iter().map(|&r| p.offsets()[r as usize]).collect();
    offsets.push(p.nnz() as u32);
    let runs = Runs::new::<T>(rows, offsets, group, csr.held())?;
    let others = vec![runs.spread("coordinates", p.columns(), PAD)?];
    let (shape, index) = (p.shape().to_vec(), runs.group_index()?);
    // SAFETY: rows ascend, the columns of each row ascend, and padding follows the last entry of a row.
    let pattern = unsafe { GroupCooPattern::new_unchecked(shape, 0, runs.group, index, others) };
    Sparse::new(pattern, runs.spread("values", csr.values(), T::ZERO)?)
}

/// Converts COO of order 2 or higher to GroupCOO grouped on `axis`. `None` selects the group size of
/// [`RowStats::group`].
///
/// Entries are sorted only if `axis` is not the first axis.
///
/// # Errors
/// Returns an error if `axis` is out of range, the order is below 2, `group` is 0, the number of slots exceeds u32, or
/// allocation fails.
pub fn coo_to_group_coo<T: Element>(
    coo: &Coo<T>,
    axis: usize,
    group: Option<usize>,
) -> Result<GroupCoo<T>> {
    let shape = coo.shape().to_vec();
    check_axis(&shape, axis)?;
    let mut axes: Vec<&[u32]> = coo.pattern().coords().iter().map(Vec::as_slice).collect();
    let mut extents = shape.clone();
    axes[..=axis].rotate_right(1);
    extents[..=axis].rotate_right(1);
    let (moved_axes, moved_values): (Vec<Vec<u32>>, Vec<T>);
    let mut values = coo.values();
    if axis != 0 {
        let positions = sorted_positions(&axes, &extents);
        moved_axes = axes.iter().map(|data| gather(data, &positions)).collect();
        moved_values = gather(values, &positions);
        axes = moved_axes.iter().map(Vec::as_slice).collect();
        values = &moved_values;
    }
    let index = axes[0];
    let starts_row = |p: &usize| *p == 0 || index[*p] != index[*p - 1];
    let mut offsets: Vec<u32> =
        (0..index.len()).into_par_iter().filter(starts_row).map(|p| p as u32).collect();
    let rows = offsets.iter().map(|&p| index[p as usize]).collect();
    offsets.push(index.len() as u32);
    let runs = Runs::new::<T>(rows, offsets, group, coo.held())?;
    let others: Result<_, _> =
        axes[1..].iter().map(|data| runs.spread("coordinates", data, PAD)).collect();
    let (others, index) = (others?, runs.group_index()?);
    // SAFETY: entries are sorted by `axis`, then by the other axes, and padding follows the last entry of a run.
    let pattern = unsafe { GroupCooPattern::new_unchecked(shape, axis, runs.group, index, others) };
    Sparse::new(pattern, runs.spread("values", values, T::ZERO)?)
}

/// Converts GroupCOO to COO. Entries are sorted only if the grouped axis is not the first axis.
///
/// # Errors
/// Returns an error if allocation fails.
pub fn group_coo_to_coo<T: Element>(grouped: &GroupCoo<T>) -> Result<Coo<T>> {
    let p = grouped.pattern();
    let g = p.group();
    let filled = |i: usize| {
        let slots = &p.others()[0][i * g..(i + 1) * g];
        slots.iter().rposition(|&c| c != PAD).map_or(0, |last| last + 1)
    };
    let offsets = prefix_sum("entries", (0..p.groups()).map(filled))?;
    let compact_index = compact(p.group_index(), 1, &offsets)?;
    let others: Result<Vec<_>, _> = p.others().iter().map(|o| compact(o, g, &offsets)).collect();
    let mut coords = others?;
    coords.insert(p.axis(), compact_index);
    let mut values = compact(grouped.values(), g, &offsets)?;
    if p.axis() != 0 {
        let axes: Vec<&[u32]> = coords.iter().map(Vec::as_slice).collect();
        let positions = sorted_positions(&axes, p.shape());
        coords = coords.iter().map(|data| gather(data, &positions)).collect();
        values = gather(&values, &positions);
    }
    // SAFETY: the distinct entries of a valid GroupCOO, sorted lexicographically.
    let pattern = unsafe { CooPattern::new_unchecked(p.shape().to_vec(), coords) };
    Sparse::new(pattern, values)
}

/// Concatenates the filled slots of every group. If `width` is 1, the element of a group is repeated.
fn compact<U: bytemuck::Pod + Send + Sync>(
    slots: &[U],
    width: usize,
    offsets: &[u32],
) -> Result<Vec<U>> {
    let groups = offsets.len() - 1;
    let at = |i: usize| offsets[i] as usize;
    filled_by_rows("entries", groups, at, |i, run| match width {
        1 => run.fill(slots[i]),
        _ => run.copy_from_slice(&slots[i * width..i * width + run.len()]),
    })
}
