//! GroupCOO: groups of `group` entries that share their coordinate on one axis (arXiv 2510.17505). A row of `occ`
//! entries has ceil(occ / group) consecutive groups, called a run. Only the last group of a run is padded.

use crate::error::*;
use crate::{Format, IndexArray, Pattern, Sparse, check, coo};

/// Pattern of a GroupCOO tensor: `C[AM[p],n] += AV[p,q] * B[AK[p,q],n]`. The order is 2 or higher; any axis may be
/// grouped. The groups of one coordinate on the grouped axis are consecutive: a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupCooPattern {
    shape: Vec<usize>,
    axis: usize,
    group: usize,
    group_index: Vec<u32>,
    others: Vec<Vec<u32>>,
    nnz: usize,
}

/// A GroupCOO tensor.
pub type GroupCoo<T> = Sparse<GroupCooPattern, T>;

pub(crate) fn check_axis(shape: &[usize], axis: usize) -> Result<()> {
    if shape.len() < 2 {
        return Err(check::shape("order", shape.len(), "at least 2"));
    }
    if axis >= shape.len() {
        return Err(check::shape("grouped axis", axis, format!("below {}", shape.len())));
    }
    Ok(())
}

impl GroupCooPattern {
    /// Validates and stores the coordinate of each of the P groups on the grouped axis, and `P * group` coordinates for
    /// each remaining axis, in order. [`PAD`](crate::PAD) fills the slots after the last entry of a run.
    ///
    /// # Errors
    /// Returns an error if the order is below 2, `axis` is out of range, `group` is 0, a length is wrong, a coordinate
    /// is outside the shape, the group index descends, the entries of a run do not ascend lexicographically, or
    /// padding is not at the end of a run.
    pub fn new(
        shape: Vec<usize>,
        axis: usize,
        group: usize,
        group_index: Vec<u32>,
        others: Vec<Vec<u32>>,
    ) -> Result<Self> {
        check_axis(&shape, axis)?;
        check::positive("group", group)?;
        for &n in &shape {
            check::extent("extent", n)?;
        }
        let slots = check::product("slots", &[group_index.len(), group])?;
        check::length("others", others.len(), shape.len() - 1)?;
        let (mut names, mut bounds) = (coo::names(shape.len()), shape.clone());
        names.remove(axis);
        bounds.remove(axis);
        for (data, name) in others.iter().zip(&names) {
            check::length(name, data.len(), slots)?;
        }
        let slices: Vec<&[u32]> = others.iter().map(Vec::as_slice).collect();
        let groups = check::Groups {
            index_name: "group_index",
            index: &group_index,
            index_bound: shape[axis],
            names: &names,
            others: &slices,
            bounds: &bounds,
            group,
        };
        let nnz = groups.check()?;
        Ok(GroupCooPattern { shape, axis, group, group_index, others, nnz })
    }

    /// Stores the arrays without validation.
    ///
    /// # Safety
    /// [`GroupCooPattern::new`] would accept the arguments.
    pub unsafe fn new_unchecked(
        shape: Vec<usize>,
        axis: usize,
        group: usize,
        group_index: Vec<u32>,
        others: Vec<Vec<u32>>,
    ) -> Self {
        GroupCooPattern { nnz: check::entries(&others[0]), shape, axis, group, group_index, others }
    }

    /// Grouped axis.
    pub fn axis(&self) -> usize {
        self.axis
    }

    /// Slots per group.
    pub fn group(&self) -> usize {
        self.group
    }

    /// Number of groups, P.
    pub fn groups(&self) -> usize {
        self.group_index.len()
    }

    /// Coordinate of every group on the grouped axis.
    pub fn group_index(&self) -> &[u32] {
        &self.group_index
    }

    /// Coordinates of every slot on the remaining axes, in order, `[P, group]` each.
    pub fn others(&self) -> &[Vec<u32>] {
        &self.others
    }
}

impl Pattern for GroupCooPattern {
    fn format(&self) -> Format {
        Format::GroupCoo { axis: self.axis, group: Some(self.group) }
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn nnz(&self) -> usize {
        self.nnz
    }

    fn value_shape(&self) -> Vec<usize> {
        vec![self.group_index.len(), self.group]
    }

    /// Returns the arrays in the order of the axes.
    fn arrays(&self) -> Vec<IndexArray<'_>> {
        let mut others = self.others.iter();
        let array = |axis| {
            if axis == self.axis {
                IndexArray::coordinate(axis, [self.group_index.len()], &self.group_index)
            } else {
                let data = others.next().map_or(&[][..], Vec::as_slice);
                IndexArray::coordinate(axis, self.value_shape(), data)
            }
        };
        (0..self.shape.len()).map(array).collect()
    }
}
