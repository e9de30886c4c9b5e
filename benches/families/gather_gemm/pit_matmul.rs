//! Sparsity found while running (PIT, arXiv 2301.10936): detection of micro-tiles in a dense matrix, and products with an A of
//! which half, nine tenths or 95 % of the micro-tiles are empty, detection inside the time, beside dense cuBLAS.
//!
//! `nnz` are the elements of the micro-tiles that are not empty; rates of products count these alone.

use crate::device::{Buffer, Gpu, Result};
use crate::peers::cublas::CuBlas;
use crate::problems::{Dtype, SEED};
use crate::record::{Recorder, Row};
use crate::timing::{Effort, Times, measure};
use einsparse::dynamic::{DetectOptions, Detector, DynamicMatmul, MatmulOptions};
use einsparse::formats::{Dense, bf16, f16};
use einsparse::{Context, Determinism, Scalar, Stream, Tensor};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::fmt::Display;

/// Rows and columns of every matrix.
pub const EXTENT: usize = 4096;
/// Shares of micro-tiles that are empty, in percent.
const EMPTY: [u32; 4] = [0, 50, 90, 95];
/// So many rows of a product are checked.
const CHECKED: usize = 16;

pub fn text(e: impl Display) -> String {
    e.to_string()
}

pub fn stream(gpu: &Gpu) -> Stream {
    // SAFETY: the bench's stream belongs to the primary context and outlives every case.
    unsafe { Stream::from_raw(gpu.stream.cast()) }
}

/// A matrix of normal values of which this share of micro-tiles is empty, and how many are not.
pub fn sample<T: Scalar>((h, w): (usize, usize), empty: u32) -> Result<(Dense<T>, usize)> {
    let mut rng = StdRng::seed_from_u64(SEED);
    let mut values = vec![T::ZERO; EXTENT * EXTENT];
    let mut full = 0;
    for top in (0..EXTENT).step_by(h) {
        for left in (0..EXTENT).step_by(w) {
            if rng.random_range(0..100) < empty {
                continue;
            }
            full += 1;
            for row in top..top + h {
                for column in left..left + w {
                    // Uniform, of variance 1 and never 0.
                    let x = rng.random_range(0.01..1.73) * if rng.random() { 1.0 } else { -1.0 };
                    values[row * EXTENT + column] = T::from_f64(x);
                }
            }
        }
    }
    let dense = Dense::new([EXTENT, EXTENT], values).map_err(text)?;
    Ok((dense, full))
}

/// The other operand: uniform values of variance 1.
pub fn uniform<T: Scalar>() -> Result<Dense<T>> {
    let mut rng = StdRng::seed_from_u64(SEED + 1);
    let values = (0..EXTENT * EXTENT).map(|_| T::from_f64(rng.random_range(-1.73..1.73)));
    Dense::new([EXTENT, EXTENT], values.collect()).map_err(text)
}

/// Cold times of detection and product by themselves, us.
pub fn by_themselves<T: Scalar>(
    gpu: &Gpu,
    effort: Effort,
    product: &mut DynamicMatmul<T>,
    (a, b, c): (&Tensor<T>, &Tensor<T>, &mut Tensor<T>),
) -> Result<[f64; 2]> {
    let stream = stream(gpu);
    let detection = measure(gpu, effort, &mut || {
        product.detect(a, &stream).map_err(text)
    })?;
    let alone = measure(gpu, effort, &mut || {
        product.multiply(a, b, c, &stream).map_err(text)
    })?;
    Ok([detection, alone].map(|times| times.cold * 1e3))
}

/// Detection alone.
pub fn detect(gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
    for micro in [(32, 1), (1, 32), (16, 16), (64, 1), (128, 1), (1, 64)] {
        detected::<f16>(gpu, effort, recorder, micro)?;
        detected::<f32>(gpu, effort, recorder, micro)?;
    }
    Ok(())
}

