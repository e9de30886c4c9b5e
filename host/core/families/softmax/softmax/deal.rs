//! Distribution of rows by length class, once per pattern: long rows are cut into pieces, neighbouring short rows are
//! combined into stretches.

use einsparse_kernels::families::{
    SOFTMAX_CLASSES, SOFTMAX_STRETCHES, SOFTMAX_THREADS, STRETCH_BOUNDS, STRETCH_LONGEST,
    STRETCH_ROWS, STRETCH_SLOTS, softmax_class,
};
use einsparse_kernels::table::Row;

use crate::error::Result;
use crate::launch::{MAX_GRID_X, within};
use crate::worklist::Runs;

/// Max rounds of a thread block. In rounds the position of the next row is prefetched, but only thread blocks that
/// start later balance the different lengths of rows of one class.
const MOST_ROUNDS: u32 = 8;

/// Min entries of a stretch, which occupies a thread block. With fewer entries, the rows are assigned to the classes of
/// single rows.
const LEAST_STRETCH: u32 = 256;

/// First slot and number of entries of a row, and the number of entries that are not masked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    start: u32,
    len: u32,
    live: u32,
}

/// Arrays that the kernel reads, and the thread blocks of each class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Deal {
    /// First slot and number of entries of each piece, row and stretch, by class.
    pub items: Vec<[u32; 2]>,
    /// Number of unmasked entries of each piece and row, then of each row of each stretch. Empty without masks.
    pub live: Vec<u32>,
    /// Start of each row of each stretch, and the end of the last row.
    pub bounds: Vec<u16>,
    /// For each piece: the first piece of its row, and the number of pieces of the row.
    pub pieces: Vec<[u32; 2]>,
    pub blocks: [u32; SOFTMAX_CLASSES + 1],
    /// Number of thread blocks of the gradient, which replaces the last of `blocks`: fewer of them are resident on a
    /// GPU.
    pub gradient_blocks: u32,
    pub firsts: [u32; SOFTMAX_CLASSES + 1],
}

/// Stretches of neighbouring short rows.
#[derive(Default)]
struct Stretches {
    open: Vec<Span>,
    items: Vec<[u32; 2]>,
    bounds: Vec<u16>,
    live: Vec<u32>,
}

impl Stretches {
    /// Whether the row can be appended to the open stretch.
    fn takes(&self, row: Span, vector: u32) -> bool {
        let Some((first, last)) = self.open.first().zip(self.open.last()) else {
            return true;
        };
        row.start == last.start + last.len
            && first.start % vector + (row.start - first.start) + row.len <= STRETCH_SLOTS
            && self.open.len() < STRETCH_ROWS as usize
    }

    /// Ends the stretch. If its rows have too few entries for one, they are returned.
    fn close(&mut self) -> Vec<Span> {
        let rows = std::mem::take(&mut self.open);
        let len = rows.iter().map(|row| row.len).sum::<u32>();
        if len < LEAST_STRETCH {
            return rows;
        }
        let start = rows[0].start;
        self.items.push([start, len]);
        // Below 2^16, as the slots of a stretch are.
        let begins = rows.iter().map(|row| (row.start - start) as u16);
        self.bounds.extend(begins);
        let unused = STRETCH_BOUNDS as usize - rows.len();
        self.bounds.extend(std::iter::repeat_n(len as u16, unused));
        self.live.extend(rows.iter().map(|row| row.live));
        let unused = STRETCH_ROWS as usize - rows.len();
        self.live.extend(std::iter::repeat_n(0, unused));
        Vec::new()
    }
}

impl Deal {
    /// Creates the distribution. `live`: number of unmasked entries of each row, which come first. `resident`: thread
    /// blocks that the GPU holds at a time, for each head.
    pub(crate) fn new(runs: &Runs, live: Option<&[u32]>, row: &Row, resident: u32) -> Result<Deal> {
        let used = runs.rows.iter().filter(|(_, len)| *len > 0).count();
        // If every row gets a warp at once, more vectors per lane only lengthen the chain.
        let spread = used as u64 <= u64::from(resident) * u64::from(SOFTMAX_THREADS / 32);
        let mut classes: [Vec<Span>; SOFTMAX_CLASSES] = Default::default();
        let mut pieces = Vec::new();
        let mut stretches = Stretches::default();
        let mut deal_single = |span: Span| match class_of(span, row, spread) {
            0 => cut(span, row, &mut classes[0], &mut pieces),
            class => classes[class].push(span),
        };
        for (index, &(start, len)) in runs.rows.iter().enumerate().filter(|(_, r)| r.1 > 0) {
            let live = live.map_or(len, |live| live[index]);
            let span = Span { start, len, live };
            let short = len <= STRETCH_LONGEST && !spread;
            if !(short && stretches.takes(span, row.vector)) {
                stretches.close().into_iter().for_each(&mut deal_single);
            }
            match short {
                true => stretches.open.push(span),
                false => deal_single(span),
            }
        }
        stretches.close().into_iter().for_each(&mut deal_single);
        Deal::put_together(classes, stretches, pieces, live.is_some(), row, resident)
    }

