//! Softmax over the rows of a pattern and its gradient, beside a device-to-device copy of the same values.
//!
//! The limit fraction is the share of the copy's speed: the softmax reads and writes what the copy does, the gradient
//! half as much again.

use crate::Arguments;
use crate::calibrate::copy;
use crate::case::{Operands, Values};
use crate::device::{Buffer, Gpu, Result};
use crate::ours::{by_dtype, text};
use crate::problems::{Dtype, Problem, SEED, Source, Workload};
use crate::record::{Recorder, Row};
use crate::sweep::Tally;
use crate::timing::{Times, measure};
use einsparse::driver::RawStream;
use einsparse::formats::{AnySparse, Csr, CsrPattern, Dense, FormatError, bf16, f16};
use einsparse::ops::{SoftmaxOptions, SparseSoftmax};
use einsparse::registry::Scalar;
use einsparse::{Context, RawSoftmax, SparseTensor};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::time::Instant;

/// The operation's name.
pub const OP: &str = "softmax";
const DTYPES: &[Dtype] = &[Dtype::F32, Dtype::F16, Dtype::Bf16];
/// Causal band of the attention masks, and the share of what is below it (Sputnik, arXiv 2006.10901, section 7.4).
const ATTENTION: (usize, f64) = (256, 0.05);

/// Attention masks, and patterns of the products' tables.
pub fn workloads(products: &[Workload]) -> Vec<Workload> {
    let workload = |name: String, source: Source, quick: bool| Workload {
        op: OP,
        name,
        source,
        ns: &[0],
        dtypes: if quick { DTYPES } else { &DTYPES[..2] },
        quick,
    };
    let mut all = Vec::new();
    for extent in [4096, 12_288] {
        let (band, share) = ATTENTION;
        let source = Source::Attention(extent, band, share);
        all.push(workload(format!("attention-{extent}"), source, true));
    }
    // Rows of 100,000.
    let long = Source::Uniform(64, 400_000, 0.25);
    all.push(workload("uniform-64x400000-d0.25".into(), long, true));
    let names = ["uniform-4096x4096", "rmat17", "uniform1M-16", "dlmc/"];
    let wanted = |w: &&Workload| w.op == "spmm" && names.iter().any(|n| w.name.starts_with(n));
    for product in products.iter().filter(wanted) {
        let quick = product.quick && !product.name.starts_with("dlmc/");
        all.push(workload(
            product.name.clone(),
            product.source.clone(),
            quick,
        ));
    }
    all
}

/// The last `band` columns up to the diagonal, and of those in front each with probability `share`.
pub fn attention(
    extent: usize,
    band: usize,
    share: f64,
) -> std::result::Result<CsrPattern, FormatError> {
    let mut rng = StdRng::seed_from_u64(SEED);
    let (mut offsets, mut columns) = (vec![0], Vec::new());
    for row in 0..extent {
        let start = (row + 1).saturating_sub(band);
        // Gaps between entries are geometric.
        let mut gap = || match share > 0.0 {
            true => (rng.random::<f64>().ln() / (1.0 - share).ln()) as usize,
            false => usize::MAX,
        };
        let mut column = gap();
        while column < start {
            columns.push(column as u32);
            column = column.saturating_add(gap()).saturating_add(1);
        }
        columns.extend(start as u32..=row as u32);
        offsets.push(columns.len() as u32);
    }
    CsrPattern::new(extent, extent, offsets, columns)
}

/// Runs the tables.
pub fn run(
    gpu: &Gpu,
    arguments: &Arguments,
    workloads: &[Workload],
    recorder: &mut Recorder,
) -> Result<Tally> {
    let mut tally = Tally::default();
    for workload in workloads {
        let problem = Problem::load(workload)?;
        for dtype in arguments.dtypes(workload) {
            tally.cases += 1;
            let outcome = by_dtype!(dtype, T => {
                Case::<T>::new(&problem, dtype).and_then(|c| c.measured(gpu, arguments, recorder))
            });
            match outcome {
                Ok(faults) => tally.faults += faults,
                Err(reason) => {
                    println!("{OP} on {} {dtype}: {reason}", workload.name);
                    tally.faults += 1;
                }
            }
        }
    }
    Ok(tally)
}

