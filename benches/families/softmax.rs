//! Softmax over the rows of a pattern and its gradient. The baseline is a device-to-device copy of the same values.
//!
//! The limit fraction is the share of the copy's speed. The softmax reads and writes as many bytes as the copy, the
//! gradient 1.5 times as many.

use crate::calibrate::{copied, copy};
use crate::case::{Operands, Values};
use crate::operations::{Entry, Table};
use crate::prelude::*;
use crate::problems::Workload;
use crate::sweep::{Tally, each};
use einsparse::formats::{AnySparse, CsrPattern};
use einsparse::ops::{SoftmaxOptions, SparseSoftmax};
use einsparse::raw::RawSoftmax;

pub const OP: &str = "softmax";
/// Operations of the family.
pub const OPERATIONS: &[Entry] = &[(OP, Table(run))];
const DTYPES: &[Dtype] = &[Dtype::F32, Dtype::F16, Dtype::Bf16];
/// Causal band of the attention masks, and the density of the positions before it (Sputnik, arXiv 2006.10901, section
/// 7.4).
const ATTENTION: (usize, f64) = (256, 0.05);

/// Attention masks, and patterns of the tables of products.
pub fn workloads(products: &[Workload]) -> Vec<Workload> {
    let workload = |name: String, source: Source, quick: bool| {
        let dtypes = if quick { DTYPES } else { &DTYPES[..2] };
        Workload::new(OP, name, source, (&[0], dtypes), quick)
    };
    let mut all = Vec::new();
    for extent in [4096, 12_288] {
        let (band, share) = ATTENTION;
        let source = Source::Attention(extent, band, share);
        all.push(workload(format!("attention-{extent}"), source, true));
    }
    // Rows of 100,000 nonzeros.
    let long = Source::Uniform(64, 400_000, 0.25);
    all.push(workload("uniform-64x400000-d0.25".into(), long, true));
    let names = ["uniform-4096x4096", "rmat17", "uniform1M-16", "dlmc/"];
    let wanted = |w: &&Workload| w.op == "spmm" && names.iter().any(|n| w.name.starts_with(n));
    for product in products.iter().filter(wanted) {
        let (name, source) = (product.name.clone(), product.source.clone());
        let quick = product.quick && !name.starts_with("dlmc/");
        all.push(workload(name, source, quick));
    }
    all
}

/// Mask of the last `band` columns up to the diagonal. Each column before them is included with probability `share`.
pub fn attention(extent: usize, band: usize, share: f64) -> Result<CsrPattern> {
    let mut rng = StdRng::seed_from_u64(SEED);
    let (mut offsets, mut columns) = (vec![0], Vec::new());
    for row in 0..extent {
        let start = (row + 1).saturating_sub(band);
        // Gaps between nonzeros have a geometric distribution.
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
    Ok(CsrPattern::new(extent, extent, offsets, columns)?)
}

pub fn run(place: &Place<'_>, workloads: &[Workload]) -> Result<Tally> {
    each(
        place,
        workloads,
        |problem, dtype| by_dtype!(dtype, T => Case::<T>::new(place, problem, dtype)?.measured()),
    )
}

/// Scores and an upstream gradient in device memory, and the expected results.
struct Case<'a, T> {
    bench: Bench<'a>,
    problem: &'a Problem,
    dtype: Dtype,
    operands: Operands,
    softmax: SparseSoftmax<T>,
    prepare_ms: f64,
    /// Expected softmax and gradient.
    wanted: [Vec<T>; 2],
    /// In device memory: output of the softmax, and of the gradient.
    out: [SparseTensor<T>; 2],
    upstream: SparseTensor<T>,
}

impl<'a, T: Scalar> Case<'a, T> {
    fn new(place: &'a Place<'a>, problem: &'a Problem, dtype: Dtype) -> Result<Self> {
        let (_, _, nnz) = problem.extents();
        let values = Values::new(dtype);
        let csr = Csr::new(problem.pattern.clone(), values.entries::<T>(nnz))?;
        let csr = AnySparse::from(csr);
        let (bench, cpu) = (Bench::new(*place)?, Context::cpu());
        let made = |on: &Context| on.upload(&csr);
        let plan = |on: &Context, tensor: &SparseTensor<T>| {
            SparseSoftmax::new(on, tensor, &SoftmaxOptions::default())
        };
        let out = [made(&bench.context)?, made(&bench.context)?];
        let (softmax, prepare_ms) = timed(|| {
            let softmax = plan(&bench.context, &out[0])?;
            bench.context.synchronize()?;
            Ok(softmax)
        })?;
        let (scores, mut given, mut gradient) = (made(&cpu)?, made(&cpu)?, made(&cpu)?);
        let (reference, stream) = (plan(&cpu, &scores)?, cpu.stream()?);
        reference.forward(&scores, &mut given, &stream)?;
        reference.backward(&given, &scores, &mut gradient, &stream)?;
        let host = |t: SparseTensor<T>| -> Result<Vec<T>> { Ok(t.to_host()?.values().to_vec()) };
        Ok(Case {
            problem,
            dtype,
            operands: Operands::upload(problem, &values, 0)?,
            softmax,
            prepare_ms,
            wanted: [host(given)?, host(gradient)?],
            upstream: made(&bench.context)?,
            bench,
            out,
        })
    }

