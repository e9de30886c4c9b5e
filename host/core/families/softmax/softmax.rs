//! Softmax over the rows of a pattern on a GPU. Rows are distributed by length class once; a run launches one kernel.
//! If rows are cut, an earlier launch computes the sums that the pieces of a row share.

mod deal;

use einsparse_kernels::families::{
    SOFTMAX_CLASSES, SOFTMAX_LOG, SOFTMAX_SUMS, STEP_SOFTMAX, STEP_SOFTMAX_GRADIENT, SoftmaxParams,
};
use einsparse_kernels::table::{Row, rows_of};

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_Y, Turns, within};
use crate::registry::{Dtype, of_type};
use crate::worklist::Runs;
use deal::Deal;

/// Device addresses of one softmax, or of its gradient: values of tensors of the planned pattern. They are aligned to
/// 16 bytes and readable 8 slots past their end.
///
/// ```
/// use einsparse::raw::RawSoftmax;
/// let scores = 0x7000_0000;
/// let in_place = RawSoftmax::default().input(scores).output(scores);
/// assert_eq!(in_place.upstream, 0); // the softmax, not its gradient
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RawSoftmax {
    /// Scores; for the gradient, the result of the softmax.
    pub input: u64,
    /// Gradient of the result of the softmax; 0 for the softmax itself.
    pub upstream: u64,
    /// Softmax, or gradient of the scores. May be one of the inputs.
    pub output: u64,
    /// Slots from the values of one head to those of the next, in all tensors; a multiple of 16 bytes. Ignored with one
    /// head.
    pub stride: usize,
}

setters! {
    RawSoftmax { input: u64, upstream: u64, output: u64, stride: usize }
}

/// Kernels for one pattern, with the distribution of its rows.
#[derive(Debug)]
pub(crate) struct SoftmaxLaunch {
    forward: Kernel<SoftmaxParams>,
    gradient: Kernel<SoftmaxParams>,
    items: DeviceMemory,
    live: Option<DeviceMemory>,
    bounds: DeviceMemory,
    pieces: DeviceMemory,
    /// Partial sums of each piece of each head.
    sums: DeviceMemory,
    heads: u32,
    /// Only the numbers of thread blocks and items are kept.
    deal: Deal,
    turns: Turns,
}

/// Kernel of a step for an element type.
fn find(dtype: Dtype, step: u32) -> Result<&'static Row> {
    of_type(
        rows_of::<SoftmaxParams>().filter(|row| row.step == step),
        dtype,
        format!("softmax over rows of {}", dtype.name()),
    )
}

impl SoftmaxLaunch {
    /// Prepares the kernels. `live`: number of unmasked entries of each row, which come first.
    pub(crate) fn new(
        device: &Device,
        dtype: Dtype,
        runs: &Runs,
        live: Option<&[u32]>,
        heads: usize,
    ) -> Result<Self> {
        let kernel = |step| Kernel::load(device, find(dtype, step)?);
        let forward = kernel(STEP_SOFTMAX)?;
        let heads = within("heads", heads, MAX_GRID_Y)?;
        let resident = device.machine().multiprocessors * forward.row().min_blocks;
        let deal = Deal::new(runs, live, forward.row(), resident.div_ceil(heads.max(1)))?;
        let sums = deal.pieces.len() * heads as usize * 8;
        Ok(SoftmaxLaunch {
            forward,
            gradient: kernel(STEP_SOFTMAX_GRADIENT)?,
            items: device.upload(&deal.items)?,
            live: live.map(|_| device.upload(&deal.live)).transpose()?,
            bounds: device.upload(&deal.bounds)?,
            pieces: device.upload(&deal.pieces)?,
            sums: DeviceMemory::alloc(device.context(), sums)?,
            heads,
            deal: Deal {
                blocks: deal.blocks,
                gradient_blocks: deal.gradient_blocks,
                firsts: deal.firsts,
                ..Deal::default()
            },
            turns: Turns::new(device)?,
        })
    }

    /// Names of the kernels: softmax and gradient.
    pub(crate) fn variants(&self) -> [&'static str; 2] {
        [self.forward.row().name, self.gradient.row().name]
    }

    /// Device bytes in addition to the operands.
    pub(crate) fn bytes(&self) -> usize {
        let own = [&self.items, &self.bounds, &self.pieces, &self.sums];
        let live = self.live.as_ref().map_or(0, DeviceMemory::bytes);
        own.iter().map(|memory| memory.bytes()).sum::<usize>() + live
    }

    /// Checks that addresses and strides are multiples of whole vectors.
    fn check(&self, row: &Row, raw: &RawSoftmax) -> Result<()> {
        for (name, address) in
            [("input", raw.input), ("upstream", raw.upstream), ("output", raw.output)]
        {
            crate::launch::in_vectors(name, address)?;
        }
        let bytes = raw.stride.saturating_mul(row.dtype.bytes());
        if self.heads > 1 && !bytes.is_multiple_of(16) {
            return Err(Error::alignment("input", "head stride", bytes as u64, 16));
        }
        Ok(())
    }

    /// Queues the softmax, or its gradient if `upstream` is not 0.
    pub(crate) fn run(
        &self,
        raw: &RawSoftmax,
        (scale, log): (f64, bool),
        queue: Queue<'_>,
    ) -> Result<()> {
        let kernel = match raw.upstream {
            0 => &self.forward,
            _ => &self.gradient,
        };
        self.check(kernel.row(), raw)?;
        let mut of_class = self.deal.blocks;
        if raw.upstream != 0 {
            of_class[SOFTMAX_CLASSES] = self.deal.gradient_blocks;
        }
        let blocks = of_class[SOFTMAX_CLASSES];
        if blocks == 0 || self.heads == 0 {
            return Ok(());
        }
        let mut params = SoftmaxParams {
            items: self.items.address(),
            live: self.live.as_ref().map_or(0, DeviceMemory::address),
            bounds: self.bounds.address(),
            pieces: self.pieces.address(),
            sums: self.sums.address(),
            input: raw.input,
            upstream: raw.upstream,
            output: raw.output,
            stride: raw.stride as u64,
            scale: scale as f32,
            flags: if log { SOFTMAX_LOG } else { 0 },
            blocks: of_class,
            firsts: self.deal.firsts,
        };
        // Thread blocks of pieces come first.
        let cut = self.deal.blocks[1];
        self.turns.queue(cut > 0, queue.stream(), || {
            let mut all = Grid::of([blocks, self.heads, 1]);
            if cut > 0 {
                params.flags |= SOFTMAX_SUMS;
                let ahead = Grid::of([cut, self.heads, 1]);
                queue.launch(kernel, ahead, &params)?;
                params.flags &= !SOFTMAX_SUMS;
                all = all.early();
            }
            queue.launch(kernel, all, &params)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn double_precision_is_refused_by_name() {
        let error = find(Dtype::F64, STEP_SOFTMAX).unwrap_err().to_string();
        assert!(error.contains("softmax_f32: is for f32"), "{error}");
    }
}
