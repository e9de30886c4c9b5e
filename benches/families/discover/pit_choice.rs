//! The choice among dense and micro-tiles of 128, 64 and 32 rows by what the last step had: what it costs on the GPU and on the host, and
//! what it loses against the best of the kernels, by patterns of several kinds.

use std::time::Instant;

use crate::device::{Gpu, Result};
use crate::families::gather_gemm::pit_matmul::{stream, text};
use crate::problems::SEED;
use crate::record::{Recorder, Row};
use crate::timing::{Effort, measure};
use einsparse::dynamic::{Expected, ShareSample, TileTimes, dynamic};
use einsparse::formats::{Dense, f16};
use einsparse::{Context, Determinism, Operand, Options, Plan, Tensor};
use rand::{Rng, SeedableRng, rngs::StdRng};

const EXTENT: usize = 4096;
const LINE: &str = "C[m,n] = A[m,k] * B[k,n]";

/// What comes and goes together, rows of a column, and the share of it that holds something.
const PATTERNS: &[(usize, f64)] = &[
    (4096, 0.5),
    (4096, 0.05),
    (128, 0.95),
    (128, 0.7),
    (128, 0.5),
    (128, 0.2),
    (128, 0.05),
    (64, 0.5),
    (64, 0.3),
    (64, 0.1),
    (64, 0.03),
    (32, 0.5),
    (32, 0.2),
    (32, 0.05),
    (32, 0.01),
    (1, 0.1),
    (1, 0.01),
    (1, 0.002),
    (1, 0.0005),
];

/// Columns of B.
const COLUMNS: [usize; 2] = [4096, 512];

fn sample(height: usize, share: f64) -> Result<Dense<f16>> {
    let mut rng = StdRng::seed_from_u64(SEED);
    let mut values = vec![f16::ZERO; EXTENT * EXTENT];
    for top in (0..EXTENT).step_by(height) {
        for column in 0..EXTENT {
            if rng.random_bool(share) {
                for row in top..top + height {
                    values[row * EXTENT + column] = f16::from_f32(rng.random_range(0.01..1.73));
                }
            }
        }
    }
    Dense::new([EXTENT, EXTENT], values).map_err(text)
}

/// Every pattern; the last row says what was lost at the worst and in the mean.
pub fn run(gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
    let context = Context::cuda(0).map_err(text)?;
    let start = Instant::now();
    let times = TileTimes::measure(&context).map_err(text)?;
    let calibration = start.elapsed();
    context.set_tile_times(times.clone());
    let mut losses = Vec::new();
    for n in COLUMNS {
        let b = Dense::from_fn(vec![EXTENT, n], |i| {
            f16::from_f32(((i[0] * 7 + i[1]) % 23) as f32 / 8.0 - 1.0)
        });
        let b = context.upload_dense(&b.map_err(text)?).map_err(text)?;
        for &(height, share) in PATTERNS {
            let a = context
                .upload_dense(&sample(height, share)?)
                .map_err(text)?;
            losses.push(case(
                gpu,
                effort,
                recorder,
                (&context, &a, &b),
                (height, share),
            )?);
        }
    }
    let worst = losses.iter().copied().fold(0.0, f64::max);
    let mean = losses.iter().map(|l| l.ln_1p()).sum::<f64>() / losses.len() as f64;
    recorder.add(Row {
        op: "pit_choice".into(),
        workload: "all".into(),
        dtype: "f16".into(),
        engine: "einsparse".into(),
        variant: "calibration".into(),
        ms: calibration.as_secs_f64() * 1e3,
        note: format!(
            "loss against the best: mean {:.1} %, worst {:.1} %; times {}",
            mean.exp_m1() * 100.0,
            worst * 100.0,
            times.to_string().trim_end().replace('\n', ", ")
        ),
        ..Row::default()
    })
}

/// Times every kernel, then lets an adaptive plan take its choice; what that loses.
fn case(
    gpu: &Gpu,
    effort: Effort,
    recorder: &mut Recorder,
    (context, a, b): (&Context, &Tensor<f16>, &Tensor<f16>),
    (height, share): (usize, f64),
) -> Result<f64> {
    let stream = stream(gpu);
    let n = b.shape()[1];
    let mut c = context.zeros::<f16>(&[EXTENT, n]).map_err(text)?;
    let plan = |a: Operand<'_, f16>, variant: Option<&str>| -> Result<Plan<f16>> {
        let options = Options {
            determinism: Determinism::Relaxed,
            variant: variant.map(Into::into),
            ..Options::default()
        };
        let operands = [("A", a), ("B", b.into())];
        context.plan(LINE, &operands, &options).map_err(text)
    };
    let mut timed = Vec::new();
    let named = ["pit_f16_128x1", "pit_f16_64x1", "pit_f16_32x1"];
    for variant in [None].into_iter().chain(named.map(Some)) {
        let operand: Operand<'_, f16> = match variant {
            None => a.into(),
            Some(_) => dynamic(a).into(),
        };
        let plan = plan(operand.clone(), variant)?;
        let operands = [("A", operand), ("B", b.into())];
        let times = measure(gpu, effort, &mut || {
            plan.run(&operands, &mut c, &stream).map_err(text)
        })?;
        timed.push((plan.variant(), times));
    }
    let last = dynamic(a).expecting(Expected::LastSteps);
    let adaptive = plan(last.into(), None)?;
    let operands = [("A", last.into()), ("B", b.into())];
    for _ in 0..2 {
        adaptive.run(&operands, &mut c, &stream).map_err(text)?;
        stream.synchronize().map_err(text)?;
    }
    let taken = adaptive.variant();
    let start = Instant::now();
    const TURNS: u32 = 100;
    for _ in 0..TURNS {
        // What a run adds on the host: the choice and the launch of the sample.
        std::hint::black_box(adaptive.run(&operands, &mut c, &stream).map_err(text)?);
    }
    let host = start.elapsed() / TURNS;
    stream.synchronize().map_err(text)?;
    let with = measure(gpu, effort, &mut || {
        adaptive.run(&operands, &mut c, &stream).map_err(text)
    })?;
    let sample = ShareSample::<f16>::new(context, [EXTENT; 2], 0.0).map_err(text)?;
    let alone = measure(gpu, effort, &mut || sample.run(a, &stream).map_err(text))?;
    let best = timed.iter().map(|t| t.1.cold).fold(f64::INFINITY, f64::min);
    let own = timed
        .iter()
        .find(|t| t.0 == taken)
        .map_or(f64::NAN, |t| t.1.cold);
    for (variant, times) in &timed {
        recorder.add(Row {
            variant: (*variant).into(),
            ms: times.cold,
            ms_warm: Some(times.warm),
            ..row((height, share), n)
        })?;
    }
    recorder.add(Row {
        variant: "last-steps".into(),
        ms: with.cold,
        ms_warm: Some(with.warm),
        note: format!(
            "took {taken}, {:.1} % over the best; with the sample of the next step, {:.1} us by itself; {:.1} us of the host for a run",
            (own / best - 1.0) * 100.0,
            alone.cold * 1e3,
            host.as_secs_f64() * 1e6,
        ),
        ..row((height, share), n)
    })?;
    Ok(own / best - 1.0)
}

fn row((height, share): (usize, f64), n: usize) -> Row {
    Row {
        op: "pit_choice".into(),
        workload: format!("micro{height}x1-d{share}"),
        m: EXTENT,
        k: EXTENT,
        n,
        nnz: (share * (EXTENT * EXTENT) as f64) as usize,
        dtype: "f16".into(),
        engine: "einsparse".into(),
        zeros: "dense".into(),
        ..Row::default()
    }
}
