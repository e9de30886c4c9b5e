//! Optimizer steps on a GPU, one launch each. Rate, number of steps and bias corrections are stored in device memory,
//! so that a step captured in a CUDA graph advances them.

use einsparse_kernels::families::{
    STEP_ADAM, STEP_SGD, UPDATE_DECOUPLED, UPDATE_ELEMENTS, UPDATE_NARROW, UPDATE_NESTEROV,
    UpdateParams, UpdateState,
};
use einsparse_kernels::table::rows_of;

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{Turns, in_vectors};
use crate::registry::{Dtype, of_type};

/// Update rule of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    Sgd { momentum: f64, nesterov: bool, decay: f64 },
    Adam { betas: [f64; 2], epsilon: f64, decay: f64, decoupled: bool },
}

impl Rule {
    fn step(self) -> u32 {
        match self {
            Rule::Sgd { .. } => STEP_SGD,
            Rule::Adam { .. } => STEP_ADAM,
        }
    }

    /// Returns the decay factors of both moments; for SGD, the momentum and 0.
    pub(crate) fn betas(self) -> [f64; 2] {
        match self {
            Rule::Sgd { momentum, .. } => [momentum, 0.0],
            Rule::Adam { betas, .. } => betas,
        }
    }

    fn params(self) -> UpdateParams {
        let betas = self.betas();
        let (epsilon, decay, flags) = match self {
            Rule::Sgd { nesterov, decay, .. } => {
                (0.0, decay, if nesterov { UPDATE_NESTEROV } else { 0 })
            }
            Rule::Adam { epsilon, decay, decoupled, .. } => {
                (epsilon, decay, if decoupled { UPDATE_DECOUPLED } else { 0 })
            }
        };
        UpdateParams {
            betas,
            rest: betas.map(|beta| (1.0 - beta) as f32),
            epsilon: epsilon as f32,
            decay: decay as f32,
            flags,
            ..UpdateParams::default()
        }
    }

    /// Returns the state before the first step.
    pub fn start(self, rate: f64) -> UpdateState {
        UpdateState {
            rate: rate as f32,
            corrections: self.betas().map(|beta| 1.0 - beta),
            ..UpdateState::default()
        }
    }
}

/// Addresses of a step: parameters, gradient, both moments (0 if unused), and the copy with its type. The gradient is
/// f32, or of the copy's type if `narrow`.
#[derive(Clone, Copy, Debug)]
pub struct Arrays {
    pub parameters: u64,
    pub gradient: u64,
    pub narrow: bool,
    pub moments: [u64; 2],
    pub copy: Option<(u64, Dtype)>,
}

/// Kernels of a rule, one per type of a copy, and the state.
#[derive(Debug)]
pub struct UpdateLaunch {
    kernels: [Kernel<UpdateParams>; 3],
    state: DeviceMemory,
    params: UpdateParams,
    blocks: u32,
    turns: Turns,
}

fn words(state: &UpdateState) -> [u32; 8] {
    let [first, second] = state.corrections.map(f64::to_bits);
    let [low, high] = [|x: u64| x as u32, |x: u64| (x >> 32) as u32];
    [
        state.rate.to_bits(),
        state.arrived,
        state.steps,
        state.pad,
        low(first),
        high(first),
        low(second),
        high(second),
    ]
}

impl UpdateLaunch {
    pub fn new(device: &Device, rule: Rule, len: usize, rate: f64) -> Result<Self> {
        let load = |dtype: Dtype| {
            let own = rows_of::<UpdateParams>().filter(|row| row.step == rule.step());
            let row = of_type(own, dtype, format!("a copy in {}", dtype.name()))?;
            Kernel::load(device, row)
        };
        let kernels = [load(Dtype::F32)?, load(Dtype::F16)?, load(Dtype::Bf16)?];
        let row = kernels[0].row();
        let resident = (device.machine().multiprocessors * row.min_blocks).max(1);
        let of_block = (row.threads * UPDATE_ELEMENTS) as usize;
        let blocks = len.div_ceil(of_block).clamp(1, resident as usize) as u32;
        Ok(UpdateLaunch {
            kernels,
            state: device.upload(&words(&rule.start(rate)))?,
            params: UpdateParams { len: len as u64, ..rule.params() },
            blocks,
            turns: Turns::new(device)?,
        })
    }

    /// Returns the name of the kernel without a copy.
    pub fn variant(&self) -> &'static str {
        self.kernels[0].row().name
    }

    /// Sets the rate, after all work of the GPU.
    pub fn set_rate(&self, device: &Device, rate: f64) -> Result<()> {
        device.write(&self.state, &[rate as f32])
    }

    /// Returns the number of completed steps, after all work of the GPU.
    pub fn steps(&self, device: &Device) -> Result<u32> {
        let mut words = [0u32; 8];
        device.read(&self.state, &mut words)?;
        Ok(words[2])
    }

    pub fn run(&self, arrays: &Arrays, queue: Queue<'_>) -> Result<()> {
        let dtype = arrays.copy.map_or(Dtype::F32, |(_, dtype)| dtype);
        let kernel = self.kernels.iter().find(|k| k.row().dtype == dtype);
        let kernel = kernel.ok_or_else(|| Error::dtype("copy", "f16 or bf16", dtype.name()))?;
        let narrow = if arrays.narrow { UPDATE_NARROW } else { 0 };
        let params = UpdateParams {
            flags: self.params.flags | narrow,
            parameters: arrays.parameters,
            gradient: arrays.gradient,
            first: arrays.moments[0],
            second: arrays.moments[1],
            copy: arrays.copy.map_or(0, |(address, _)| address),
            state: self.state.address(),
            ..self.params
        };
        in_vectors("parameters", params.parameters)?;
        in_vectors("gradient", params.gradient)?;
        in_vectors("copy", params.copy)?;
        // The kernel waits for the previous launch before it reads or writes.
        let grid = Grid::of([self.blocks, 1, 1]).early();
        self.turns.queue(true, queue.stream(), || queue.launch(kernel, grid, &params))
    }
}
