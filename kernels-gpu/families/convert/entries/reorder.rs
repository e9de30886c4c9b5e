//! Permutes values in two passes over tiles. Both passes read and write contiguous memory, because a gather of one
//! value reads a sector of 32 bytes. `Split` sorts a source tile by target position, so that the values of a target
//! tile form a run. `Join` loads the runs of a target tile and orders them. A thread block of 512 threads processes one
//! tile. Both passes store values to shared memory at their 16-bit positions, then write the tile in whole vectors. In
//! `Split` the positions of the next round are loaded while values are stored. In `Join` eight values of each lane are
//! in flight.

use super::{ALL_LANES, element, lane};
use crate::device::compact::{ones_before, scan_warp};
use crate::device::prelude::*;
use crate::families::convert::abi::*;

/// The values of a tile in shared memory.
#[inline(always)]
fn stored<E: Elem>() -> Shared<E> {
    // SAFETY: `Split` and `Join` have shared memory for `TILE` elements.
    unsafe { Shared::dynamic(0) }
}

#[inline(always)]
fn put<E: Elem>(to: Shared<E>, value: Raw) {
    match E::BYTES {
        8 => to.cast::<[u32; 2]>().st([value[0], value[1]]),
        4 => to.cast::<u32>().st(value[0]),
        _ => to.cast::<u16>().st(value[0]),
    }
}

/// Stores the tile in shared memory to the output, where its first value has index `first`, in whole vectors. Outputs
/// have space for one vector past their end.
#[inline(always)]
fn store<E: Elem>(p: &EntriesParams, first: u32, tile: u32) {
    let each = 16 / E::BYTES;
    let mut vector = gpu::thread();
    while vector < tile / each {
        unroll!(u < 2, {
            let own = vector + u as u32 * REORDER_THREADS;
            let at = first as u64 + (own * each) as u64;
            if own < tile / each && at < p.count as u64 {
                let vector = stored::<E>().cast::<[u32; 4]>().at(own).ld();
                p.out_values::<E>().at(at).cast::<[u32; 4]>().st(vector);
            }
        });
        vector += 2 * REORDER_THREADS;
    }
}

impl<W: WalkInfo, E: Elem, const TILE: u32> Kernel<W, E, EntriesParams> for Split<TILE> {
    /// `source`: values; `first`: the position of each in its tile.
    #[inline(always)]
    unsafe fn run(p: &EntriesParams, _: Maps) {
        grid::launch_dependents();
        let first = gpu::block_x() * TILE;
        let at = |done: u32, u: usize| {
            first as u64 + (done + (u as u32 * REORDER_THREADS + gpu::thread()) * 8) as u64
        };
        let places_of = |done: u32| {
            let mut places = [[0u32; 4]; 2];
            unroll!(u < 2, {
                let at = at(done, u);
                let valid = done < TILE && at < p.count as u64;
                // SAFETY: the plan owns the positions. Their launch ended when the plan was made.
                let positions = unsafe { p.first().with::<ReadOnly>() }.cast::<u16>();
                places[u] = positions.at(at).cast::<[u32; 4]>().ld_once_if(valid);
            });
            places
        };
        // The preceding kernel may write the values, but not the positions.
        let mut next = places_of(0);
        grid::wait_dependency();
        let mut done = 0;
        while done < TILE {
            let places = next;
            let mut values = [[[0u32; 4]; 4]; 2];
            unroll!(u < 2, {
                let at = at(done, u);
                unroll!(v < 4, {
                    if (v as u32) < E::BYTES / 2 {
                        let from = p.source::<E>().at(at).cast::<[u32; 4]>().at(v as u64);
                        values[u][v] = from.ld_if(at < p.count as u64);
                    }
                });
            });
            next = places_of(done + 16 * REORDER_THREADS);
            unroll!(u < 2, {
                let at = at(done, u);
                unroll!(i < 8, {
                    if at + (i as u64) < p.count as u64 {
                        let place = places[u][i / 2] >> (i as u32 % 2 * 16) & 0xffff;
                        let each = (16 / E::BYTES) as usize;
                        let value = element::<E>(&values[u][(i / each) & 3], i % each);
                        put(stored::<E>().at(place), value);
                    }
                });
            });
            done += 16 * REORDER_THREADS;
        }
        gpu::sync_threads();
        store::<E>(p, first, TILE);
    }
}

/// Runs of up to 32 source tiles, one per lane, at consecutive positions.
#[derive(Clone, Copy)]
struct Runs {
    /// Differences between value index and position, for runs with values.
    distances: Shared<u32>,
    /// First position of this lane's run; `u32::MAX` if the run is empty.
    begin: u32,
    total: u32,
}

