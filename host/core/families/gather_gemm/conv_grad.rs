//! Gradient of a convolution's weights: partial sums over parts of the pairs of each offset, then their sum in fixed
//! order. The first gradient distributes the pairs in parts of similar length. For a map that is rebuilt, the parts
//! contain all positions, because its pairs are known on the device only.

use einsparse_kernels::abi::Operation;
use einsparse_kernels::families::{
    CONV_STEP_THREADS, CONV_SUM, ConvParams, ConvPart, ConvStepParams, ConvWordsParams,
};
use einsparse_kernels::table::{Row, kernels};

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Refusal, Result};
use crate::families::gather_gemm::conv::{conv_step, is_gradient, reads, walked};
use crate::families::gather_gemm::kernel_map::{KernelMap, MapArrays};
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, MAX_GRID_Y, Turns, row_bytes, small, within};
use crate::machine::Machine;
use crate::registry::Dtype;

/// Operands in device memory, with row strides in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawWeights {
    pub input: u64,
    pub ld_input: usize,
    pub gradient: u64,
    pub ld_gradient: usize,
    pub out: u64,
    pub ld_out: usize,
    /// Whether the gradient is stored as f32, for any type of the operands.
    pub wide: bool,
}

/// Number of thread blocks that fill the GPU, two per multiprocessor. It is constant, so that results do not depend on
/// the GPU.
const BLOCKS: usize = 264;

/// Kernels, and memory for the partial sums.
#[derive(Debug)]
pub(crate) struct WeightGradient {
    first: Kernel<ConvWordsParams>,
    any: Option<Kernel<ConvWordsParams>>,
    sum: Kernel<ConvStepParams>,
    /// Sum that stores f32.
    wide_sum: Kernel<ConvStepParams>,
    channels: [usize; 2],
    deal: Deal,
    partial: DeviceMemory,
    /// Serializes runs, which share the partial sums.
    turns: Turns,
}

/// Distribution of the sums over thread blocks, in device memory.
#[derive(Debug)]
struct Deal {
    /// A [`ConvPart`] per thread block; parts of an offset are adjacent.
    parts: DeviceMemory,
    blocks: usize,
    /// Indices of groups of 64 positions, of all parts.
    halves: DeviceMemory,
    /// First part of each offset, and the end of the last.
    firsts: DeviceMemory,
}

impl Deal {
    /// Distributes the positions at which offsets have neighbours, or `every` position, over `blocks` thread blocks.
    /// There is at least one part per nonempty offset, even if that exceeds `blocks`.
    fn new(
        device: &Device,
        map: &KernelMap,
        (arrays, every): (&MapArrays<DeviceMemory>, bool),
        blocks: usize,
    ) -> Result<Deal> {
        let mut masks = vec![u32::MAX; arrays.masks.bytes() / 4];
        if !every {
            device.read(&arrays.masks, &mut masks)?;
        }
        let (parts, halves, firsts) = deal(&masks, map.volume(), blocks);
        Ok(Deal {
            blocks: within("parts", parts.len(), MAX_GRID_X)? as usize,
            parts: device.upload(&parts)?,
            halves: device.upload(&halves)?,
            firsts: device.upload(&firsts)?,
        })
    }

    fn bytes(&self) -> usize {
        self.parts.bytes() + self.halves.bytes() + self.firsts.bytes()
    }
}