    fn put_together(
        classes: [Vec<Span>; SOFTMAX_CLASSES],
        stretches: Stretches,
        pieces: Vec<[u32; 2]>,
        masked: bool,
        row: &Row,
        resident: u32,
    ) -> Result<Deal> {
        let count = |class: usize| match class {
            SOFTMAX_STRETCHES => stretches.items.len() as u32,
            class => classes[class].len() as u32,
        };
        let full = |class: usize| {
            let together = SOFTMAX_THREADS / softmax_class(class, row.burst).0;
            count(class).div_ceil(together)
        };
        let total: u64 = (0..SOFTMAX_CLASSES).map(|c| u64::from(full(c))).sum();
        let rounds = total / (2 * u64::from(resident.max(1)));
        let rounds = rounds.clamp(1, u64::from(MOST_ROUNDS)) as u32;
        let (mut blocks, mut firsts) = ([0; SOFTMAX_CLASSES + 1], [0; SOFTMAX_CLASSES + 1]);
        for class in 0..SOFTMAX_CLASSES {
            let rounds = match class {
                // Stretches are equally long: as many rounds as make all thread blocks resident at once.
                SOFTMAX_STRETCHES => full(class).div_ceil(resident.max(1)).max(1),
                _ => rounds,
            };
            blocks[class + 1] = blocks[class] + full(class).div_ceil(rounds);
            firsts[class + 1] = firsts[class] + count(class);
        }
        let gradient_blocks = blocks[SOFTMAX_STRETCHES] + full(SOFTMAX_STRETCHES).div_ceil(rounds);
        let most = blocks[SOFTMAX_CLASSES].max(gradient_blocks);
        within("thread blocks", most as usize, MAX_GRID_X)?;
        let spans: Vec<Span> = classes.into_iter().flatten().collect();
        let mut items: Vec<_> = spans.iter().map(|s| [s.start, s.len]).collect();
        items.extend(stretches.items);
        let mut live = Vec::new();
        if masked {
            live.extend(spans.iter().map(|s| s.live));
            live.extend(stretches.live);
        }
        Ok(Deal { items, live, bounds: stretches.bounds, pieces, blocks, gradient_blocks, firsts })
    }
}

/// Cuts a row into pieces that each fit a thread block.
fn cut(span: Span, row: &Row, items: &mut Vec<Span>, pieces: &mut Vec<[u32; 2]>) {
    let most = SOFTMAX_THREADS * row.burst * row.vector;
    let first = items.len();
    let mut done = 0;
    while done < span.len {
        let start = span.start + done;
        let len = (most - start % row.vector).min(span.len - done);
        items.push(Span { start, len, live: span.live.saturating_sub(done).min(len) });
        done += len;
    }
    let count = items.len() - first;
    pieces.extend(std::iter::repeat_n([first as u32, count as u32], count));
}

