//! Blocks made on the GPU, beside a device-to-device copy that reads and writes as many bytes as the conversion must.
//!
//! `queued` is the converter on buffers that are there, all steps, without the host; `call` is wall time of the whole
//! call: workspace and output allocated, the pattern brought to the host.

use crate::Arguments;
use crate::calibrate::copy;
use crate::case::{Operands, Values};
use crate::device::{Buffer, Gpu, Result};
use crate::ours::{by_dtype, text};
use crate::problems::{DENSE_TO_BLOCKS, Dtype, Problem, Workload};
use crate::record::{Recorder, Row};
use crate::sweep::Tally;
use crate::timing::{Effort, Times, measure, median};
use einsparse::driver::RawStream;
use einsparse::formats::{BlockGroupCoo, Csr, Format, bf16, convert, f16};
use einsparse::registry::Scalar;
use einsparse::{BlockChoice, BlockConverter, Context, RawBlocks, SparseTensor, Tensor};
use std::time::Instant;

/// Calls of which the median counts.
const CALLS: usize = 5;

/// One matrix on the device, and what must come out.
struct Case<'a, T> {
    gpu: &'a Gpu,
    problem: &'a Problem,
    dtype: Dtype,
    context: Context,
    source: Source<T>,
    wanted: BlockGroupCoo<T>,
}

enum Source<T> {
    Dense(Tensor<T>),
    /// With the row offsets.
    Csr(SparseTensor<T>, Buffer),
}

/// Runs the tables.
pub fn run(
    gpu: &Gpu,
    arguments: &Arguments,
    workloads: &[Workload],
    recorder: &mut Recorder,
) -> Result<Tally> {
    let effort = match arguments.quick {
        true => Effort::QUICK,
        false => Effort::FULL,
    };
    let mut tally = Tally::default();
    for workload in workloads {
        let problem = Problem::load(workload)?;
        for dtype in arguments.dtypes(workload) {
            tally.cases += 1;
            let right = by_dtype!(dtype, T => {
                case::<T>(gpu, &problem, dtype).and_then(|case| case.measured(effort, recorder))
            });
            match right {
                Ok(right) => tally.faults += usize::from(!right),
                Err(reason) => {
                    println!("{} on {} {dtype}: {reason}", workload.op, workload.name);
                    tally.faults += 1;
                }
            }
        }
    }
    Ok(tally)
}

fn case<'a, T: Scalar>(gpu: &'a Gpu, problem: &'a Problem, dtype: Dtype) -> Result<Case<'a, T>> {
    let (m, k, nnz) = problem.extents();
    let values = Values::new(dtype);
    let csr = Csr::new(problem.pattern.clone(), values.entries::<T>(nnz)).map_err(text)?;
    let edge = problem.block.unwrap_or(1);
    let wanted = convert::csr_to_block_group_coo(&csr, (edge, edge), None).map_err(text)?;
    let context = Context::cuda(0).map_err(text)?;
    let operands = Operands::upload(problem, &values, 0)?;
    let source = if problem.op == DENSE_TO_BLOCKS {
        let dense = context.zeros::<T>(&[m, k]).map_err(text)?;
        let address = dense.address().unwrap_or(0);
        let entries = [&operands.rows, &operands.columns, &operands.values].map(|b| b.ptr);
        gpu.scatter(dtype.size(), address, entries, nnz, k)?;
        gpu.wait()?;
        Source::Dense(dense)
    } else {
        Source::Csr(context.upload(csr).map_err(text)?, operands.offsets)
    };
    Ok(Case {
        gpu,
        problem,
        dtype,
        context,
        source,
        wanted,
    })
}

