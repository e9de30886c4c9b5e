//! A convolution's product: kernel, grid and tensor map of the weights.

use einsparse_kernels::abi::{
    B_COLUMNS, ConvParams, FLAG_BIAS_COLUMNS, FLAG_RELU, FLAG_VECTORS, Operation,
};
use einsparse_kernels::table::{Row, kernels};

use super::maps::{Heads, heads_map};
use super::{MAX_GRID_Y, config, refused, small, within};
use crate::device::Device;
use crate::driver::{DeviceMemory, Function, RawStream};
use crate::error::Result;
use crate::kernel_map::{KernelMap, MapArrays, ROWS};
use crate::registry::Dtype;

/// Operands in device memory; leading dimensions in elements. The weights are `[t, c, m]`, or `[t, m, c]` for a kernel
/// that reads them turned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawConv {
    pub input: u64,
    pub ld_input: usize,
    pub weights: u64,
    pub ld_weights: usize,
    /// Or 0.
    pub bias: u64,
    pub out: u64,
    pub ld_out: usize,
}

/// A kernel for these channels.
#[derive(Debug)]
pub(crate) struct ConvProduct {
    row: &'static Row,
    function: Function,
    /// Channels of the input and of the output.
    channels: [usize; 2],
    relu: bool,
    empty: DeviceMemory,
}

/// The rows that can take this product: `turned` where the weights lie as `[t, m, c]`.
pub(crate) fn conv_rows(dtype: Dtype, turned: bool) -> impl Iterator<Item = &'static Row> {
    kernels().iter().filter(move |row| {
        row.operation == Operation::Convolution
            && row.family == "conv"
            && row.dtype == dtype
            && (row.order & B_COLUMNS != 0) == turned
    })
}

impl ConvProduct {
    pub(crate) fn new(
        device: &Device,
        row: &'static Row,
        channels: [usize; 2],
        relu: bool,
    ) -> Result<Self> {
        let across = channels[1].div_ceil(row.columns as usize);
        within("tiles of columns", across, MAX_GRID_Y)?;
        for what in channels {
            within("channels", what, i32::MAX as usize / 8)?;
        }
        Ok(ConvProduct {
            row,
            function: device
                .modules()
                .function(row.family, row.name, row.shared_bytes)?,
            channels,
            relu,
            empty: device.zeros(16)?,
        })
    }

    pub(crate) fn row(&self) -> &'static Row {
        self.row
    }

    /// Queues the product.
    ///
    /// # Safety
    /// The addresses hold operands of the planned shapes and element type until the work is done.
    pub(crate) unsafe fn run(
        &self,
        map: &KernelMap,
        arrays: &MapArrays<DeviceMemory>,
        raw: &RawConv,
        stream: RawStream<'_>,
    ) -> Result<()> {
        let [_, n] = self.channels;
        if map.outputs() == 0 || n == 0 {
            return Ok(());
        }
        let params = self.params(map, arrays, raw)?;
        self.function.context().set_current()?;
        let across = n.div_ceil(self.row.columns as usize) as u32;
        let tiles = (map.stride() / ROWS) as u32;
        let config = config(self.row, [tiles, across, 1]);
        // SAFETY: the params are those of the family; the addresses are the caller's promise.
        unsafe { self.function.launch(&config, stream, &params) }
    }

    fn params(
        &self,
        map: &KernelMap,
        arrays: &MapArrays<DeviceMemory>,
        raw: &RawConv,
    ) -> Result<ConvParams> {
        let [c, n] = self.channels;
        let bytes = self.row.dtype.bytes();
        let vector = self.row.vector as usize;
        for (name, address, leading) in [
            ("input", raw.input, raw.ld_input),
            ("weights", raw.weights, raw.ld_weights),
        ] {
            if !address.is_multiple_of(16) || !leading.is_multiple_of(vector) {
                let reason = format!(
                    "address {address:#x} and leading dimension {leading} must be multiples of 16 bytes for {}",
                    self.row.name
                );
                return Err(refused(name, reason));
            }
        }
        let mut flags = if self.relu { FLAG_RELU } else { 0 };
        if raw.bias != 0 {
            flags |= FLAG_BIAS_COLUMNS;
        }
        let whole = [raw.ld_out, n].iter().all(|x| x.is_multiple_of(vector));
        if whole && raw.out.is_multiple_of(16) {
            flags |= FLAG_VECTORS;
        }
        Ok(ConvParams {
            w_map: self.weights_map(map.volume(), raw)?,
            input: raw.input,
            out: raw.out,
            bias: raw.bias,
            neighbours: arrays.neighbours.address(),
            order: arrays.order.address(),
            masks: arrays.masks.address(),
            schedule: arrays.schedule.address(),
            stride: small("positions", map.stride())?,
            words: small("words of a mask", map.words())?,
            depth_bytes: small("bytes of the channels", c * bytes)?,
            n: small("columns of the output", n)?,
            in_bytes: small(
                "bytes of a row of the input",
                raw.ld_input.saturating_mul(bytes),
            )?,
            out_bytes: small(
                "bytes of a row of the output",
                raw.ld_out.saturating_mul(bytes),
            )?,
            flags,
            alpha: 1.0,
        })
    }

    fn weights_map(&self, volume: usize, raw: &RawConv) -> Result<[u64; 16]> {
        let [c, n] = self.channels;
        let depth = self.row.block.1 as usize;
        let turned = self.row.order & B_COLUMNS != 0;
        let (columns, rows) = if turned { (c, n) } else { (n, c) };
        let matrices = Heads {
            address: raw.weights,
            extents: [columns, rows, volume],
            strides: [raw.ld_weights, raw.ld_weights * rows],
        };
        let tile = if turned {
            [depth, self.row.columns as usize]
        } else {
            [64, depth]
        };
        heads_map(self.row.dtype, &matrices, tile, &self.empty)
    }
}
