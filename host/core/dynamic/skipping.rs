//! Gradients at the micro-tiles of 1 x 64 that one search has found.

use std::sync::Arc;

use super::detect::operand;
use crate::context::Context;
use crate::device::{Device, Stream};
use crate::error::Result;
use crate::families::discover::{DetectLaunch, DeviceLists};
use crate::families::gather_gemm::found::{WIDTH, kernels_of};
use crate::families::gather_gemm::{PitLaunch, PitWork};
use crate::families::sddmm::{PitSampledLaunch, PitSampledRun};
use crate::kernel::Queue;
use crate::launch::Turns;
use crate::offer::Determinism;
use crate::registry::Dtype;
use crate::tensor::AnyTensor;

/// The search in A, `dA[m,k] = dC[m,n] * B[k,n]` at the nonempty micro-tiles, and B's gradient if it also skips empty
/// ones.
#[derive(Debug)]
pub(super) struct Skipping {
    detect: DetectLaunch,
    lists: DeviceLists,
    of_a: PitSampledLaunch,
    of_b: Option<PitLaunch>,
    /// Workspace order: runs share the lists.
    turns: Turns,
}

impl Skipping {
    /// Creates the kernels for extents `[m, k, n]` of the product. `skips`: B's gradient also skips empty micro-tiles.
    pub(super) fn new(
        device: &Arc<Device>,
        dtype: Dtype,
        [m, k, n]: [usize; 3],
        (skips, determinism): (bool, Determinism),
    ) -> Result<Self> {
        let of_a = PitSampledLaunch::new(device, dtype, [m, k, n])?;
        let work = PitWork { turned: true, ..PitWork::single([k, m, n], WIDTH) };
        let (detect, of_b) = kernels_of(device, dtype, work, (0.0, determinism))?;
        Ok(Skipping {
            lists: detect.lists(device)?,
            detect,
            of_a,
            of_b: skips.then_some(of_b),
            turns: Turns::new(device)?,
        })
    }

    /// Names of the kernels of A's gradient and of B's.
    pub(super) fn variants(&self) -> [&'static str; 2] {
        [self.of_a.name(), self.of_b.as_ref().map_or("", PitLaunch::name)]
    }

    /// Queues the gradients among `[dA, dB]` that these kernels compute, for operands of the planned shapes. With
    /// `relu`, A's gradient is zero where A is not positive.
    pub(super) fn run(
        &self,
        context: &Context,
        relu: bool,
        [a, b, dc]: [&AnyTensor; 3],
        [da, db]: [&AnyTensor; 2],
        stream: &Stream,
    ) -> Result<()> {
        let [a, b, dc] = [a, b, dc].map(|matrix| operand(context, matrix, stream));
        let (a, b, dc) = (a?, b?, dc?);
        let da = operand(context, da, stream)?;
        let db = operand(context, db, stream)?;
        // All checks precede the first launch.
        let of_a = self
            .of_a
            .params(&self.lists, &PitSampledRun { x: dc, y: b, gate: relu.then_some(a), s: da })?;
        let of_b = match &self.of_b {
            Some(launch) => Some((launch, launch.params(&self.lists, Some(a), dc, db)?)),
            None => None,
        };
        // SAFETY: shapes and contexts were checked. The lists belong to this launch, and runs are ordered.
        let queue = unsafe { Queue::new(stream.raw()) };
        self.turns.queue(true, stream.raw(), || {
            self.detect.run(a, &self.lists, queue)?;
            if let Some((launch, params)) = &of_b {
                launch.start(params, queue)?;
            }
            self.of_a.clear(da, queue)?;
            self.of_a.start(&of_a, queue)
        })
    }
}
