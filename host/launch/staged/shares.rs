//! Who computes what where all of B is in shared memory: slices dealt to groups, one a thread block, and what a group has cut
//! into equal shares of its warps. A cut may go through a slice, whose sums are then joined.

use einsparse_kernels::abi::{PIECE_END, PIECE_OPEN, PIECE_WHOLE, StagedJoin, StagedPiece};

use crate::cost::staged::{self as cost, FINISH};

/// A cut this near to an end of a slice, in chunks, goes there.
const SNAP: u64 = 1;

/// The pieces of all warps of all groups.
#[derive(Debug, Default)]
pub(super) struct Shares {
    /// The piece that each warp begins with, then the others.
    pub pieces: Vec<StagedPiece>,
    /// First and number of each warp's others.
    pub others: Vec<u32>,
    /// First and number of each group's joins.
    pub spans: Vec<u32>,
    /// Slices that several warps share.
    pub joins: Vec<StagedJoin>,
}

/// How many groups.
pub(super) fn groups(offsets: &[u32], tiles: usize, multiprocessors: u32) -> usize {
    let slices = offsets.len() as u64 - 1;
    let total = u64::from(*offsets.last().unwrap_or(&0)) + FINISH * slices;
    cost::groups(total, slices, tiles as u64, multiprocessors).0 as usize
}

/// Deals slices, the longest first, each to the group that has least.
fn deal(offsets: &[u32], groups: usize) -> Vec<Vec<u32>> {
    let cost = |s: u32| u64::from(offsets[s as usize + 1] - offsets[s as usize]) + FINISH;
    let mut order: Vec<u32> = (0..offsets.len() as u32 - 1).collect();
    order.sort_by_key(|&s| std::cmp::Reverse(cost(s)));
    let mut dealt = vec![Vec::new(); groups];
    let mut heap: std::collections::BinaryHeap<_> =
        (0..groups).map(|g| std::cmp::Reverse((0u64, g))).collect();
    for slice in order {
        let Some(std::cmp::Reverse((sum, group))) = heap.pop() else {
            break;
        };
        dealt[group].push(slice);
        heap.push(std::cmp::Reverse((sum + cost(slice), group)));
    }
    dealt
}

/// A warp's part of a slice.
#[derive(Clone, Copy, Debug)]
struct Part {
    slice: u32,
    first: u32,
    end: u32,
    begins: bool,
    ends: bool,
}

/// Cuts the slices of a group into parts of its warps.
fn cut(offsets: &[u32], slices: &[u32], warps: usize) -> Vec<Vec<Part>> {
    let chunks = |s: u32| u64::from(offsets[s as usize + 1] - offsets[s as usize]);
    let total: u64 = slices.iter().map(|&s| chunks(s) + FINISH).sum();
    let bound = |w: usize| total * w as u64 / warps as u64;
    let mut parts = vec![Vec::new(); warps];
    let (mut warp, mut at) = (0, 0);
    for &slice in slices {
        let (count, first) = (chunks(slice), offsets[slice as usize]);
        let mut taken = 0;
        // The cut that lies in this slice, if any; a slice is over where the next one starts.
        while warp + 1 < warps && bound(warp + 1) < at + count + FINISH {
            let to = bound(warp + 1).saturating_sub(at).min(count);
            let to = if to <= SNAP { 0 } else { to };
            let to = if to + SNAP >= count { count } else { to };
            if to == count {
                break;
            }
            if to > taken {
                parts[warp].push(Part {
                    slice,
                    first: first + taken as u32,
                    end: first + to as u32,
                    begins: taken == 0,
                    ends: false,
                });
                taken = to;
            }
            warp += 1;
        }
        parts[warp].push(Part {
            slice,
            first: first + taken as u32,
            end: first + count as u32,
            begins: taken == 0,
            ends: true,
        });
        at += count + FINISH;
        while warp + 1 < warps && bound(warp + 1) <= at {
            warp += 1;
        }
    }
    parts
}

impl Shares {
    pub(super) fn new(offsets: &[u32], groups: usize, warps: usize) -> Shares {
        let mut shares = Shares {
            pieces: vec![StagedPiece::default(); groups * warps],
            ..Shares::default()
        };
        for (group, slices) in deal(offsets, groups).iter().enumerate() {
            shares.add(group, cut(offsets, slices, warps));
        }
        shares
    }