impl<T: Scalar> Case<'_, T> {
    /// Bytes that are read and written once by any way of doing it.
    fn bytes(&self) -> usize {
        let (m, k, nnz) = self.problem.extents();
        let pattern = self.wanted.pattern();
        let out =
            size_of_val(self.wanted.values()) + 4 * (pattern.block_cols().len() + pattern.groups());
        out + match self.source {
            Source::Dense(_) => m * k * size_of::<T>(),
            Source::Csr(..) => nnz * (4 + size_of::<T>()) + 4 * (m + 1),
        }
    }

    fn measured(&self, effort: Effort, recorder: &mut Recorder) -> Result<bool> {
        let bytes = self.bytes();
        let halves = (Buffer::new(bytes / 2)?, Buffer::new(bytes / 2)?);
        let copied = measure(self.gpu, effort, &mut || {
            copy(self.gpu, &halves.0, &halves.1)
        })?;
        drop(halves);
        recorder.add(self.row("driver", "copy", &copied, bytes))?;
        let (queued, wrong) = self.queued(effort)?;
        let share = copied.cold / queued.cold;
        let mut row = Row {
            limit_fraction: Some(share),
            ..self.row("einsparse", "queued", &queued, bytes)
        };
        if wrong {
            row = Row {
                ms: f64::NAN,
                ms_warm: None,
                gbps: None,
                limit_fraction: None,
                note: "WRONG".into(),
                ..row
            };
        }
        recorder.add(row)?;
        let wall = self.call()?;
        recorder.add(Row {
            ms: wall,
            ms_warm: None,
            gbps: Some(bytes as f64 / wall / 1e6),
            limit_fraction: Some(copied.cold / wall),
            note: "wall time, allocation and the pattern's way to the host included".into(),
            ..self.row("einsparse", "call", &queued, bytes)
        })?;
        Ok(!wrong)
    }

    fn row(&self, engine: &str, variant: &str, times: &Times, bytes: usize) -> Row {
        let (m, k, nnz) = self.problem.extents();
        Row {
            op: self.problem.op.into(),
            workload: self.problem.workload.clone(),
            m,
            k,
            nnz,
            dtype: self.dtype.to_string(),
            engine: engine.into(),
            variant: variant.into(),
            ms: times.cold,
            ms_warm: Some(times.warm),
            gbps: Some(bytes as f64 / times.cold / 1e6),
            note: format!("{bytes} bytes read and written"),
            ..Row::default()
        }
    }

    /// The converter on the bench's own buffers, and whether what it made is wrong.
    fn queued(&self, effort: Effort) -> Result<(Times, bool)> {
        let (m, k, _) = self.problem.extents();
        let pattern = self.wanted.pattern();
        let (block, group) = (pattern.block(), pattern.group());
        let slots = pattern.block_cols().len();
        let (columns, rows) = (Buffer::new(4 * slots)?, Buffer::new(4 * pattern.groups())?);
        let values = Buffer::new(size_of_val(self.wanted.values()))?;
        values.fill(0xff, self.gpu.stream)?;
        let raw = RawBlocks {
            slot_columns: columns.ptr,
            group_rows: rows.ptr,
            values: values.ptr,
            capacity: slots,
            ..RawBlocks::default()
        };
        let (converter, raw) = match &self.source {
            Source::Dense(dense) => {
                let choice = BlockChoice::Norm(0.0);
                let made =
                    BlockConverter::<T>::from_dense(&self.context, (m, k), block, group, choice);
                let source = dense.address().unwrap_or(0);
                (
                    made,
                    RawBlocks {
                        source,
                        leading: dense.leading(),
                        ..raw
                    },
                )
            }
            Source::Csr(sparse, offsets) => {
                let made = BlockConverter::<T>::from_csr(&self.context, (m, k), block, group);
                let (source, entries) = (sparse.values_address(), sparse.columns_address());
                let (source, columns) = (source.unwrap_or(0), entries.unwrap_or(0));
                (
                    made,
                    RawBlocks {
                        source,
                        columns,
                        offsets: offsets.ptr,
                        ..raw
                    },
                )
            }
        };
        let converter = converter.map_err(text)?;
        let stream = self.gpu.stream.cast();
        let mut run = || {
            // SAFETY: source and outputs have the converter's shape and type and outlive the measurement, runs follow
            // each other on one stream of the primary context that both sides share.
            unsafe { converter.run_raw(&raw, RawStream::from_raw(stream)) }.map_err(text)
        };
        let times = measure(self.gpu, effort, &mut run)?;
        let same = |buffer: &Buffer, wanted: &[u8]| -> Result<bool> {
            let mut found = vec![0; wanted.len()];
            buffer.read(0, &mut found)?;
            Ok(found == wanted)
        };
        let right = same(&columns, bytemuck::cast_slice(pattern.block_cols()))?
            && same(&rows, bytemuck::cast_slice(pattern.block_rows()))?
            && same(&values, bytemuck::cast_slice(self.wanted.values()))?;
        Ok((times, !right))
    }

    /// Median wall time of the method, milliseconds.
    fn call(&self) -> Result<f64> {
        let pattern = self.wanted.pattern();
        let format = Format::BlockGroupCoo {
            block: pattern.block(),
            group: Some(pattern.group()),
        };
        let mut times = Vec::new();
        for _ in 0..CALLS {
            let start = Instant::now();
            let made = match &self.source {
                Source::Dense(dense) => {
                    self.context
                        .blocks_from_dense(dense, format, BlockChoice::Norm(0.0))
                }
                Source::Csr(sparse, _) => sparse.to_blocks(format),
            };
            let made = made.map_err(text)?;
            self.context.synchronize().map_err(text)?;
            times.push(start.elapsed().as_secs_f64() * 1e3);
            drop(made);
        }
        Ok(median(&mut times))
    }
}