fn detected<T: Scalar>(
    gpu: &Gpu,
    effort: Effort,
    recorder: &mut Recorder,
    micro: (usize, usize),
) -> Result<()> {
    let context = Context::cuda(0).map_err(text)?;
    let stream = stream(gpu);
    for empty in [90, 0] {
        let (dense, full) = sample::<T>(micro, empty)?;
        let matrix = context.upload_dense(&dense).map_err(text)?;
        for determinism in [Determinism::Strict, Determinism::Relaxed] {
            let options = DetectOptions {
                determinism,
                ..DetectOptions::default()
            };
            let detector = Detector::<T>::new(&context, [EXTENT; 2], micro, options);
            let detector = detector.map_err(text)?;
            let mut index = detector.index().map_err(text)?;
            let times = measure(gpu, effort, &mut || {
                detector.run(&matrix, &mut index, &stream).map_err(text)
            })?;
            let found: u32 = index.counts().map_err(text)?.iter().sum();
            let right = found as usize == full;
            let bytes = EXTENT * EXTENT * size_of::<T>();
            recorder.add(Row {
                op: "detect".into(),
                workload: format!("detect-{EXTENT}-{}x{}", micro.0, micro.1),
                m: EXTENT,
                k: EXTENT,
                nnz: full * micro.0 * micro.1,
                dtype: T::DTYPE.name().into(),
                engine: "einsparse".into(),
                variant: detector.variant().into(),
                ms: if right { times.cold } else { f64::NAN },
                ms_warm: Some(times.warm),
                gbps: Some(bytes as f64 / times.cold / 1e6),
                note: format!(
                    "{}{empty} % empty, {}",
                    if right { "" } else { "WRONG: " },
                    match determinism {
                        Determinism::Strict => "lists in order",
                        Determinism::Relaxed => "lists in any order",
                    }
                ),
                ..Row::default()
            })?;
        }
    }
    Ok(())
}

/// Products, detection inside.
pub fn matmul(gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
    multiplied::<f16>(gpu, effort, recorder, Dtype::F16)?;
    multiplied::<bf16>(gpu, effort, recorder, Dtype::Bf16)
}

fn multiplied<T: Scalar>(
    gpu: &Gpu,
    effort: Effort,
    recorder: &mut Recorder,
    dtype: Dtype,
) -> Result<()> {
    let context = Context::cuda(0).map_err(text)?;
    let b = uniform::<T>()?;
    let b_there = context.upload_dense(&b).map_err(text)?;
    for height in [128, 64, 32] {
        for empty in EMPTY {
            let (a, full) = sample::<T>((height, 1), empty)?;
            let a_there = context.upload_dense(&a).map_err(text)?;
            let case = Case {
                a,
                b: &b,
                a_there,
                b_there: &b_there,
                height,
                empty,
                entries: full * height,
            };
            for determinism in [Determinism::Strict, Determinism::Relaxed] {
                case.ours(gpu, effort, recorder, &context, determinism)?;
            }
            case.dense(gpu, effort, recorder, dtype)?;
        }
    }
    Ok(())
}

struct Case<'a, T> {
    a: Dense<T>,
    b: &'a Dense<T>,
    a_there: Tensor<T>,
    b_there: &'a Tensor<T>,
    height: usize,
    empty: u32,
    entries: usize,
}

