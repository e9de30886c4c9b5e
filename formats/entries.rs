//! Entries of a tensor in any format, read from its index arrays one by one. Slow and simple, for reference code.

use std::collections::BTreeMap;

use crate::{AnySparse, Element, Format, Nm, PAD, Role, SlicedEll};

/// Map from index to value of the stored entries, in lexicographic order.
pub type Entries = BTreeMap<Vec<usize>, f64>;

impl<T: Element> AnySparse<T> {
    /// Returns the entries in f64. Zeros inside blocks are fill, not entries.
    pub fn entries(&self) -> Entries {
        match self {
            AnySparse::Nm(a) => return of_nm(a),
            AnySparse::SlicedEll(a) => return of_sliced(a),
            AnySparse::Bitmap(a) => return of_tiles(a.pattern().coordinates(), a.values()),
            AnySparse::HybridGroupCoo(a) => {
                return of_tiles(a.pattern().coordinates(), a.values());
            }
            AnySparse::Bytemap(a) => return of_tiles(a.pattern().coordinates(), a.values()),
            _ => {}
        }
        let block = match self.format() {
            Format::Bsr { block }
            | Format::BlockCoo { block }
            | Format::BlockGroupCoo { block, .. } => Some(block),
            _ => None,
        };
        let (bm, bk) = block.unwrap_or((1, 1));
        let places = self.slots() / (bm * bk);
        let width = self.value_shape().get(1).copied().unwrap_or(1);
        let arrays = self.arrays();
        let mut found = Entries::new();
        for (slot, &value) in self.values().iter().enumerate() {
            let p = slot / (bm * bk);
            // ELL has no coordinates of axis 0: they are the row of slots.
            let mut index = vec![p / width; self.shape().len()];
            for array in &arrays {
                let data = array.data;
                match array.role {
                    // One coordinate per slot or block, or one per group of them.
                    Role::Coordinate { axis } => {
                        index[axis] = data[p / (places / data.len())] as usize;
                    }
                    Role::Offsets { axis } => {
                        index[axis] = data.partition_point(|&o| o as usize <= p) - 1;
                    }
                    // Only N:M, bitmaps, bytemaps and sliced ELL have these arrays. They are handled by the functions
                    // below.
                    Role::Positions { .. }
                    | Role::Bits
                    | Role::Starts
                    | Role::Order { .. }
                    | Role::Windows { .. } => {}
                }
            }
            if index.contains(&(PAD as usize)) {
                continue;
            }
            if block.is_some() {
                index = vec![index[0] * bm + slot / bk % bm, index[1] * bk + slot % bk];
                let outside = index.iter().zip(self.shape()).any(|(i, n)| i >= n);
                if outside || value == T::ZERO {
                    continue;
                }
            }
            found.insert(index, value.to_f64());
        }
        found
    }
}

/// Slots that are not padding, from their rows and columns.
fn of_tiles<T: Element>([rows, columns]: [Vec<u32>; 2], values: &[T]) -> Entries {
    let places = rows.iter().zip(&columns).zip(values);
    places
        .filter(|((row, _), _)| **row != PAD)
        .map(|((&row, &column), value)| (vec![row as usize, column as usize], value.to_f64()))
        .collect()
}

/// Slots of N:M that are not fill. The column follows from the group and the position in the group.
fn of_nm<T: Element>(a: &Nm<T>) -> Entries {
    let p = a.pattern();
    let mut found = Entries::new();
    for (slot, &value) in a.values().iter().enumerate() {
        let (row, place) = (slot / p.row_slots(), slot % p.row_slots());
        let column = place / 2 * 4 + p.positions(row, place / 2)[place % 2] as usize;
        if column < p.cols() && value != T::ZERO {
            found.insert(vec![row, column], value.to_f64());
        }
    }
    found
}

/// Slots of sliced ELL that are not padding. The row follows from the lane, the column from the window of the chunk.
fn of_sliced<T: Element>(a: &SlicedEll<T>) -> Entries {
    let [rows, columns] = a.pattern().unpacked();
    let places = rows.into_iter().zip(columns).zip(a.values());
    places
        .filter(|&((_, column), _)| column != PAD)
        .map(|((row, column), value)| (vec![row as usize, column as usize], value.to_f64()))
        .collect()
}
