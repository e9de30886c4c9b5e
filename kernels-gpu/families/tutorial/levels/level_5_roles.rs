//! Level 5: roles. One thread, the producer, only starts copies. Two warpgroups, the consumers, only multiply, each one
//! half of a tile of 128 x 256. Roles synchronize through mbarriers only. Registers move from the producer's warpgroup
//! to the consumers (`setmaxnreg`).

use super::Half;
use super::level_3_wgmma::{a, b, epilogue};
use super::level_4_ring::Ring;
use crate::abi::*;
use crate::device::gpu;
use crate::device::kernel::Kernel;
use crate::device::maps::Maps;
use crate::device::ptx::wgmma::{self, Acc};
use crate::device::ptx::{barrier, warp};
use crate::device::stages::Stages;
use crate::device::warpgroup::{CONSUMER_WARPS, REGISTERS, WgmmaElem};
use crate::families::tutorial::abi::*;

/// Marker: no stage is waiting to be released.
const NONE: u32 = u32::MAX;

impl<W: WalkInfo, E: Half> Kernel<W, E, LevelsParams> for Level<5> {
    #[inline(always)]
    unsafe fn run(p: &LevelsParams, at: Maps) {
        Self::make_barriers();
        let place = Self::place();
        if gpu::thread() >= CONSUMER_WARPS * 32 {
            barrier::setmaxnreg_dec::<{ REGISTERS[0] }>();
            if gpu::thread() == CONSUMER_WARPS * 32 {
                Self::copies(p, at, place, Ring::START);
            }
        } else {
            barrier::setmaxnreg_inc::<{ REGISTERS[1] }>();
            let half = gpu::thread() / 128;
            let mut acc = Acc::<4>::zero();
            Self::products::<E>(p, half, Ring::START, &mut acc);
            epilogue::<E, 4>(p, (place.0 + half * HALF as u32, place.1), &acc);
        }
    }
}

impl<const NUMBER: usize> Level<NUMBER> {
    /// Initializes the mbarriers. A stage is full when the producer has arrived and all bytes are copied, and empty
    /// when every consumer warp has arrived.
    #[inline(always)]
    pub(super) fn make_barriers() {
        if gpu::thread() == 0 {
            unroll!(slot < Self::STAGES, {
                Self::full(slot as u32).init(1);
                Self::empty(slot as u32).init(CONSUMER_WARPS);
            });
            barrier::init_fence();
        }
        gpu::sync_threads();
    }

    /// Starts the copies of a tile. Returns the position of the next tile in the ring.
    #[inline(always)]
    pub(super) fn copies(p: &LevelsParams, at: Maps, place: (u32, u32), ring: Ring) -> Ring {
        let mut now = ring;
        let mut k = 0;
        while k < p.k {
            // The phase before the first one counts as complete: in the first round, every stage is empty.
            Self::empty(now.slot).wait(now.parity ^ 1);
            Self::start(at, place, k, now.slot);
            now = now.next(Self::STAGES);
            k += Self::DEPTH;
        }
        now
    }

    /// Multiplies 64 rows of a tile. Returns the position of the next tile in the ring.
    #[inline(always)]
    pub(super) fn products<E: Half>(
        p: &LevelsParams,
        half: u32,
        ring: Ring,
        acc: &mut Acc<4>,
    ) -> Ring {
        let (mut now, mut before) = (ring, NONE);
        let mut k = 0;
        while k < p.k {
            Self::full(now.slot).wait(now.parity);
            let (smem, b_tile) = Self::operands(now.slot, half);
            acc.fence();
            unroll!(step < STEPS, {
                <E as WgmmaElem>::mma::<4, 0, 1>(acc, a(smem, step), b(b_tile, step));
            });
            wgmma::commit();
            // These products keep the Tensor Cores busy while the previous stage is released.
            acc.wait::<1>();
            Self::release_pending(before);
            before = now.slot;
            now = now.next(Self::STAGES);
            k += Self::DEPTH;
        }
        acc.wait::<0>();
        Self::release_pending(before);
        now
    }

    /// Releases a stage: one lane arrives for its warp, which has read it.
    #[inline(always)]
    fn release_pending(slot: u32) {
        if slot == NONE {
            return;
        }
        warp::sync(u32::MAX);
        if gpu::thread() % 32 == 0 {
            Self::empty(slot).arrive();
        }
    }
}
