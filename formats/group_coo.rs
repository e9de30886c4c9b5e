//! GroupCOO: groups of `group` entries that share their coordinate on one axis (arXiv 2510.17505).
//! A row of `occ` entries takes ceil(occ / group) groups in a run; only the last group of a run is padded.

use crate::{Format, FormatError, IndexArray, Pattern, Sparse, check, coo};

/// Where the entries of a GroupCOO tensor are: `C[AM[p],n] += AV[p,q] * B[AK[p,q],n]`, any order from 2, any axis.
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

pub(crate) fn check_axis(shape: &[usize], axis: usize) -> Result<(), FormatError> {
    if shape.len() < 2 {
        let (found, expected) = (shape.len().to_string(), "at least 2".into());
        return Err(FormatError::Shape { what: "order", found, expected });
    }
    if axis >= shape.len() {
        let (found, expected) = (axis.to_string(), format!("below {}", shape.len()));
        return Err(FormatError::Shape { what: "grouped axis", found, expected });
    }
    Ok(())
}

impl GroupCooPattern {
    /// Checks and takes the grouped axis' coordinate of each of the P groups, and for every remaining axis, in order,
    /// `P * group` coordinates, [`PAD`](crate::PAD) behind the entries of the last group of a run.
    ///
    /// # Errors
    /// If the order is below 2, the axis is not of the tensor, `group` is 0, a length is wrong, a coordinate is
    /// outside the shape, the group index descends, the entries of a run do not ascend lexicographically, or padding
    /// stands anywhere but at the end of a run.
    pub fn new(
        shape: Vec<usize>,
        axis: usize,
        group: usize,
        group_index: Vec<u32>,
        others: Vec<Vec<u32>>,
    ) -> Result<Self, FormatError> {
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

    /// Takes the arrays unchecked.
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

    /// The grouped axis.
    pub fn axis(&self) -> usize {
        self.axis
    }

    /// Slots of a group.
    pub fn group(&self) -> usize {
        self.group
    }

    /// Groups, P.
    pub fn groups(&self) -> usize {
        self.group_index.len()
    }

    /// The coordinate of every group on the grouped axis.
    pub fn group_index(&self) -> &[u32] {
        &self.group_index
    }

    /// The coordinates of every slot on the remaining axes, in order, `[P, group]` each.
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

    /// In the order of the axes.
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
