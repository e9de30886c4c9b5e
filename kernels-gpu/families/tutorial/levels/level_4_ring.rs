//! Level 4: a ring of stages. While a stage is multiplied, the next two are copied: a copy is started long before its
//! data is needed.

use super::Half;
use super::level_3_wgmma::{epilogue, multiply};
use crate::abi::*;
use crate::device::gpu;
use crate::device::kernel::Kernel;
use crate::device::maps::Maps;
use crate::device::ptx::barrier;
use crate::device::ptx::wgmma::Acc;
use crate::device::stages::Stages;
use crate::families::tutorial::abi::*;

/// Position in a ring of stages. An mbarrier identifies its phase by parity only, which alternates with every round.
#[derive(Clone, Copy)]
pub(super) struct Ring {
    pub slot: u32,
    pub parity: u32,
}

impl Ring {
    /// The first stage.
    pub const START: Ring = Ring { slot: 0, parity: 0 };

    /// Returns the next position in a ring of `stages` stages.
    #[inline(always)]
    pub fn next(self, stages: usize) -> Ring {
        if self.slot + 1 == stages as u32 {
            Ring { slot: 0, parity: self.parity ^ 1 }
        } else {
            Ring { slot: self.slot + 1, ..self }
        }
    }
}

impl<W: WalkInfo, E: Half> Kernel<W, E, LevelsParams> for Level<4> {
    #[inline(always)]
    unsafe fn run(p: &LevelsParams, at: Maps) {
        let place = Self::place();
        let copies = gpu::thread() == 0;
        if copies {
            unroll!(slot < Self::STAGES, {
                Self::full(slot as u32).init(1);
            });
            barrier::init_fence();
            // The thread that initialized the barriers may use them before they are visible to the others.
            Self::start(at, place, 0, 0);
            if Self::DEPTH < p.k {
                Self::start(at, place, Self::DEPTH, 1);
            }
        }
        gpu::sync_threads();
        let mut acc = [Acc::<2>::zero(); 2];
        let mut now = Ring::START;
        let mut ahead = now.next(Self::STAGES).next(Self::STAGES);
        let mut k = 0;
        while k < p.k {
            Self::full(now.slot).wait(now.parity);
            multiply::<E>(&mut acc, Self::stage(now.slot));
            // These products may still run. Those of the previous stage are complete, after the barrier in all warps.
            acc[0].wait::<1>();
            acc[1].wait::<1>();
            gpu::sync_threads();
            if copies && k + 2 * Self::DEPTH < p.k {
                Self::start(at, place, k + 2 * Self::DEPTH, ahead.slot);
            }
            (now, ahead) = (now.next(Self::STAGES), ahead.next(Self::STAGES));
            k += Self::DEPTH;
        }
        acc[0].wait::<0>();
        acc[1].wait::<0>();
        epilogue::<E, 2>(p, place, &acc[0]);
        epilogue::<E, 2>(p, (place.0 + HALF as u32, place.1), &acc[1]);
    }
}
