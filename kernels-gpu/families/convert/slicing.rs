//! CSR to sliced ELLPACK: `order` ranks rows by length, `count` walks each slice to count its chunks, `fill` walks it
//! again and writes. The walk equals that of the host's converter, so both give the same arrays.

use crate::device::prelude::*;
use crate::device::strided::strided;
use crate::families::convert::abi::*;
use crate::families::spmm::abi::{CHUNK_STEPS, K_TILE, NO_ENTRY, SLICE};

buffers! {
    // The arrays of CSR are those of a checked tensor. `host/core/families/convert/slices.rs` allocates
    // the outputs for all slices and chunks. For updates, `SliceValues` in
    // `host/core/families/convert/slicing.rs` makes order and starts from a checked pattern.
    unsafe SlicingParams {
        offsets: u32, ReadOnly;
        columns: u32, ReadOnly;
        values<E: Elem>: E, ReadOnly;
        order: u32, Fresh;
        counts: u32, ReadWrite;
        starts: u32, Fresh;
        windows: [u32; 2], ReadWrite;
        local_columns: u16, ReadWrite;
        slot_values<E: Elem>: E, ReadWrite;
    }
}

/// The entries of one lane in a chunk.
struct Taken {
    /// First tile of the chunk's window, and its end.
    window: [u32; 2],
    /// First entry of the lane in the chunk.
    entry: u32,
    columns: [u32; CHUNK_STEPS],
    count: u32,
}

impl Taken {
    /// Without entries, starting at `entry`.
    #[inline(always)]
    fn from(entry: u32) -> Taken {
        Taken { window: [0; 2], entry, columns: [0; CHUNK_STEPS], count: 0 }
    }

    #[inline(always)]
    fn local(&self, i: usize) -> u32 {
        if (i as u32) < self.count {
            self.columns[i & 3] - self.window[0] * K_TILE as u32
        } else {
            NO_ENTRY
        }
    }
}

#[inline(always)]
fn length(p: &SlicingParams, row: u32) -> u32 {
    let at = p.offsets().at(row);
    let inside = row < p.rows;
    at.at(1u32).ld_if(inside) - at.ld_if(inside)
}

/// Ranks each row in its window: after all longer rows, and after earlier rows of equal length.
#[inline(always)]
fn order(p: &SlicingParams) {
    let row = gpu::block_x() * Slicing::<SLICING_ORDER>::THREADS + gpu::thread();
    let window = row / SORTED * SORTED;
    let count = (p.rows.saturating_sub(window)).min(SORTED);
    // SAFETY: a thread block of `SLICING_ORDER` has `SORTED` words.
    let lengths = unsafe { Shared::<u32>::dynamic(0) };
    strided(gpu::thread(), count, Slicing::<SLICING_ORDER>::THREADS, |other| {
        lengths.at(other).st(length(p, window + other));
    });
    gpu::sync_threads();
    let own = length(p, row);
    let (mut rank, mut other) = (0, 0);
    while other < count {
        let length = lengths.at(other).ld();
        let before = length > own || (length == own && window + other < row);
        rank += u32::from(before);
        other += 1;
    }
    if row < p.rows {
        p.order().at(window + rank).st(row);
    } else if row < p.slices * SLICE as u32 {
        p.order().at(row).st(u32::MAX);
    }
}

/// Cuts a slice into chunks and returns their number. One warp per slice; all lanes call `each` together.
#[inline(always)]
fn walk(p: &SlicingParams, slice: u32, mut each: impl FnMut(u32, &Taken)) -> u32 {
    let lane = gpu::thread() % 32;
    let row = p.order().at(slice as u64 * SLICE as u64 + lane as u64).ld();
    let at = p.offsets().at(row);
    let mut entry = at.ld_if(row != u32::MAX);
    let end = at.at(1u32).ld_if(row != u32::MAX);
    let mut chunk = 0;
    loop {
        let mut taken = Taken::from(entry);
        unroll!(i < CHUNK_STEPS, {
            let at = entry as u64 + i as u64;
            taken.columns[i] = p.columns().at(at).ld_if(at < end as u64);
        });
        let own = taken.columns[0] / K_TILE as u32;
        let first = warp::min(if entry < end { own } else { u32::MAX });
        if first == u32::MAX {
            return chunk;
        }
        let mut last = 0;
        unroll!(i < CHUNK_STEPS, {
            let tile = taken.columns[i] / K_TILE as u32;
            if entry as u64 + (i as u64) < end as u64 && tile < first + REACH {
                taken.count += 1;
                last = tile + 1;
            }
        });
        taken.window = [first, !warp::min(!last)];
        each(chunk, &taken);
        entry += taken.count;
        chunk += 1;
    }
}

