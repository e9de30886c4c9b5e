//! Softmax over the rows of a pattern on a GPU: rows dealt by length class once, one kernel for each run.

use einsparse_kernels::abi::{
    SOFTMAX_CLASSES, SOFTMAX_LOG, SOFTMAX_THREADS, STEP_SOFTMAX, STEP_SOFTMAX_GRADIENT,
    SoftmaxParams, softmax_class,
};
use einsparse_kernels::table::{Row, kernels};

use super::{MAX_GRID_X, refused, within};
use crate::device::Device;
use crate::driver::{DeviceMemory, Function, LaunchConfig, RawStream};
use crate::error::{Error, Refusal, Result};
use crate::registry::{Dtype, Operation};
use crate::worklist::Runs;

/// Times that a thread block goes round at the most: the next row's place is loaded ahead, but whoever comes later
/// levels out what rows of one class differ by.
const MOST_ROUNDS: u32 = 8;

/// Device addresses of one softmax, or of its gradient: values of tensors of the planned pattern, 16-byte aligned and
/// readable 8 slots past their end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawSoftmax {
    /// Scores; for the gradient what the softmax gave.
    pub input: u64,
    /// Gradient of what the softmax gave; 0 for the softmax itself.
    pub upstream: u64,
    /// Softmax, or gradient of the scores. May be one of the inputs.
    pub output: u64,
}

/// Rows dealt by length class.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Deal {
    /// First slot and entries of each row that has any, by class.
    items: Vec<[u32; 2]>,
    /// The row of each item.
    rows: Vec<u32>,
    blocks: [u32; SOFTMAX_CLASSES + 1],
    firsts: [u32; SOFTMAX_CLASSES + 1],
}

impl Deal {
    /// `resident`: thread blocks that the GPU holds at a time.
    fn new(runs: &Runs, row: &Row, resident: u32) -> Result<Deal> {
        let used = runs.rows.iter().filter(|(_, len)| *len > 0).count();
        // Where every row gets a warp at once, more vectors a lane would only lengthen the chain.
        let spread = used as u64 <= u64::from(resident) * u64::from(SOFTMAX_THREADS / 32);
        let mut classes: [Vec<(u32, [u32; 2])>; SOFTMAX_CLASSES] = Default::default();
        for (index, &(start, len)) in runs.rows.iter().enumerate() {
            if len > 0 {
                let class = class_of(start, len, row, spread);
                classes[class].push((index as u32, [start, len]));
            }
        }
        let full: Vec<u32> = (0..SOFTMAX_CLASSES)
            .map(|class| {
                let together = SOFTMAX_THREADS / softmax_class(class, row.burst).0;
                (classes[class].len() as u32).div_ceil(together)
            })
            .collect();
        let total = full.iter().map(|&n| u64::from(n)).sum::<u64>();
        let rounds = total / (2 * u64::from(resident.max(1)));
        let rounds = rounds.clamp(1, u64::from(MOST_ROUNDS)) as u32;
        let (mut blocks, mut firsts) = ([0; SOFTMAX_CLASSES + 1], [0; SOFTMAX_CLASSES + 1]);
        for class in 0..SOFTMAX_CLASSES {
            blocks[class + 1] = blocks[class] + full[class].div_ceil(rounds);
            firsts[class + 1] = firsts[class] + classes[class].len() as u32;
        }
        within(
            "thread blocks",
            blocks[SOFTMAX_CLASSES] as usize,
            MAX_GRID_X,
        )?;
        let (rows, items) = classes.into_iter().flatten().unzip();
        Ok(Deal {
            items,
            rows,
            blocks,
            firsts,
        })
    }
}

/// The class with the fewest lanes and vectors that hold the row, from the aligned vector in front of it on.
fn class_of(start: u32, len: u32, row: &Row, spread: bool) -> usize {
    let slots = u64::from(start % row.vector) + u64::from(len);
    let holds = |class: &usize| {
        let (lanes, vectors) = softmax_class(*class, row.burst);
        let narrow = lanes < 32 && vectors > 1;
        u64::from(lanes * vectors * row.vector) >= slots && !(spread && narrow)
    };
    (1..SOFTMAX_CLASSES).rev().find(holds).unwrap_or(0)
}

/// The kernels for one pattern, with the rows dealt.
#[derive(Debug)]
pub(crate) struct SoftmaxLaunch {
    forward: (&'static Row, Function),
    gradient: (&'static Row, Function),
    items: DeviceMemory,
    live: Option<DeviceMemory>,
    deal: Deal,
}

/// The kernel of a step for an element type.
fn find(dtype: Dtype, step: u32) -> Result<&'static Row> {
    let wanted = |row: &&Row| row.operation == Operation::Softmax && row.step == step;
    let of_step = kernels().iter().filter(wanted);
    let refusal = |row: &Row| Refusal {
        name: row.name.into(),
        reason: format!("is for {}", row.dtype.name()),
    };
    let none = || Error::NoKernel {
        indirect: format!("softmax over rows of {}", dtype.name()),
        tried: of_step.clone().map(refusal).collect(),
    };
    let found = of_step.clone().find(|row| row.dtype == dtype);
    found.ok_or_else(none)
}

impl SoftmaxLaunch {
    /// `live`: entries of each row in front of those that a mask hides.
    pub(crate) fn new(
        device: &Device,
        dtype: Dtype,
        runs: &Runs,
        live: Option<&[u32]>,
    ) -> Result<Self> {
        let kernel = |step| -> Result<(&'static Row, Function)> {
            let row = find(dtype, step)?;
            let modules = device.modules();
            Ok((
                row,
                modules.function(row.family, row.name, row.shared_bytes)?,
            ))
        };
        let forward = kernel(STEP_SOFTMAX)?;
        let resident = device.machine().multiprocessors * forward.0.min_blocks;
        let mut deal = Deal::new(runs, forward.0, resident)?;
        let live: Option<Vec<u32>> =
            live.map(|live| deal.rows.iter().map(|&row| live[row as usize]).collect());
        deal.rows = Vec::new();
        let items = device.upload(&deal.items)?;
        deal.items = Vec::new();
        Ok(SoftmaxLaunch {
            forward,
            gradient: kernel(STEP_SOFTMAX_GRADIENT)?,
            items,
            live: live.map(|live| device.upload(&live)).transpose()?,
            deal,
        })
    }

