//! Ring of stages in dynamic shared memory between producers and consumers. Each stage has two mbarriers: `full`
//! completes when its copies have arrived, `empty` when all consumers have released it. Producers wait for `empty` and
//! fill the stage; consumers wait for `full` and multiply.

use core::marker::PhantomData;

use super::gpu;
use super::multiply::Multiply;
use super::ptx::wgmma::Acc;
use super::ptx::{barrier, warp};
use super::shared::{Mbarrier, Shared};
use crate::abi::SMEM_TILE;

/// Marker: no stage is waiting to be released.
pub(crate) const NONE: u32 = u32::MAX;

/// Number of k-steps of depth `STEP` with valid columns in the stage of depth `DEPTH` that begins at column `from`.
#[inline(always)]
pub(crate) fn steps<const DEPTH: u32, const STEP: u32>(count: u32, from: u32) -> u32 {
    (count - from).min(DEPTH).div_ceil(STEP)
}

/// Initializes the mbarriers of `count` slots, those of a slot by `init`, and makes them visible. All `warps` warps of the
/// thread block call it and then synchronize. A warp takes some 60 clocks for each mbarrier whose address is not a
/// constant, whichever lanes do it, so the warps share the slots. Call it before any load: the fence waits for loads.
#[inline(always)]
pub(crate) fn share_barriers(warps: u32, count: u32, init: impl Fn(u32)) {
    if gpu::thread().is_multiple_of(32) {
        let mut slot = gpu::thread() / 32;
        while slot < count {
            init(slot);
            slot += warps;
        }
        barrier::init_fence();
    }
}

/// Layout of a tile's ring in dynamic shared memory.
pub(crate) trait Stages {
    /// Number of stages.
    const COUNT: usize;
    /// Stage stride, bytes.
    const STRIDE: usize;
    /// Offset of the first mbarrier in dynamic shared memory, bytes.
    const FIRST_BARRIER: usize;
    /// Offset of the first stage, bytes.
    const FIRST_STAGE: usize = 0;
    /// Number of mbarriers of each kind: one per stage, then those of buffers outside of the ring.
    const BARRIERS_EACH: usize = Self::COUNT;

    /// Shared address of a stage.
    #[inline(always)]
    fn stage(slot: u32) -> Shared<u8> {
        // SAFETY: the host launches with the shared memory of the tile, which includes its ring.
        let first = unsafe { Shared::dynamic(Self::FIRST_STAGE as u32) };
        first.bytes(slot * Self::STRIDE as u32)
    }

    /// Shared addresses of a warpgroup's tile of A in the stage, and of B after the A tiles of two warpgroups.
    #[inline(always)]
    fn operands(slot: u32, group: u32) -> (Shared<u8>, Shared<u8>) {
        let stage = Self::stage(slot);
        (stage.bytes(group * SMEM_TILE as u32), stage.bytes(2 * SMEM_TILE as u32))
    }

    #[inline(always)]
    fn full(slot: u32) -> Shared<Mbarrier> {
        // SAFETY: as for the stages.
        unsafe { Shared::<Mbarrier>::dynamic(Self::FIRST_BARRIER as u32) }.at(slot)
    }

    #[inline(always)]
    fn empty(slot: u32) -> Shared<Mbarrier> {
        Self::full(slot).at(Self::BARRIERS_EACH as u32)
    }

    /// Returns the next stage of the ring and its parity.
    #[inline(always)]
    fn next((slot, parity): (u32, u32)) -> (u32, u32) {
        if slot + 1 == Self::COUNT as u32 { (0, parity ^ 1) } else { (slot + 1, parity) }
    }

    /// Initializes the mbarriers; one thread calls it, and all others synchronize with it. `fill` and `release` are the
    /// arrival counts of a stage.
    #[inline(always)]
    fn make_barriers(fill: u32, release: u32) {
        let mut slot = 0;
        while slot < Self::BARRIERS_EACH as u32 {
            Self::full(slot).init(fill);
            Self::empty(slot).init(release);
            slot += 1;
        }
        barrier::init_fence();
    }

    /// Releases a stage for this warp, unless it is [`NONE`].
    #[inline(always)]
    fn release_pending(slot: u32) {
        if slot != NONE {
            Self::release(slot);
        }
    }

    /// Releases a stage for this warp: it may be overwritten when all consumer warps have released it.
    #[inline(always)]
    fn release(slot: u32) {
        // One lane arrives for the warp, after all lanes have read the stage.
        warp::sync(u32::MAX);
        if gpu::opaque_thread().is_multiple_of(32) {
            Self::empty(slot).arrive();
        }
    }
}

/// Position of a warp in the ring of tile `S`.
pub(crate) struct Ring<S> {
    pub(crate) slot: u32,
    parity: u32,
    /// Stage whose products may still be pending.
    pending: u32,
    tile: PhantomData<S>,
}

impl<S: Stages> Ring<S> {
    #[inline(always)]
    fn at_start(parity: u32) -> Self {
        Ring { slot: 0, parity, pending: NONE, tile: PhantomData }
    }

    /// Position of a producer. The ring is empty at the start, so the first wait for an empty stage succeeds.
    #[inline(always)]
    pub(crate) fn producer() -> Self {
        Self::at_start(1)
    }

    /// Position of a consumer.
    #[inline(always)]
    pub(crate) fn consumer() -> Self {
        Self::at_start(0)
    }

    /// Waits until the current stage is empty and returns it.
    #[inline(always)]
    pub(crate) fn wait_empty(&self) -> u32 {
        S::empty(self.slot).wait(self.parity);
        self.slot
    }

    /// Waits until the current stage is full and returns it.
    #[inline(always)]
    pub(crate) fn wait_full(&self) -> u32 {
        S::full(self.slot).wait(self.parity);
        self.slot
    }

    /// The `full` mbarrier of the current stage.
    #[inline(always)]
    pub(crate) fn full(&self) -> Shared<Mbarrier> {
        S::full(self.slot)
    }

    #[inline(always)]
    pub(crate) fn advance(&mut self) {
        (self.slot, self.parity) = S::next((self.slot, self.parity));
    }

    /// Commits the products of this stage, waits for those of the stage before, and releases that stage. Synchronous
    /// products are complete already, so this stage is released.
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

    /// Releases the pending stage and marks this stage as pending.
    #[inline(always)]
    pub(crate) fn retire(&mut self) {
        S::release_pending(self.pending);
        self.pending = self.slot;
    }

    /// Waits for all products and releases the pending stage.
    #[inline(always)]
    pub(crate) fn drain<A: Multiply, const C: usize>(&mut self, acc: &mut Acc<C>) {
        A::wait::<C, 0>(acc);
        self.flush();
    }

    /// Releases the pending stage, whose products are complete.
    #[inline(always)]
    pub(crate) fn flush(&mut self) {
        S::release_pending(self.pending);
        self.pending = NONE;
    }
}
