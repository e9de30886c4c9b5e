//! Product of a convolution: kernel, grid, and tensor map of the weights.

use einsparse_kernels::abi::{
    B_COLUMNS, FLAG_ACCUMULATE, FLAG_BIAS_COLUMNS, FLAG_RELU, FLAG_VECTORS, TMA,
};
use einsparse_kernels::families::{
    CONV_GRADIENT, CONV_TURN, ConvParams, ConvStepParams, ConvWordsParams,
};
use einsparse_kernels::table::{Row, kernels};

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Refusal, Result};
use crate::families::gather_gemm::kernel_map::{KernelMap, MapArrays};
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::maps::{Heads, Maps};
use crate::launch::{MAX_GRID_Y, Turns, row_bytes, small, within};
use crate::machine::Machine;
use crate::registry::Dtype;

/// Operands in device memory, with row strides in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawConv {
    pub input: u64,
    pub ld_input: usize,
    pub weights: u64,
    pub ld_weights: usize,
    /// Address of the bias, or 0.
    pub bias: u64,
    pub out: u64,
    pub ld_out: usize,
    /// Scalar factor of the product.
    pub alpha: f32,
}

/// Epilogue of the product.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ConvFinish {
    /// Apply ReLU after the bias.
    pub relu: bool,
    /// Add to the previous output.
    pub accumulate: bool,
}

/// Loads the kernel of a step of device module `conv_steps` for an element type that `fits`.
pub(crate) fn conv_step(
    device: &Device,
    step: u32,
    fits: impl Fn(Dtype) -> bool,
) -> Result<Kernel<ConvStepParams>> {
    let row = kernels()
        .iter()
        .find(|row| row.module == "conv_steps" && row.step == step && fits(row.dtype));
    let missing = || Error::no_kernel(format!("step {step} of a sparse convolution"), []);
    Kernel::load(device, row.ok_or_else(missing)?)
}

/// Returns whether address and row stride of a matrix are aligned for this kernel.
pub(crate) fn reads(row: &Row, address: u64, leading: usize) -> bool {
    let vector = row.vector as usize;
    address.is_multiple_of((vector * row.dtype.bytes()) as u64) && leading.is_multiple_of(vector)
}

/// Product kernel, by the form in which it gets the weights.
#[derive(Debug)]
enum Multiplier {
    /// Kernel with a tensor map of the weights.
    Mapped(Kernel<ConvParams>),
    /// Kernel with the address of the weights.
    Addressed(Kernel<ConvWordsParams>),
}

impl Multiplier {
    fn load(device: &Device, row: &'static Row) -> Result<Self> {
        Ok(if row.takes::<ConvParams>() {
            Multiplier::Mapped(Kernel::load(device, row)?)
        } else {
            Multiplier::Addressed(Kernel::load(device, row)?)
        })
    }

    fn row(&self) -> &'static Row {
        match self {
            Multiplier::Mapped(kernel) => kernel.row(),
            Multiplier::Addressed(kernel) => kernel.row(),
        }
    }
}

/// Returns the rows that multiply elements of this type on this GPU, without those of weight gradients.
pub(crate) fn conv_rows(
    dtype: Dtype,
    machine: &Machine,
) -> impl Iterator<Item = &'static Row> + use<> {
    let machine = *machine;
    of_type(dtype).filter(move |row| machine.lacks(row).is_none())
}

/// Returns the rows that multiply elements of this type on any GPU, without those of weight gradients.
fn of_type(dtype: Dtype) -> impl Iterator<Item = &'static Row> {
    kernels().iter().filter(move |row| {
        let own = ["conv", "conv_mma", "conv_simt"].contains(&row.module);
        own && !is_gradient(row) && row.dtype == dtype
    })
}

/// Returns a refusal for each row that multiplies elements of this type but requires another GPU.
pub(crate) fn not_here(dtype: Dtype, machine: &Machine) -> Vec<Refusal> {
    let reason = |row: &'static Row| Some(Refusal::of(row.name, machine.lacks(row)?));
    of_type(dtype).filter_map(reason).collect()
}

/// Returns whether a kernel requires transposed copies of the matrices. `turned`: they are stored as `[t, m, c]`.
pub(crate) fn turns(row: &Row, turned: bool) -> bool {
    (row.order & B_COLUMNS != 0) != turned
}

/// Returns whether a row of these families computes the gradient of weights.
pub(crate) fn is_gradient(row: &Row) -> bool {
    row.step == CONV_GRADIENT
}

