//! Distribution of work if all of B is in shared memory: slices are distributed over clusters of thread blocks, and a
//! cluster's work is cut into equal shares of its warps. A cut may split a slice. Its sums are then joined in each
//! thread block, and across thread blocks if several have parts of it.

use einsparse_kernels::families::{
    PIECE_END, PIECE_OPEN, PIECE_WHOLE, SLICE, StagedJoin, StagedPiece, StagedSpan,
};

use crate::families::spmm::cost::staged::{self as cost, FINISH, Spread};

/// A cut that is at most this many chunks from an end of a slice is moved to that end.
const SNAP: u64 = 1;

/// Pieces of all warps of all thread blocks.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    /// First piece of each warp, then the others.
    pub pieces: Vec<StagedPiece>,
    /// Index of the first of each warp's other pieces, and one past the last.
    pub others: Vec<u32>,
    /// Joins of each thread block.
    pub spans: Vec<StagedSpan>,
    /// Slices that several warps share, once for each thread block that has a part.
    pub joins: Vec<StagedJoin>,
}

/// Number of clusters, and of thread blocks in each. `offsets`: first chunk of each slice.
pub(crate) fn spread(offsets: &[u32], tiles: usize, multiprocessors: u32) -> Spread {
    let slices = offsets.len() as u64 - 1;
    let lengths = offsets.windows(2).map(|w| u64::from(w[1] - w[0]));
    let longest = lengths.max().unwrap_or(0);
    let total = u64::from(*offsets.last().unwrap_or(&0));
    cost::spread([total, longest, slices], tiles as u64, multiprocessors)
}

/// Distributes slices over clusters: the longest first, each to the cluster with the smallest load.
fn deal(offsets: &[u32], clusters: usize) -> Vec<Vec<u32>> {
    let cost = |s: u32| u64::from(offsets[s as usize + 1] - offsets[s as usize]) + FINISH;
    let mut order: Vec<u32> = (0..offsets.len() as u32 - 1).collect();
    order.sort_by_key(|&s| std::cmp::Reverse(cost(s)));
    let mut dealt = vec![Vec::new(); clusters];
    let mut heap: std::collections::BinaryHeap<_> =
        (0..clusters).map(|g| std::cmp::Reverse((0u64, g))).collect();
    for slice in order {
        let Some(std::cmp::Reverse((sum, cluster))) = heap.pop() else {
            break;
        };
        dealt[cluster].push(slice);
        heap.push(std::cmp::Reverse((sum + cost(slice), cluster)));
    }
    dealt
}

/// Part of a slice that a warp processes.
#[derive(Clone, Copy, Debug)]
struct Part {
    slice: u32,
    first: u32,
    end: u32,
    begins: bool,
    ends: bool,
}

impl Part {
    fn whole(&self) -> bool {
        self.begins && self.ends
    }
}

/// Cuts the slices of a cluster into parts of its warps.
fn cut(offsets: &[u32], slices: &[u32], warps: usize) -> Vec<Vec<Part>> {
    let chunks = |s: u32| u64::from(offsets[s as usize + 1] - offsets[s as usize]);
    let total: u64 = slices.iter().map(|&s| chunks(s) + FINISH).sum();
    let bound = |w: usize| total * w as u64 / warps as u64;
    let mut parts = vec![Vec::new(); warps];
    let (mut warp, mut at) = (0, 0);
    for &slice in slices {
        let (count, first) = (chunks(slice), offsets[slice as usize]);
        let mut taken = 0;
        let part = |from: u64, to: u64, ends: bool| Part {
            slice,
            first: first + from as u32,
            end: first + to as u32,
            begins: from == 0,
            ends,
        };
        // Cuts within this slice, if any. A slice and its finish end where the next slice starts.
        while warp + 1 < warps && bound(warp + 1) < at + count + FINISH {
            let to = bound(warp + 1).saturating_sub(at).min(count);
            let to = if to <= SNAP { 0 } else { to };
            let to = if to + SNAP >= count { count } else { to };
            if to == count {
                break;
            }
            if to > taken {
                parts[warp].push(part(taken, to, false));
                taken = to;
            }
            warp += 1;
        }
        parts[warp].push(part(taken, count, true));
        at += count + FINISH;
        while warp + 1 < warps && bound(warp + 1) <= at {
            warp += 1;
        }
    }
    parts
}

/// Slice that several warps share: the first and the last of them in the cluster, and whether the last continues with
/// another shared slice.
#[derive(Clone, Copy, Debug)]
struct Shared {
    slice: u32,
    first: usize,
    last: usize,
    end: bool,
}

