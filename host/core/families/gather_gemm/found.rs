//! Product of micro-tiles, with the detection that precedes it.

use std::sync::Arc;

use super::{PitLaunch, PitWork};
use crate::device::Device;
use crate::error::Result;
use crate::families::discover::{DetectLaunch, DeviceLists, Looked, TransposeLaunch, list_stride};
use crate::kernel::Queue;
use crate::offer::Determinism;
use crate::registry::{Dtype, Scalar};
use crate::tensor::DenseMatrix;
use crate::values::with_type;

/// Elements of a row per micro-tile.
pub(crate) const WIDTH: usize = 64;

/// Returns the integer that is added to the magnitude of an element: the sum has its top bit set if the element is
/// above the threshold.
pub(crate) fn above(dtype: Dtype, threshold: f64) -> u32 {
    with_type!(dtype, T => above_of::<T>(threshold))
}

fn above_of<T: Scalar>(threshold: f64) -> u32 {
    // Largest value that is not above the threshold.
    let nearest = T::from_f64(threshold);
    let over = nearest.to_f64() > threshold;
    let bytes = bytemuck::bytes_of(&nearest);
    let bits = bytes.iter().rev().fold(0u32, |bits, &byte| bits << 8 | u32::from(byte));
    let limit = bits.saturating_sub(u32::from(over));
    match bytes.len() {
        2 => (0x7fff - limit.min(0x7fff)) * 0x0001_0001,
        4 => 0x7fff_ffff - limit.min(0x7fff_ffff),
        _ => 0,
    }
}

/// Loads the kernels that find and multiply the micro-tiles of A.
pub(crate) fn kernels_of(
    device: &Arc<Device>,
    dtype: Dtype,
    work: PitWork,
    how: (f64, Determinism),
) -> Result<(DetectLaunch, PitLaunch)> {
    kernels_as(device, (dtype, dtype), work, how)
}

/// Loads the kernels for elements of type `own` that are multiplied as type `dtype`.
pub(crate) fn kernels_as(
    device: &Arc<Device>,
    (own, dtype): (Dtype, Dtype),
    work: PitWork,
    (threshold, determinism): (f64, Determinism),
) -> Result<(DetectLaunch, PitLaunch)> {
    let [m, k, _] = work.extents;
    let product = PitLaunch::new(device, dtype, work, list_stride(k))?;
    let how = (above(own, threshold), determinism == Determinism::Strict);
    let (looked, shape, micro) = if work.turned {
        (Looked::Elements(own), [k, m], (1, work.height))
    } else {
        let rows = work.items.saturating_mul(m);
        let packed = Looked::Packed(dtype.bytes());
        (packed, [rows, k], (work.height, 1))
    };
    let detect = DetectLaunch::tiles(device, looked, shape, micro, how)?;
    if work.turned {
        return Ok((detect.batched(work.items)?, product));
    }
    Ok((if product.wants_rounded() { detect.rounded() } else { detect }, product))
}

/// Kernels of a run, in their order.
#[derive(Debug)]
pub(crate) struct RightKernels {
    pub(crate) detect: DetectLaunch,
    transpose: Option<TransposeLaunch>,
    product: PitLaunch,
}

impl RightKernels {
    /// Loads the kernels for `items` products of extents `[m, k, n]`. `by_columns`: A is stored as `[k, m]`.
    pub(crate) fn new(
        device: &Arc<Device>,
        dtype: Dtype,
        items: usize,
        extents: [usize; 3],
        by_columns: bool,
        how: (f64, Determinism),
    ) -> Result<Self> {
        let [m, k, _] = extents;
        let work = PitWork::right(items, extents, WIDTH);
        let (detect, product) = kernels_of(device, dtype, work, how)?;
        let made = || TransposeLaunch::new(device, dtype, items, [m, k]);
        Ok(RightKernels { detect, transpose: (!by_columns).then(made).transpose()?, product })
    }

    /// Returns the bytes in device memory, without the lists.
    pub(crate) fn bytes(&self) -> usize {
        self.transpose.as_ref().map_or(0, TransposeLaunch::bytes)
    }

    /// Returns the names in the order of a run.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        let made = self.transpose.as_ref().map(TransposeLaunch::name);
        let first = std::iter::once(self.detect.name());
        first.chain(made).chain([self.product.name()]).collect()
    }

    /// Queues all kernels for `[A, B, C]`. `turn` receives the launches after all validation. The lists must be created
    /// by these kernels, and the caller serializes runs.
    pub(crate) fn run(
        &self,
        lists: &DeviceLists,
        [a, b, c]: [DenseMatrix; 3],
        queue: Queue<'_>,
        turn: impl FnOnce(&mut dyn FnMut() -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        let turned = self.transpose.as_ref().map_or(a, TransposeLaunch::out);
        let params = self.product.params(lists, Some(b), turned, c)?;
        // Each kernel waits for the previous launch, so the product starts after both.
        turn(&mut || {
            self.detect.run(b, lists, queue)?;
            if let Some(transpose) = &self.transpose {
                transpose.run(a, queue)?;
            }
            self.product.start(&params, queue)
        })
    }
}