impl Runs {
    /// Every lane of the warp must call it together.
    #[inline(always)]
    fn new(distances: Shared<u32>, start: u32, len: u32) -> Runs {
        let (own, total) = scan_warp(len);
        let rank = ones_before(warp::ballot(len > 0));
        warp::sync(ALL_LANES);
        if len > 0 {
            distances.at(rank).st(start.wrapping_sub(own));
        }
        warp::sync(ALL_LANES);
        Runs { distances, begin: if len > 0 { own } else { u32::MAX }, total }
    }

    /// Returns the index of the value at position `from` + lane, and the number of runs that begin before the next 32
    /// positions. `before` runs begin before `from`. Every lane of the warp must call it together.
    #[inline(always)]
    fn value(self, from: u32, before: u32) -> (u32, u32) {
        let off = self.begin.wrapping_sub(from);
        let begins = warp::or(if off < 32 { 1u32 << off } else { 0 });
        let run = before + (begins & (u32::MAX >> (31 - lane()))).count_ones();
        let distance = self.distances.at(run.wrapping_sub(1) & 31).ld();
        let at = (from + lane()).wrapping_add(distance);
        (at, before + begins.count_ones())
    }
}

impl<W: WalkInfo, E: Elem, const TILE: u32> Kernel<W, E, EntriesParams> for Join<TILE> {
    /// `source`: the tiles of [`Split`], `tiles` of them; `first`: the position of each value in its target tile;
    /// `starts`: for each target tile, and one more, the first value of its run in each source tile.
    #[inline(always)]
    unsafe fn run(p: &EntriesParams, _: Maps) {
        grid::launch_dependents();
        let (own, warps) = (gpu::thread() / 32, REORDER_THREADS / 32);
        // SAFETY: `Join` has `JOIN_RUNS` words for each warp after the values.
        let distances = unsafe { Shared::<u32>::dynamic(TILE * E::BYTES) }.at(own * JOIN_RUNS);
        // SAFETY: the plan owns the starts. Their launch ended when the plan was made.
        let starts = unsafe { p.starts().with::<ReadOnly>() };
        let starts = starts.at(gpu::block_x() as u64 * p.tiles as u64);
        // A warp has every 16th source tile: neighboring tiles have runs of similar length.
        let runs_of = |first: u32| {
            let tile = first + lane() * warps;
            let valid = tile < p.tiles;
            let start = starts.at(tile).ld_if(valid);
            let end = starts.at(tile as u64 + p.tiles as u64).ld_if(valid);
            Runs::new(distances, start, end - start)
        };
        let mut first = own;
        // The preceding kernel may write the values, but not starts and positions.
        let mut runs = runs_of(first);
        grid::wait_dependency();
        loop {
            let (mut from, mut before) = (0, 0);
            while from < runs.total {
                let mut values = [[0u32; 4]; 8];
                let mut places = [0u32; 8];
                unroll!(u < 8, {
                    let (at, next) = runs.value(from + u as u32 * 32, before);
                    before = next;
                    let valid = from + u as u32 * 32 + lane() < runs.total;
                    values[u] = p.source::<E>().at(at).ld_raw::<1>(valid);
                    // SAFETY: the same holds for the positions.
                    let positions = unsafe { p.first().with::<ReadOnly>() }.cast::<u16>();
                    places[u] = positions.at(at).ld_if(valid);
                });
                unroll!(u < 8, {
                    if from + u as u32 * 32 + lane() < runs.total {
                        put(stored::<E>().at(places[u]), values[u]);
                    }
                });
                from += 256;
            }
            first += warps * JOIN_RUNS;
            if first >= p.tiles {
                break;
            }
            runs = runs_of(first);
        }
        gpu::sync_threads();
        store::<E>(p, gpu::block_x() * TILE, TILE);
    }
}

impl<W: WalkInfo, E: Elem, const TILE: u32> Kernel<W, E, EntriesParams> for ReorderPlaces<TILE> {
    /// `keys`: the source of each value of the split tiles; `first`: its target; `out_first`, `out_second`: the
    /// positions for `split` and `join`; `starts`: first values of the runs.
    #[inline(always)]
    unsafe fn run(p: &EntriesParams, _: Maps) {
        grid::launch_dependents();
        grid::wait_dependency();
        let at = gpu::block_x() * REORDER_THREADS + gpu::thread();
        if at >= p.count {
            return;
        }
        let from = p.keys().at(at).ld();
        let to = p.first().at(at).ld();
        let (tile, inside) = (at / TILE, at % TILE);
        p.out_first().cast::<u16>().at(from).st(inside);
        p.out_second().cast::<u16>().at(at).st(to % TILE);
        let before = p.first().wrapping_at((at as u64).wrapping_sub(1)).ld_if(inside > 0);
        let start = |target: u32| p.starts().at(target as u64 * p.tiles as u64 + tile as u64);
        let mut target = if inside > 0 { before / TILE + 1 } else { 0 };
        while target <= to / TILE {
            start(target).st(at);
            target += 1;
        }
        if at + 1 == p.count || inside + 1 == TILE {
            while target <= p.tiles {
                start(target).st(at + 1);
                target += 1;
            }
        }
    }
}
