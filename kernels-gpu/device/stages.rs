//! A ring of stages in shared memory: the stages from the start of dynamic shared memory, and behind them a barrier each that says
//! "arrived", then a barrier each that says "may be overwritten". Whoever copies waits for the second and fills,
//! whoever multiplies waits for the first.

use core::marker::PhantomData;

use super::gpu;
use super::multiply::Multiply;
use super::ptx::wgmma::Acc;
use super::ptx::{barrier, bulk, copy, warp};
use crate::abi::SMEM_TILE;

/// No stage is waiting to be released.
pub(crate) const NONE: u32 = u32::MAX;

/// Steps of `STEP` deep that are used of the stage of `DEPTH` that begins at `from`.
#[inline(always)]
pub(crate) fn steps<const DEPTH: u32, const STEP: u32>(count: u32, from: u32) -> u32 {
    (count - from).min(DEPTH).div_ceil(STEP)
}

/// Where a tile keeps its ring.
pub(crate) trait Stages {
    /// Stages in the ring.
    const COUNT: usize;
    /// Bytes from one stage to the next.
    const STRIDE: usize;
    /// Byte of the first barrier in dynamic shared memory.
    const FIRST_BARRIER: usize;
    /// Byte of the first stage.
    const FIRST_STAGE: usize = 0;
    /// Barriers of each kind: one for each stage, and behind them those of what is not in the ring.
    const BARRIERS_EACH: usize = Self::COUNT;

    /// First byte of the stage.
    #[inline(always)]
    fn stage(slot: u32) -> u32 {
        copy::dynamic_shared() + Self::FIRST_STAGE as u32 + slot * Self::STRIDE as u32
    }

    /// A's tile of a warpgroup in the stage, and what lies behind those of two: B.
    #[inline(always)]
    fn operands(slot: u32, group: u32) -> (u32, u32) {
        let stage = Self::stage(slot);
        (stage + group * SMEM_TILE as u32, stage + 2 * SMEM_TILE as u32)
    }

    #[inline(always)]
    fn full(slot: u32) -> u32 {
        copy::dynamic_shared() + Self::FIRST_BARRIER as u32 + slot * 8
    }

    #[inline(always)]
    fn empty(slot: u32) -> u32 {
        Self::full(slot) + Self::BARRIERS_EACH as u32 * 8
    }

    /// The next stage of the ring and its parity.
    #[inline(always)]
    fn next((slot, parity): (u32, u32)) -> (u32, u32) {
        if slot + 1 == Self::COUNT as u32 { (0, parity ^ 1) } else { (slot + 1, parity) }
    }

    /// Makes the barriers; one thread, and the others wait for it. So many arrivals fill or release a stage.
    #[inline(always)]
    fn make_barriers(fill: u32, release: u32) {
        let mut slot = 0;
        while slot < Self::BARRIERS_EACH as u32 {
            barrier::init(Self::full(slot), fill);
            barrier::init(Self::empty(slot), release);
            slot += 1;
        }
        barrier::init_fence();
    }

    /// Makes the barriers, as [`Self::make_barriers`] does, and fetches `MAPS` tensor maps from `at` on; all threads
    /// wait for it.
    #[inline(always)]
    fn make_ring<const MAPS: usize>(at: u64, fill: u32, release: u32) {
        if gpu::thread() == 0 {
            Self::make_barriers(fill, release);
            unroll!(map < MAPS, most 4, {
                bulk::prefetch_tensormap(at + map as u64 * 128);
            });
        }
        gpu::sync_threads();
    }

    /// Lets the stage be overwritten, as far as this warp goes, unless there is [`NONE`].
    #[inline(always)]
    fn release_pending(slot: u32) {
        if slot != NONE {
            Self::release(slot);
        }
    }

    /// Lets the stage be overwritten, as far as this warp goes.
    #[inline(always)]
    fn release(slot: u32) {
        // One lane arrives for all, when all have read.
        warp::sync(u32::MAX);
        if gpu::opaque_thread().is_multiple_of(32) {
            barrier::arrive(Self::empty(slot));
        }
    }
}

/// Where a warp is in the ring of tile `S`.
pub(crate) struct Ring<S> {
    pub(crate) slot: u32,
    parity: u32,
    /// The stage whose products may still be under way.
    pending: u32,
    tile: PhantomData<S>,
}

impl<S: Stages> Ring<S> {
    #[inline(always)]
    fn at_start(parity: u32) -> Self {
        Ring { slot: 0, parity, pending: NONE, tile: PhantomData }
    }

    /// Of who copies: the ring starts empty, so the first wait for a free stage passes.
    #[inline(always)]
    pub(crate) fn producer() -> Self {
        Self::at_start(1)
    }

    /// Of who multiplies.
    #[inline(always)]
    pub(crate) fn consumer() -> Self {
        Self::at_start(0)
    }

    /// The next stage, once it may be overwritten.
    #[inline(always)]
    pub(crate) fn wait_empty(&self) -> u32 {
        barrier::wait(S::empty(self.slot), self.parity);
        self.slot
    }

    /// The next stage, once it has arrived.
    #[inline(always)]
    pub(crate) fn wait_full(&self) -> u32 {
        barrier::wait(S::full(self.slot), self.parity);
        self.slot
    }

    /// The barrier on which the next stage arrives.
    #[inline(always)]
    pub(crate) fn full(&self) -> u32 {
        S::full(self.slot)
    }

    #[inline(always)]
    pub(crate) fn advance(&mut self) {
        (self.slot, self.parity) = S::next((self.slot, self.parity));
    }

    /// Closes the products of this stage, and releases the one before, whose products are done then. Synchronous products
    /// are done already, and this stage is released.
    #[inline(always)]
    pub(crate) fn issued<A: Multiply, const C: usize>(&mut self, acc: &mut Acc<C>) {
        if !A::ASYNCHRONOUS {
            S::release(self.slot);
            return;
        }
        A::commit();
        A::wait::<C, 1>(acc);
        self.retire();
    }

    /// The products of this stage are under way, those before are done.
    #[inline(always)]
    pub(crate) fn retire(&mut self) {
        S::release_pending(self.pending);
        self.pending = self.slot;
    }

    /// Waits for all products, and releases their stage.
    #[inline(always)]
    pub(crate) fn drain<A: Multiply, const C: usize>(&mut self, acc: &mut Acc<C>) {
        A::wait::<C, 0>(acc);
        self.flush();
    }

    /// All products are done.
    #[inline(always)]
    pub(crate) fn flush(&mut self) {
        S::release_pending(self.pending);
        self.pending = NONE;
    }
}
