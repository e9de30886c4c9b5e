//! Partition of a matrix into chunks of rows that fit a memory limit, and the layout of a chunk in a buffer. Rows form
//! the same items as in the whole matrix, so each row is summed in the same order.

use einsparse_kernels::abi::{Item, Slot};
use einsparse_kernels::table::Row;

use super::LANES;
use crate::error::{Error, Result};
use crate::families::spmm::gather::{Cutting, Words};
use crate::launch::Extents;
use crate::machine::Machine;
use crate::tensor::VECTOR_ENTRIES;
use crate::worklist::{Runs, Slab, TooLong, WorkList};

/// Alignment of the parts of a buffer, in bytes.
const ALIGNED: usize = 256;
/// Bytes of a chunk from which on copies run at the full rate of the link. Chunks are larger only if there are at least
/// [`SLABS`].
const LEAST_SLAB: usize = 8 << 20;
/// Min chunks of a large matrix: the first copy and the last product, which nothing hides, then take a few percent of
/// the time. More chunks would not help: L2 holds no rows of B for a column tile when a chunk begins.
const SLABS: usize = 24;
/// Attempts to fit the work lists, whose size is known only after they are made.
const TRIES: usize = 8;

/// Matrix to stream, and the kernel that reads it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Streamed<'r> {
    pub(crate) row: &'static Row,
    pub(crate) runs: &'r Runs,
    pub(crate) extents: Extents,
    pub(crate) slots: usize,
}

impl Streamed<'_> {
    /// Bytes of the columns and of the values of `slots` slots, with the padding that kernels read.
    fn arrays(&self, slots: usize) -> [usize; 2] {
        let with_room = slots + VECTOR_ENTRIES;
        [4, self.row.dtype.bytes()].map(|each| (with_room * each).next_multiple_of(ALIGNED))
    }

    /// Bytes of a buffer with `slots` slots and `lists` bytes of work lists.
    fn buffer(&self, slots: usize, lists: usize) -> usize {
        self.arrays(slots).iter().sum::<usize>() + lists.next_multiple_of(ALIGNED)
    }

    /// Bytes of partial sums and of counters.
    fn sums(&self, list: &WorkList) -> [usize; 2] {
        let tiles = self.extents.n.div_ceil(self.row.columns as usize);
        let columns = tiles * self.row.columns as usize;
        let partial = list.slots.len() * columns * self.row.dtype.acc_bytes();
        [partial, list.counters as usize * tiles * 4]
    }

    /// Bytes of the whole matrix on the GPU: with everything that its kernel keeps, and of the tensor alone.
    pub(crate) fn whole(&self, machine: &Machine) -> [usize; 2] {
        let cutting = Cutting::new(self.row, self.runs, self.extents, machine);
        let list = cutting.list(self.runs);
        // The tensor contains the spans of its rows.
        let spans = self.runs.rows.len() * 8;
        let own = (self.slots + VECTOR_ENTRIES) * (4 + self.row.dtype.bytes()) + spans;
        let lists = (list.items.len() + list.slots.len()) * 16;
        [own + lists + self.sums(&list).iter().sum::<usize>(), own]
    }
}

/// Position of a chunk's work lists among those of all chunks.
#[derive(Clone, Debug)]
pub(super) struct ListPart {
    /// Offsets in bytes of items, slots and spans, and of the end of the spans.
    pub(super) at: [usize; 4],
    pub(super) items: usize,
}

/// Partition of a matrix into chunks, and the device memory for them. It is computed without a GPU.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) slabs: Vec<Slab>,
    pub(super) lists: Vec<ListPart>,
    /// Work lists of all chunks, one after another.
    pub(super) words: Vec<u32>,
    /// Whether work lists are copied with each chunk; otherwise they stay on the GPU.
    pub(crate) lists_streamed: bool,
    pub(crate) buffers: usize,
    pub(crate) buffer_bytes: usize,
    pub(super) partial_bytes: usize,
    pub(super) counter_bytes: usize,
}

