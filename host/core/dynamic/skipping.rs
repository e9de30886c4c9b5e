//! Gradients at the micro-tiles of 1 x 64 that one search has found.

use std::sync::Arc;

use crate::device::Device;
use crate::error::Result;
use crate::families::discover::{DetectLaunch, DeviceLists};
use crate::families::gather_gemm::found::{WIDTH, kernels_of};
use crate::families::gather_gemm::{PitLaunch, PitWork};
use crate::families::sddmm::{PitSampledLaunch, PitSampledRun};
use crate::kernel::Queue;
use crate::offer::Determinism;
use crate::registry::Dtype;
use crate::tensor::DenseMatrix;

/// The search in A, `dA[m,k] = dC[m,n] * B[k,n]` at the nonempty micro-tiles, and B's gradient if it also skips empty
/// ones.
#[derive(Debug)]
pub(super) struct Skipping {
    detect: DetectLaunch,
    lists: DeviceLists,
    of_a: PitSampledLaunch,
    of_b: Option<PitLaunch>,
}

impl Skipping {
    /// Creates the kernels for extents `[m, k, n]` of the product. `skips`: B's gradient also skips empty micro-tiles.
    pub(super) fn new(
        device: &Arc<Device>,
        dtype: Dtype,
        [m, k, n]: [usize; 3],
        skips: bool,
        determinism: Determinism,
    ) -> Result<Self> {
        let of_a = PitSampledLaunch::new(device, dtype, [m, k, n])?;
        let work = PitWork { turned: true, ..PitWork::single([k, m, n], WIDTH) };
        let (detect, of_b) = kernels_of(device, dtype, work, (0.0, determinism))?;
        Ok(Skipping { lists: detect.lists(device)?, detect, of_a, of_b: skips.then_some(of_b) })
    }

    /// Names of the kernels of A's gradient and of B's.
    pub(super) fn variants(&self) -> [&'static str; 2] {
        [self.of_a.name(), self.of_b.as_ref().map_or("", PitLaunch::name)]
    }

    /// Queues the search and the gradients among `[dA, dB]` that these kernels compute, for operands of the planned
    /// shapes. With `relu`, A's gradient is zero where A is not positive. The caller serializes runs, which share the
    /// lists.
    pub(super) fn run(
        &self,
        relu: bool,
        [a, b, dc]: [DenseMatrix; 3],
        [da, db]: [DenseMatrix; 2],
        queue: Queue<'_>,
    ) -> Result<()> {
        // All checks precede the first launch.
        let run = PitSampledRun { x: dc, y: b, gate: relu.then_some(a), s: da };
        let of_a = self.of_a.params(&self.lists, &run)?;
        let of_b = match &self.of_b {
            Some(launch) => Some((launch, launch.params(&self.lists, Some(a), dc, db)?)),
            None => None,
        };
        self.detect.run(a, &self.lists, queue)?;
        if let Some((launch, params)) = &of_b {
            launch.start(params, queue)?;
        }
        self.of_a.clear(da, queue)?;
        self.of_a.start(&of_a, queue)
    }
}
