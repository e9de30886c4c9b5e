//! Partial sums of a strip that several thread blocks share.

use crate::device::gpu;
use crate::device::ptx::wgmma::Acc;
use crate::device::ptx::{barrier, copy, global};

/// Where the partial sums of a part along k go, and who else has some.
#[derive(Clone, Copy)]
pub struct SplitK {
    /// All partial sums: slots x halves x accumulators of a warpgroup.
    pub partial: u64,
    /// All arrival counters.
    pub counters: u64,
    pub first: u32,
    pub part: u32,
    pub parts: u32,
    /// Pair of counters.
    pub counter: u32,
}

/// Leaves the partial sums of this part. The warpgroup that arrives last gets the sum over all parts, in order, and
/// true. `told`: two words of shared memory.
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

/// [`fix_up`] with the addition that the accumulators want.
#[inline(always)]
pub fn fix_up_by<const CHUNKS: usize>(
    cut: SplitK,
    group: u32,
    told: u32,
    acc: &mut Acc<CHUNKS>,
    add: impl Fn(f32, f32) -> f32,
) -> bool {
    let lane = gpu::opaque_thread() % 128;
    // A warpgroup's accumulators, four of each thread side by side.
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
    // Two parts add up to the same bits in either order: this one's are at hand.
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
