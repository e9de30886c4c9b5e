//! Work lists from the spans of rows. `survey` counts the work of every kind in each tile of rows, `place` adds it up
//! over the tiles, `fill` writes the list. Positions are sums of integers, so the list equals the host's word for word.

use crate::device::compact::{scan_all, scan_each};
use crate::device::prelude::*;
use crate::device::scan::scan;
use crate::device::strided::strided;
use crate::families::convert::abi::*;

buffers! {
    // `host/core/families/spmm/gather.rs` gives one span for each row. `Lists::make` in
    // `host/core/families/convert/lists.rs` allocates the counts of all tiles and kinds, and the items
    // and slots that the totals count.
    unsafe ListParams {
        spans: [u32; 2], ReadOnly;
        counts: u32, Fresh;
        totals: u32, Fresh;
        items: [u32; 4], ReadWrite;
        slots: [u32; 4], ReadWrite;
    }
}

impl<W: WalkInfo, E: Elem, const STEP: u32> Kernel<W, E, ListParams> for Lists<STEP> {
    #[inline(always)]
    unsafe fn run(p: &ListParams, _: Maps) {
        match STEP {
            LIST_SURVEY => survey(p),
            LIST_PLACE => place(p),
            _ => fill(p),
        }
    }
}

/// The last key of each thread.
#[inline(always)]
fn last_key(thread: u32) -> Shared<u32> {
    // SAFETY: `LIST_ROOM` contains the keys of all threads and the words of all kinds.
    unsafe { Shared::dynamic(SCAN_BYTES) }.at(thread)
}

/// The first key of each thread.
#[inline(always)]
fn first_key(thread: u32) -> Shared<u32> {
    last_key(SCAN_THREADS + thread)
}

/// A word for each kind, followed by the set of classes.
#[inline(always)]
fn of_kind(kind: u32) -> Shared<u32> {
    last_key(2 * SCAN_THREADS + kind)
}

/// Item `i` collected by `fill`.
#[inline(always)]
fn collected(i: u32) -> Shared<[u32; 4]> {
    // SAFETY: a thread block of `LIST_FILL` has `LIST_TILE` items after `LIST_ROOM`.
    unsafe { Shared::dynamic(LIST_ROOM) }.at(i)
}

/// The eight rows of a thread.
struct PerThread {
    first: u32,
    start: [u32; 8],
    len: [u32; 8],
    /// 0 for a row outside of bundles; consecutive rows of the same key are one bundle.
    key: [u32; 8],
    before: u32,
    behind: u32,
}

impl PerThread {
    /// Whether a bundle begins at row `i`.
    #[inline(always)]
    fn begins(&self, i: usize) -> bool {
        let before = if i == 0 { self.before } else { self.key[(i + 7) & 7] };
        self.key[i & 7] != 0 && self.key[i & 7] != before
    }

    /// Whether a bundle ends with row `i`.
    #[inline(always)]
    fn ends(&self, i: usize) -> bool {
        let behind = if i == 7 { self.behind } else { self.key[(i + 1) & 7] };
        self.key[i & 7] != 0 && self.key[i & 7] != behind
    }

    #[inline(always)]
    fn valid(&self, p: &ListParams, i: usize) -> bool {
        self.first + (i as u32) < p.rows
    }

    /// Number of pieces that row `i` is cut into, 0 if it stays whole; and entries of a piece.
    #[inline(always)]
    fn cut(&self, p: &ListParams, i: usize) -> (u32, u32) {
        let len = self.len[i & 7];
        let mut found = (0, len);
        if self.valid(p, i) && self.key[i & 7] == 0 && len > p.limit {
            let piece = piece_of(len, p.limit).max(1);
            if piece < len {
                found = (len.div_ceil(piece), piece);
            }
        }
        found
    }
}

/// Loads and classifies the rows of a tile. Every thread must call it.
#[inline(always)]
fn look(p: &ListParams) -> PerThread {
    let first = gpu::block_x() * LIST_TILE + gpu::thread() * 8;
    let mut own =
        PerThread { first, start: [0; 8], len: [0; 8], key: [0; 8], before: 0, behind: 0 };
    let mut weight = [0u32; 8];
    unroll!(i < 8, {
        let valid = first + (i as u32) < p.rows;
        [own.start[i], own.len[i]] = p.spans().at(first as u64 + i as u64).ld_if(valid);
    });
    unroll!(i < 8, {
        let all = own.len[i].saturating_add(ROW_ENTRIES);
        let short = first + (i as u32) < p.rows && all <= p.weight;
        weight[i] = if short { all } else { 0 };
    });
    let (before, _) = scan_each(weight);
    unroll!(i < 8, {
        let (number, _) = p.bundles.of(before[i] + weight[i] / 2);
        own.key[i] = if weight[i] > 0 { number + 1 } else { 0 };
    });
    last_key(gpu::thread()).st(own.key[7]);
    first_key(gpu::thread()).st(own.key[0]);
    gpu::sync_threads();
    if gpu::thread() > 0 {
        own.before = last_key(gpu::thread() - 1).ld();
    }
    if gpu::thread() + 1 < SCAN_THREADS {
        own.behind = first_key(gpu::thread() + 1).ld();
    }
    own
}

