//! Split-K fix-up: of the thread blocks that compute parts of an output tile, the last to arrive adds the partial sums.
//! Each warpgroup has its own counter and does so for its rows. The counter orders the accesses: all threads of the
//! warpgroup store, execute a fence and synchronize before one of them increments it. The last warpgroup executes
//! another fence before it loads the partial sums.

use crate::device::gpu;
use crate::device::ptx::wgmma::Acc;
use crate::device::ptx::{barrier, copy, global};

/// Workspace of the partial sums of one part along k, and the number of parts.
#[derive(Clone, Copy)]
pub struct SplitK {
    /// Address of all partial sums: slots x warpgroups x accumulators of a warpgroup.
    pub partial: u64,
    /// Address of all arrival counters.
    pub counters: u64,
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
    told: u32,
    acc: &mut Acc<CHUNKS>,
) -> bool {
    fix_up_by(cut, group, told, acc, |a, b| a + b)
}

/// Stores a thread's partial sums.
#[inline(always)]
fn put<const CHUNKS: usize>(mine: u64, acc: &Acc<CHUNKS>) {
    unroll!(c < CHUNKS, most 4, {
        unroll!(j < 8, {
            let four = [0, 1, 2, 3].map(|i| acc.0[c][4 * j + i].to_bits());
            global::st_v4(mine + ((c * 8 + j) * 128 * 16) as u64, four);
        });
    });
}

/// [`fix_up`] with the addition of the accumulator type.
#[inline(always)]
pub fn fix_up_by<const CHUNKS: usize>(
    cut: SplitK,
    group: u32,
    told: u32,
    acc: &mut Acc<CHUNKS>,
    add: impl Fn(f32, f32) -> f32,
) -> bool {
    let lane = gpu::opaque_thread() % 128;
    // Layout of the accumulators: four of each thread are adjacent, so accesses are 16 bytes wide.
    let bytes = (CHUNKS * 8 * 128 * 16) as u64;
    let place = |part: u32| {
        cut.partial + ((cut.first + part) as u64 * 2 + group as u64) * bytes + lane as u64 * 16
    };
    put(place(cut.part), acc);
    global::fence_gpu();
    barrier::sync_named(1 + group, 128);
    let arrivals = cut.counters + (cut.counter * 2 + group) as u64 * 4;
    let told = told + group * 4;
    if lane == 0 {
        let before = global::atom_add(arrivals, 1);
        copy::st_shared_b32(told, before);
        if before + 1 == cut.parts {
            global::st_b32(arrivals, 0);
        }
    }
    barrier::sync_named(1 + group, 128);
    if copy::ld_shared_b32(told) + 1 != cut.parts {
        return false;
    }
    global::fence_gpu();
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
                let four = global::ld_cg_v4(from + ((c * 8 + j) * 128 * 16) as u64, true);
                unroll!(i < 4, {
                    let own = &mut acc.0[c][4 * j + i];
                    *own = add(*own, f32::from_bits(four[i]));
                });
            });
        });
    }
    true
}
