//! Running sums over thread blocks in one pass by decoupled look-back (Merrill and Garland, NVIDIA technical report
//! NVR-2016-002). A thread block publishes its own sum and adds those of preceding ones, back to the first that has
//! published an inclusive sum. GPUs start thread blocks in index order, which CUB's scans rely on as well, so preceding
//! ones are running. Published words contain the run number: nothing is cleared between runs.

use super::lane;
use crate::device::prelude::*;
use crate::families::convert::abi::{EntriesParams, TURNS_HEAD};

/// Index of a thread block (its tile) in the launch, and the run number.
#[derive(Clone, Copy)]
pub(super) struct Turn {
    pub(super) tile: u32,
    run: u32,
}

/// Inclusive sum: own sum and all preceding ones.
const ALL: u32 = 2;
/// Own sum only.
const OWN: u32 = 1;

/// Returns blockIdx.x and the run number. No atomic ticket is needed, because thread blocks start in index order.
#[inline(always)]
pub(super) fn tile_and_run(p: &EntriesParams) -> Turn {
    Turn { tile: gpu::block_x(), run: p.turns().at(1u32).ld() }
}

/// Counts this thread block as done after its look-back; the last one increments the run number. Every thread must call
/// it.
#[inline(always)]
fn mark_done(p: &EntriesParams, turn: Turn) {
    // By now all threads of all thread blocks have read the run number.
    if gpu::thread() == 0 && p.turns().atom_add(1) + 1 == p.tiles {
        p.turns().st(0);
        p.turns().at(1u32).st(turn.run + 1);
    }
}

/// Sum of `own` over the preceding thread blocks. Every thread must call it; shared memory: `TURNS_BYTES`.
#[inline(always)]
pub(super) fn look_back_sum(p: &EntriesParams, turn: Turn, own: u32) -> u32 {
    let states = p.turns().bytes(TURNS_HEAD).cast::<u64>();
    // The two lowest bits are the kind of the sum.
    let run = (turn.run + 1) << 2;
    let state = |kind: u32, sum: u32| ((run | kind) as u64) << 32 | sum as u64;
    let to = states.at(turn.tile);
    if turn.tile > 0 && gpu::thread() == 0 {
        to.st_relaxed(state(OWN, own));
    }
    let mut sum = 0;
    let mut end = turn.tile;
    while end > 0 {
        let (part, all) = look_back(states, run, end);
        sum += part;
        end = if all { 0 } else { end - SCAN_THREADS };
    }
    if gpu::thread() == 0 {
        to.st_relaxed(state(ALL, sum + own));
    }
    mark_done(p, turn);
    sum
}

/// Sum of the [`SCAN_THREADS`] thread blocks before number `end`, or of those back to the last inclusive sum, and
/// whether there was one. Each thread polls one state. In one L2 latency the inclusive sum advances by this many thread
/// blocks. With 32 states the look-back took longer than the memory traffic of the kernel.
#[inline(always)]
fn look_back(states: Global<u64, Fresh>, run: u32, end: u32) -> (u32, bool) {
    // Before the first thread block the sum is zero.
    let (mut kind, mut value) = (ALL, 0);
    if gpu::thread() < end {
        let word = states.poll(end - 1 - gpu::thread(), run);
        (kind, value) = ((word >> 32) as u32 & 3, word as u32);
    }
    let full = warp::ballot(kind == ALL);
    // Without an inclusive sum, `trailing_zeros` is 32.
    let part = warp::sum(if lane() <= full.trailing_zeros() { value } else { 0 });
    // SAFETY: `SHARED_BYTES` of the tiles that look back contains `TURNS_BYTES`.
    let of_warps = unsafe { Shared::<[u32; 2]>::dynamic(0) };
    if lane() == 0 {
        of_warps.at(gpu::thread() / 32).st([part, full]);
    }
    gpu::sync_threads();
    let (mut sum, mut all) = (0, 0);
    unroll!(w < 8, {
        let [part, full] = of_warps.at(w as u32).ld();
        sum += if all == 0 { part } else { 0 };
        all |= full;
    });
    gpu::sync_threads();
    (sum, all != 0)
}