    fn add(&mut self, group: usize, parts: Vec<Vec<Part>>) {
        let (warps, before) = (parts.len(), self.joins.len() as u32);
        for (warp, parts) in parts.iter().enumerate() {
            let mut own = Vec::new();
            for (i, part) in parts.iter().enumerate() {
                let last = i + 1 == parts.len();
                let kind = match (part.begins && part.ends, last) {
                    (true, _) => PIECE_WHOLE,
                    (false, true) => PIECE_OPEN,
                    (false, false) => PIECE_END,
                };
                own.push(StagedPiece {
                    first: part.first,
                    end: part.end,
                    slice: part.slice,
                    kind,
                });
                if kind != PIECE_WHOLE {
                    self.share(*part, warp as u32, kind == PIECE_END);
                }
            }
            // A warp without work has an open piece that no join names.
            let nothing = StagedPiece {
                kind: PIECE_OPEN,
                ..StagedPiece::default()
            };
            self.pieces[group * warps + warp] = own.first().copied().unwrap_or(nothing);
            let rest = own.get(1..).unwrap_or(&[]);
            self.others
                .extend([self.pieces.len() as u32, rest.len() as u32]);
            self.pieces.extend(rest);
        }
        self.spans
            .extend([before, self.joins.len() as u32 - before]);
    }

    /// Notes that a warp has a part of a slice that others have parts of.
    fn share(&mut self, part: Part, warp: u32, end: bool) {
        if part.begins {
            self.joins.push(StagedJoin {
                slice: part.slice,
                warp,
                count: 1,
                end: 0,
            });
        } else if let Some(join) = self.joins.last_mut() {
            // A warp between them that has nothing has sums of zero.
            join.count = warp - join.warp + 1;
            join.end = u32::from(end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every chunk once, slices of several warps joined in order, no warp with more than its share and a slice's end.
    fn check(lengths: &[u32], groups: usize, warps: usize) {
        let mut offsets = vec![0];
        for length in lengths {
            offsets.push(offsets.last().unwrap() + length);
        }
        let shares = Shares::new(&offsets, groups, warps);
        let mut seen = vec![0; *offsets.last().unwrap() as usize];
        let mut finished = vec![0; lengths.len()];
        for group in 0..groups {
            let mut sums = vec![Vec::new(); warps];
            for (warp, sums) in sums.iter_mut().enumerate() {
                let own = group * warps + warp;
                let [first, count] = [0, 1].map(|i| shares.others[own * 2 + i] as usize);
                let all = [
                    &shares.pieces[own..=own],
                    &shares.pieces[first..first + count],
                ]
                .concat();
                for (i, piece) in all.iter().enumerate() {
                    (piece.first..piece.end).for_each(|c| seen[c as usize] += 1);
                    let last = i + 1 == all.len();
                    match piece.kind {
                        PIECE_WHOLE => finished[piece.slice as usize] += 1,
                        PIECE_END => assert!(i == 0 && !last),
                        kind => assert!(kind == PIECE_OPEN && last),
                    }
                    sums.push(*piece);
                }
            }
            let [first, count] = [0, 1].map(|i| shares.spans[group * 2 + i] as usize);
            for join in &shares.joins[first..first + count] {
                finished[join.slice as usize] += 1;
                let mut next = offsets[join.slice as usize];
                for i in 0..join.count {
                    let pieces = &sums[(join.warp + i) as usize];
                    let end = join.end == 1 && i + 1 == join.count;
                    let piece = if end {
                        pieces[0]
                    } else {
                        *pieces.last().unwrap()
                    };
                    assert_eq!(piece.kind, if end { PIECE_END } else { PIECE_OPEN });
                    if piece.first == piece.end {
                        continue;
                    }
                    assert_eq!((piece.slice, piece.first), (join.slice, next));
                    next = piece.end;
                }
                assert_eq!(next, offsets[join.slice as usize + 1]);
            }
        }
        assert!(seen.iter().all(|&n| n == 1), "{lengths:?}");
        assert!(finished.iter().all(|&n| n == 1), "{lengths:?}");
    }

    #[test]
    fn every_chunk_has_one_warp_and_every_slice_one_end() {
        let mut word = 7u64;
        let mut next = |below: u64| {
            word = word
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (word >> 33) % below
        };
        for case in 0..400 {
            let most = [2, 9, 60, 400][case % 4];
            let lengths: Vec<u32> = (0..next(40)).map(|_| next(most) as u32).collect();
            let groups = 1 + next(6) as usize;
            check(&lengths, groups, [8, 16][case % 2]);
        }
        check(&[1000], 1, 16);
        check(&[0; 70], 2, 8);
    }
}