/// Kernels for these channels. Weights are `[t, c, m]`, or `[t, m, c]` if `turned`.
#[derive(Debug)]
pub(crate) struct ConvProduct {
    first: Multiplier,
    /// For operands that `first` cannot read because of their alignment. It multiplies in f32 if `first` uses TF32.
    any: Option<Multiplier>,
    turn: Option<(Kernel<ConvStepParams>, DeviceMemory)>,
    /// Channels of the input and of the output.
    channels: [usize; 2],
    volume: usize,
    turned: bool,
    finish: ConvFinish,
    empty: DeviceMemory,
    /// Serializes runs that transpose weights, which share the memory of the transpose.
    turns: Turns,
}

impl ConvProduct {
    pub(crate) fn new(
        device: &Device,
        rows: [Option<&'static Row>; 2],
        channels: [usize; 2],
        (volume, turned, finish): (usize, bool, ConvFinish),
    ) -> Result<Self> {
        let [Some(first), any] = rows else {
            return Err(Error::no_kernel("a sparse convolution", []));
        };
        for what in channels {
            within("channels", what, i32::MAX as usize / 8)?;
        }
        let across = channels[1].div_ceil(first.columns as usize);
        within("tiles of columns", across, MAX_GRID_Y)?;
        within("offsets of a kernel", volume, MAX_GRID_Y)?;
        let bytes = first.dtype.bytes();
        let may_turn = [Some(first), any].iter().flatten().any(|row| turns(row, turned));
        let turn = if may_turn {
            let [c, m] = channels.map(|e| e.next_multiple_of(16 / bytes));
            let elements = volume
                .checked_mul(c)
                .and_then(|n| n.checked_mul(m))
                .and_then(|n| n.checked_mul(bytes))
                .ok_or_else(|| Error::Overflow {
                    what: "weights".into(),
                    value: volume as u128 * c as u128 * m as u128,
                    limit: usize::MAX as u128 / bytes as u128,
                })?;
            let kernel = conv_step(device, CONV_TURN, |dtype| dtype.bytes() == bytes)?;
            Some((kernel, device.zeros(elements)?))
        } else {
            None
        };
        Ok(ConvProduct {
            first: Multiplier::load(device, first)?,
            any: any.map(|row| Multiplier::load(device, row)).transpose()?,
            turn,
            channels,
            volume,
            turned,
            finish,
            empty: device.zeros(16)?,
            turns: Turns::new(device)?,
        })
    }

    pub(crate) fn row(&self) -> &'static Row {
        self.first.row()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.turn.as_ref().map_or(0, |(_, memory)| memory.bytes())
    }

    pub(crate) fn run(
        &self,
        map: &KernelMap,
        arrays: &MapArrays<DeviceMemory>,
        raw: &RawConv,
        queue: Queue<'_>,
    ) -> Result<()> {
        let [_, n] = self.channels;
        if map.outputs() == 0 || n == 0 {
            return Ok(());
        }
        let kernel = self.kernel(raw)?;
        let shared = turns(kernel.row(), self.turned);
        map.order().read(queue.stream(), || {
            self.turns.queue(shared, queue.stream(), || self.queue(kernel, map, arrays, raw, queue))
        })
    }

    fn queue(
        &self,
        kernel: &Multiplier,
        map: &KernelMap,
        arrays: &MapArrays<DeviceMemory>,
        raw: &RawConv,
        queue: Queue<'_>,
    ) -> Result<()> {
        let [_, n] = self.channels;
        let mut raw = *raw;
        if turns(kernel.row(), self.turned) {
            self.turn(&mut raw, queue)?;
        }
        let base = self.params(kernel, map, arrays, &raw)?;
        let across = n.div_ceil(kernel.row().columns as usize) as u32;
        let tiles = map.stride() / kernel.row().items as usize;
        let grid = Grid::of([tiles as u32, across, 1]);
        let kernel = match kernel {
            Multiplier::Mapped(kernel) => return queue.launch(kernel, grid, &base),
            Multiplier::Addressed(kernel) => kernel,
        };
        let bytes = kernel.row().dtype.bytes();
        let params = ConvWordsParams {
            base,
            weights: raw.weights,
            weights_bytes: row_bytes("weights", raw.ld_weights, bytes)?,
            channels: small("channels", self.channels[0])?,
            parts: 0,
        };
        queue.launch(kernel, grid, &params)
    }

    /// Returns the first kernel that can read these operands.
    fn kernel(&self, raw: &RawConv) -> Result<&Multiplier> {
        let reads = |kernel: &&Multiplier| {
            let row = kernel.row();
            reads(row, raw.input, raw.ld_input)
                && (turns(row, self.turned) || reads(row, raw.weights, raw.ld_weights))
        };
        let all = [Some(&self.first), self.any.as_ref()];
        all.into_iter().flatten().find(reads).ok_or_else(|| {
            let reason = format!(
                "addresses and rows of {} and {} elements are not multiples of 16 bytes, which {} requires",
                raw.ld_input, raw.ld_weights, self.first.row().name
            );
            Error::operand("input", reason)
        })
    }

