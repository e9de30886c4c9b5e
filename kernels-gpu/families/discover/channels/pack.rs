//! Lists of the marked columns, and their values. Every thread block computes the whole list of its item from the
//! marks, which are few. Meanwhile its first rows are copied to shared memory, without the vectors that have only
//! unmarked columns. The last thread block that has read an item's marks clears them for the next run.

use crate::device::compact::each_one;
use crate::device::prelude::*;
use crate::device::scan::{inclusive, over_warps};
use crate::device::strided::strided;
use crate::families::discover::abi::*;

/// Threads per run of [`DETECT_PAD`] list positions, eight positions each.
const OCTETS: u32 = DETECT_PAD / 8;
/// Runs that a thread block processes at once.
const RUNS: u32 = DETECT_THREADS / OCTETS;

/// Item of this thread block, in reverse order: L2 still has the items that were read last.
#[inline(always)]
fn item() -> u32 {
    gpu::grid_y() - 1 - gpu::block_y()
}

/// Shared memory at one of the offsets `CHANNEL_*`.
#[inline(always)]
fn area<T>(offset: u32) -> Shared<T> {
    // SAFETY: `PackChannels` has a word of marks and one of ranks for each thread, `CHANNEL_COLUMNS` list positions, and
    // `CHANNEL_ROOM` bytes for rows. `ChannelsLaunch` derives `step` from them.
    unsafe { Shared::dynamic(offset) }
}

/// A row in shared memory; a vector of zeros follows each row.
#[inline(always)]
fn place(p: &ChannelsParams, row: u32) -> Shared<[u32; 4]> {
    area(CHANNEL_ROWS).at(row * (p.vectors.value + 1))
}

#[inline(always)]
fn first_row(p: &ChannelsParams) -> u64 {
    item() as u64 * p.rows as u64
}

/// Writes the zeros after the rows, which the padding of the list reads.
#[inline(always)]
fn write_zeros(p: &ChannelsParams) {
    strided(gpu::thread(), p.step, DETECT_THREADS, |row| {
        place(p, row).at(p.vectors.value).st([0; 4]);
    });
}

/// Starts the copies of the vectors with marked columns of `rows` rows.
#[inline(always)]
fn fetch(p: &ChannelsParams, top: u32, rows: u32) {
    let pieces = rows * p.vectors.value;
    let source = p.source().bytes((first_row(p) + top as u64) * p.row_bytes);
    let mut piece = gpu::thread();
    while piece < pieces {
        // Issues all loads before the first result is used.
        let mut marked = [0; 4];
        unroll!(i < 4, {
            let (_, vector) = p.vectors.of(piece + i as u32 * DETECT_THREADS);
            // A vector has eight columns, one byte of marks.
            marked[i] = area::<u8>(CHANNEL_MARKS).at(vector).ld();
        });
        unroll!(i < 4, {
            let piece = piece + i as u32 * DETECT_THREADS;
            let (row, vector) = p.vectors.of(piece);
            let yes = u32::from(piece < pieces) & u32::from(marked[i] != 0);
            let from = source.row(row, p.row_bytes).at(vector);
            from.cp_async_16_if(place(p, row).at(vector), yes);
        });
        piece += 4 * DETECT_THREADS;
    }
}

/// Computes the list from the marks, one word per thread: byte offsets in a row, in shared memory. Returns the number
/// of columns.
#[inline(always)]
fn list(p: &ChannelsParams, bits: u32) -> u32 {
    let (thread, list) = (gpu::thread(), area::<u16>(CHANNEL_LIST));
    let upto = inclusive(bits.count_ones());
    let (before, count) = over_warps(upto);
    let rank = before + upto - bits.count_ones();
    area::<u32>(CHANNEL_RANKS).at(thread).st(rank);
    gpu::sync_threads();
    let word = |at: u32| [CHANNEL_MARKS, CHANNEL_RANKS].map(|array| area::<u32>(array).at(at).ld());
    each_one(DETECT_THREADS, 32 * p.words, word, |column, rank| {
        list.at(rank).st(column * 2);
    });
    let index = count + thread;
    if index < count.next_multiple_of(DETECT_PAD) {
        list.at(index).st(p.vectors.value * 16);
    }
    count
}

