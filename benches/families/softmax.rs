//! Softmax over the rows of a pattern and its gradient. The baseline is a device-to-device copy of the same values.
//!
//! The limit fraction is the share of the copy's speed. The softmax reads and writes as many bytes as the copy, the
//! gradient 1.5 times as many.

use crate::calibrate::copied;
use crate::case::Values;
use crate::prelude::*;
use crate::problems::Workload;
use crate::sweep::each;
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

pub fn run(bench: &Bench<'_>, workloads: &[Workload]) -> Result<()> {
    each(
        bench,
        workloads,
        |problem, dtype, _| by_dtype!(dtype, T => measured::<T>(&bench.anew()?, problem, dtype)),
    )
}

/// Scores, output of the softmax, and gradient of the scores.
type Three<T> = [SparseTensor<T>; 3];

/// Measures copy, softmax and gradient.
fn measured<T: Scalar>(bench: &Bench<'_>, problem: &Problem, dtype: Dtype) -> Result<()> {
    let (m, k, nnz) = problem.extents();
    let values = Values::new(dtype);
    let csr = Csr::new(problem.pattern.clone(), values.entries::<T>(nnz))?;
    let csr = AnySparse::from(csr);
    let cpu = Context::cpu();
    let made = |on: &Context| -> Result<Three<T>> {
        Ok([on.upload(&csr)?, on.upload(&csr)?, on.upload(&csr)?])
    };
    let plan = |on: &Context, tensor: &SparseTensor<T>| {
        SparseSoftmax::new(on, tensor, &SoftmaxOptions::default())
    };
    let [scores, mut given, mut gradient] = made(&cpu)?;
    let (reference, stream) = (plan(&cpu, &scores)?, cpu.stream()?);
    reference.forward(&scores, &mut given, &stream)?;
    reference.backward(&given, &scores, &mut gradient, &stream)?;
    let host = |t: &SparseTensor<T>| -> Result<Vec<T>> { Ok(t.to_host()?.values().to_vec()) };
    let wanted = [host(&given)?, host(&gradient)?];
    let mut tensors = made(&bench.context)?;
    let (softmax, prepare_ms) = timed(|| {
        let softmax = plan(&bench.context, &tensors[0])?;
        bench.context.synchronize()?;
        Ok(softmax)
    })?;
    let bytes = nnz * size_of::<T>();
    let copy = copied(bench, bytes)?;
    let row = Row::new(problem.op, &problem.workload, [m, k, 0], nnz, dtype);
    let copy_row = row.clone().bytes(2.0 * bytes as f64).by("driver", "copy");
    bench.add(copy_row.timed(&copy).note(format!("{} bytes read and written", 2 * bytes)))?;
    for (step, passes) in [2, 3].into_iter().enumerate() {
        let [scores, given, gradient] =
            tensors.each_ref().map(|tensor| tensor.values_address().unwrap_or(0));
        let raw = match step {
            0 => RawSoftmax::default().input(scores).output(given),
            _ => RawSoftmax::default().input(given).upstream(scores).output(gradient),
        };
        let row = row
            .clone()
            .bytes((passes * bytes) as f64)
            .limit(passes as f64 / 2.0 * copy.cold)
            .ours(softmax.variants()[step])
            .prepared(prepare_ms, softmax.workspace_bytes())
            .note(format!("a copy takes {:.2} us warm", copy.warm * 1e3));
        bench.checked(
            row,
            &mut tensors,
            // SAFETY: the values have the planned pattern and type and outlive the measurement; the stream belongs to
            // the primary context that both sides share.
            |_| unsafe { softmax.run_raw(&raw, bench.raw()) },
            |tensors| Ok(error(&host(&tensors[step + 1])?, &wanted, step, dtype)),
        )?;
    }
    if problem.workload.starts_with("attention-4096") {
        let alone = host(&tensors[1])?;
        let name = format!("{}-h{HEADS}", problem.workload);
        heads(bench, Row { workload: name, ..row }, &tensors[0], &alone)?;
    }
    Ok(())
}

const HEADS: usize = 8;

/// Measures the softmax of eight heads in one launch, and a copy of as many values. Each head must equal the result of
/// a single head bit for bit.
fn heads<T: Scalar>(
    bench: &Bench<'_>,
    row: Row,
    scores: &SparseTensor<T>,
    alone: &[T],
) -> Result<()> {
    let options = SoftmaxOptions { heads: HEADS, ..SoftmaxOptions::default() };
    let softmax = SparseSoftmax::new(&bench.context, scores, &options)?;
    let slots = alone.len();
    let all = Dense::new([HEADS, slots], scores.to_host()?.values().repeat(HEADS))?;
    let stride = slots.next_multiple_of(8);
    let upload = || bench.context.upload_strided(&all, stride, T::ZERO);
    let (scores, mut out) = (upload()?, upload()?);
    let raw = RawSoftmax::default()
        .input(scores.address().unwrap_or(0))
        .output(out.address().unwrap_or(0))
        .stride(stride);
    let bytes = HEADS * stride * size_of::<T>();
    let copied = copied(bench, bytes)?;
    let row = row.bytes(2.0 * bytes as f64);
    bench.add(row.clone().by("driver", "copy").timed(&copied))?;
    bench.checked(
        row.ours(softmax.variants()[0])
            .limit(copied.cold)
            .prepared(None, softmax.workspace_bytes())
            .note(format!("a copy takes {:.2} us warm", copied.warm * 1e3)),
        &mut out,
        // SAFETY: the values have the planned pattern and type and outlive the measurement; the stream belongs to the
        // primary context that both sides share.
        |_| unsafe { softmax.run_raw(&raw, bench.raw()) },
        |out| {
            let bits = |values: &[T]| bytemuck::cast_slice::<T, u8>(values).to_vec();
            let (found, alone) = (out.to_dense()?, bits(alone));
            Ok(exact(found.values().chunks(slots.max(1)).all(|head| bits(head) == alone)))
        },
    )?;
    Ok(())
}

/// Max error of a softmax (step 0) or of its gradient. The bound is the roundoff of the output and of f32 arithmetic.
fn error<T: Scalar>(found: &[T], wanted: &[Vec<T>; 2], step: usize, dtype: Dtype) -> f64 {
    let (relative, accumulator) = dtype.roundoff();
    let relative = 4.0 * relative + 64.0 * accumulator;
    // Below 2^-14, f16 has steps of 2^-24.
    let least = match dtype {
        Dtype::F16 => 0.5f64.powi(23),
        _ => 0.0,
    };
    let errors = found.iter().zip(&wanted[step]).zip(&wanted[0]).map(|((found, wanted), given)| {
        let (found, wanted) = (found.to_f64(), wanted.to_f64());
        // A gradient is P times a difference of normal values.
        let size = wanted.abs() + step as f64 * 10.0 * given.to_f64();
        over((found - wanted).abs(), relative * size + least)
    });
    errors.fold(0.0, worse)
}
