//! Conversion to blocks on the GPU. The baseline is a device-to-device copy that reads and writes as many bytes as the
//! conversion must.
//!
//! `queued` times all kernels of the converter on allocated buffers, without the host. `call` is the wall time of the
//! whole call, which allocates workspace and output and copies the pattern to the host.

use crate::calibrate::copied;
use crate::case::{Operands, Values};
use crate::check::same;
use crate::prelude::*;
use crate::problems::{DENSE_TO_BLOCKS, Workload};
use crate::sweep::{Tally, each};
use crate::timing::median;
use einsparse::Converter;
use einsparse::formats::convert::BlockChoice;
use einsparse::formats::{BlockGroupCoo, Format, convert};
use einsparse::raw::RawConversion;

/// Number of timed calls. The median is recorded.
const CALLS: usize = 5;

/// A matrix in device memory, and the expected result.
struct Case<'a, T> {
    bench: Bench<'a>,
    problem: &'a Problem,
    dtype: Dtype,
    source: Source<T>,
    wanted: BlockGroupCoo<T>,
}

enum Source<T> {
    Dense(Tensor<T>),
    /// Matrix, and its row offsets.
    Csr(SparseTensor<T>, Buffer),
}

pub fn run(place: &Place<'_>, workloads: &[Workload]) -> Result<Tally> {
    each(
        place,
        workloads,
        |problem, dtype| by_dtype!(dtype, T => Case::<T>::new(place, problem, dtype)?.measured()),
    )
}

impl<'a, T: Scalar> Case<'a, T> {
    fn new(place: &'a Place<'a>, problem: &'a Problem, dtype: Dtype) -> Result<Self> {
        let (m, k, nnz) = problem.extents();
        let values = Values::new(dtype);
        let csr = Csr::new(problem.pattern.clone(), values.entries::<T>(nnz))?;
        let edge = problem.block.unwrap_or(1);
        let wanted = convert::csr_to_block_group_coo(&csr, (edge, edge), None)?;
        let bench = Bench::new(*place)?;
        let operands = Operands::upload(problem, &values, 0)?;
        let source = if problem.op == DENSE_TO_BLOCKS {
            let dense = bench.zeros::<T>(&[m, k])?;
            let address = dense.address().unwrap_or(0);
            let entries = [&operands.rows, &operands.columns, &operands.values].map(|b| b.ptr);
            bench.once(|| place.gpu.scatter(dtype.size(), address, entries, nnz, k))?;
            Source::Dense(dense)
        } else {
            Source::Csr(bench.context.upload(csr)?, operands.offsets)
        };
        Ok(Case { bench, problem, dtype, source, wanted })
    }

    /// Bytes that every algorithm must read and write.
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

    /// Measures copy, conversion and call. Returns the number of wrong results.
    fn measured(&self) -> Result<usize> {
        let (bench, bytes) = (&self.bench, self.bytes());
        let copied = copied(bench, bytes / 2)?;
        bench.add(self.row(&copied, bytes).by("driver", "copy"))?;
        let (queued, right) = self.queued()?;
        let row = self.row(&queued, bytes).ours("queued").limit(copied.cold);
        bench.add(match right {
            true => row,
            false => row.note("WRONG"),
        })?;
        let ms = self.call()?;
        let row = self.row(&queued, bytes).ours("call");
        let row = Row { ms, ms_warm: None, ..row };
        let note = "wall time, allocation and the pattern's way to the host included";
        bench.add(row.bytes(bytes as f64).limit(copied.cold).note(note))?;
        Ok(usize::from(!right))
    }

    fn row(&self, times: &Times, bytes: usize) -> Row {
        let (p, (m, k, nnz)) = (self.problem, self.problem.extents());
        Row::new(p.op, &p.workload, [m, k, 0], nnz, self.dtype)
            .timed(times)
            .bytes(bytes as f64)
            .note(format!("{bytes} bytes read and written"))
    }

    /// Times the converter on the bench's buffers. Returns whether its result is correct.
    fn queued(&self) -> Result<(Times, bool)> {
        let (bench, context) = (&self.bench, &self.bench.context);
        let (m, k, _) = self.problem.extents();
        let pattern = self.wanted.pattern();
        let (block, group) = (pattern.block(), pattern.group());
        let slots = pattern.block_cols().len();
        let (columns, rows) = (Buffer::new(4 * slots)?, Buffer::new(4 * pattern.groups())?);
        let values = Buffer::new(size_of_val(self.wanted.values()))?;
        values.fill(0xff, bench.gpu.stream)?;
        let raw = RawConversion {
            out_columns: columns.ptr,
            out_rows: rows.ptr,
            out_values: values.ptr,
            capacity: slots,
            ..RawConversion::default()
        };
        let (converter, raw) = match &self.source {
            Source::Dense(dense) => {
                let choice = BlockChoice::Norm(0.0);
                let raw = RawConversion {
                    dense: dense.address().unwrap_or(0),
                    leading: dense.leading(),
                    ..raw
                };
                let made = Converter::blocks_from_dense::<T>(context, (m, k), block, group, choice);
                (made?, raw)
            }
            Source::Csr(sparse, offsets) => {
                let raw = RawConversion {
                    values: sparse.values_address().unwrap_or(0),
                    columns: sparse.columns_address().unwrap_or(0),
                    offsets: offsets.ptr,
                    ..raw
                };
                let made = Converter::blocks_from_csr::<T>(context, (m, k), block, group);
                (made?, raw)
            }
        };
        // SAFETY: source and outputs have the converter's shape and type and outlive the measurement; runs are
        // serialized on one stream of the primary context that both sides share.
        let times = bench.measure(|| unsafe { converter.run_raw(&raw, bench.raw()) })?;
        let right = same(&columns, pattern.block_cols())?
            && same(&rows, pattern.block_rows())?
            && same(&values, self.wanted.values())?;
        Ok((times, right))
    }

    /// Median wall time of the call in milliseconds.
    fn call(&self) -> Result<f64> {
        let (pattern, context) = (self.wanted.pattern(), &self.bench.context);
        let format = Format::BlockGroupCoo { block: pattern.block(), group: Some(pattern.group()) };
        let call = || {
            let made = match &self.source {
                Source::Dense(dense) => {
                    context.blocks_from_dense(dense, format, BlockChoice::Norm(0.0))
                }
                Source::Csr(sparse, _) => sparse.to_blocks(format),
            }?;
            context.synchronize()?;
            Ok(made)
        };
        let times = (0..CALLS).map(|_| Ok(timed(call)?.1));
        Ok(median(&mut times.collect::<Result<Vec<f64>>>()?))
    }
}
