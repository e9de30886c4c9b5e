//! A ring of stages in shared memory: the stages from the arena's start, and behind them a barrier each that says "arrived", then
//! a barrier each that says "may be overwritten". Whoever copies waits for the second and fills, whoever multiplies waits for the first.

use super::ptx::copy;

/// Where a tile keeps its ring.
pub(crate) trait Stages {
    /// Stages in the ring.
    const COUNT: usize;
    /// Bytes from one stage to the next.
    const STRIDE: usize;
    /// Byte of the first barrier in the arena.
    const FIRST_BARRIER: usize;

    /// First byte of the stage.
    #[inline(always)]
    fn stage(slot: u32) -> u32 {
        copy::arena() + slot * Self::STRIDE as u32
    }

    /// Barrier that says: the stage has arrived.
    #[inline(always)]
    fn full(slot: u32) -> u32 {
        copy::arena() + Self::FIRST_BARRIER as u32 + slot * 8
    }

    /// Barrier that says: the stage may be overwritten.
    #[inline(always)]
    fn empty(slot: u32) -> u32 {
        Self::full(slot) + Self::COUNT as u32 * 8
    }

    /// The next stage of the ring and its parity.
    #[inline(always)]
    fn next((slot, parity): (u32, u32)) -> (u32, u32) {
        if slot + 1 == Self::COUNT as u32 {
            (0, parity ^ 1)
        } else {
            (slot + 1, parity)
        }
    }
}