/// Values of a lane's four slots; empty slots are zero.
type Values = [[u32; 2]; CHUNK_STEPS];

#[inline(always)]
fn load_values<E: Elem>(p: &SlicingParams, taken: &Taken) -> Values {
    let mut words = [[0u32; 2]; CHUNK_STEPS];
    unroll!(i < CHUNK_STEPS, {
        let from = p.values::<E>().at(taken.entry as u64 + i as u64);
        let [low, high, ..] = from.ld_raw::<1>((i as u32) < taken.count);
        words[i] = [low, high];
    });
    words
}

#[inline(always)]
fn store_values<E: Elem>(to: Global<E, ReadWrite>, [a, b, c, d]: Values) {
    match E::BYTES {
        8 => {
            let to = to.cast::<[u32; 4]>();
            to.st([a[0], a[1], b[0], b[1]]);
            to.at(1u32).st([c[0], c[1], d[0], d[1]]);
        }
        4 => to.cast::<[u32; 4]>().st([a[0], b[0], c[0], d[0]]),
        _ => to.cast::<[u32; 2]>().st([a[0] | b[0] << 16, c[0] | d[0] << 16]),
    }
}

#[inline(always)]
fn fill<E: Elem>(p: &SlicingParams, slice: u32) {
    let lane = gpu::thread() % 32;
    let start = p.starts().at(slice).ld();
    walk(p, slice, |chunk, taken| {
        let chunk = start as u64 + chunk as u64;
        if lane == 0 {
            p.windows().at(chunk).st(taken.window);
        }
        let slot = (chunk * SLICE as u64 + lane as u64) * CHUNK_STEPS as u64;
        let local = |i| taken.local(i);
        let words = [local(0) | local(1) << 16, local(2) | local(3) << 16];
        p.local_columns().at(slot).cast::<[u32; 2]>().st(words);
        let values = load_values::<E>(p, taken);
        store_values(p.slot_values::<E>().at(slot), values);
    });
}

/// Updates the values of a run of chunks, with all loads in flight at once. A lane's entries are consecutive, and in a
/// chunk they precede the empty slots.
#[inline(always)]
fn refill<E: Elem>(p: &SlicingParams, run: u32) {
    grid::launch_dependents();
    let lane = gpu::thread() % 32;
    // SAFETY: the host wrote both arrays when it made the plan.
    let (order, starts) = unsafe { (p.order().with::<ReadOnly>(), p.starts().with::<ReadOnly>()) };
    let mut entry = order.at(run * SLICE as u32 + lane).ld();
    let first = starts.at(run).ld();
    let end = starts.at(run).at(1u32).ld();
    let slot = |chunk: u32| (chunk as u64 * SLICE as u64 + lane as u64) * CHUNK_STEPS as u64;
    let mut columns = [[0; 2]; RUN_CHUNKS];
    unroll!(c < RUN_CHUNKS, {
        let chunk = first + c as u32;
        // SAFETY: no kernel writes the columns of a planned pattern.
        let local_columns = unsafe { p.local_columns().with::<ReadOnly>() };
        columns[c] = local_columns.at(slot(chunk)).cast::<[u32; 2]>().ld_if(chunk < end);
    });
    let mut values = [[[0; 2]; CHUNK_STEPS]; RUN_CHUNKS];
    unroll!(c < RUN_CHUNKS, {
        let mut taken = Taken::from(entry);
        unroll!(i < CHUNK_STEPS, {
            let there = (columns[c][i / 2] >> (i % 2 * 16)) & 0xffff != NO_ENTRY;
            taken.count += u32::from(there && first + (c as u32) < end);
        });
        values[c] = load_values::<E>(p, &taken);
        entry += taken.count;
    });
    unroll!(c < RUN_CHUNKS, {
        let chunk = first + c as u32;
        if chunk < end {
            store_values(p.slot_values::<E>().at(slot(chunk)), values[c]);
        }
    });
}

impl<W: WalkInfo, E: Elem, const STEP: u32> Kernel<W, E, SlicingParams> for Slicing<STEP> {
    #[inline(always)]
    unsafe fn run(p: &SlicingParams, _: Maps) {
        if STEP == SLICING_ORDER {
            order(p);
            return;
        }
        let slice = gpu::block_x() * Self::ITEMS + gpu::thread() / 32;
        if slice >= p.slices {
            return;
        }
        if STEP == SLICING_VALUES {
            refill::<E>(p, slice);
            return;
        }
        if STEP == SLICING_FILL {
            fill::<E>(p, slice);
            return;
        }
        let count = walk(p, slice, |_, _| ());
        if gpu::thread() % 32 == 0 {
            p.counts().at(slice).st(count);
        }
    }
}
