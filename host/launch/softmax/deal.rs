//! Rows dealt by length class, once for a pattern: long ones cut into pieces, neighbouring short ones put together.

use einsparse_kernels::abi::{
    SOFTMAX_CLASSES, SOFTMAX_STRETCHES, SOFTMAX_THREADS, softmax_class, stretch_longest,
    stretch_slots,
};
use einsparse_kernels::table::Row;

use super::super::{MAX_GRID_X, within};
use crate::error::Result;
use crate::worklist::Runs;

/// Times that a thread block goes round at the most: the next row's place is loaded ahead, but whoever comes later
/// levels out what rows of one class differ by.
const MOST_ROUNDS: u32 = 8;

/// Share of a stretch's slots that is worth a warp of its own: fewer neighbours go to the classes of single rows.
const LEAST_SHARE: u32 = 2;

/// First slot and entries of a row, and how many of these no mask hides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    start: u32,
    len: u32,
    live: u32,
}

/// What the kernel reads of the pattern, and which thread blocks serve which class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Deal {
    /// First slot and entries of each piece, row and stretch, by class.
    pub items: Vec<[u32; 2]>,
    /// Entries that no mask hides, of each piece and row. Empty without masks.
    pub live: Vec<u32>,
    /// Where rows start in each lane's slots of each stretch, a bit each.
    pub starts: Vec<u8>,
    /// And which slots no mask hides. Empty without masks.
    pub lives: Vec<u8>,
    /// First piece of the row and number of its pieces, for each piece.
    pub pieces: Vec<[u32; 2]>,
    pub blocks: [u32; SOFTMAX_CLASSES + 1],
    /// Number of thread blocks of the gradient, of which the GPU holds fewer: the last of `blocks` there.
    pub gradient_blocks: u32,
    pub firsts: [u32; SOFTMAX_CLASSES + 1],
}

/// Neighbouring short rows, collected.
struct Stretches {
    /// Elements of a vector.
    vector: u32,
    masked: bool,
    open: Vec<Span>,
    items: Vec<[u32; 2]>,
    starts: Vec<u8>,
    lives: Vec<u8>,
}

impl Stretches {
    fn new(vector: u32, masked: bool) -> Stretches {
        Stretches {
            vector,
            masked,
            open: Vec::new(),
            items: Vec::new(),
            starts: Vec::new(),
            lives: Vec::new(),
        }
    }

    /// Whether the row can follow those that are open.
    fn takes(&self, row: Span) -> bool {
        let Some((first, last)) = self.open.first().zip(self.open.last()) else {
            return true;
        };
        row.start == last.start + last.len
            && first.start % self.vector + (row.start - first.start) + row.len
                <= stretch_slots(self.vector)
    }

    /// Ends the stretch. Rows that are too few for one are given back.
    fn close(&mut self) -> Vec<Span> {
        let rows = std::mem::take(&mut self.open);
        let len = rows.iter().map(|row| row.len).sum::<u32>();
        if len < stretch_slots(self.vector) / LEAST_SHARE {
            return rows;
        }
        self.items.push([rows[0].start, len]);
        let base = rows[0].start - rows[0].start % self.vector;
        let mut starts = [0u8; 32];
        let mut lives = [0u8; 32];
        let set = |bits: &mut [u8; 32], slot: u32| {
            // What would start behind the last lane starts nowhere.
            if let Some(of_lane) = bits.get_mut((slot / self.vector) as usize) {
                *of_lane |= 1 << (slot % self.vector);
            }
        };
        for row in &rows {
            let first = row.start - base;
            set(&mut starts, first);
            set(&mut starts, first + row.len);
            (first..first + row.live).for_each(|slot| set(&mut lives, slot));
        }
        self.starts.extend(starts);
        if self.masked {
            self.lives.extend(lives);
        }
        Vec::new()
    }
}