/// Class with the fewest lanes and vectors that hold the row, counted from the aligned vector of its first slot.
fn class_of(span: Span, row: &Row, spread: bool) -> usize {
    let slots = u64::from(span.start % row.vector) + u64::from(span.len);
    let holds = |class: &usize| {
        let (lanes, vectors) = softmax_class(*class, row.burst);
        let narrow = lanes < 32 && vectors > 1;
        u64::from(lanes * vectors * row.vector) >= slots && !(spread && narrow)
    };
    (1..SOFTMAX_STRETCHES).rev().find(holds).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::find;
    use super::*;
    use crate::registry::Dtype;
    use einsparse_kernels::families::STEP_SOFTMAX;

    fn dealt(
        rows: &[(u32, u32)],
        live: Option<&[u32]>,
        dtype: Dtype,
        resident: u32,
    ) -> (Deal, &'static Row) {
        let row = find(dtype, STEP_SOFTMAX).unwrap();
        let runs = Runs {
            rows: rows.to_vec(),
            total: rows.iter().map(|r| u64::from(r.1)).sum(),
            longest: rows.iter().map(|r| r.1).max().unwrap_or(0),
        };
        (Deal::new(&runs, live, row, resident).unwrap(), row)
    }

    /// Every slot of rows once, with whether it is not masked.
    fn slots(deal: &Deal, row: &Row) -> Vec<(u32, bool)> {
        let mut all = Vec::new();
        let mut take = |start: u32, len: u32, live: u32| {
            all.extend((0..len).map(|i| (start + i, i < live)));
        };
        for class in 0..SOFTMAX_STRETCHES {
            let (lanes, vectors) = softmax_class(class, row.burst);
            for item in deal.firsts[class] as usize..deal.firsts[class + 1] as usize {
                let [start, len] = deal.items[item];
                assert!(start % row.vector + len <= lanes * vectors * row.vector);
                take(start, len, deal.live.get(item).copied().unwrap_or(len));
            }
        }
        let single = deal.firsts[SOFTMAX_STRETCHES] as usize;
        for (stretch, &[start, len]) in deal.items[single..].iter().enumerate() {
            assert!(start % row.vector + len <= STRETCH_SLOTS);
            let bounds = &deal.bounds[stretch * STRETCH_BOUNDS as usize..];
            for own in 0..STRETCH_ROWS as usize {
                let (from, to) = (u32::from(bounds[own]), u32::from(bounds[own + 1]));
                assert!(to <= len && to - from <= STRETCH_LONGEST);
                let live = single + stretch * STRETCH_ROWS as usize + own;
                let live = deal.live.get(live).copied().unwrap_or(to - from);
                take(start + from, to - from, live);
            }
        }
        all.sort_unstable();
        all
    }

    #[test]
    fn every_entry_is_dealt_once_and_fits_its_class() {
        let mut lens =
            vec![0u32, 1, 3, 4, 13, 16, 17, 60, 130, 512, 900, 1025, 4090, 4097, 100_000];
        lens.extend((0..3000).map(|i| if i % 700 == 50 { 40 } else { i * 7 % 34 }));
        let mut rows = Vec::new();
        let (mut start, mut wanted) = (0, Vec::new());
        for (i, &len) in lens.iter().enumerate() {
            // A gap between some rows, as padding leaves it.
            start += u32::from(i % 400 == 399);
            rows.push((start, len));
            wanted.extend((0..len).map(|e| (start + e, e < len / 2)));
            start += len;
        }
        let live: Vec<u32> = lens.iter().map(|len| len / 2).collect();
        for (dtype, resident) in [(Dtype::F32, 1), (Dtype::F32, 1000), (Dtype::F16, 1)] {
            let (deal, row) = dealt(&rows, Some(&live), dtype, resident);
            assert_eq!(slots(&deal, row), wanted);
            assert!(deal.blocks.is_sorted() && deal.firsts.is_sorted());
            let stretches = deal.items.len() as u32 - deal.firsts[SOFTMAX_STRETCHES];
            assert_eq!(stretches > 0, resident == 1, "{stretches}");
            let (deal, row) = dealt(&rows, None, dtype, resident);
            let all = wanted.iter().map(|&(slot, _)| (slot, true)).collect::<Vec<_>>();
            assert_eq!(slots(&deal, row), all);
        }
    }

    #[test]
    fn pieces_know_those_of_their_row() {
        let rows = [(3, 9000), (9003, 5), (9008, 4100)];
        let (deal, _) = dealt(&rows, None, Dtype::F32, 1);
        let pieces = [[3, 4093], [4096, 4096], [8192, 811], [9008, 4096], [13_104, 4]];
        assert_eq!(deal.items[..5], pieces);
        assert_eq!(deal.pieces, [[0, 3], [0, 3], [0, 3], [3, 2], [3, 2]]);
    }

    #[test]
    fn few_rows_are_spread_and_many_go_round() {
        let few: Vec<_> = (0..8).map(|i| (i * 20, 20)).collect();
        let (deal, _) = dealt(&few, None, Dtype::F32, 100);
        assert_eq!(deal.blocks[6..], [0, 2, 2, 2, 2, 2]);
        let many: Vec<_> = (0..10_000).map(|i| (i * 40, 40)).collect();
        let (deal, _) = dealt(&many, None, Dtype::F32, 10);
        assert_eq!(deal.blocks[7..], [0, 79, 79, 79, 79]);
        let short: Vec<_> = (0..100_000).map(|i| (i * 16, 16)).collect();
        let (deal, _) = dealt(&short, None, Dtype::F32, 10);
        assert_eq!(deal.items.len(), 100_000usize.div_ceil(128));
        assert_eq!(deal.blocks[9..], [0, 0, 10]);
    }
}