/// Returns the parts as words, the list of groups of 64 positions, and the first part of each offset. Parts have the
/// min length at which there are at most `blocks`.
fn deal(masks: &[u32], volume: usize, blocks: usize) -> (Vec<[u32; 4]>, Vec<u32>, Vec<u32>) {
    let words = volume.div_ceil(32);
    let lists: Vec<Vec<u32>> = (0..volume)
        .map(|t| {
            let own = |(half, mask): (usize, &[u32])| {
                (mask[t / 32] >> (t % 32) & 1 != 0).then_some(half as u32)
            };
            masks.chunks(words).enumerate().filter_map(own).collect()
        })
        .collect();
    let all: usize = lists.iter().map(Vec::len).sum();
    let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
    let fits = |length: usize| {
        let parts: usize = lists.iter().map(|list| list.len().div_ceil(length)).sum();
        parts <= blocks
    };
    // Min length that fits. A length with one part per offset is always allowed.
    let mut length = all.div_ceil(blocks.max(1)).max(1);
    while length < longest && !fits(length) {
        length += 1;
    }
    let (mut parts, mut firsts, mut first) = (Vec::new(), vec![0], 0u32);
    for (t, list) in lists.iter().enumerate() {
        let count = list.len().div_ceil(length).max(1);
        for part in 0..list.len().div_ceil(length) {
            let [from, to] = [part, part + 1].map(|p| p * list.len() / count);
            let part = ConvPart {
                offset: t as u32,
                first: first + from as u32,
                count: (to - from) as u32,
                pad: 0,
            };
            parts.push(part.words());
        }
        first += list.len() as u32;
        firsts.push(parts.len() as u32);
    }
    (parts, lists.concat(), firsts)
}

/// Returns the tiles of a kernel in a matrix of the gradient.
fn tiles(row: &Row, [c, m]: [usize; 2]) -> usize {
    c.div_ceil(row.items as usize) * m.div_ceil(row.columns as usize)
}

/// Returns the kernels for this element type, the best one for these channels first. Kernels of full f32 replace TF32
/// if rows are not aligned. The second list contains the refusals of kernels that require another GPU.
fn choose(
    machine: &Machine,
    dtype: Dtype,
    channels: [usize; 2],
) -> (Vec<&'static Row>, Vec<Refusal>) {
    let mut refused = Vec::new();
    let own = |row: &&Row| {
        let stored = row.dtype == Dtype::F32 && dtype == Dtype::Tf32 && row.vector == 1;
        row.operation == Operation::Convolution
            && is_gradient(row)
            && (row.dtype == dtype || stored)
    };
    let mut rows: Vec<&'static Row> = kernels().iter().filter(own).collect();
    rows.retain(|row| match machine.lacks(row) {
        Some(reason) => {
            refused.push(Refusal::of(row.name, reason));
            false
        }
        None => true,
    });
    // Min wasted products first, then min number of tiles. Kernels without alignment requirements come last.
    rows.sort_by_key(|row| {
        let tiles = tiles(row, channels);
        let area = tiles * (row.items * row.columns) as usize;
        (row.vector == 1, area, tiles)
    });
    (rows, refused)
}

