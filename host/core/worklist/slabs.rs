//! Chunks of rows: parts of a matrix that is too large for the GPU as a whole.

use std::ops::Range;

use super::Runs;

/// Alignment of the first slot of a chunk. Kernels load whole vectors, which must contain the same nonzeros of a row as
/// in the whole matrix.
const ALIGNED: usize = 16;

/// Adjacent rows and the slots of their nonzeros. The first slots may belong to the row before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slab {
    pub(crate) rows: Range<usize>,
    pub(crate) slots: Range<usize>,
}

/// Row that is too long for a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooLong {
    pub(crate) row: usize,
    pub(crate) entries: u32,
    /// Bytes of a chunk with only this row.
    pub(crate) bytes: usize,
}

impl Runs {
    /// Splits the rows into chunks of at most `room` bytes, each as large as possible. `bytes(slots, lists)`: bytes of
    /// these slots and of lists of `lists` bytes. `listed(entries)`: bytes of the lists for a row.
    pub(crate) fn slabs(
        &self,
        room: usize,
        bytes: &dyn Fn(usize, usize) -> usize,
        listed: &dyn Fn(u32) -> usize,
    ) -> Result<Vec<Slab>, TooLong> {
        let mut slabs = Vec::new();
        let mut open: Option<(Slab, usize)> = None;
        for (row, &(start, len)) in self.rows.iter().enumerate() {
            let (first, end) = match len {
                0 => (0, 0),
                _ => {
                    let start = start as usize;
                    (start - start % ALIGNED, start + len as usize)
                }
            };
            let own = listed(len);
            if let Some((slab, lists)) = &mut open {
                let slots = match (len, slab.slots.is_empty()) {
                    (0, _) => slab.slots.clone(),
                    (_, true) => first..end,
                    (_, false) => slab.slots.start..end,
                };
                if bytes(slots.len(), *lists + own) <= room {
                    slab.rows.end = row + 1;
                    slab.slots = slots;
                    *lists += own;
                    continue;
                }
            }
            slabs.extend(open.take().map(|(slab, _)| slab));
            let alone = bytes(end - first, own);
            if alone > room {
                return Err(TooLong { row, entries: len, bytes: alone });
            }
            let slab = Slab { rows: row..row + 1, slots: first..end };
            open = Some((slab, own));
        }
        slabs.extend(open.map(|(slab, _)| slab));
        Ok(slabs)
    }

    /// Returns the rows of a chunk, with slots relative to its first slot.
    pub(crate) fn part(&self, slab: &Slab) -> Runs {
        let own = |&(start, len): &(u32, u32)| match len {
            0 => (0, 0),
            _ => (start - slab.slots.start as u32, len),
        };
        Runs::of_spans(self.rows[slab.rows.clone()].iter().map(own).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::runs;
    use super::*;

    const ENTRY: usize = 8;

    fn cut(lens: &[u32], room: usize) -> Result<Vec<Slab>, TooLong> {
        runs(lens).slabs(room, &|slots, lists| slots * ENTRY + lists, &|_| 16)
    }

    #[test]
    fn every_row_is_in_one_slab_that_holds_its_entries() {
        let lens: Vec<u32> = (0..500).map(|r| if r % 7 < 3 { 0 } else { r * 37 % 23 }).collect();
        let all = runs(&lens);
        for room in [512, 700, 5000, 1 << 20] {
            let slabs = cut(&lens, room).unwrap();
            let mut next = 0;
            for slab in &slabs {
                assert_eq!((slab.rows.start, slab.slots.start % ALIGNED), (next, 0));
                next = slab.rows.end;
                assert!(slab.slots.len() * ENTRY + slab.rows.len() * 16 <= room, "{slab:?}");
                let part = all.part(slab);
                for (own, row) in part.rows.iter().zip(slab.rows.clone()) {
                    assert_eq!(own.1, lens[row]);
                    if own.1 > 0 {
                        assert_eq!(own.0 as usize + slab.slots.start, all.rows[row].0 as usize);
                        assert!((own.0 + own.1) as usize <= slab.slots.len());
                    }
                }
            }
            assert_eq!(next, lens.len());
            // One more row would exceed `room`.
            let whole = slabs.windows(2).all(|w| {
                let slots = all.rows[w[1].rows.start];
                let end = slab_end(&w[0], slots);
                (end - w[0].slots.start) * ENTRY + (w[0].rows.len() + 1) * 16 > room
            });
            assert!(whole, "{room}");
        }
        assert_eq!(cut(&lens, 1 << 20).unwrap().len(), 1);
        assert!(cut(&[], 0).unwrap().is_empty());
    }

    fn slab_end(slab: &Slab, (start, len): (u32, u32)) -> usize {
        if len == 0 { slab.slots.end } else { (start + len) as usize }
    }

    #[test]
    fn a_row_longer_than_a_slab_is_named() {
        let long = cut(&[3, 100, 2], 400).unwrap_err();
        // Includes the three nonzeros that share its first vector.
        let bytes = 103 * ENTRY + 16;
        assert_eq!((long.row, long.entries, long.bytes), (1, 100, bytes));
        assert_eq!(cut(&[3, 100, 2], bytes).unwrap().len(), 3);
    }

    #[test]
    fn rows_without_entries_take_room_for_their_lists_alone() {
        let slabs = cut(&[0; 10], 48).unwrap();
        assert_eq!(slabs.len(), 4);
        assert!(slabs.iter().all(|slab| slab.slots.is_empty()));
    }
}
