//! The gradient of a convolution's weights: partial sums over parts of each offset's pairs, then their sum in order.

use einsparse_kernels::abi::{
    CONV_HALF, CONV_STEP_THREADS, CONV_SUM, ConvParams, ConvStepParams, ConvWordsParams, Operation,
};
use einsparse_kernels::table::{Row, kernels};

use super::conv::{Kernel, is_gradient, row_bytes};
use super::{MAX_GRID_X, MAX_GRID_Y, refused, small, within};
use crate::device::Device;
use crate::driver::{DeviceMemory, RawStream};
use crate::error::{Error, Result};
use crate::kernel_map::{KernelMap, MapArrays};
use crate::registry::Dtype;

/// Operands in device memory; leading dimensions in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawWeights {
    pub input: u64,
    pub ld_input: usize,
    pub gradient: u64,
    pub ld_gradient: usize,
    pub out: u64,
    pub ld_out: usize,
}

/// Thread blocks that fill the GPU with some to spare: fixed, so that results do not depend on it.
const BLOCKS: usize = 432;

/// Kernels, and room for the partial sums.
#[derive(Debug)]
pub(crate) struct WeightGradient {
    first: Kernel,
    any: Option<Kernel>,
    sum: Kernel,
    channels: [usize; 2],
    /// Parts of an offset's pairs.
    parts: usize,
    partial: DeviceMemory,
}

/// Tiles of a kernel in a matrix of the gradient.
fn tiles(row: &Row, [c, m]: [usize; 2]) -> usize {
    c.div_ceil(row.items as usize) * m.div_ceil(row.columns as usize)
}

/// Kernels for this element type, the one that fits these channels best first.
fn choose(dtype: Dtype, channels: [usize; 2]) -> Vec<&'static Row> {
    let own = |row: &&Row| {
        row.operation == Operation::Convolution && is_gradient(row) && row.dtype == dtype
    };
    let mut rows: Vec<&'static Row> = kernels().iter().filter(own).collect();
    // The least that is multiplied for nothing, then the fewest tiles; what reads anything last.
    rows.sort_by_key(|row| {
        let tiles = tiles(row, channels);
        let area = tiles * (row.items * row.columns) as usize;
        (row.vector == 1, area, tiles)
    });
    rows
}

impl WeightGradient {
    pub(crate) fn new(
        device: &Device,
        dtype: Dtype,
        map: &KernelMap,
        channels: [usize; 2],
    ) -> Result<Self> {
        let rows = choose(dtype, channels);
        let missing = || Error::NoKernel {
            indirect: format!(
                "dW[t,c,m] = Map[o,i,t] * In[i,c] * dOut[o,m] in {}",
                dtype.name()
            ),
            tried: Vec::new(),
        };
        let first = *rows.first().ok_or_else(missing)?;
        let any = rows.iter().find(|row| row.vector == 1 && first.vector > 1);
        let blocks = map.volume() * tiles(first, channels).max(1);
        let halves = (map.stride() / CONV_HALF).max(1);
        let parts = BLOCKS.div_ceil(blocks.max(1)).min(halves);
        within("parts", map.volume() * parts, MAX_GRID_X)?;
        within("tiles", tiles(first, channels), MAX_GRID_Y)?;
        let elements = map.volume() as u128 * channels[0] as u128 * channels[1] as u128;
        small("weights", elements.min(usize::MAX as u128) as usize)?;
        let bytes = elements as usize * parts * first.parts as usize * 4;
        Ok(WeightGradient {
            first: Kernel::new(device, first)?,
            any: any.map(|row| Kernel::new(device, row)).transpose()?,
            sum: Kernel::step(device, CONV_SUM, |own| own == dtype)?,
            channels,
            parts,
            partial: DeviceMemory::alloc(device.context(), bytes)?,
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.partial.bytes()
    }

    /// Queues the gradient.
    ///
    /// # Safety
    /// The addresses hold operands of the planned shapes and element type until the work is done; runs do not overlap.
    pub(crate) unsafe fn run(
        &self,
        map: &KernelMap,
        arrays: &MapArrays<DeviceMemory>,
        raw: &RawWeights,
        stream: RawStream<'_>,
    ) -> Result<()> {
        let reads = |kernel: &&Kernel| {
            kernel.reads(raw.input, raw.ld_input) && kernel.reads(raw.gradient, raw.ld_gradient)
        };
        let all = [Some(&self.first), self.any.as_ref()];
        let kernel =
            all.into_iter().flatten().find(reads).ok_or_else(|| {
                refused("input", "rows are not multiples of 16 bytes apart".into())
            })?;
        let params = self.params(kernel, map, arrays, raw)?;
        let [c, m] = self.channels;
        let grid = [
            (map.volume() * self.parts) as u32,
            tiles(kernel.row, self.channels) as u32,
            1,
        ];
        let sum = ConvStepParams {
            source: self.partial.address(),
            out: raw.out,
            rows: small("weights", map.volume() * c * m)?,
            strides: [0, small("columns", m)?, 0],
            leading: small("elements of a row", raw.ld_out)?,
            parts: small("parts", self.parts * kernel.row.parts as usize)?,
            ..ConvStepParams::default()
        };
        let blocks = sum.rows.div_ceil(CONV_STEP_THREADS);
        // SAFETY: the params are those of the families; the addresses are the caller's promise.
        unsafe {
            kernel.queue(grid, stream, &params)?;
            self.sum.queue([blocks, 1, 1], stream, &sum)
        }
    }

    fn params(
        &self,
        kernel: &Kernel,
        map: &KernelMap,
        arrays: &MapArrays<DeviceMemory>,
        raw: &RawWeights,
    ) -> Result<ConvWordsParams> {
        let [c, m] = self.channels;
        let bytes = kernel.row.dtype.bytes();
        Ok(ConvWordsParams {
            base: ConvParams {
                w_map: [0; 16],
                input: raw.input,
                out: self.partial.address(),
                bias: 0,
                neighbours: arrays.neighbours.address(),
                order: arrays.order.address(),
                masks: arrays.masks.address(),
                schedule: arrays.schedule.address(),
                stride: small("positions", map.stride())?,
                words: small("words of a mask", map.words())?,
                depth_bytes: small("bytes of the channels", c * bytes)?,
                n: small("columns", m)?,
                in_bytes: row_bytes("input", raw.ld_input, bytes)?,
                out_bytes: 0,
                flags: 0,
                alpha: 1.0,
            },
            weights: raw.gradient,
            weights_bytes: row_bytes("gradient", raw.ld_gradient, bytes)?,
            channels: small("channels", c)?,
            parts: small("parts", self.parts)?,
            volume: small("offsets", map.volume())?,
        })
    }
}