impl Deal {
    /// `live`: entries of each row in front of those that a mask hides; `resident`: thread blocks that the GPU holds at a
    /// time, for each head.
    pub(super) fn new(runs: &Runs, live: Option<&[u32]>, row: &Row, resident: u32) -> Result<Deal> {
        let used = runs.rows.iter().filter(|(_, len)| *len > 0).count();
        // Where every row gets a warp at once, more vectors a lane would only lengthen the chain.
        let spread = used as u64 <= u64::from(resident) * u64::from(SOFTMAX_THREADS / 32);
        let mut classes: [Vec<Span>; SOFTMAX_CLASSES] = Default::default();
        let mut pieces = Vec::new();
        let mut stretches = Stretches::new(row.vector, live.is_some());
        let mut deal_single = |span: Span| match class_of(span, row, spread) {
            0 => cut(span, row, &mut classes[0], &mut pieces),
            class => classes[class].push(span),
        };
        for (index, &(start, len)) in runs.rows.iter().enumerate().filter(|(_, r)| r.1 > 0) {
            let live = live.map_or(len, |live| live[index]);
            let span = Span { start, len, live };
            let short = len <= stretch_longest(row.vector) && !spread;
            if !(short && stretches.takes(span)) {
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
                // One is as long as the next: as often round as lets all thread blocks be there at once.
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
        }
        Ok(Deal {
            items,
            live,
            starts: stretches.starts,
            lives: stretches.lives,
            pieces,
            blocks,
            gradient_blocks,
            firsts,
        })
    }
}

/// A row as pieces that each fit a thread block.
fn cut(span: Span, row: &Row, items: &mut Vec<Span>, pieces: &mut Vec<[u32; 2]>) {
    let most = SOFTMAX_THREADS * row.burst * row.vector;
    let first = items.len();
    let mut done = 0;
    while done < span.len {
        let start = span.start + done;
        let len = (most - start % row.vector).min(span.len - done);
        items.push(Span {
            start,
            len,
            live: span.live.saturating_sub(done).min(len),
        });
        done += len;
    }
    let count = items.len() - first;
    pieces.extend(std::iter::repeat_n([first as u32, count as u32], count));
}

/// The class with the fewest lanes and vectors that hold the row, from the aligned vector in front of it on.
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
    use einsparse_kernels::abi::STEP_SOFTMAX;

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

    /// Every slot of rows once, with whether a mask leaves it.
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
            let (lead, own) = (start % row.vector, stretch * 32..(stretch + 1) * 32);
            assert!(lead + len <= 32 * row.vector);
            for slot in lead..lead + len {
                let (lane, bit) = (slot / row.vector, 1 << (slot % row.vector));
                let lives = deal.lives.get(own.clone()).map(|l| l[lane as usize]);
                all.push((start + slot - lead, lives.is_none_or(|l| l & bit != 0)));
            }
        }
        all.sort_unstable();
        all
    }

    #[test]
    fn every_entry_is_dealt_once_and_fits_its_class() {
        let mut lens = vec![
            0u32, 1, 3, 4, 13, 16, 17, 60, 130, 512, 900, 1025, 4090, 4097, 100_000,
        ];
        lens.extend((0..3000).map(|i| if i % 700 == 50 { 40 } else { i * 7 % 34 }));
        let mut rows = Vec::new();
        let (mut start, mut wanted) = (0, Vec::new());
        for (i, &len) in lens.iter().enumerate() {
            // Here and there a gap, as padding leaves it.
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
            let all = wanted
                .iter()
                .map(|&(slot, _)| (slot, true))
                .collect::<Vec<_>>();
            assert_eq!(slots(&deal, row), all);
        }
    }

    #[test]
    fn pieces_know_those_of_their_row() {
        let rows = [(3, 9000), (9003, 5), (9008, 4100)];
        let (deal, _) = dealt(&rows, None, Dtype::F32, 1);
        let pieces = [
            [3, 4093],
            [4096, 4096],
            [8192, 811],
            [9008, 4096],
            [13_104, 4],
        ];
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
        // Eight rows each, but for the last.
        assert_eq!(deal.items.len(), 100_000 / 8);
        assert_eq!(deal.blocks[9..], [0, 0, 10]);
        // A row starts in every fourth lane, in its first slot.
        let starts = (0..32u32).map(|lane| u8::from(lane % 4 == 0));
        assert_eq!(deal.starts[..32], starts.collect::<Vec<u8>>());
    }
}