impl Layout {
    /// Creates the layout for at most `limit` bytes of device memory.
    ///
    /// # Errors
    /// [`Error::Overflow`] if the limit is too small.
    pub(crate) fn new(of: &Streamed<'_>, limit: usize, machine: &Machine) -> Result<Self> {
        let cutting = Cutting::new(of.row, of.runs, of.extents, machine);
        let mut least = usize::MAX;
        // One buffer more than concurrent products is filled meanwhile; two buffers suffice.
        for (buffers, lists_streamed) in
            [(LANES + 1, false), (LANES + 1, true), (2, false), (2, true)]
        {
            match Self::tried(of, cutting, (buffers, lists_streamed), limit) {
                Ok(layout) => return Ok(layout),
                Err(wanted) => least = least.min(wanted),
            }
        }
        let (row, longest) =
            (0..).zip(&of.runs.rows).max_by_key(|(_, run)| run.1).unwrap_or((0, &(0, 0)));
        Err(Error::Overflow {
            what: format!(
                "bytes on the GPU for two chunks of A with their work lists, each at least a row (row {row} has {} \
                 entries),",
                longest.1
            ),
            value: least as u128,
            limit: limit as u128,
        })
    }

    /// Layout within the limit, or the min number of bytes that it requires.
    fn tried(
        of: &Streamed<'_>,
        cutting: Cutting,
        (buffers, lists_streamed): (usize, bool),
        limit: usize,
    ) -> std::result::Result<Self, usize> {
        let spans = if cutting.weight.is_some() { 8 } else { 0 };
        // Upper bound: a bundle is one item with many rows.
        let listed = |len: u32| match len.div_ceil(cutting.limit.max(1)) as usize {
            pieces if pieces > 1 => pieces * 32 + spans,
            _ => 16 + spans,
        };
        let in_buffer = |len: u32| if lists_streamed { listed(len) } else { 0 };
        let bytes = |slots: usize, lists: usize| {
            of.buffer(slots, lists + if lists_streamed { 16 } else { 0 })
        };
        let enough = (of.buffer(of.slots, 0) / SLABS).max(LEAST_SLAB);
        let longest = bytes(of.runs.longest as usize + 16, listed(of.runs.longest));
        let mut room = (limit / buffers).min(enough.max(longest));
        let (mut best, mut too_much, mut wanted) = (None, None, usize::MAX);
        for _ in 0..TRIES {
            let slabs = match of.runs.slabs(room, &bytes, &in_buffer) {
                Ok(slabs) => slabs,
                // A row is too long: returns the best layout, or the smallest requirement of all attempts.
                Err(TooLong { bytes, .. }) => {
                    let own = bytes.saturating_mul(buffers).max(limit.saturating_add(1));
                    return best.ok_or(own.min(wanted));
                }
            };
            let layout = Self::of_slabs(of, cutting, slabs, (buffers, lists_streamed));
            let all = layout.bytes();
            if !lists_streamed && layout.words.len() * 4 > limit / 2 {
                let own = all.max(limit.saturating_add(1));
                return best.ok_or(own.min(wanted));
            }
            let next = if all <= limit {
                best = Some(layout);
                // Smaller chunks have fewer partial sums, so larger chunks may fit again.
                let far = |much: &usize| much - room > room / 8;
                too_much.filter(far).map(|much| usize::midpoint(room, much))
            } else {
                too_much = Some(room);
                wanted = wanted.min(all);
                match &best {
                    Some(best) => Some(usize::midpoint(best.buffer_bytes, room)),
                    None => room.checked_sub((all - limit).div_ceil(buffers).max(ALIGNED)),
                }
            };
            match next {
                Some(next) => room = next,
                None => break,
            }
        }
        best.ok_or(wanted)
    }