    /// Names of the kernels: softmax and gradient.
    pub(crate) fn variants(&self) -> [&'static str; 2] {
        [self.forward.0.name, self.gradient.0.name]
    }

    /// Device bytes beside the operands.
    pub(crate) fn bytes(&self) -> usize {
        self.items.bytes() + self.live.as_ref().map_or(0, DeviceMemory::bytes)
    }

    /// Queues the softmax, or with `upstream` its gradient.
    ///
    /// # Safety
    /// The addresses hold values of the planned pattern and element type until the work is done.
    pub(crate) unsafe fn run(
        &self,
        raw: &RawSoftmax,
        (scale, log): (f64, bool),
        stream: RawStream<'_>,
    ) -> Result<()> {
        let (row, function) = match raw.upstream {
            0 => &self.forward,
            _ => &self.gradient,
        };
        for (name, address) in [
            ("input", raw.input),
            ("upstream", raw.upstream),
            ("output", raw.output),
        ] {
            if address % 16 != 0 {
                let reason = format!("address {address:#x} is not a multiple of 16 bytes");
                return Err(refused(name, reason));
            }
        }
        let blocks = self.deal.blocks[SOFTMAX_CLASSES];
        if blocks == 0 {
            return Ok(());
        }
        let params = SoftmaxParams {
            items: self.items.address(),
            live: self.live.as_ref().map_or(0, DeviceMemory::address),
            input: raw.input,
            upstream: raw.upstream,
            output: raw.output,
            scale: scale as f32,
            flags: if log { SOFTMAX_LOG } else { 0 },
            blocks: self.deal.blocks,
            firsts: self.deal.firsts,
        };
        let config = LaunchConfig {
            grid: [blocks, 1, 1],
            block: [row.threads, 1, 1],
            smem_bytes: row.shared_bytes,
            cluster: None,
            overlap_previous: false,
        };
        function.context().set_current()?;
        // SAFETY: the params are those of the family; the addresses are the caller's promise, the rest is owned by
        // self, whose memory the driver frees only after the work.
        unsafe { function.launch(&config, stream, &params) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dealt(rows: &[(u32, u32)], dtype: Dtype, resident: u32) -> (Deal, &'static Row) {
        let row = find(dtype, STEP_SOFTMAX).unwrap();
        let runs = Runs {
            rows: rows.to_vec(),
            total: rows.iter().map(|r| u64::from(r.1)).sum(),
            longest: rows.iter().map(|r| r.1).max().unwrap_or(0),
        };
        (Deal::new(&runs, row, resident).unwrap(), row)
    }

    #[test]
    fn every_row_with_entries_is_dealt_once_and_fits_its_class() {
        let lens = [
            0u32, 1, 3, 4, 13, 16, 17, 60, 130, 512, 900, 1025, 4090, 4097, 100_000,
        ];
        let mut rows = Vec::new();
        let mut start = 0;
        for len in lens {
            rows.push((start, len));
            start += len;
        }
        for (dtype, resident) in [(Dtype::F32, 1), (Dtype::F32, 1000), (Dtype::F16, 1)] {
            let (deal, row) = dealt(&rows, dtype, resident);
            let mut seen = deal.rows.clone();
            seen.sort_unstable();
            assert_eq!(seen, (1..lens.len() as u32).collect::<Vec<_>>());
            for class in 1..SOFTMAX_CLASSES {
                let (lanes, vectors) = softmax_class(class, row.burst);
                let of_class = deal.firsts[class] as usize..deal.firsts[class + 1] as usize;
                for [start, len] in &deal.items[of_class] {
                    assert!(start % row.vector + len <= lanes * vectors * row.vector);
                }
            }
            assert!(deal.blocks.is_sorted() && deal.firsts.is_sorted());
        }
    }

    #[test]
    fn few_rows_are_spread_and_many_go_round() {
        let few: Vec<_> = (0..8).map(|i| (i * 20, 20)).collect();
        let (deal, _) = dealt(&few, Dtype::F32, 100);
        assert_eq!(deal.blocks[6..], [0, 2, 2, 2, 2]);
        let many: Vec<_> = (0..10_000).map(|i| (i * 20, 20)).collect();
        let (deal, _) = dealt(&many, Dtype::F32, 10);
        assert_eq!(deal.blocks[8..], [0, 40, 40]);
    }

    #[test]
    fn double_precision_is_refused_by_name() {
        let error = find(Dtype::F64, STEP_SOFTMAX).unwrap_err().to_string();
        assert!(error.contains("softmax_f32: is for f32"), "{error}");
    }
}
