//! CSR to sliced ELLPACK: `order` ranks rows by length, `count` walks each slice to count its chunks, `fill` walks it
//! again and writes. The walk equals that of the host's converter, so both give the same arrays.

use crate::device::prelude::*;
use crate::families::convert::abi::*;
use crate::families::spmm::abi::{CHUNK_STEPS, K_TILE, NO_ENTRY, SLICE};

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
    let at = p.offsets + row as u64 * 4;
    let inside = row < p.rows;
    global::ld_nc_b32(at + 4, inside) - global::ld_nc_b32(at, inside)
}

/// Ranks each row in its window: after all longer rows, and after earlier rows of equal length.
#[inline(always)]
fn order(p: &SlicingParams) {
    let row = gpu::block_x() * Slicing::<SLICING_ORDER>::THREADS + gpu::thread();
    let window = row / SORTED as u32 * SORTED as u32;
    let count = (p.rows.saturating_sub(window)).min(SORTED as u32);
    let mut other = gpu::thread();
    while other < count {
        copy::st_shared_b32(copy::dynamic_shared() + other * 4, length(p, window + other));
        other += Slicing::<SLICING_ORDER>::THREADS;
    }
    gpu::sync_threads();
    let own = length(p, row);
    let mut rank = 0;
    other = 0;
    while other < count {
        let length = copy::ld_shared_b32(copy::dynamic_shared() + other * 4);
        let before = length > own || (length == own && window + other < row);
        rank += u32::from(before);
        other += 1;
    }
    if row < p.rows {
        global::st_b32(p.order + (window + rank) as u64 * 4, row);
    } else if row < p.slices * SLICE as u32 {
        global::st_b32(p.order + row as u64 * 4, u32::MAX);
    }
}

/// Cuts a slice into chunks and returns their number. One warp per slice; all lanes call `each` together.
#[inline(always)]
fn walk(p: &SlicingParams, slice: u32, mut each: impl FnMut(u32, &Taken)) -> u32 {
    let lane = gpu::thread() % 32;
    let at = p.order + (slice as u64 * SLICE as u64 + lane as u64) * 4;
    let row = global::ld_cg_b32(at, true);
    let at = p.offsets + row as u64 * 4;
    let mut entry = global::ld_nc_b32(at, row != u32::MAX);
    let end = global::ld_nc_b32(at + 4, row != u32::MAX);
    let mut chunk = 0;
    loop {
        let mut taken = Taken::from(entry);
        unroll!(i < CHUNK_STEPS, {
            let at = entry as u64 + i as u64;
            taken.columns[i] = global::ld_nc_b32(p.columns + at * 4, at < end as u64);
        });
        let own = taken.columns[0] / K_TILE as u32;
        let first = warp::min(if entry < end { own } else { u32::MAX });
        if first == u32::MAX {
            return chunk;
        }
        let mut last = 0;
        unroll!(i < CHUNK_STEPS, {
            let tile = taken.columns[i] / K_TILE as u32;
            if entry as u64 + (i as u64) < end as u64 && tile < first + REACH as u32 {
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
        let from = p.values + (taken.entry as u64 + i as u64) * E::BYTES as u64;
        let ok = (i as u32) < taken.count;
        words[i] = match E::BYTES {
            8 => global::ld_nc_v2(from, ok),
            4 => [global::ld_nc_b32(from, ok), 0],
            _ => [global::ld_nc_b16(from, ok), 0],
        };
    });
    words
}

#[inline(always)]
fn store_values<E: Elem>(to: u64, [a, b, c, d]: Values) {
    match E::BYTES {
        8 => {
            global::st_v4(to, [a[0], a[1], b[0], b[1]]);
            global::st_v4(to + 16, [c[0], c[1], d[0], d[1]]);
        }
        4 => global::st_v4(to, [a[0], b[0], c[0], d[0]]),
        _ => global::st_v2(to, [a[0] | b[0] << 16, c[0] | d[0] << 16]),
    }
}

#[inline(always)]
fn fill<E: Elem>(p: &SlicingParams, slice: u32) {
    let lane = gpu::thread() % 32;
    let start = global::ld_cg_b32(p.starts + slice as u64 * 4, true);
    walk(p, slice, |chunk, taken| {
        let chunk = start as u64 + chunk as u64;
        if lane == 0 {
            global::st_v2(p.windows + chunk * 8, taken.window);
        }
        let slot = (chunk * SLICE as u64 + lane as u64) * CHUNK_STEPS as u64;
        let local = |i| taken.local(i);
        let words = [local(0) | local(1) << 16, local(2) | local(3) << 16];
        global::st_v2(p.local_columns + slot * 2, words);
        let values = load_values::<E>(p, taken);
        store_values::<E>(p.slot_values + slot * E::BYTES as u64, values);
    });
}

/// Updates the values of a run of chunks, with all loads in flight at once. A lane's entries are consecutive, and in a
/// chunk they precede the empty slots.
#[inline(always)]
fn refill<E: Elem>(p: &SlicingParams, run: u32) {
    grid::launch_dependents();
    let lane = gpu::thread() % 32;
    let mut entry = global::ld_nc_b32(p.order + (run * SLICE as u32 + lane) as u64 * 4, true);
    let first = global::ld_nc_b32(p.starts + run as u64 * 4, true);
    let end = global::ld_nc_b32(p.starts + run as u64 * 4 + 4, true);
    let slot = |chunk: u32| (chunk as u64 * SLICE as u64 + lane as u64) * CHUNK_STEPS as u64;
    let mut columns = [[0; 2]; RUN_CHUNKS];
    unroll!(c < RUN_CHUNKS, {
        let chunk = first + c as u32;
        columns[c] = global::ld_nc_v2(p.local_columns + slot(chunk) * 2, chunk < end);
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
            store_values::<E>(p.slot_values + slot(chunk) * E::BYTES as u64, values[c]);
        }
    });
}

impl<W: WalkInfo, E: Elem, const STEP: u32> Kernel<W, E, SlicingParams> for Slicing<STEP> {
    #[inline(always)]
    unsafe fn run(p: &SlicingParams, _: u64) {
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
            global::st_b32(p.counts + slice as u64 * 4, count);
        }
    }
}
