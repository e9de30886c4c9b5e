//! Entries on the GPU: conversions beside a device-to-device copy of as many bytes as they must read and write once
//! (`convert_entries`).
//!
//! Conversions are queued on buffers that are there, all steps, without the host.

use crate::calibrate::copy;
use crate::device::{Buffer, Gpu, Result};
use crate::problems::SEED;
use crate::record::{Recorder, Row};
use crate::timing::{Effort, measure};
use einsparse::driver::RawStream;
use einsparse::entries::{Order, RawTranspose};
use einsparse::formats::{AnySparse, Csr, CsrPattern, Dense, convert, f16, generate};
use einsparse::registry::Scalar;
use einsparse::{Context, EntryChoice, EntryConverter, PatternTransposer, RawEntries, RowSorter};
use std::cmp::Reverse;
use std::fmt::Display;
use std::time::Instant;

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

/// What is measured: name and pattern.
pub fn patterns(effort: Effort) -> Result<Vec<Named>> {
    let uniform = |m, d| generate::uniform(m, m, d, SEED).map_err(text);
    let mut all = vec![
        ("uniform-4096x4096-d0.1", uniform(4096, 0.1)?),
        ("rmat17", generate::rmat(17, 16, SEED).map_err(text)?),
    ];
    let wide = 1 << 20;
    all.push(("uniform1M-16", uniform(wide, 16.0 / wide as f64)?));
    if effort.series >= Effort::FULL.series {
        all.push(("rmat20", generate::rmat(20, 16, SEED).map_err(text)?));
        all.push(("banded1M-27", generate::banded(wide, 27).map_err(text)?));
        all.push(("uniform-4096x4096-d0.02", uniform(4096, 0.02)?));
    }
    Ok(all)
}

struct Bench<'a> {
    gpu: &'a Gpu,
    effort: Effort,
    recorder: &'a mut Recorder,
    context: Context,
}

/// Conversions.
pub fn conversions(gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
    let context = Context::cuda(0).map_err(text)?;
    let mut bench = Bench {
        gpu,
        effort,
        recorder,
        context,
    };
    for density in [0.5, 0.1, 0.05] {
        bench.dense::<f32>(density)?;
        bench.dense::<f16>(density)?;
    }
    for (name, pattern) in patterns(effort)? {
        bench.of_csr::<f32>(name, &pattern)?;
        bench.of_csr::<f16>(name, &pattern)?;
    }
    Ok(())
}

