//! The entries of a tensor in any format, read from its device arrays one by one. Slow and plain: for references.

use std::collections::BTreeMap;

use crate::{AnySparse, Element, Format, Nm, PAD, Role, SlicedEll};

/// Index to value, for what is stored; in lexicographic order.
pub type Entries = BTreeMap<Vec<usize>, f64>;

impl<T: Element> AnySparse<T> {
    /// The entries, in f64. Zeros inside blocks are fill, not entries.
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
            // Only ELL says nothing about axis 0: there it is the row of slots.
            let mut index = vec![p / width; self.shape().len()];
            for array in &arrays {
                let data = array.data;
                match array.role {
                    // One coordinate for each place, or one for each group of places.
                    Role::Coordinate { axis } => {
                        index[axis] = data[p / (places / data.len())] as usize;
                    }
                    Role::Offsets { axis } => {
                        index[axis] = data.partition_point(|&o| o as usize <= p) - 1;
                    }
                    // Only N:M, bitmaps, byte maps and sliced ELL have them, see below.
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

/// The slots of a matrix by tiles that are no padding.
fn of_tiles<T: Element>([rows, columns]: [Vec<u32>; 2], values: &[T]) -> Entries {
    let places = rows.iter().zip(&columns).zip(values);
    places
        .filter(|((row, _), _)| **row != PAD)
        .map(|((&row, &column), value)| (vec![row as usize, column as usize], value.to_f64()))
        .collect()
}

/// The slots of N:M that are no fill, each from its group's place and its own.
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

/// The slots of sliced ELL that are no padding, each from its row's lane and its chunk's window.
fn of_sliced<T: Element>(a: &SlicedEll<T>) -> Entries {
    let [rows, columns] = a.pattern().unpacked();
    let places = rows.into_iter().zip(columns).zip(a.values());
    places
        .filter(|&((_, column), _)| column != PAD)
        .map(|((row, column), value)| (vec![row as usize, column as usize], value.to_f64()))
        .collect()
}
