//! Coordinates of every slot of a tensor on each axis, in any format. Products over entries of several sparse tensors
//! use them.

use std::collections::BTreeMap;

use rayon::prelude::*;

use crate::error::*;
use crate::{
    AnyPattern, AnySparse, Element, Format, IndexArray, NmPattern, PAD, Pattern, Role, check,
};

/// Map from index to value of the stored entries, in lexicographic order.
pub type Entries = BTreeMap<Vec<usize>, f64>;

impl AnyPattern<'_> {
    /// [`Format::holds_fill`] of the format of this pattern.
    pub fn holds_fill(self) -> bool {
        self.format().holds_fill()
    }

    /// Returns the coordinate of every slot of the values array for each axis. The coordinates are [`PAD`] on all axes
    /// for slots without entry and for elements of edge blocks outside the shape. Fill inside blocks has coordinates.
    ///
    /// ```
    /// use einsparse_formats::{AnySparse, Csr, CsrPattern};
    /// let pattern = CsrPattern::new(3, 4, vec![0, 2, 2, 3], vec![0, 3, 1])?;
    /// let a = AnySparse::from(Csr::new(pattern, vec![1.0f32, 2.0, 3.0])?);
    /// assert_eq!(a.pattern().coordinates()?, [vec![0, 0, 2], vec![0, 3, 1]]);
    /// # Ok::<(), einsparse_formats::FormatError>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if allocation fails.
    pub fn coordinates(self) -> Result<Vec<Vec<u32>>> {
        let mut axes = match self {
            AnyPattern::Coo(p) => return Ok(p.coords().to_vec()),
            AnyPattern::Bitmap(p) => p.coordinates().into(),
            AnyPattern::Bytemap(p) => p.coordinates().into(),
            AnyPattern::HybridGroupCoo(p) => p.coordinates().into(),
            AnyPattern::SlicedEll(p) => p.unpacked().into(),
            AnyPattern::Nm(p) => of_nm(p),
            _ => self.of_arrays()?,
        };
        drop_padding(&mut axes);
        Ok(axes)
    }

    /// Computes coordinates from the index arrays: one coordinate per slot or per group of slots, offsets, or the row
    /// of slots.
    fn of_arrays(self) -> Result<Vec<Vec<u32>>> {
        let (bm, bk) = block_of(&self.format()).unwrap_or((1, 1));
        let places = self.slots() / (bm * bk);
        let width = self.value_shape().get(1).copied().unwrap_or(1);
        let arrays = self.arrays();
        let mut axes = Vec::new();
        for axis in 0..self.shape().len() {
            let of_axis = |a: &&IndexArray<'_>| {
                [Role::Coordinate { axis }, Role::Offsets { axis }].contains(&a.role)
            };
            let mut data = check::zeroed("coordinates", places)?;
            match arrays.iter().find(of_axis) {
                Some(array) if array.role == (Role::Coordinate { axis }) => {
                    let each = places / array.data.len().max(1);
                    spread(&mut data, each.max(1), |at| array.data[at]);
                }
                Some(array) => {
                    for (row, w) in (0..).zip(array.data.windows(2)) {
                        data[w[0] as usize..w[1] as usize].fill(row);
                    }
                }
                // ELL has no coordinates of axis 0: they are the row of slots.
                None => spread(&mut data, width.max(1), |at| at as u32),
            }
            axes.push(data);
        }
        if (bm, bk) == (1, 1) {
            return Ok(axes);
        }
        let mut inside = Vec::new();
        for (axis, extent) in [(0, bm), (1, bk)] {
            let mut data = check::zeroed("coordinates", places * bm * bk)?;
            let place = |slot: usize| if axis == 0 { slot / bk % bm } else { slot % bk };
            data.par_iter_mut().enumerate().for_each(|(slot, to)| {
                let block = axes[axis][slot / (bm * bk)];
                let at = u64::from(block) * extent as u64 + place(slot) as u64;
                let outside = block == PAD || at >= self.shape()[axis] as u64;
                *to = if outside { PAD } else { at as u32 };
            });
            inside.push(data);
        }
        Ok(inside)
    }
}

impl<T: Element> AnySparse<T> {
    /// [`AnyPattern::coordinates`] of the pattern of this tensor.
    ///
    /// # Errors
    /// Returns an error if allocation fails.
    pub fn coordinates(&self) -> Result<Vec<Vec<u32>>> {
        self.pattern().coordinates()
    }

    /// Returns the entries in f64, for reference code. Zeros inside blocks are fill, not entries.
    ///
    /// # Panics
    /// Panics if the coordinates of the slots cannot be allocated.
    pub fn entries(&self) -> Entries {
        let axes = self.coordinates().expect("memory for coordinates");
        let fill = self.pattern().holds_fill();
        let index = |slot: usize| axes.iter().map(|axis| axis[slot] as usize).collect::<Vec<_>>();
        let slots = self.values().iter().enumerate();
        let entries = slots.filter(|&(slot, value)| {
            axes.iter().all(|axis| axis[slot] != PAD) && !(fill && *value == T::ZERO)
        });
        entries.map(|(slot, value)| (index(slot), value.to_f64())).collect()
    }
}

/// Extents of a block, for formats of dense blocks.
fn block_of(format: &Format) -> Option<(usize, usize)> {
    match *format {
        Format::Bsr { block }
        | Format::BlockCoo { block }
        | Format::BlockGroupCoo { block, .. } => Some(block),
        _ => None,
    }
}

/// Fills each run of `each` slots with one value.
fn spread(data: &mut [u32], each: usize, value: impl Fn(usize) -> u32 + Sync) {
    data.par_chunks_mut(each)
        .with_min_len(1 << 12)
        .enumerate()
        .for_each(|(at, slots)| slots.fill(value(at)));
}

fn of_nm(p: &NmPattern) -> Vec<Vec<u32>> {
    let place = |slot| ((slot / p.row_slots()) as u32, slot % p.row_slots());
    let places = (0..p.slots()).map(place);
    let (rows, columns) = places.map(|(row, at)| (row, p.column(row as usize, at))).unzip();
    vec![rows, columns]
}

/// Sets a slot that is padding on one axis to padding on all axes.
fn drop_padding(axes: &mut [Vec<u32>]) {
    let Some(len) = axes.first().map(Vec::len) else {
        return;
    };
    let padded: Vec<usize> = (0..len)
        .into_par_iter()
        .filter(|&slot| axes.iter().any(|data| data[slot] == PAD))
        .collect();
    for data in axes {
        padded.iter().for_each(|&slot| data[slot] = PAD);
    }
}
