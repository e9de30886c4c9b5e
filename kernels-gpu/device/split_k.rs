//! Split-K fix-up: thread blocks compute parts of an output tile or row and store partial sums. The last to arrive at a
//! counter adds them in order, so each run gives the same bits, and resets the counter for the next launch. A thread
//! block, a warpgroup or a segment of a warp has a counter of its own and waits for no other. Kernels whose last thread
//! block continues alone count arrivals in the same way.

use crate::abi::SpmmParams;
use crate::device::elem::Elem;
use crate::device::gpu;
use crate::device::memory::{Fresh, Global};
use crate::device::ptx::wgmma::Acc;
use crate::device::ptx::{barrier, global, warp};
use crate::device::shared::Shared;

/// Counts the arrival of one of `count` parts. Returns true in all threads of the part that arrives last, which then
/// see what the other parts stored. `leader`: true in one thread of the part. `sync`: barrier of its threads. `told`:
/// word of shared memory that broadcasts the count. No barrier follows the read of `told`: synchronize before the next
/// store to it.
#[inline(always)]
fn arrives_last(
    counter: Global<u32, Fresh>,
    count: u32,
    told: Shared<u32>,
    leader: bool,
    sync: impl Fn(),
) -> bool {
    // The counter orders the accesses: fences precede and follow the increment, and barriers extend them to all threads.
    global::fence_gpu();
    sync();
    if leader {
        let before = counter.atom_add(1);
        told.st(before);
        if before + 1 == count {
            counter.st(0);
        }
    }
    sync();
    let last = told.ld() + 1 == count;
    if last {
        global::fence_gpu();
    }
    last
}

/// [`arrives_last`] of a thread block. All threads must call it.
#[inline(always)]
pub fn block_arrives_last(counter: Global<u32, Fresh>, count: u32, told: Shared<u32>) -> bool {
    arrives_last(counter, count, told, gpu::thread() == 0, gpu::sync_threads)
}

/// [`arrives_last`] of warpgroup `group`.
#[inline(always)]
pub fn warpgroup_arrives_last(
    counter: Global<u32, Fresh>,
    count: u32,
    told: Shared<u32>,
    group: u32,
) -> bool {
    let sync = || barrier::sync_named(1 + group, 128);
    arrives_last(counter, count, told, gpu::opaque_thread() % 128 == 0, sync)
}

/// [`arrives_last`] of a segment of `lanes` adjacent lanes, without shared memory. `lane`: lane in the segment.
#[inline(always)]
pub fn segment_arrives_last(
    counter: Global<u32, Fresh>,
    count: u32,
    [lane, lanes]: [u32; 2],
) -> bool {
    let members = (u32::MAX >> (32 - lanes)) << (gpu::thread() % 32 / lanes * lanes);
    // The lanes' stores precede this barrier. The single arrival, which releases and acquires for the whole GPU,
    // follows it.
    warp::sync(members);
    let mut before = 0;
    if lane == 0 {
        before = counter.atom_add(1);
    }
    let last = warp::shfl_segment(lanes, before, 0, members) + 1 == count;
    if last {
        // A shuffle does not order memory accesses.
        warp::sync(members);
        if lane == 0 {
            counter.st(0);
        }
    }
    last
}