    /// Queues the transpose of the weights, and replaces their address and row stride in `raw`.
    fn turn(&self, raw: &mut RawConv, queue: Queue<'_>) -> Result<()> {
        let Some((kernel, memory)) = &self.turn else {
            return Err(Error::operand("weights", "cannot be transposed"));
        };
        let [c, m] = self.channels;
        let (rows, columns) = if self.turned { (m, c) } else { (c, m) };
        let leading = rows.next_multiple_of(16 / self.first.row().dtype.bytes());
        let params = ConvStepParams {
            source: raw.weights,
            out: memory.address(),
            strides: [
                small("rows", rows)?,
                small("columns", columns)?,
                small("elements of a row of weights", raw.ld_weights)?,
            ],
            leading: small("elements of a row", leading)?,
            ..ConvStepParams::default()
        };
        let grid = [columns.div_ceil(32), rows.div_ceil(32), self.volume].map(|e| e as u32);
        within("rows of weights", grid[1] as usize, MAX_GRID_Y)?;
        raw.weights = memory.address();
        raw.ld_weights = leading;
        queue.launch(kernel, Grid::of(grid), &params)
    }

    fn params(
        &self,
        kernel: &Multiplier,
        map: &KernelMap,
        arrays: &MapArrays<DeviceMemory>,
        raw: &RawConv,
    ) -> Result<ConvParams> {
        let [c, n] = self.channels;
        let bytes = kernel.row().dtype.bytes();
        let wanted = [
            (FLAG_RELU, self.finish.relu),
            (FLAG_ACCUMULATE, self.finish.accumulate),
            (FLAG_BIAS_COLUMNS, raw.bias != 0),
        ];
        let set = wanted.iter().filter(|(_, wanted)| *wanted);
        let mut flags = set.fold(0, |all, (flag, _)| all | flag);
        // The bias is loaded with accesses of the same width.
        let whole = [raw.ld_out, n].iter().all(|x| x.is_multiple_of(16 / bytes));
        if whole && raw.out.is_multiple_of(16) && raw.bias.is_multiple_of(16) {
            flags |= FLAG_VECTORS;
        }
        let w_map = match kernel.row().needs & TMA {
            0 => [0; 16],
            _ => self.weights_map(kernel.row(), raw)?,
        };
        let walked = walked(map, arrays)?;
        Ok(ConvParams {
            // Without channels, there are no rows to gather and no stages that order the warps. The masks are then read
            // as empty.
            words: if c == 0 { 0 } else { walked.words },
            w_map,
            input: raw.input,
            out: raw.out,
            bias: raw.bias,
            depth_bytes: small("bytes of the channels", c * bytes)?,
            n: small("columns of the output", n)?,
            in_bytes: row_bytes("the input", raw.ld_input, bytes)?,
            out_bytes: row_bytes("the output", raw.ld_out, bytes)?,
            flags,
            alpha: raw.alpha,
            ..walked
        })
    }

    fn weights_map(&self, row: &Row, raw: &RawConv) -> Result<[u64; 16]> {
        let [c, n] = self.channels;
        let depth = row.block.1 as usize;
        let turned = row.order & B_COLUMNS != 0;
        let (columns, rows) = if turned { (c, n) } else { (n, c) };
        let matrices = Heads {
            address: raw.weights,
            extents: [columns, rows, self.volume],
            strides: [raw.ld_weights, raw.ld_weights * rows],
        };
        let tile = if turned { [depth, row.columns as usize] } else { [64, depth] };
        Maps::of(row, &self.empty).heads(&matrices, tile)
    }
}

/// Returns the params of a map, without operands.
pub(crate) fn walked(map: &KernelMap, arrays: &MapArrays<DeviceMemory>) -> Result<ConvParams> {
    Ok(ConvParams {
        w_map: [0; 16],
        input: 0,
        out: 0,
        bias: 0,
        neighbours: arrays.neighbours.address(),
        order: arrays.order.address(),
        masks: arrays.masks.address(),
        schedule: arrays.schedule.address(),
        stride: small("positions", map.stride())?,
        words: small("words of a mask", map.words())?,
        depth_bytes: 0,
        n: 0,
        in_bytes: 0,
        out_bytes: 0,
        flags: 0,
        alpha: 1.0,
    })
}