    /// Measures copy, softmax and gradient. Returns the number of wrong results.
    fn measured(&self) -> Result<usize> {
        let (bench, bytes) = (&self.bench, self.operands.values.bytes);
        let to = Buffer::new(bytes)?;
        let copied = bench.measure(|| copy(bench.gpu, &self.operands.values, &to))?;
        drop(to);
        bench.add(self.row(&copied, 2 * bytes).by("driver", "copy"))?;
        let address = |t: &SparseTensor<T>| t.values_address().unwrap_or(0);
        let scores = address(&self.upstream);
        let [given, gradient] = [0, 1].map(|i| address(&self.out[i]));
        let forward = RawSoftmax { input: scores, output: given, ..RawSoftmax::default() };
        let backward = RawSoftmax {
            input: given,
            upstream: scores,
            output: gradient,
            ..RawSoftmax::default()
        };
        let mut faults = 0;
        for (step, (raw, passes)) in [(forward, 2), (backward, 3)].iter().enumerate() {
            // SAFETY: the values have the planned pattern and type and outlive the measurement; the stream belongs to
            // the primary context that both sides share.
            let times = bench.measure(|| unsafe { self.softmax.run_raw(raw, bench.raw()) })?;
            let wrong = self.wrong(step)?;
            faults += usize::from(wrong);
            let row = self
                .row(&times, passes * bytes)
                .ours(self.softmax.variants()[step])
                .limit(*passes as f64 / 2.0 * copied.cold)
                .prepared(self.prepare_ms, self.softmax.workspace_bytes());
            let warm = *passes as f64 / 2.0 * copied.warm / times.warm;
            bench.add(row.note(said(!wrong, warm)))?;
        }
        if self.problem.workload.starts_with("attention-4096") {
            faults += usize::from(!self.heads()?);
        }
        Ok(faults)
    }

    /// Measures the softmax of eight heads in one launch, and a copy of as many values. Each head must equal the result
    /// of a single head bit for bit.
    fn heads(&self) -> Result<bool> {
        const HEADS: usize = 8;
        let bench = self.bench.anew()?;
        let options = SoftmaxOptions { heads: HEADS, ..SoftmaxOptions::default() };
        let softmax = SparseSoftmax::new(&bench.context, &self.upstream, &options)?;
        let one = self.upstream.to_host()?;
        let slots = one.values().len();
        let all = Dense::new([HEADS, slots], one.values().repeat(HEADS))?;
        let stride = slots.next_multiple_of(8);
        let upload = || bench.context.upload_strided(&all, stride, T::ZERO);
        let (scores, out) = (upload()?, upload()?);
        let raw = RawSoftmax {
            input: scores.address().unwrap_or(0),
            output: out.address().unwrap_or(0),
            stride,
            ..RawSoftmax::default()
        };
        let bytes = HEADS * stride * size_of::<T>();
        let copied = copied(&bench, bytes)?;
        // SAFETY: the values have the planned pattern and type and outlive the measurement; the stream belongs to the
        // primary context that both sides share.
        let times = bench.measure(|| unsafe { softmax.run_raw(&raw, bench.raw()) })?;
        let (found, alone) = (out.to_dense()?, self.out[0].to_host()?);
        let bits = |values: &[T]| bytemuck::cast_slice::<T, u8>(values).to_vec();
        let mut heads = found.values().chunks(slots.max(1));
        let right = heads.all(|head| bits(head) == bits(alone.values()));
        let row = |times: &Times| Row {
            workload: format!("{}-h{HEADS}", self.problem.workload),
            ..self.row(times, 2 * bytes)
        };
        bench.add(row(&copied).by("driver", "copy"))?;
        let own = row(&times).ours(softmax.variants()[0]).limit(copied.cold);
        let own = own.prepared(None, softmax.workspace_bytes());
        bench.add(own.note(said(right, copied.warm / times.warm)))?;
        Ok(right)
    }

    /// Whether the error of a value exceeds the roundoff of the output and of f32 arithmetic.
    fn wrong(&self, step: usize) -> Result<bool> {
        let found = self.out[step].to_host()?;
        let (relative, accumulator) = self.dtype.roundoff();
        let relative = 4.0 * relative + 64.0 * accumulator;
        // Below 2^-14, f16 has steps of 2^-24.
        let least = match self.dtype {
            Dtype::F16 => 0.5f64.powi(23),
            _ => 0.0,
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

    fn row(&self, times: &Times, bytes: usize) -> Row {
        let (p, (m, k, nnz)) = (self.problem, self.problem.extents());
        Row::new(OP, &p.workload, [m, k, 0], nnz, self.dtype)
            .timed(times)
            .bytes(bytes as f64)
            .note(format!("{bytes} bytes read and written"))
    }
}

/// Note of a row: the warm time as a share of a copy's.
fn said(right: bool, share: f64) -> String {
    match right {
        true => format!("{:.0} % of a copy warm", 100.0 * share),
        false => "WRONG".into(),
    }
}