impl Bench<'_> {
    fn stream(&self) -> RawStream<'static> {
        // SAFETY: the bench's stream belongs to the primary context, which outlives it.
        unsafe { RawStream::from_raw(self.gpu.stream.cast()) }
    }

    /// One row: the time, and its share of a copy of as many bytes.
    fn add(
        &mut self,
        mut row: Row,
        bytes: usize,
        right: bool,
        run: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let halves = (Buffer::new(bytes / 2)?, Buffer::new(bytes / 2)?);
        let copied = measure(self.gpu, self.effort, &mut || {
            copy(self.gpu, &halves.0, &halves.1)
        })?;
        drop(halves);
        let times = measure(self.gpu, self.effort, run)?;
        row.engine = "einsparse".into();
        row.note = format!(
            "{bytes} bytes read and written, copied in {:.4} ms {}",
            copied.cold, row.note
        );
        if right {
            row.ms = times.cold;
            row.ms_warm = Some(times.warm);
            row.gbps = Some(bytes as f64 / times.cold / 1e6);
            row.limit_fraction = Some(copied.cold / times.cold);
        } else {
            row.ms = f64::NAN;
            row.note = "WRONG".into();
        }
        self.recorder.add(row)
    }

    fn dense<T: Scalar>(&mut self, density: f64) -> Result<()> {
        let kept = |i: usize| {
            let hash = (i as u64 ^ 0x5bd1).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 40;
            (hash as f64) < density * (1u64 << 24) as f64
        };
        let host = Dense::from_fn([EXTENT, EXTENT], |i| {
            let at = i[0] * EXTENT + i[1];
            if kept(at) {
                value::<T>(at | 1)
            } else {
                T::ZERO
            }
        });
        let host = host.map_err(text)?;
        let dense = self.context.upload_dense(&host).map_err(text)?;
        let top = (EXTENT as f64 * density) as usize;
        for (variant, choice) in [
            ("dense_to_csr", EntryChoice::NonZero),
            ("dense_to_csr_top", EntryChoice::TopPerRow(top / 2)),
        ] {
            let wanted = convert::dense_to_csr_by(&host, choice).map_err(text)?;
            let nnz = wanted.values().len();
            let offsets = Buffer::new(4 * (EXTENT + 1))?;
            let (columns, out) = (
                Buffer::new(4 * nnz)?,
                Buffer::new(size_of_val(wanted.values()))?,
            );
            let converter =
                EntryConverter::<T>::from_dense(&self.context, (EXTENT, EXTENT), choice);
            let converter = converter.map_err(text)?;
            let raw = RawEntries {
                source: dense.address().unwrap_or(0),
                leading: dense.leading(),
                offsets: offsets.ptr,
                out_columns: columns.ptr,
                out_values: out.ptr,
                capacity: nnz,
                ..RawEntries::default()
            };
            let stream = self.stream();
            // SAFETY: sizes as promised; runs follow each other on one stream.
            let mut run = || unsafe { converter.run_raw(&raw, stream) }.map_err(text);
            run()?;
            self.gpu.wait()?;
            let p = wanted.pattern();
            let right = same(&offsets, p.offsets())?
                && same(&columns, p.columns())?
                && same(&out, wanted.values())?;
            let bytes = size_of::<T>() * (EXTENT * EXTENT + nnz) + 4 * (nnz + EXTENT + 1);
            let row = row::<T>(
                "convert_entries",
                &format!("dense-8192-d{density}"),
                variant,
                p,
            );
            self.add(row, bytes, right, &mut run)?;
        }
        Ok(())
    }

    fn of_csr<T: Scalar>(&mut self, name: &str, p: &CsrPattern) -> Result<()> {
        let nnz = p.columns().len();
        let csr = Csr::new(p.clone(), values::<T>(nnz)).map_err(text)?;
        let offsets = Buffer::from_slice(p.offsets())?;
        // Read by vectors of four.
        let padded: Vec<u32> = p.columns().iter().copied().chain([0; 8]).collect();
        let columns = Buffer::from_slice(&padded)?;
        let source = Buffer::from_slice(csr.values())?;
        if size_of::<T>() == 4 {
            self.orders(name, &csr, [&offsets, &columns])?;
        }
        self.slots(name, csr, [&offsets, &columns, &source])
    }

    /// CSR to GroupCOO and ELL.
    fn slots<T: Scalar>(
        &mut self,
        name: &str,
        csr: Csr<T>,
        [offsets, columns, source]: [&Buffer; 3],
    ) -> Result<()> {
        let p = &csr.pattern().clone();
        let (m, k, nnz) = (p.rows(), p.cols(), p.columns().len());
        let row = |variant: &str| row::<T>("convert_entries", name, variant, p);
        let (stream, context) = (self.stream(), self.context.clone());
        let element = size_of::<T>();
        let any = AnySparse::from(csr);
        for format in ["groupcoo", "ell"] {
            // ELL of a skewed graph is no format for it.
            let longest = p.offsets().windows(2).map(|w| (w[1] - w[0]) as usize).max();
            let width = longest.unwrap_or(0);
            if format == "ell" && width * m > 4 * nnz {
                continue;
            }
            let wanted = any.convert(format.parse().map_err(text)?).map_err(text)?;
            let (group, converter) = match &wanted {
                AnySparse::GroupCoo(a) => {
                    let group = a.pattern().group();
                    (
                        group,
                        EntryConverter::<T>::to_group_coo(&context, (m, k), group),
                    )
                }
                _ => (width, EntryConverter::<T>::to_ell(&context, (m, k), width)),
            };
            let converter = converter.map_err(text)?;
            let slots = wanted.values().len();
            let rows = Buffer::new(4 * (slots / group.max(1)).next_multiple_of(4))?;
            let (out_columns, out) = (
                Buffer::new(4 * slots)?,
                Buffer::new(size_of_val(wanted.values()))?,
            );
            let raw = RawEntries {
                source: source.ptr,
                offsets: offsets.ptr,
                columns: columns.ptr,
                rows: rows.ptr,
                out_columns: out_columns.ptr,
                out_values: out.ptr,
                capacity: slots,
                ..RawEntries::default()
            };
            // SAFETY: as above.
            let mut run = || unsafe { converter.run_raw(&raw, stream) }.map_err(text);
            run()?;
            self.gpu.wait()?;
            let columns = wanted.arrays().pop().map(|array| array.data);
            let right = same(&out, wanted.values())? && same(&out_columns, columns.unwrap_or(&[]))?;
            let grouped = if format == "ell" {
                0
            } else {
                4 * slots / group
            };
            let bytes = (4 + element) * (nnz + slots) + grouped + 4 * (m + 1);
            self.add(row(&format!("csr_to_{format}")), bytes, right, &mut run)?;
        }
        Ok(())
    }

    /// CSR to COO and back, the transpose, rows by length.
    fn orders<T: Scalar>(
        &mut self,
        name: &str,
        csr: &Csr<T>,
        [offsets, columns]: [&Buffer; 2],
    ) -> Result<()> {
        let p = csr.pattern();
        let (m, k, nnz) = (p.rows(), p.cols(), p.columns().len());
        let row = |variant: &str| row::<T>("convert_entries", name, variant, p);
        let (stream, context) = (self.stream(), self.context.clone());
        let rows = Buffer::new(4 * nnz.next_multiple_of(4))?;
        let converter = EntryConverter::<T>::to_coo(&context, (m, k)).map_err(text)?;
        let raw = RawEntries {
            offsets: offsets.ptr,
            rows: rows.ptr,
            capacity: nnz,
            ..RawEntries::default()
        };
        // SAFETY: sizes as promised; runs follow each other on one stream.
        let mut run = || unsafe { converter.run_raw(&raw, stream) }.map_err(text);
        run()?;
        self.gpu.wait()?;
        let coo = convert::csr_to_coo(csr).map_err(text)?;
        let right = same(&rows, &coo.pattern().coords()[0])?;
        self.add(row("csr_to_coo"), 4 * (m + 1 + nnz), right, &mut run)?;
        let back = Buffer::new(4 * (m + 1))?;
        let converter = EntryConverter::<T>::from_coo(&context, (m, k)).map_err(text)?;
        let raw = RawEntries {
            offsets: back.ptr,
            ..raw
        };
        // SAFETY: as above.
        let mut run = || unsafe { converter.run_raw(&raw, stream) }.map_err(text);
        run()?;
        self.gpu.wait()?;
        let right = same(&back, p.offsets())?;
        self.add(row("coo_to_csr"), 4 * (m + 1 + nnz), right, &mut run)?;
        self.transposition(row("transpose"), csr, [offsets, columns])?;
        let order = Buffer::new(4 * m)?;
        let length = |r: u32| p.row(r as usize).len() as u32;
        let class = |r: u32| 32 - length(r).leading_zeros();
        let keys: [(_, _, &dyn Fn(u32) -> u32); 2] = [
            ("row_classes", Order::Classes, &class),
            ("row_lengths", Order::Lengths, &length),
        ];
        for (variant, by, key) in keys {
            let sorter = RowSorter::new(&context, (m, k), by).map_err(text)?;
            let (from, to) = (offsets.ptr, order.ptr);
            // SAFETY: as above.
            let mut run = || unsafe { sorter.run_raw(from, to, stream) }.map_err(text);
            run()?;
            self.gpu.wait()?;
            let mut wanted: Vec<u32> = (0..m as u32).collect();
            wanted.sort_by_key(|&r| Reverse(key(r)));
            let right = same(&order, &wanted)?;
            self.add(row(variant), 4 * (2 * m + 1), right, &mut run)?;
        }
        Ok(())
    }

    fn transposition<T: Scalar>(
        &mut self,
        mut row: Row,
        csr: &Csr<T>,
        [offsets, columns]: [&Buffer; 2],
    ) -> Result<()> {
        let p = csr.pattern();
        let (m, k, nnz) = (p.rows(), p.cols(), p.columns().len());
        let transposer = PatternTransposer::new(&self.context, (m, k), nnz).map_err(text)?;
        let starts = Buffer::new(4 * (k + 1))?;
        let (out, permutation) = (Buffer::new(4 * nnz)?, Buffer::new(4 * nnz)?);
        let raw = RawTranspose {
            offsets: offsets.ptr,
            columns: columns.ptr,
            out_offsets: starts.ptr,
            out_columns: out.ptr,
            permutation: permutation.ptr,
        };
        let stream = self.stream();
        // SAFETY: sizes as promised; runs follow each other on one stream.
        let mut run = || unsafe { transposer.run_raw(&raw, stream) }.map_err(text);
        run()?;
        self.gpu.wait()?;
        let start = Instant::now();
        let wanted = convert::transpose_csr(csr).map_err(text)?;
        let host = start.elapsed().as_secs_f64() * 1e3;
        let right =
            same(&starts, wanted.pattern().offsets())? && same(&out, wanted.pattern().columns())?;
        row.prepared_bytes = Some(transposer.bytes());
        row.note = format!(
            "; {} bytes of workspace; on the host {host:.1} ms",
            transposer.bytes()
        );
        self.add(row, 4 * (m + 1 + nnz + k + 1 + 2 * nnz), right, &mut run)
    }
}

/// A row of a record, but for what is measured.
pub fn row<T: Scalar>(op: &str, workload: &str, variant: &str, p: &CsrPattern) -> Row {
    Row {
        op: op.into(),
        workload: workload.into(),
        variant: variant.into(),
        m: p.rows(),
        k: p.cols(),
        nnz: p.columns().len(),
        dtype: T::DTYPE.name().into(),
        ..Row::default()
    }
}

/// Whether the buffer holds this.
fn same<T: bytemuck::NoUninit>(buffer: &Buffer, wanted: &[T]) -> Result<bool> {
    let wanted: &[u8] = bytemuck::cast_slice(wanted);
    let mut found = vec![0; wanted.len()];
    buffer.read(0, &mut found)?;
    Ok(found == wanted)
}

pub fn text(error: impl Display) -> String {
    error.to_string()
}