#[inline(always)]
fn survey(p: &ListParams) {
    if gpu::thread() < LIST_KINDS {
        of_kind(gpu::thread()).st(0);
    }
    // `look` has barriers, so the zeros are visible before the counting.
    let own = look(p);
    unroll!(i < 8, {
        let (pieces, _) = own.cut(p, i);
        if own.begins(i) {
            of_kind(LIST_BUNDLES).red_add(1);
        }
        if pieces > 0 {
            of_kind(LIST_PIECES).red_add(pieces);
            of_kind(LIST_CUT).red_add(1);
        } else if own.valid(p, i) && own.key[i] == 0 {
            of_kind(LIST_ROWS - length_class(own.len[i])).red_add(1);
        }
    });
    gpu::sync_threads();
    if gpu::thread() < LIST_KINDS {
        count_of(p, gpu::thread(), gpu::block_x()).st(of_kind(gpu::thread()).ld());
    }
}

#[inline(always)]
fn count_of(p: &ListParams, kind: u32, tile: u32) -> Global<u32, Fresh> {
    p.counts().at(kind as u64 * p.tiles as u64 + tile as u64)
}

#[inline(always)]
fn place(p: &ListParams) {
    let kind = gpu::block_x();
    let sum = scan_all::<8>(
        p.tiles,
        |tile, inside| count_of(p, kind, tile).ld_if(inside),
        |tile, before| count_of(p, kind, tile).st(before),
    );
    if gpu::thread() == 0 {
        p.totals().at(kind).st(sum);
    }
}

#[inline(always)]
fn fill(p: &ListParams) {
    let own = look(p);
    // Position in the list of this tile's first item of each kind; for cut rows their first number.
    let kind = gpu::thread();
    let (counted, listed) = (kind < LIST_KINDS, kind < LIST_CUT);
    let (before, _) = scan(p.totals().at(kind).ld_if(listed));
    if counted {
        let inside = count_of(p, kind, gpu::block_x()).ld();
        let front = if listed { before } else { 0 };
        of_kind(kind).st(front + inside);
    }
    if kind == LIST_KINDS {
        of_kind(kind).st(0);
    }
    gpu::sync_threads();
    bundles(p, &own);
    rows(p, &own);
    pieces(p, &own);
}

#[inline(always)]
fn store_item(p: &ListParams, at: u32, item: [u32; 4]) {
    p.items().at(at).st(item);
}

#[inline(always)]
fn bundles(p: &ListParams, own: &PerThread) {
    let mut begun = 0;
    unroll!(i < 8, { begun += own.begins(i) as u32 });
    let (before, all) = scan(begun);
    let mut at = before;
    unroll!(i < 8, {
        let row = own.first + i as u32;
        at += own.begins(i) as u32;
        if own.begins(i) {
            collected(at - 1).cast::<u32>().st(row);
        }
        if own.ends(i) {
            collected(at - 1).cast::<u32>().at(1).st(row + 1);
        }
    });
    gpu::sync_threads();
    let to = of_kind(LIST_BUNDLES).ld();
    // Not `strided`: `lists_fill` would spill a register.
    let mut i = gpu::thread();
    while i < all {
        let [row, end] = collected(i).cast::<[u32; 2]>().ld();
        store_item(p, to + i, [row, 0, end - row, BUNDLE]);
        i += SCAN_THREADS;
    }
    gpu::sync_threads();
}

/// Writes whole rows, class by class.
#[inline(always)]
fn rows(p: &ListParams, own: &PerThread) {
    let mut classes = [u32::MAX; 8];
    let mut present = 0;
    unroll!(i < 8, {
        let (pieces, _) = own.cut(p, i);
        if own.valid(p, i) && own.key[i] == 0 && pieces == 0 {
            classes[i] = length_class(own.len[i]);
            present |= 1 << (classes[i] & 31);
        }
    });
    if present != 0 {
        of_kind(LIST_KINDS).red_or(present);
    }
    gpu::sync_threads();
    let mut left = of_kind(LIST_KINDS).ld();
    while left != 0 {
        let class = left.trailing_zeros();
        let (before, _) = scan_each(classes.map(|of_row| u32::from(of_row == class)));
        let to = of_kind(LIST_ROWS - class).ld();
        unroll!(i < 8, {
            if classes[i] == class {
                let row = own.first + i as u32;
                store_item(p, to + before[i], [row, own.start[i], own.len[i], WHOLE_ROW]);
            }
        });
        left &= left - 1;
    }
}

/// Writes pieces of cut rows: the rows are collected first, then all threads write the pieces of each row.
#[inline(always)]
fn pieces(p: &ListParams, own: &PerThread) {
    let mut pieces = [0; 8];
    unroll!(i < 8, { (pieces[i], _) = own.cut(p, i) });
    let (before, rows) = scan_each(pieces.map(|pieces| u32::from(pieces > 0)));
    let (first, _) = scan_each(pieces);
    unroll!(i < 8, {
        if pieces[i] > 0 {
            let row = own.first + i as u32;
            collected(before[i]).st([row, own.start[i], own.len[i], first[i]]);
        }
    });
    gpu::sync_threads();
    let (to, counter) = (of_kind(LIST_PIECES).ld(), of_kind(LIST_CUT).ld());
    let mut i = 0;
    while i < rows {
        let [row, start, len, first] = collected(i).ld();
        let piece = piece_of(len, p.limit).max(1);
        let count = len.div_ceil(piece);
        let first = to + first;
        strided(gpu::thread(), count, SCAN_THREADS, |j| {
            let own = (len - j * piece).min(piece);
            store_item(p, first + j, [row, start + j * piece, own, first + j]);
            p.slots().at(first + j).st([counter + i, first, count, 0]);
        });
        i += 1;
    }
}
