//! Conversions of nonzeros on the GPU (`convert_entries`). The baseline is a device-to-device copy of as many bytes as
//! they must read and write once.
//!
//! Times include all kernels of a conversion on allocated buffers, without the host.

use crate::calibrate::copied;
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

pub fn value<T: Scalar>(i: usize) -> T {
    let hash = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 57;
    T::from_f64(hash as f64 / 64.0 - 1.0)
}

pub fn values<T: Scalar>(count: usize) -> Vec<T> {
    (0..count).map(value).collect()
}

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

/// Runs once and checks the result. Writes a row with the time, and its share of a copy of `bytes` bytes.
fn converted(
    bench: &Bench<'_>,
    row: Row,
    bytes: usize,
    mut run: impl FnMut() -> Result<(), Error>,
    right: impl FnOnce() -> Result<bool>,
) -> Result<()> {
    bench.once(&mut run)?;
    let right = right()?;
    let copied = copied(bench, bytes / 2)?;
    let times = bench.measure(run)?;
    let note =
        format!("{bytes} bytes read and written, copied in {:.4} ms {}", copied.cold, row.note);
    let row = row.timed(&times).bytes(bytes as f64).limit(copied.cold);
    bench.add(match right {
        true => row.note(note),
        false => row.note("WRONG"),
    })
}

