//! Conversions of nonzeros on the GPU (`convert_entries`).
//!
//! Times include all kernels of a conversion on allocated buffers, without the host.

use super::limited;
use crate::check::same;
use crate::prelude::*;
use crate::timing::Effort;
use einsparse::entries::{Order, RowSorter};
use einsparse::formats::convert::EntryChoice;
use einsparse::formats::{AnySparse, CsrPattern, convert, generate};
use einsparse::raw::RawConversion;
use einsparse::{Converter, Error};
use std::cmp::Reverse;

pub const OP: &str = "convert_entries";
/// Extent of the dense matrices.
const EXTENT: usize = 8192;

pub type Named = (&'static str, CsrPattern);

/// Names and patterns of the cases.
pub fn patterns(bench: &Bench<'_>) -> Result<Vec<Named>> {
    let uniform = |m, d| generate::uniform(m, m, d, SEED);
    let wide = 1 << 20;
    let mut all = vec![
        ("uniform-4096x4096-d0.1", uniform(4096, 0.1)?),
        ("rmat17", generate::rmat(17, 16, SEED)?),
        ("uniform1M-16", uniform(wide, 16.0 / wide as f64)?),
    ];
    if bench.effort().series >= Effort::FULL.series {
        all.push(("rmat20", generate::rmat(20, 16, SEED)?));
        all.push(("banded1M-27", generate::banded(wide, 27)?));
        all.push(("uniform-4096x4096-d0.02", uniform(4096, 0.02)?));
    }
    Ok(all)
}

pub fn run(bench: &Bench<'_>) -> Result<()> {
    for density in [0.5, 0.1, 0.05] {
        dense::<f32>(bench, density)?;
        dense::<f16>(bench, density)?;
    }
    for (name, pattern) in patterns(bench)? {
        Case::<f32>::new(bench, name, &pattern)?.all()?;
        Case::<f16>::new(bench, name, &pattern)?.all()?;
    }
    Ok(())
}

/// An output in device memory, and the bytes that it must contain.
type Wanted<'w> = (&'w Buffer, &'w [u8]);

fn wanted<'w, T: bytemuck::NoUninit>(buffer: &'w Buffer, values: &'w [T]) -> Wanted<'w> {
    (buffer, bytemuck::cast_slice(values))
}

/// Checks a conversion of `bytes` bytes, times it and writes its row.
fn measured(
    bench: &Bench<'_>,
    (row, bytes): (Row, usize),
    run: impl Fn() -> Result<(), Error>,
    outputs: &[Wanted<'_>],
) -> Result<()> {
    let (row, copied) = limited(bench, row, bytes)?;
    let row = row.also(format!("copied in {:.4} ms", copied.cold));
    let check = |(): &()| {
        let right = outputs.iter().map(|(buffer, wanted)| same(buffer, wanted));
        Ok(exact(right.collect::<Result<Vec<bool>>>()?.into_iter().all(|right| right)))
    };
    bench.checked(row, &mut (), |()| run(), check).map(drop)
}

fn converted(
    bench: &Bench<'_>,
    row: (Row, usize),
    (converter, raw): (&Converter, RawConversion),
    outputs: &[Wanted<'_>],
) -> Result<()> {
    // SAFETY: buffers have the required sizes; runs are serialized on one stream.
    measured(bench, row, || unsafe { converter.run_raw(&raw, bench.raw()) }, outputs)
}

fn dense<T: Scalar>(bench: &Bench<'_>, density: f64) -> Result<()> {
    let kept = |i: usize| {
        let share = values::hash(i ^ (1 << 50)) >> 40;
        (share as f64) < density * (1u64 << 24) as f64
    };
    let host = Dense::from_fn([EXTENT, EXTENT], |i| {
        let at = i[0] * EXTENT + i[1];
        if kept(at) { value::<T>(at) } else { T::ZERO }
    })?;
    let dense = bench.upload(&host)?;
    let top = (EXTENT as f64 * density) as usize;
    for (variant, choice) in [
        ("dense_to_csr", EntryChoice::NonZero),
        ("dense_to_csr_top", EntryChoice::TopPerRow(top / 2)),
    ] {
        let csr = convert::dense_to_csr_by(&host, choice)?;
        let (p, nnz) = (csr.pattern(), csr.values().len());
        let offsets = Buffer::new(4 * (EXTENT + 1))?;
        let columns = Buffer::new(4 * nnz)?;
        let out = Buffer::new(size_of_val(csr.values()))?;
        let converter = Converter::csr_from_dense::<T>(&bench.context, (EXTENT, EXTENT), choice)?;
        let raw = RawConversion::default()
            .dense(dense.address().unwrap_or(0))
            .leading(dense.leading())
            .out_offsets(offsets.ptr)
            .out_columns(columns.ptr)
            .out_values(out.ptr)
            .capacity(nnz);
        let bytes = size_of::<T>() * (EXTENT * EXTENT + nnz) + 4 * (nnz + EXTENT + 1);
        let row = row::<T>(OP, &format!("dense-8192-d{density}"), p).ours(variant);
        let outputs = [
            wanted(&offsets, p.offsets()),
            wanted(&columns, p.columns()),
            wanted(&out, csr.values()),
        ];
        converted(bench, (row, bytes), (&converter, raw), &outputs)?;
    }
    Ok(())
}

/// A matrix in CSR on the host, and its arrays in device memory.
struct Case<'a, T> {
    bench: &'a Bench<'a>,
    name: &'a str,
    csr: Csr<T>,
    offsets: Buffer,
    columns: Buffer,
    source: Buffer,
}

impl<'a, T: Scalar> Case<'a, T> {
    fn new(bench: &'a Bench<'a>, name: &'a str, p: &CsrPattern) -> Result<Self> {
        let csr = Csr::new(p.clone(), values::<T>(p.columns().len(), 0, 1.0))?;
        // Padding: kernels read vectors of four.
        let padded: Vec<u32> = p.columns().iter().copied().chain([0; 8]).collect();
        Ok(Self {
            bench,
            name,
            offsets: Buffer::from_slice(p.offsets())?,
            columns: Buffer::from_slice(&padded)?,
            source: Buffer::from_slice(csr.values())?,
            csr,
        })
    }

    fn row(&self, variant: &str) -> Row {
        row::<T>(OP, self.name, self.csr.pattern()).ours(variant)
    }

    fn all(&self) -> Result<()> {
        if size_of::<T>() == 4 {
            self.coo()?;
            self.transposition()?;
            self.orders()?;
        }
        self.slots()
    }

    /// Measures CSR to COO and COO to CSR.
    fn coo(&self) -> Result<()> {
        let (bench, p) = (self.bench, self.csr.pattern());
        let (m, k, nnz) = (p.rows(), p.cols(), p.columns().len());
        let bytes = 4 * (m + 1 + nnz);
        let rows = Buffer::new(4 * nnz.next_multiple_of(4))?;
        let back = Buffer::new(4 * (m + 1))?;
        let raw = RawConversion::default().capacity(nnz);
        let coo = convert::csr_to_coo(&self.csr)?;
        let converter = Converter::coo_from_csr(&bench.context, (m, k))?;
        let there = raw.offsets(self.offsets.ptr).out_rows(rows.ptr);
        let outputs = [wanted(&rows, &coo.pattern().coords()[0])];
        converted(bench, (self.row("csr_to_coo"), bytes), (&converter, there), &outputs)?;
        let converter = Converter::csr_from_coo(&bench.context, (m, k))?;
        let raw = raw.rows(rows.ptr).out_offsets(back.ptr);
        let outputs = [wanted(&back, p.offsets())];
        converted(bench, (self.row("coo_to_csr"), bytes), (&converter, raw), &outputs)
    }

    fn transposition(&self) -> Result<()> {
        let (bench, p) = (self.bench, self.csr.pattern());
        let (m, k, nnz) = (p.rows(), p.cols(), p.columns().len());
        let transposer = Converter::transpose(&bench.context, (m, k), nnz)?;
        let starts = Buffer::new(4 * (k + 1))?;
        let (out, permutation) = (Buffer::new(4 * nnz)?, Buffer::new(4 * nnz)?);
        let raw = RawConversion::default()
            .offsets(self.offsets.ptr)
            .columns(self.columns.ptr)
            .out_offsets(starts.ptr)
            .out_columns(out.ptr)
            .out_permutation(permutation.ptr);
        let (turned, host) = timed(|| Ok(convert::transpose_csr(&self.csr)?))?;
        let turned = turned.pattern();
        let row = self.row("transpose").note(format!("on the host {host:.1} ms"));
        let row = row.prepared(None, transposer.workspace_bytes());
        let outputs = [wanted(&starts, turned.offsets()), wanted(&out, turned.columns())];
        let bytes = 4 * (m + 1 + nnz + k + 1 + 2 * nnz);
        converted(bench, (row, bytes), (&transposer, raw), &outputs)
    }

    /// Measures sorting of rows by length.
    fn orders(&self) -> Result<()> {
        let (bench, p) = (self.bench, self.csr.pattern());
        let (m, order) = (p.rows(), Buffer::new(4 * p.rows())?);
        let length = |r: u32| p.row(r as usize).len() as u32;
        let class = |r: u32| 32 - length(r).leading_zeros();
        let keys: [(_, _, &dyn Fn(u32) -> u32); 2] =
            [("row_classes", Order::Classes, &class), ("row_lengths", Order::Lengths, &length)];
        for (variant, by, key) in keys {
            let sorter = RowSorter::new(&bench.context, [m, p.cols()], by)?;
            let (from, to) = (self.offsets.ptr, order.ptr);
            // SAFETY: buffers have the required sizes; runs are serialized on one stream.
            let run = || unsafe { sorter.run_raw(from, to, bench.raw()) };
            let mut sorted: Vec<u32> = (0..m as u32).collect();
            sorted.sort_by_key(|&r| Reverse(key(r)));
            let row = (self.row(variant), 4 * (2 * m + 1));
            measured(bench, row, run, &[wanted(&order, &sorted)])?;
        }
        Ok(())
    }

    /// Measures CSR to GroupCOO and ELL.
    fn slots(&self) -> Result<()> {
        let (context, p) = (&self.bench.context, self.csr.pattern());
        let (m, k, nnz) = (p.rows(), p.cols(), p.columns().len());
        let any = AnySparse::from(self.csr.clone());
        for format in ["groupcoo", "ell"] {
            // ELL is skipped if padding makes it more than four times as large as the nonzeros.
            let longest = p.offsets().windows(2).map(|w| (w[1] - w[0]) as usize).max();
            let width = longest.unwrap_or(0);
            if format == "ell" && width * m > 4 * nnz {
                continue;
            }
            let made = any.convert(format.parse()?)?;
            let slots = made.values().len();
            let (group, grouped, converter) = match &made {
                AnySparse::GroupCoo(a) => {
                    let group = a.pattern().group();
                    let made = Converter::group_coo_from_csr::<T>(context, (m, k), group);
                    (group, 4 * slots / group, made?)
                }
                _ => (width, 0, Converter::ell_from_csr::<T>(context, (m, k), width)?),
            };
            let rows = Buffer::new(4 * (slots / group.max(1)).next_multiple_of(4))?;
            let columns = Buffer::new(4 * slots)?;
            let out = Buffer::new(size_of_val(made.values()))?;
            let raw = RawConversion::default()
                .values(self.source.ptr)
                .offsets(self.offsets.ptr)
                .columns(self.columns.ptr)
                .out_rows(rows.ptr)
                .out_columns(columns.ptr)
                .out_values(out.ptr)
                .capacity(slots);
            let own = made.arrays().pop().map_or(&[][..], |array| array.data);
            let outputs = [wanted(&out, made.values()), wanted(&columns, own)];
            let bytes = (4 + size_of::<T>()) * (nnz + slots) + grouped + 4 * (m + 1);
            let row = (self.row(&format!("csr_to_{format}")), bytes);
            converted(self.bench, row, (&converter, raw), &outputs)?;
        }
        Ok(())
    }
}

/// Row of a record, without the measured values.
pub fn row<T: Scalar>(op: &str, workload: &str, p: &CsrPattern) -> Row {
    let extents = [p.rows(), p.cols(), 0];
    Row::new(op, workload, extents, p.columns().len(), T::DTYPE.name())
}