/// Slices of a cluster that several warps share, in order.
fn shared(parts: &[Vec<Part>]) -> Vec<Shared> {
    let mut all: Vec<Shared> = Vec::new();
    for (warp, parts) in parts.iter().enumerate() {
        let parts: Vec<&Part> = parts.iter().filter(|part| !part.whole()).collect();
        for (i, part) in parts.iter().enumerate() {
            if part.begins {
                all.push(Shared { slice: part.slice, first: warp, last: warp, end: false });
            } else if let Some(last) = all.last_mut() {
                // A warp between them without a part contributes sums of zero.
                (last.last, last.end) = (warp, i + 1 < parts.len());
            }
        }
    }
    all
}

impl Shares {
    /// Creates the shares. `rows`: rows of all lanes, as the kernel reads them.
    pub(crate) fn new(offsets: &[u32], rows: &[u32], spread: Spread, warps: usize) -> Shares {
        let (clusters, blocks) = (spread.clusters as usize, spread.blocks as usize);
        let mut shares = Shares {
            pieces: vec![StagedPiece::default(); clusters * blocks * warps],
            ..Shares::default()
        };
        for (cluster, slices) in deal(offsets, clusters).iter().enumerate() {
            let parts = cut(offsets, slices, blocks * warps);
            for (warp, parts) in parts.iter().enumerate() {
                shares.add(cluster * blocks * warps + warp, parts);
            }
            let shared = shared(&parts);
            for block in 0..blocks {
                shares.join(rows, &shared, block, warps);
            }
        }
        shares
    }

    /// Adds the pieces of a warp: whole slices first, then parts.
    fn add(&mut self, warp: usize, parts: &[Part]) {
        let piece = |part: &Part, kind| StagedPiece {
            first: part.first,
            end: part.end,
            slice: part.slice,
            kind,
        };
        let whole = parts.iter().filter(|part| part.whole());
        let mut own: Vec<StagedPiece> = whole.map(|part| piece(part, PIECE_WHOLE)).collect();
        let open = parts.iter().filter(|part| !part.whole());
        own.extend(open.map(|part| piece(part, PIECE_END)));
        if let Some(last) = own.last_mut().filter(|last| last.kind == PIECE_END) {
            last.kind = PIECE_OPEN;
        }
        // A warp without work has an open piece that no join references.
        let nothing = StagedPiece { kind: PIECE_OPEN, ..StagedPiece::default() };
        self.pieces[warp] = own.first().copied().unwrap_or(nothing);
        self.others.push(self.pieces.len() as u32);
        self.pieces.extend(own.get(1..).unwrap_or(&[]));
        self.others.push(self.pieces.len() as u32);
    }