fn dense<T: Scalar>(bench: &Bench<'_>, density: f64) -> Result<()> {
    let kept = |i: usize| {
        let hash = (i as u64 ^ 0x5bd1).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 40;
        (hash as f64) < density * (1u64 << 24) as f64
    };
    let host = Dense::from_fn([EXTENT, EXTENT], |i| {
        let at = i[0] * EXTENT + i[1];
        match kept(at) {
            true => value::<T>(at | 1),
            false => T::ZERO,
        }
    })?;
    let dense = bench.upload(&host)?;
    let top = (EXTENT as f64 * density) as usize;
    for (variant, choice) in [
        ("dense_to_csr", EntryChoice::NonZero),
        ("dense_to_csr_top", EntryChoice::TopPerRow(top / 2)),
    ] {
        let wanted = convert::dense_to_csr_by(&host, choice)?;
        let nnz = wanted.values().len();
        let offsets = Buffer::new(4 * (EXTENT + 1))?;
        let columns = Buffer::new(4 * nnz)?;
        let out = Buffer::new(size_of_val(wanted.values()))?;
        let shape = (EXTENT, EXTENT);
        let converter = Converter::csr_from_dense::<T>(&bench.context, shape, choice)?;
        let raw = RawConversion {
            dense: dense.address().unwrap_or(0),
            leading: dense.leading(),
            out_offsets: offsets.ptr,
            out_columns: columns.ptr,
            out_values: out.ptr,
            capacity: nnz,
            ..RawConversion::default()
        };
        let p = wanted.pattern();
        let right = || {
            Ok(same(&offsets, p.offsets())?
                && same(&columns, p.columns())?
                && same(&out, wanted.values())?)
        };
        let bytes = size_of::<T>() * (EXTENT * EXTENT + nnz) + 4 * (nnz + EXTENT + 1);
        let row = row::<T>(OP, &format!("dense-8192-d{density}"), p).ours(variant);
        // SAFETY: buffers have the required sizes; runs are serialized on one stream.
        let run = || unsafe { converter.run_raw(&raw, bench.raw()) };
        converted(bench, row, bytes, run, right)?;
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
        let csr = Csr::new(p.clone(), values::<T>(p.columns().len()))?;
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
        let converter = Converter::coo_from_csr(&bench.context, (m, k))?;
        let raw = RawConversion {
            offsets: self.offsets.ptr,
            out_rows: rows.ptr,
            capacity: nnz,
            ..RawConversion::default()
        };
        // SAFETY: buffers have the required sizes; runs are serialized on one stream.
        let run = || unsafe { converter.run_raw(&raw, bench.raw()) };
        let coo = convert::csr_to_coo(&self.csr)?;
        let right = || same(&rows, &coo.pattern().coords()[0]);
        converted(bench, self.row("csr_to_coo"), bytes, run, right)?;
        let back = Buffer::new(4 * (m + 1))?;
        let converter = Converter::csr_from_coo(&bench.context, (m, k))?;
        let raw = RawConversion {
            rows: rows.ptr,
            out_offsets: back.ptr,
            capacity: nnz,
            ..RawConversion::default()
        };
        // SAFETY: buffers have the required sizes; runs are serialized on one stream.
        let run = || unsafe { converter.run_raw(&raw, bench.raw()) };
        let right = || same(&back, p.offsets());
        converted(bench, self.row("coo_to_csr"), bytes, run, right)
    }

    fn transposition(&self) -> Result<()> {
        let (bench, p) = (self.bench, self.csr.pattern());
        let (m, k, nnz) = (p.rows(), p.cols(), p.columns().len());
        let transposer = Converter::transpose(&bench.context, (m, k), nnz)?;
        let starts = Buffer::new(4 * (k + 1))?;
        let (out, permutation) = (Buffer::new(4 * nnz)?, Buffer::new(4 * nnz)?);
        let raw = RawConversion {
            offsets: self.offsets.ptr,
            columns: self.columns.ptr,
            out_offsets: starts.ptr,
            out_columns: out.ptr,
            out_permutation: permutation.ptr,
            ..RawConversion::default()
        };
        // SAFETY: buffers have the required sizes; runs are serialized on one stream.
        let run = || unsafe { transposer.run_raw(&raw, bench.raw()) };
        let (wanted, host) = timed(|| Ok(convert::transpose_csr(&self.csr)?))?;
        let wanted = wanted.pattern();
        let right = || Ok(same(&starts, wanted.offsets())? && same(&out, wanted.columns())?);
        let note = format!(
            "; {} bytes of workspace; on the host {host:.1} ms",
            transposer.workspace_bytes()
        );
        let row = self.row("transpose").note(note);
        let row = row.prepared(None, transposer.workspace_bytes());
        converted(bench, row, 4 * (m + 1 + nnz + k + 1 + 2 * nnz), run, right)
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
            let sorter = RowSorter::new(&bench.context, (m, p.cols()), by)?;
            let (from, to) = (self.offsets.ptr, order.ptr);
            // SAFETY: buffers have the required sizes; runs are serialized on one stream.
            let run = || unsafe { sorter.run_raw(from, to, bench.raw()) };
            let mut wanted: Vec<u32> = (0..m as u32).collect();
            wanted.sort_by_key(|&r| Reverse(key(r)));
            let right = || same(&order, &wanted);
            converted(bench, self.row(variant), 4 * (2 * m + 1), run, right)?;
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
            let wanted = any.convert(format.parse()?)?;
            let slots = wanted.values().len();
            let (group, grouped, converter) = match &wanted {
                AnySparse::GroupCoo(a) => {
                    let group = a.pattern().group();
                    let made = Converter::group_coo_from_csr::<T>(context, (m, k), group);
                    (group, 4 * slots / group, made?)
                }
                _ => (width, 0, Converter::ell_from_csr::<T>(context, (m, k), width)?),
            };
            let rows = Buffer::new(4 * (slots / group.max(1)).next_multiple_of(4))?;
            let columns = Buffer::new(4 * slots)?;
            let out = Buffer::new(size_of_val(wanted.values()))?;
            let raw = RawConversion {
                values: self.source.ptr,
                offsets: self.offsets.ptr,
                columns: self.columns.ptr,
                out_rows: rows.ptr,
                out_columns: columns.ptr,
                out_values: out.ptr,
                capacity: slots,
                ..RawConversion::default()
            };
            let right = || {
                let own = wanted.arrays().pop().map(|array| array.data);
                Ok(same(&out, wanted.values())? && same(&columns, own.unwrap_or(&[]))?)
            };
            let bytes = (4 + size_of::<T>()) * (nnz + slots) + grouped + 4 * (m + 1);
            let row = self.row(&format!("csr_to_{format}"));
            // SAFETY: buffers have the required sizes; runs are serialized on one stream.
            let run = || unsafe { converter.run_raw(&raw, self.bench.raw()) };
            converted(self.bench, row, bytes, run, right)?;
        }
        Ok(())
    }
}

/// Row of a record, without the measured values.
pub fn row<T: Scalar>(op: &str, workload: &str, p: &CsrPattern) -> Row {
    let extents = [p.rows(), p.cols(), 0];
    Row::new(op, workload, extents, p.columns().len(), T::DTYPE.name())
}