    fn of_slabs(
        of: &Streamed<'_>,
        cutting: Cutting,
        slabs: Vec<Slab>,
        (buffers, lists_streamed): (usize, bool),
    ) -> Self {
        let mut layout = Layout {
            slabs: Vec::new(),
            lists: Vec::new(),
            words: Vec::new(),
            lists_streamed,
            buffers: buffers.min(slabs.len()),
            buffer_bytes: 0,
            partial_bytes: 0,
            counter_bytes: 0,
        };
        for slab in &slabs {
            let runs = of.runs.part(slab);
            let list = cutting.list(&runs);
            let part = layout.add(&list, cutting.weight.map(|_| &runs));
            let streamed = if lists_streamed { part.at[3] - part.at[0] } else { 0 };
            let bytes = of.buffer(slab.slots.len(), streamed);
            layout.buffer_bytes = layout.buffer_bytes.max(bytes);
            let [partial, counters] = of.sums(&list);
            // Aligned, because those of the next lane follow.
            let [partial, counters] = [partial, counters].map(|b| b.next_multiple_of(ALIGNED));
            layout.partial_bytes = layout.partial_bytes.max(partial);
            layout.counter_bytes = layout.counter_bytes.max(counters);
            layout.lists.push(part);
        }
        layout.slabs = slabs;
        layout
    }

    /// Adds the work list of a chunk, with the spans of its rows if bundles read them. Parts are aligned to 16 bytes.
    fn add(&mut self, list: &WorkList, spans: Option<&Runs>) -> ListPart {
        let mut at = [self.words.len() * 4; 4];
        self.words.extend(Item::words(&list.items).as_flattened());
        at[1] = self.words.len() * 4;
        self.words.extend(Slot::words(&list.slots).as_flattened());
        at[2] = self.words.len() * 4;
        let rows = spans.iter().flat_map(|runs| &runs.rows);
        self.words.extend(rows.flat_map(|&(start, len)| [start, len]));
        self.words.resize(self.words.len().next_multiple_of(4), 0);
        at[3] = self.words.len() * 4;
        ListPart { at, items: list.items.len() }
    }

    /// Device bytes.
    pub(crate) fn bytes(&self) -> usize {
        let lists = if self.lists_streamed { 0 } else { self.words.len() * 4 };
        let sums = self.partial_bytes + self.counter_bytes;
        self.buffers * self.buffer_bytes + lists + LANES * sums
    }

    /// Bytes that a run copies.
    pub(crate) fn copied(&self, element: usize) -> usize {
        let slots = self.slabs.iter().map(|slab| slab.slots.len());
        let lists = if self.lists_streamed { self.words.len() * 4 } else { 0 };
        slots.sum::<usize>() * (4 + element) + lists
    }

    /// Offsets of the values and the work lists of a chunk in its buffer. The columns are at offset 0.
    pub(crate) fn places(&self, slab: usize, element: usize) -> [usize; 2] {
        let with_room = self.slabs[slab].slots.len() + VECTOR_ENTRIES;
        let values = (with_room * 4).next_multiple_of(ALIGNED);
        [values, values + (with_room * element).next_multiple_of(ALIGNED)]
    }

    /// Addresses of the values, items, slots and spans of a chunk in the buffer at address `buffer`. `kept`: address of
    /// the work lists, if they are not in the buffer.
    pub(super) fn addresses(
        &self,
        slab: usize,
        element: usize,
        (buffer, kept): (u64, Option<u64>),
    ) -> (u64, [u64; 3]) {
        let [values, lists] = self.places(slab, element);
        let at = self.lists[slab].at;
        let (base, first) = match kept {
            Some(all) => (all, 0),
            None => (buffer + lists as u64, at[0]),
        };
        let of = |part: usize| base + (at[part] - first) as u64;
        (buffer + values as u64, [0, 1, 2].map(of))
    }
}

#[cfg(test)]
mod tests {
    use einsparse_kernels::abi::{BUNDLE, WHOLE_ROW};

    use super::*;
    use crate::registry::find;

    const ELEMENT: usize = 4;
    /// Addresses of the buffer, and of the work lists that stay on the GPU.
    const BUFFER: u64 = 1 << 20;
    const KEPT: u64 = 1 << 40;