/// Fix-up of a piece of a split row, in a segment of `lanes` lanes. Each lane has `REP` vectors of `VEC` columns, the
/// first at `column`. Stores the partial sums in the piece's slot. The segment that arrives last gets those of the row,
/// joined to `start` in slot order, and returns true. `at_once` (up to 4) slots are loaded at once; missing ones are
/// zero, so more than one requires that zero is neutral for `join`.
#[inline(always)]
pub fn fix_up_row<E: Elem, const VEC: usize, const REP: usize>(
    p: &SpmmParams,
    (slot, column): (u32, u32),
    [lane, lanes]: [u32; 2],
    acc: &mut [[E::Acc; VEC]; REP],
    at_once: usize,
    start: E::Acc,
    join: impl Fn(E::Acc, E::Acc) -> E::Acc,
) -> bool {
    let [counter, first, count, _] = p.slots().at(slot).ld();
    let at = |s: u32, r: usize, i: usize| {
        let c = column as u64 + (r as u32 * lanes * VEC as u32) as u64 + i as u64;
        p.partial::<E>().at(s as u64 * p.partial_columns as u64 + c)
    };
    unroll!(r < REP, {
        unroll!(i < VEC, { at(slot, r, i).st(acc[r][i]) });
    });
    let counter = counter as u64 * gpu::grid_y() as u64 + gpu::block_y() as u64;
    if !segment_arrives_last(p.counters().at(counter), count, [lane, lanes]) {
        return false;
    }
    *acc = [[start; VEC]; REP];
    let mut s = first;
    while s < first + count {
        warp::nounroll();
        unroll!(r < REP, {
            unroll!(i < VEC, {
                let mut parts = [E::ZERO; 4];
                unroll!(j < 4, {
                    let slot = s + j as u32;
                    if j < at_once {
                        parts[j] = at(slot, r, i).ld_if(slot < first + count);
                    }
                });
                unroll!(j < 4, {
                    if j < at_once {
                        acc[r][i] = join(acc[r][i], parts[j]);
                    }
                });
            });
        });
        s += at_once as u32;
        if VEC * REP == 1 {
            // The compiler would unroll this short loop, and keep more addresses in registers.
            s = warp::opaque(s);
        }
    }
    true
}

/// Workspace of the partial sums of one part along k, and the number of parts.
#[derive(Clone, Copy)]
pub struct SplitK {
    /// All partial sums: slots x warpgroups x accumulators of a warpgroup.
    pub partial: Global<[u32; 4], Fresh>,
    /// All arrival counters.
    pub counters: Global<u32, Fresh>,
    pub first: u32,
    pub part: u32,
    pub parts: u32,
    /// Index of the pair of counters, one per warpgroup.
    pub counter: u32,
}

/// Stores the partial sums of this part. The warpgroup that arrives last gets the sum over all parts, added in the
/// order of the parts, and returns true. `told`: two words of shared memory that broadcast the arrival count.
#[inline(always)]
pub fn fix_up<const CHUNKS: usize>(
    cut: SplitK,
    group: u32,
    told: Shared<u32>,
    acc: &mut Acc<CHUNKS>,
) -> bool {
    fix_up_by(cut, group, told, acc, |a, b| a + b)
}

/// Stores a thread's partial sums.
#[inline(always)]
pub fn put<const CHUNKS: usize>(mine: Global<[u32; 4], Fresh>, acc: &Acc<CHUNKS>) {
    unroll!(c < CHUNKS, most 4, {
        unroll!(j < 8, {
            let four = [0, 1, 2, 3].map(|i| acc.0[c][4 * j + i].to_bits());
            mine.at(((c * 8 + j) * 128) as u64).st(four);
        });
    });
}

/// [`fix_up`] with the addition of the accumulator type.
#[inline(always)]
pub fn fix_up_by<const CHUNKS: usize>(
    cut: SplitK,
    group: u32,
    told: Shared<u32>,
    acc: &mut Acc<CHUNKS>,
    add: impl Fn(f32, f32) -> f32,
) -> bool {
    let lane = gpu::opaque_thread() % 128;
    // Layout of the accumulators: four of each thread are adjacent, so accesses are 16 bytes wide.
    let bytes = (CHUNKS * 8 * 128 * 16) as u64;
    let place = |part: u32| {
        let group = (cut.first + part) as u64 * 2 + group as u64;
        cut.partial.bytes(group * bytes).at(lane)
    };
    put(place(cut.part), acc);
    let counter = cut.counters.at(cut.counter * 2 + group);
    if !warpgroup_arrives_last(counter, cut.parts, told.at(group), group) {
        return false;
    }
    // The sum of two parts has the same bits in either order, and this part is still in registers.
    let own = if cut.parts == 2 {
        cut.part
    } else {
        *acc = Acc::zero();
        cut.parts
    };
    let mut part = 0;
    while part < cut.parts {
        let from = place(part);
        part += 1;
        if part == own + 1 {
            continue;
        }
        unroll!(c < CHUNKS, most 4, {
            unroll!(j < 8, {
                let four = from.at(((c * 8 + j) * 128) as u64).ld();
                unroll!(i < 4, {
                    let own = &mut acc.0[c][4 * j + i];
                    *own = add(*own, f32::from_bits(four[i]));
                });
            });
        });
    }
    true
}
