//! Tiles whose warps all copy and multiply. Where registers cannot move between warps, warps that only copy would hold
//! registers that the accumulators need.

use super::copies::BOTH;
use super::{DenseElem, DenseTile, Spot};
use crate::device::prelude::*;
use crate::families::gemm::abi::*;

/// Stage of a row of tiles.
#[derive(Clone, Copy)]
struct Cursor {
    down: u32,
    stage: u32,
}

impl Cursor {
    /// Returns the next of `stages` stages, or the first stage of the row of tiles a grid further down.
    #[inline(always)]
    fn next(self, stages: u32) -> Self {
        if self.stage + 1 < stages {
            Cursor { stage: self.stage + 1, ..self }
        } else {
            Cursor { down: self.down + gpu::grid_y(), stage: 0 }
        }
    }
}

impl<const CHUNKS: usize, F: DenseForm<A: Multiply, L: Loader>> DenseTile<CHUNKS, F> {
    /// Computes all tiles of this thread block, in rows of tiles a grid apart while they are `inside`. Called by all
    /// threads after the barriers are initialized. A copy overwrites the stage before the one just multiplied: most
    /// other warps have read it by then, so waits for the slowest warp are short.
    #[inline(always)]
    pub(super) fn undivided<E: DenseElem, S: Spot>(
        p: &DenseParams,
        at: Maps,
        inside: impl Fn(u32) -> bool,
        spot: impl Fn(u32) -> S,
    ) {
        const { assert!(!Self::UNDIVIDED || !F::A::ASYNCHRONOUS && F::CUT == 1) };
        grid::wait_dependency();
        let mut ring = Ring::<Self>::consumer();
        let mut free = Ring::<Self>::producer();
        let mut next = Cursor { down: gpu::block_y(), stage: 0 };
        let start = |next: Cursor, slot: u32| {
            let corner = [next.down * Self::ROWS as u32, Self::left()];
            let k = next.stage * Self::DEPTH as u32;
            Self::copy::<BOTH>(p, (at, spot(next.down)), Self::team(), corner, k, slot);
        };
        // All stages of the ring are free at first.
        let mut slot = 0;
        while slot < Self::STAGES as u32 {
            if p.stages > 0 && inside(next.down) {
                start(next, slot);
            }
            next = next.next(p.stages);
            free.advance();
            slot += 1;
        }
        let mut down = gpu::block_y();
        let mut is_first = true;
        while inside(down) {
            let mut acc = Acc::<CHUNKS>::zero();
            let mut stage = 0;
            while stage < p.stages {
                warp::nounroll();
                Self::add_stage::<E>(&mut acc, &mut ring);
                if !is_first && inside(next.down) {
                    start(next, free.wait_empty());
                    next = next.next(p.stages);
                    free.advance();
                }
                is_first = false;
                stage += 1;
            }
            Self::epilogue::<E, _>(p, &acc, spot(down));
            down += gpu::grid_y();
        }
    }
}