/// Scores and an upstream gradient on the device, and what must come out.
struct Case<'a, T> {
    problem: &'a Problem,
    dtype: Dtype,
    operands: Operands,
    softmax: SparseSoftmax<T>,
    prepare_ms: f64,
    /// Softmax and gradient.
    wanted: [Vec<T>; 2],
    /// On the device: what the softmax gives, and where the gradient goes.
    out: [SparseTensor<T>; 2],
    upstream: SparseTensor<T>,
}

impl<'a, T: Scalar> Case<'a, T> {
    fn new(problem: &'a Problem, dtype: Dtype) -> Result<Self> {
        let (_, _, nnz) = problem.extents();
        let values = Values::new(dtype);
        let csr = Csr::new(problem.pattern.clone(), values.entries::<T>(nnz)).map_err(text)?;
        let csr = AnySparse::from(csr);
        let (context, cpu) = (Context::cuda(0).map_err(text)?, Context::cpu());
        let made = |on: &Context| on.upload(csr.clone()).map_err(text);
        let plan = |on: &Context, tensor: &SparseTensor<T>| {
            SparseSoftmax::new(on, tensor, SoftmaxOptions::default()).map_err(text)
        };
        let out = [made(&context)?, made(&context)?];
        let start = Instant::now();
        let softmax = plan(&context, &out[0])?;
        context.synchronize().map_err(text)?;
        let prepare_ms = start.elapsed().as_secs_f64() * 1e3;
        let (scores, mut given, mut gradient) = (made(&cpu)?, made(&cpu)?, made(&cpu)?);
        let reference = plan(&cpu, &scores)?;
        let stream = cpu.stream().map_err(text)?;
        reference.run(&scores, &mut given, &stream).map_err(text)?;
        reference
            .backward(&given, &scores, &mut gradient, &stream)
            .map_err(text)?;
        let host =
            |t: SparseTensor<T>| Ok::<_, String>(t.to_host().map_err(text)?.values().to_vec());
        Ok(Case {
            problem,
            dtype,
            operands: Operands::upload(problem, &values, 0)?,
            softmax,
            prepare_ms,
            wanted: [host(given)?, host(gradient)?],
            upstream: made(&context)?,
            out,
        })
    }

    /// Copy, softmax, gradient; the number of wrong results.
    fn measured(&self, gpu: &Gpu, arguments: &Arguments, recorder: &mut Recorder) -> Result<usize> {
        let effort = arguments.effort();
        let bytes = self.operands.values.bytes;
        let to = Buffer::new(bytes)?;
        let copied = measure(gpu, effort, &mut || copy(gpu, &self.operands.values, &to))?;
        drop(to);
        recorder.add(self.row("driver", "copy", &copied, 2 * bytes))?;
        let address = |t: &SparseTensor<T>| t.values_address().unwrap_or(0);
        let scores = address(&self.upstream);
        let [given, gradient] = [0, 1].map(|i| address(&self.out[i]));
        let forward = RawSoftmax {
            input: scores,
            output: given,
            ..RawSoftmax::default()
        };
        let backward = RawSoftmax {
            input: given,
            upstream: scores,
            output: gradient,
            ..RawSoftmax::default()
        };
        let mut faults = 0;
        for (step, (raw, passes)) in [(forward, 2), (backward, 3)].iter().enumerate() {
            let stream = gpu.stream.cast();
            let mut run = || {
                // SAFETY: values of the planned pattern and type, which outlive the measurement; the stream belongs to
                // the primary context that both sides share.
                unsafe { self.softmax.run_raw(raw, RawStream::from_raw(stream)) }.map_err(text)
            };
            let times = measure(gpu, effort, &mut run)?;
            let of_copy = |copy: f64, own: f64| *passes as f64 / 2.0 * copy / own;
            let wrong = self.wrong(step)?;
            faults += usize::from(wrong);
            let warm = of_copy(copied.warm, times.warm);
            let row = self.row(
                "einsparse",
                self.softmax.variants()[step],
                &times,
                passes * bytes,
            );
            recorder.add(Row {
                limit_fraction: (!wrong).then(|| of_copy(copied.cold, times.cold)),
                ms: if wrong { f64::NAN } else { times.cold },
                note: match wrong {
                    true => "WRONG".into(),
                    false => format!("{:.0} % of a copy warm", 100.0 * warm),
                },
                prepare_ms: Some(self.prepare_ms),
                prepared_bytes: Some(self.softmax.workspace_bytes()),
                ..row
            })?;
        }
        if self.problem.workload.starts_with("attention-4096") {
            faults += usize::from(!self.heads(gpu, arguments, recorder)?);
        }
        Ok(faults)
    }