impl<T: Scalar> Case<'_, T> {
    fn row(&self, times: Times) -> Row {
        let flops = 2.0 * (self.entries * EXTENT) as f64;
        Row {
            op: "pit_matmul".into(),
            workload: format!("micro{}x1-e{}", self.height, f64::from(self.empty) / 100.0),
            m: EXTENT,
            k: EXTENT,
            n: EXTENT,
            nnz: self.entries,
            dtype: T::DTYPE.name().into(),
            ms: times.cold,
            ms_warm: Some(times.warm),
            gflops: Some(flops / times.cold / 1e6),
            zeros: "dense".into(),
            ..Row::default()
        }
    }

    fn ours(
        &self,
        gpu: &Gpu,
        effort: Effort,
        recorder: &mut Recorder,
        context: &Context,
        determinism: Determinism,
    ) -> Result<()> {
        let options = MatmulOptions {
            height: self.height,
            determinism,
            ..MatmulOptions::default()
        };
        let mut product = DynamicMatmul::<T>::new(context, [EXTENT; 3], options).map_err(text)?;
        let mut c = context.zeros::<T>(&[EXTENT; 2]).map_err(text)?;
        let stream = stream(gpu);
        let times = measure(gpu, effort, &mut || {
            let out = product.run(&self.a_there, self.b_there, &mut c, &stream);
            out.map_err(text)
        })?;
        let error = self.error(&c)?;
        let all = (&self.a_there, self.b_there, &mut c);
        let [detection, alone] = by_themselves(gpu, effort, &mut product, all)?;
        let row = self.row(times);
        recorder.add(Row {
            engine: "einsparse".into(),
            variant: product.variants()[1].into(),
            ms: if error <= 1.0 { row.ms } else { f64::NAN },
            note: format!(
                "{}{}detection {:.1} us and product {:.1} us by themselves; err {error:.2} of the bound",
                if error <= 1.0 { "" } else { "WRONG: " },
                match determinism {
                    Determinism::Strict => "",
                    Determinism::Relaxed => "sums in any order; ",
                },
                detection,
                alone
            ),
            ..row
        })
    }

    /// The worst error of some rows, in multiples of its bound.
    fn error(&self, c: &Tensor<T>) -> Result<f64> {
        let rows = (0..CHECKED).map(|i| i * (EXTENT / CHECKED) + i * 7);
        let a = |i: usize, k: usize| self.a.values()[i * EXTENT + k];
        worst_error(a, self.b, c, rows)
    }

    /// The whole product by cuBLAS, on the same operands.
    fn dense(
        &self,
        gpu: &Gpu,
        effort: Effort,
        recorder: &mut Recorder,
        dtype: Dtype,
    ) -> Result<()> {
        let Ok(cublas) = CuBlas::open(gpu, false) else {
            return Ok(());
        };
        let (Some(a), Some(b)) = (self.a_there.address(), self.b_there.address()) else {
            return Err("the operands are not on the GPU".into());
        };
        let c = Buffer::new(EXTENT * EXTENT * size_of::<T>())?;
        let times = measure(gpu, effort, &mut || {
            cublas.gemm(dtype, [EXTENT; 3], [a, b, c.ptr])
        })?;
        recorder.add(Row {
            engine: "cublas".into(),
            variant: "dense product".into(),
            ..self.row(times)
        })
    }
}

/// The worst error of these rows of `C = A B`, in multiples of its bound.
pub fn worst_error<T: Scalar>(
    a: impl Fn(usize, usize) -> T,
    b: &Dense<T>,
    c: &Tensor<T>,
    rows: impl Iterator<Item = usize>,
) -> Result<f64> {
    let c = c.to_dense().map_err(text)?;
    let (depth, n) = (b.shape()[0], b.shape()[1]);
    let unit = if T::NAME == "bf16" { -8 } else { -11 };
    let (unit, sum) = (f64::powi(2.0, unit), f64::powi(2.0, -24));
    let mut worst: f64 = 0.0;
    for i in rows {
        let (mut wanted, mut size) = (vec![0.0; n], vec![0.0; n]);
        for k in 0..depth {
            let x = a(i, k).to_f64();
            if x == 0.0 {
                continue;
            }
            let line = &b.values()[k * n..(k + 1) * n];
            for (j, y) in line.iter().enumerate() {
                wanted[j] += x * y.to_f64();
                size[j] += (x * y.to_f64()).abs();
            }
        }
        for (j, found) in c.values()[i * n..(i + 1) * n].iter().enumerate() {
            let bound = unit * wanted[j].abs() + 4.0 * sum * 64.0 * size[j];
            let error = (found.to_f64() - wanted[j]).abs();
            let share = if error == 0.0 { 0.0 } else { error / bound };
            worst = if share.is_nan() {
                f64::INFINITY
            } else {
                worst.max(share)
            };
        }
    }
    Ok(worst)
}
