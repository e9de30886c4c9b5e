//! Conversion to blocks on the GPU.
//!
//! `queued` times all kernels of the converter on allocated buffers, without the host. `call` is the wall time of the
//! whole call, which allocates workspace and output and copies the pattern to the host.

use super::limited;
use crate::case::{Operands, Values};
use crate::check::same;
use crate::prelude::*;
use crate::problems::{DENSE_TO_BLOCKS, Workload};
use crate::sweep::each;
use crate::timing::median;
use einsparse::Converter;
use einsparse::formats::convert::BlockChoice;
use einsparse::formats::{Format, convert};
use einsparse::raw::RawConversion;

/// Number of timed calls. The median is recorded.
const CALLS: usize = 5;

/// A matrix in device memory.
enum Source<T> {
    Dense(Tensor<T>),
    Csr(SparseTensor<T>),
}

pub fn run(bench: &Bench<'_>, workloads: &[Workload]) -> Result<()> {
    each(
        bench,
        workloads,
        |problem, dtype, _| by_dtype!(dtype, T => measured::<T>(&bench.anew()?, problem, dtype)),
    )
}

/// Measures copy, conversion and call.
fn measured<T: Scalar>(bench: &Bench<'_>, problem: &Problem, dtype: Dtype) -> Result<()> {
    let (context, (m, k, nnz)) = (&bench.context, problem.extents());
    let values = Values::new(dtype);
    let csr = Csr::new(problem.pattern.clone(), values.entries::<T>(nnz))?;
    let edge = problem.block.unwrap_or(1);
    let wanted = convert::csr_to_block_group_coo(&csr, (edge, edge), None)?;
    let pattern = wanted.pattern();
    let (block, group) = (pattern.block(), pattern.group());
    let operands = Operands::upload(problem, &values, 0)?;
    let slots = pattern.block_cols().len();
    let (columns, rows) = (Buffer::new(4 * slots)?, Buffer::new(4 * pattern.groups())?);
    let out = Buffer::new(size_of_val(wanted.values()))?;
    let raw = RawConversion::default()
        .out_columns(columns.ptr)
        .out_rows(rows.ptr)
        .out_values(out.ptr)
        .capacity(slots);
    let written = out.bytes + columns.bytes + rows.bytes;
    let (source, read, converter, raw) = if problem.op == DENSE_TO_BLOCKS {
        let dense = bench.zeros::<T>(&[m, k])?;
        let (address, leading) = (dense.address().unwrap_or(0), dense.leading());
        let entries = [&operands.rows, &operands.columns, &operands.values].map(|b| b.ptr);
        bench.once(|| bench.gpu.scatter(dtype.size(), address, entries, nnz, k))?;
        let choice = BlockChoice::Norm(0.0);
        let made = Converter::blocks_from_dense::<T>(context, (m, k), block, group, choice)?;
        let raw = raw.dense(address).leading(leading);
        (Source::Dense(dense), m * k * size_of::<T>(), made, raw)
    } else {
        let sparse = context.upload(csr)?;
        let made = Converter::blocks_from_csr::<T>(context, (m, k), block, group)?;
        let raw = raw
            .values(sparse.values_address().unwrap_or(0))
            .columns(sparse.columns_address().unwrap_or(0))
            .offsets(operands.offsets.ptr);
        let bytes = nnz * (4 + size_of::<T>()) + 4 * (m + 1);
        (Source::Csr(sparse), bytes, made, raw)
    };
    let row = Row::new(problem.op, &problem.workload, [m, k, 0], nnz, dtype);
    let (row, copied) = limited(bench, row, written + read)?;
    bench.add(row.clone().by("driver", "copy").timed(&copied).unlimited())?;
    out.fill(0xff, bench.gpu.stream)?;
    bench.checked(
        row.clone().ours("queued"),
        &mut (),
        // SAFETY: source and outputs have the converter's shape and type and outlive the measurement; runs are
        // serialized on one stream of the primary context that both sides share.
        |()| unsafe { converter.run_raw(&raw, bench.raw()) },
        |()| {
            let right = same(&columns, pattern.block_cols())?
                && same(&rows, pattern.block_rows())?
                && same(&out, wanted.values())?;
            Ok(exact(right))
        },
    )?;
    let format = Format::BlockGroupCoo { block, group: Some(group) };
    let call = || {
        let made = match &source {
            Source::Dense(dense) => {
                context.blocks_from_dense(dense, format, BlockChoice::Norm(0.0))
            }
            Source::Csr(sparse) => sparse.to_blocks(format),
        }?;
        context.synchronize()?;
        Ok(made)
    };
    let times = (0..CALLS).map(|_| Ok(timed(call)?.1));
    let ms = median(&mut times.collect::<Result<Vec<f64>>>()?);
    let note = "wall time, allocation and the pattern's way to the host included";
    bench.add(Row { ms, ..row.ours("call").note(note) })
}