    /// Adds the joins of thread block `block` of a cluster whose warps share the slices `shared`.
    fn join(&mut self, rows: &[u32], shared: &[Shared], block: usize, warps: usize) {
        let mut span = StagedSpan { first: self.joins.len() as u32, ..StagedSpan::default() };
        let [from, to] = [block * warps, (block + 1) * warps - 1];
        for s in shared {
            let [first, last] = [s.first.max(from), s.last.min(to)];
            if first > last {
                continue;
            }
            let blocks = [s.first / warps, s.last / warps];
            let behind = usize::from(blocks[0] == block);
            if blocks[0] != blocks[1] {
                let (count, own) = (blocks[1] - blocks[0] + 1, block - blocks[0]);
                span.crossing[behind] = (blocks[0] | count << 8 | own << 16) as u32;
            }
            let mut join = StagedJoin {
                warp: (first - from) as u32,
                count: (last - first + 1) as u32,
                end: u32::from(s.end && last == s.last),
                reserved: 0,
                rows: [0; SLICE],
            };
            join.rows.copy_from_slice(&rows[s.slice as usize * SLICE..][..SLICE]);
            self.joins.push(join);
        }
        span.count = self.joins.len() as u32 - span.first;
        self.spans.push(span);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces of a warp, each with its index and the number of pieces that follow.
    fn pieces(shares: &Shares, warp: usize) -> Vec<(usize, usize, StagedPiece)> {
        let [from, to] = [0, 1].map(|i| shares.others[warp * 2 + i] as usize);
        let all = [&shares.pieces[warp..=warp], &shares.pieces[from..to]].concat();
        let last = all.len() - 1;
        let numbered = all.into_iter().enumerate();
        numbered.map(|(i, piece)| (i, last - i, piece)).collect()
    }

    /// Processes the shares like the kernel. Returns the chunks of each slice in the order in which their sums are
    /// added.
    fn walk(shares: &Shares, spread: Spread, warps: usize) -> Vec<(u32, Vec<u32>)> {
        let mut finished = Vec::new();
        let blocks = spread.blocks as usize;
        for cluster in 0..spread.clusters as usize {
            let mut left = vec![[const { Vec::new() }; 2]; blocks];
            let mut crossing = Vec::new();
            for (block, left) in left.iter_mut().enumerate() {
                let at = cluster * blocks + block;
                let (mut open, mut ends) = (vec![Vec::new(); warps], vec![Vec::new(); warps]);
                for warp in 0..warps {
                    for (i, left, piece) in pieces(shares, at * warps + warp) {
                        let chunks: Vec<u32> = (piece.first..piece.end).collect();
                        match piece.kind {
                            PIECE_WHOLE => finished.push((piece.slice, chunks)),
                            PIECE_END => {
                                // Between whole slices and the open one.
                                assert_eq!(left, 1, "piece {i}");
                                ends[warp] = chunks;
                            }
                            kind => {
                                assert!(kind == PIECE_OPEN && left == 0, "piece {i}");
                                open[warp] = chunks;
                            }
                        }
                    }
                }
                let span = &shares.spans[at];
                assert!(span.count as usize <= warps + 1);
                let joins = &shares.joins[span.first as usize..][..span.count as usize];
                for (i, join) in joins.iter().enumerate() {
                    let mut chunks = Vec::new();
                    for warp in 0..join.count {
                        let end = join.end == 1 && warp + 1 == join.count;
                        let from = if end { &ends } else { &open };
                        chunks.extend(&from[(join.warp + warp) as usize]);
                    }
                    // Rows are named after their slice in these tests. Like in the kernel, the first join may continue
                    // an earlier thread block, and the last may continue in a later one.
                    let ends = [0, joins.len() - 1];
                    match (0..2).find(|&which| i == ends[which] && span.crossing[which] != 0) {
                        None => finished.push((join.rows[0], chunks)),
                        Some(which) => {
                            left[which] = chunks;
                            crossing.push((join.rows[0], span.crossing[which], block));
                        }
                    }
                }
            }
            finished.extend(crossed(&crossing, &left));
        }
        finished
    }

    /// Slices that several thread blocks of a cluster share. The first of these thread blocks adds the parts.
    fn crossed(crossing: &[(u32, u32, usize)], left: &[[Vec<u32>; 2]]) -> Vec<(u32, Vec<u32>)> {
        let mut finished = Vec::new();
        for &(slice, word, block) in crossing {
            let [first, count, own] = [word & 0xff, word >> 8 & 0xff, word >> 16];
            assert_eq!((first + own) as usize, block);
            if own == 0 {
                let parts = (0..count as usize).map(|i| (first as usize + i, usize::from(i == 0)));
                let chunks = parts.flat_map(|(b, which)| left[b][which].clone());
                finished.push((slice, chunks.collect()));
                let of = |&&(s, _, _): &&(u32, u32, usize)| s == slice;
                assert_eq!(crossing.iter().filter(of).count(), count as usize);
            }
        }
        finished
    }

    fn check(lengths: &[u32], clusters: u64, blocks: u64, warps: usize) {
        let mut offsets = vec![0];
        for length in lengths {
            offsets.push(offsets.last().unwrap() + length);
        }
        let rows: Vec<u32> = (0..lengths.len() as u32).flat_map(|s| [s; SLICE]).collect();
        let spread = Spread { clusters, blocks, ..Spread::default() };
        let shares = Shares::new(&offsets, &rows, spread, warps);
        let mut finished = walk(&shares, spread, warps);
        finished.sort();
        let wanted = (0..lengths.len())
            .map(|s| (s as u32, (offsets[s]..offsets[s + 1]).collect::<Vec<_>>()));
        assert!(finished == wanted.collect::<Vec<_>>(), "{lengths:?}, {spread:?}");
    }

    #[test]
    fn every_slice_is_added_once_and_in_order() {
        let mut word = 7u64;
        let mut next = |below: u64| {
            word = word.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (word >> 33) % below
        };
        for case in 0..600 {
            let most = [2, 9, 60, 400][case % 4];
            let lengths: Vec<u32> = (0..next(40)).map(|_| next(most) as u32).collect();
            let clusters = 1 + next(6);
            check(&lengths, clusters, 1 << next(4), [8, 16][case % 2]);
        }
        for blocks in [1, 2, 4, 8] {
            check(&[1000], 1, blocks, 16);
            check(&[0; 70], 2, blocks, 8);
            check(&[], 1, blocks, 16);
        }
    }
}