impl WeightGradient {
    /// Creates the gradient for the pairs of the map, or for `every` pair that it may have after a rebuild.
    pub(crate) fn new(
        device: &Device,
        dtype: Dtype,
        (map, arrays, every): (&KernelMap, &MapArrays<DeviceMemory>, bool),
        channels: [usize; 2],
    ) -> Result<Self> {
        let (rows, refused) = choose(device.machine(), dtype, channels);
        let missing = || {
            let name = dtype.name();
            Error::no_kernel(
                format!("dW[t,c,m] = Map[o,i,t] * In[i,c] * dOut[o,m] in {name}"),
                refused,
            )
        };
        let first = *rows.first().ok_or_else(missing)?;
        let any = rows.iter().find(|row| row.vector == 1 && first.vector > 1);
        let tiles = within("tiles", tiles(first, channels).max(1), MAX_GRID_Y)? as usize;
        let deal = Deal::new(device, map, (arrays, every), BLOCKS.div_ceil(tiles))?;
        let matrix = channels[0] as u128 * channels[1] as u128;
        let elements = matrix * map.volume() as u128;
        small("weights", elements.min(usize::MAX as u128) as usize)?;
        let bytes = matrix as usize * deal.blocks * 4;
        let stored = match dtype {
            Dtype::Tf32 => Dtype::F32,
            other => other,
        };
        Ok(WeightGradient {
            first: Kernel::load(device, first)?,
            any: any.map(|row| Kernel::load(device, row)).transpose()?,
            sum: conv_step(device, CONV_SUM, |own| own == stored)?,
            wide_sum: conv_step(device, CONV_SUM, |own| own == Dtype::F32)?,
            channels,
            deal,
            partial: DeviceMemory::alloc(device.context(), bytes)?,
            turns: Turns::new(device)?,
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.partial.bytes() + self.deal.bytes()
    }

    pub(crate) fn run(
        &self,
        map: &KernelMap,
        arrays: &MapArrays<DeviceMemory>,
        raw: &RawWeights,
        queue: Queue<'_>,
    ) -> Result<()> {
        let reads = |kernel: &&Kernel<_>| {
            let row = kernel.row();
            reads(row, raw.input, raw.ld_input) && reads(row, raw.gradient, raw.ld_gradient)
        };
        let all = [Some(&self.first), self.any.as_ref()];
        let kernel =
            all.into_iter().flatten().find(reads).ok_or_else(|| {
                Error::operand("input", "rows are not multiples of 16 bytes apart")
            })?;
        let params = self.params(kernel, map, arrays, raw)?;
        let [c, m] = self.channels;
        let grid = [self.deal.blocks as u32, tiles(kernel.row(), self.channels) as u32, 1];
        let sum = ConvStepParams {
            source: self.partial.address(),
            out: raw.out,
            rows: small("weights", map.volume() * c * m)?,
            table: self.deal.firsts.address(),
            strides: [small("weights", c * m)?, small("columns", m)?, 0],
            leading: small("elements of a row", raw.ld_out)?,
            ..ConvStepParams::default()
        };
        let adds = if raw.wide { &self.wide_sum } else { &self.sum };
        let blocks = sum.rows.div_ceil(CONV_STEP_THREADS);
        self.turns.queue(true, queue.stream(), || {
            queue.launch(kernel, Grid::of(grid), &params)?;
            queue.launch(adds, Grid::of([blocks, 1, 1]), &sum)
        })
    }

    fn params(
        &self,
        kernel: &Kernel<ConvWordsParams>,
        map: &KernelMap,
        arrays: &MapArrays<DeviceMemory>,
        raw: &RawWeights,
    ) -> Result<ConvWordsParams> {
        let [c, m] = self.channels;
        let bytes = kernel.row().dtype.bytes();
        Ok(ConvWordsParams {
            base: ConvParams {
                input: raw.input,
                out: self.partial.address(),
                schedule: self.deal.halves.address(),
                depth_bytes: small("bytes of the channels", c * bytes)?,
                n: small("columns", m)?,
                in_bytes: row_bytes("the input", raw.ld_input, bytes)?,
                ..walked(map, arrays)?
            },
            weights: raw.gradient,
            weights_bytes: row_bytes("the gradient", raw.ld_gradient, bytes)?,
            channels: small("channels", c)?,
            parts: self.deal.parts.address(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests that the parts contain every position of every offset once, and thus the pairs of any map.
    #[test]
    fn a_deal_of_all_positions_has_each_once() {
        for (volume, halves, blocks) in [(27usize, 40, 264), (27, 1, 264), (125, 33, 9), (1, 7, 3)]
        {
            let masks = vec![u32::MAX; volume.div_ceil(32) * halves];
            let (parts, list, firsts) = deal(&masks, volume, blocks);
            assert!(parts.len() <= blocks.max(volume), "{volume} {halves}");
            for offset in 0..volume {
                let own = &parts[firsts[offset] as usize..firsts[offset + 1] as usize];
                let all = own.iter().flat_map(|part| {
                    let [of, first, count, _] = *part;
                    assert_eq!(of as usize, offset);
                    &list[first as usize..][..count as usize]
                });
                assert!(all.copied().eq(0..halves as u32), "{volume} {halves}");
            }
        }
    }
}