/// Writes the item's list from shared memory, and its number of columns.
#[inline(always)]
fn write_list(p: &ChannelsParams, count: u32) {
    let (thread, item) = (gpu::thread(), item() as u64);
    if thread == 0 {
        p.counts().at(item).st(count);
    }
    let to = p.lists().at(item * p.stride as u64);
    strided(thread, count.next_multiple_of(DETECT_PAD), DETECT_THREADS, |index| {
        let place = area::<u16>(CHANNEL_LIST).at(index).ld();
        let column = if index < count { place / 2 } else { NO_TILE };
        to.at(index).st(column);
    });
}

/// Gathers eight listed elements of the row at `from`.
#[inline(always)]
fn gathered(list: [u32; 4], from: Shared<[u32; 4]>) -> [u32; 4] {
    let (first, last) = (list[0] & 0xffff, list[3] >> 16);
    // The whole vector of eight neighbors. The offset of the zeros is a multiple of 16, so it is never `last` here.
    if last == first + 14 && first.is_multiple_of(16) {
        return from.bytes(first).ld();
    }
    let mut halves = [0; 8];
    unroll!(w < 4, {
        halves[2 * w] = from.bytes(list[w] & 0xffff).cast::<u16>().ld();
        halves[2 * w + 1] = from.bytes(list[w] >> 16).cast::<u16>().ld();
    });
    [0, 2, 4, 6].map(|i| halves[i] | halves[i + 1] << 16)
}

/// Writes `rows` packed rows from shared memory.
#[inline(always)]
fn write_rows(p: &ChannelsParams, top: u32, rows: u32, count: u32) {
    let octet = gpu::thread() % OCTETS;
    let groups = count.div_ceil(DETECT_PAD);
    let split = |n: u32| {
        let down = n.checked_div(groups).unwrap_or(0);
        (down, n - down * groups)
    };
    let (mut row, mut group) = split(gpu::thread() / OCTETS);
    let (down, right) = split(RUNS);
    let top = p.packed().at((first_row(p) + top as u64) * p.stride as u64);
    while row < rows {
        let column = group * DETECT_PAD + octet * 8;
        let list = area::<u16>(CHANNEL_LIST).at(column).cast::<[u32; 4]>().ld();
        let to = top.at(row as u64 * p.stride as u64 + column as u64).cast::<[u32; 4]>();
        to.st(gathered(list, place(p, row)));
        row += down;
        group += right;
        if group >= groups {
            (row, group) = (row + 1, group - groups);
        }
    }
}

/// Counts this thread block as done with the item's marks. Returns the previous count, in thread 0 only. Relaxed order
/// is enough: the marks that it read are in shared memory by then.
#[inline(always)]
fn begin_release(p: &ChannelsParams) -> u64 {
    if gpu::thread() == 0 {
        return p.counters().at(item()).atom_add(1);
    }
    0
}

/// Clears marks and counter if this thread block is the last. Only the first warp acts.
#[inline(always)]
fn end_release(p: &ChannelsParams, before: u64) {
    let (lane, item) = (gpu::thread(), item() as u64);
    if lane >= 32 || warp::uniform(before as u32) + 1 != p.parts {
        return;
    }
    let marks = p.marks().at(item * p.words as u64);
    strided(lane, p.words, 32, |word| marks.at(word).st(0));
    if lane == 0 {
        p.counters().at(item).st_relaxed(0);
    }
}

impl<W: WalkInfo, E: ElemInfo> Kernel<W, E, ChannelsParams> for PackChannels {
    #[inline(always)]
    unsafe fn run(p: &ChannelsParams, _: Maps) {
        let (thread, part) = (gpu::thread(), p.parts - 1 - gpu::block_x());
        grid::launch_dependents();
        write_zeros(p);
        grid::wait_dependency();
        let marks = p.marks().at(item() as u64 * p.words as u64);
        let bits = marks.at(thread).ld_if(thread < p.words);
        area::<u32>(CHANNEL_MARKS).at(thread).st(bits);
        gpu::sync_threads();
        let before = begin_release(p);
        let mut top = part * p.block_rows;
        let end = (top + p.block_rows).min(p.rows);
        let some = |top: u32| end.saturating_sub(top).min(p.step);
        fetch(p, top, some(top));
        let count = list(p, bits);
        copy::cp_async_wait_all();
        gpu::sync_threads();
        if part == 0 {
            write_list(p, count);
        }
        while count > 0 && top < end {
            write_rows(p, top, some(top), count);
            top += p.step;
            if top < end {
                gpu::sync_threads();
                fetch(p, top, some(top));
                copy::cp_async_wait_all();
                gpu::sync_threads();
            }
        }
        end_release(p, before);
    }
}