    /// The softmax of eight heads in one launch, beside a copy of as many values: right where each head is, bit for bit, what
    /// it is alone.
    fn heads(&self, gpu: &Gpu, arguments: &Arguments, recorder: &mut Recorder) -> Result<bool> {
        const HEADS: usize = 8;
        let context = Context::cuda(0).map_err(text)?;
        let options = SoftmaxOptions {
            heads: HEADS,
            ..SoftmaxOptions::default()
        };
        let softmax = SparseSoftmax::new(&context, &self.upstream, options).map_err(text)?;
        let one = self.upstream.to_host().map_err(text)?;
        let slots = one.values().len();
        let all = Dense::new([HEADS, slots], one.values().repeat(HEADS)).map_err(text)?;
        let stride = slots.next_multiple_of(8);
        let scores = context
            .upload_strided(&all, stride, T::ZERO)
            .map_err(text)?;
        let out = context
            .upload_strided(&all, stride, T::ZERO)
            .map_err(text)?;
        let raw = RawSoftmax {
            input: scores.address().unwrap_or(0),
            output: out.address().unwrap_or(0),
            stride,
            ..RawSoftmax::default()
        };
        let bytes = HEADS * stride * size_of::<T>();
        let (from, to) = (Buffer::new(bytes)?, Buffer::new(bytes)?);
        let copied = measure(gpu, arguments.effort(), &mut || copy(gpu, &from, &to))?;
        let times = measure(gpu, arguments.effort(), &mut || {
            // SAFETY: as in `measured`.
            unsafe { softmax.run_raw(&raw, RawStream::from_raw(gpu.stream.cast())) }.map_err(text)
        })?;
        let (found, alone) = (
            out.to_dense().map_err(text)?,
            self.out[0].to_host().map_err(text)?,
        );
        let bits = |values: &[T]| bytemuck::cast_slice::<T, u8>(values).to_vec();
        let mut heads = found.values().chunks(slots.max(1));
        let right = heads.all(|head| bits(head) == bits(alone.values()));
        let row = self.row("driver", "copy", &copied, 2 * bytes);
        let name = format!("{}-h{HEADS}", self.problem.workload);
        recorder.add(Row {
            workload: name.clone(),
            ..row
        })?;
        let row = self.row("einsparse", softmax.variants()[0], &times, 2 * bytes);
        recorder.add(Row {
            workload: name,
            ms: if right { times.cold } else { f64::NAN },
            limit_fraction: Some(copied.cold / times.cold),
            note: match right {
                true => format!("{:.0} % of a copy warm", 100.0 * copied.warm / times.warm),
                false => "WRONG".into(),
            },
            prepared_bytes: Some(softmax.workspace_bytes()),
            ..row
        })?;
        Ok(right)
    }

    /// Whether an entry is off by more than the roundoff of the output and of f32 arithmetic.
    fn wrong(&self, step: usize) -> Result<bool> {
        let found = self.out[step].to_host().map_err(text)?;
        let (relative, accumulator) = self.dtype.roundoff();
        let relative = 4.0 * relative + 64.0 * accumulator;
        // Below 2^-14 f16 has steps of 2^-24.
        let least = if self.dtype == Dtype::F16 {
            0.5f64.powi(23)
        } else {
            0.0
        };
        let [given, wanted] = [&self.wanted[0], &self.wanted[step]];
        let far = |((found, wanted), given): ((&T, &T), &T)| {
            let (found, wanted) = (found.to_f64(), wanted.to_f64());
            // A gradient is P times a difference of normal values.
            let size = wanted.abs() + step as f64 * 10.0 * given.to_f64();
            (found - wanted).abs() > relative * size + least || found.is_nan()
        };
        Ok(found.values().iter().zip(wanted).zip(given).any(far))
    }

    fn row(&self, engine: &str, variant: &str, times: &Times, bytes: usize) -> Row {
        let (m, k, nnz) = self.problem.extents();
        Row {
            op: OP.into(),
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
}