    /// Memory at these addresses, as a kernel reads it.
    struct Memory<'m> {
        buffer: &'m [u8],
        kept: &'m [u8],
    }

    impl Memory<'_> {
        fn words<const N: usize>(&self, address: u64) -> [u32; N] {
            let (from, at) = match address.checked_sub(KEPT) {
                Some(at) => (self.kept, at),
                None => (self.buffer, address - BUFFER),
            };
            let bytes = &from[at as usize..][..N * 4];
            let word = |i: usize| bytemuck::pod_read_unaligned(&bytes[4 * i..4 * i + 4]);
            std::array::from_fn(word)
        }
    }

    /// Reads the items of every chunk like a kernel, and checks that every entry of every row is read once.
    fn walk(of: &Streamed<'_>, layout: &Layout) {
        let mut next = 0;
        for (at, slab) in layout.slabs.iter().enumerate() {
            assert_eq!((slab.rows.start, slab.slots.start % 16), (next, 0));
            next = slab.rows.end;
            let [values, lists] = layout.places(at, ELEMENT);
            let mut buffer = vec![0xff; layout.buffer_bytes];
            // Slot numbers serve as columns and as values.
            for (i, slot) in slab.slots.clone().enumerate() {
                for part in [0, values] {
                    let to = &mut buffer[part + i * 4..][..4];
                    to.copy_from_slice(&(slot as u32).to_ne_bytes());
                }
            }
            let all: &[u8] = bytemuck::cast_slice(&layout.words);
            let ListPart { at: own, items } = &layout.lists[at];
            if layout.lists_streamed {
                let own = &all[own[0]..own[3]];
                buffer[lists..lists + own.len()].copy_from_slice(own);
            }
            let kept = (!layout.lists_streamed).then_some(KEPT);
            let (values, [item_at, slot_at, span_at]) =
                layout.addresses(at, ELEMENT, (BUFFER, kept));
            let memory = Memory { buffer: &buffer, kept: all };
            let mut found = vec![Vec::new(); slab.rows.len()];
            let mut read = |row: u32, start: u32, len: u32| {
                for slot in start..start + len {
                    let [column] = memory.words(BUFFER + u64::from(slot) * 4);
                    assert_eq!([column], memory.words(values + u64::from(slot) * 4));
                    found[row as usize].push(column);
                }
            };
            for item in 0..*items as u64 {
                let [row, start, len, slot] = memory.words(item_at + item * 16);
                match slot {
                    BUNDLE => {
                        for row in row..row + len {
                            let [start, len] = memory.words(span_at + u64::from(row) * 8);
                            read(row, start, len);
                        }
                    }
                    WHOLE_ROW => read(row, start, len),
                    slot => {
                        let [_, first, count, _] = memory.words(slot_at + u64::from(slot) * 16);
                        assert!((first..first + count).contains(&slot));
                        read(row, start, len);
                    }
                }
            }
            for (row, own) in slab.rows.clone().zip(&mut found) {
                let (start, len) = of.runs.rows[row];
                own.sort_unstable();
                assert!(own.iter().copied().eq(start..start + len), "row {row}");
            }
        }
        assert_eq!(next, of.runs.rows.len());
    }

    #[test]
    fn items_find_the_entries_of_their_slab() {
        let machine = Machine::H200;
        for (rows, n, bundled) in [(3000, 32, false), (60_000, 128, true)] {
            let len = |row: u32| match row {
                _ if row % 1499 == 700 => 400,
                _ if row % 64 < 12 => 0,
                _ => row * 37 % 23,
            };
            let offsets = (0..rows).scan(0, |at, row| {
                *at += len(row);
                Some(*at)
            });
            let offsets: Vec<u32> = std::iter::once(0).chain(offsets).collect();
            let runs = Runs::of_offsets(&offsets).unwrap();
            let of = Streamed {
                row: find("spmm_csr_f32_n32").unwrap(),
                runs: &runs,
                extents: Extents { m: rows as usize, k: 1000, n, items: 1 },
                slots: runs.total as usize,
            };
            let cutting = Cutting::new(of.row, &runs, of.extents, &machine);
            assert_eq!(cutting.weight.is_some(), bundled);
            let whole = of.whole(&machine)[0];
            for (part, streamed) in [(2, false), (7, true), (20, true)] {
                let layout = Layout::new(&of, whole / part, &machine).unwrap();
                assert!(layout.slabs.len() >= part && layout.bytes() <= whole / part);
                assert_eq!(layout.lists_streamed, streamed, "{rows} {part}");
                walk(&of, &layout);
            }
            assert!(Layout::new(&of, 400 * 8, &machine).is_err());
        }
    }
}
