//! The second product of a feed-forward layer with ReLU, 20480 -> 5120 (a model of 13 billion parameters), of which most rows of the
//! weights meet nothing: 95 % for one token, 90 % for 32 and for 512. Detection inside the time, dense cuBLAS beside it.
//!
//! `nnz` are the elements of the columns that hold something; rates count these alone.

use crate::device::{Buffer, Gpu, Result};
use crate::families::gather_gemm::pit_matmul::{by_themselves, worst_error};
use crate::peers::cublas::CuBlas;
use crate::problems::{Dtype, SEED};
use crate::record::{Recorder, Row};
use crate::timing::{Effort, Times, measure};
use einsparse::dynamic::{DynamicMatmul, MatmulOptions};
use einsparse::formats::{Dense, bf16, f16};
use einsparse::{Context, Scalar, Stream, Tensor};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::fmt::Display;

/// The name that `--op` knows.
pub const OP: &str = "ffn";
/// Hidden activations and outputs.
const HIDDEN: usize = 20_480;
const OUTPUTS: usize = 5120;
/// Tokens, and rows of the weights in use, in percent.
const CASES: [(usize, usize); 3] = [(1, 5), (32, 10), (512, 10)];
/// So many rows of a product are checked at the most.
const CHECKED: usize = 4;

fn text(e: impl Display) -> String {
    e.to_string()
}

fn stream(gpu: &Gpu) -> Stream {
    // SAFETY: the bench's stream belongs to the primary context and outlives every case.
    unsafe { Stream::from_raw(gpu.stream.cast()) }
}

/// Values of mean 0 and variance 1, of which there are few thousand different ones: millions are wanted.
fn values<T: Scalar>(count: usize, rng: &mut StdRng) -> Vec<T> {
    let pool: Vec<T> = (0..4096)
        .map(|_| T::from_f64(rng.random_range(-1.73..1.73)))
        .collect();
    let mut state = rng.random::<u64>() | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        pool[(state >> 20) as usize % 4096]
    };
    (0..count).map(|_| next()).collect()
}

/// Activations after a ReLU: exactly so many columns have an element above zero, and half of their elements are.
fn hidden<T: Scalar>(tokens: usize, percent: usize, rng: &mut StdRng) -> Result<Dense<T>> {
    let mut columns: Vec<usize> = (0..HIDDEN).collect();
    for i in 0..HIDDEN {
        let other = rng.random_range(i..HIDDEN);
        columns.swap(i, other);
    }
    let mut all = vec![T::ZERO; tokens * HIDDEN];
    for &column in &columns[..HIDDEN * percent / 100] {
        let always = rng.random_range(0..tokens);
        for row in 0..tokens {
            if row == always || rng.random() {
                all[row * HIDDEN + column] = T::from_f64(rng.random_range(0.01..2.0));
            }
        }
    }
    Dense::new([tokens, HIDDEN], all).map_err(text)
}

/// All cases.
pub fn run(gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
    products::<f16>(gpu, effort, recorder, Dtype::F16)?;
    products::<bf16>(gpu, effort, recorder, Dtype::Bf16)
}

fn products<T: Scalar>(
    gpu: &Gpu,
    effort: Effort,
    recorder: &mut Recorder,
    dtype: Dtype,
) -> Result<()> {
    let context = Context::cuda(0).map_err(text)?;
    let mut rng = StdRng::seed_from_u64(SEED + 6);
    let w = Dense::new([HIDDEN, OUTPUTS], values(HIDDEN * OUTPUTS, &mut rng)).map_err(text)?;
    let w_there = context.upload_dense(&w).map_err(text)?;
    for (tokens, percent) in CASES {
        let a = hidden::<T>(tokens, percent, &mut rng)?;
        let case = Case {
            a_there: context.upload_dense(&a).map_err(text)?,
            a,
            w: &w,
            w_there: &w_there,
            tokens,
            percent,
        };
        case.ours(gpu, effort, recorder, &context)?;
        case.dense(gpu, effort, recorder, dtype)?;
    }
    Ok(())
}

struct Case<'a, T> {
    a: Dense<T>,
    w: &'a Dense<T>,
    a_there: Tensor<T>,
    w_there: &'a Tensor<T>,
    tokens: usize,
    percent: usize,
}

impl<T: Scalar> Case<'_, T> {
    fn extents(&self) -> [usize; 3] {
        [self.tokens, HIDDEN, OUTPUTS]
    }

    fn row(&self, times: Times) -> Row {
        let [m, k, n] = self.extents();
        let used = k * self.percent / 100;
        // What has to move: A, the rows of the weights in use, and C.
        let bytes = (m * k + used * n + m * n) * size_of::<T>();
        Row {
            op: OP.into(),
            workload: format!("ffn-second-m{m}-e{}", 1.0 - self.percent as f64 / 100.0),
            m,
            k,
            n,
            nnz: m * used,
            dtype: T::DTYPE.name().into(),
            ms: times.cold,
            ms_warm: Some(times.warm),
            gflops: Some(2.0 * (m * used * n) as f64 / times.cold / 1e6),
            gbps: Some(bytes as f64 / times.cold / 1e6),
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
    ) -> Result<()> {
        let options = MatmulOptions::default();
        let mut product =
            DynamicMatmul::<T>::new(context, self.extents(), options).map_err(text)?;
        let mut c = context.zeros(&[self.tokens, OUTPUTS]).map_err(text)?;
        let stream = stream(gpu);
        let times = measure(gpu, effort, &mut || {
            let out = product.run(&self.a_there, self.w_there, &mut c, &stream);
            out.map_err(text)
        })?;
        let error = self.error(&c)?;
        // The halves of the way with lists; where one kernel does both, what that saves.
        let all = (&self.a_there, self.w_there, &mut c);
        let [detection, alone] = by_themselves(gpu, effort, &mut product, all)?;
        let row = self.row(times);
        let right = error <= 1.0;
        recorder.add(Row {
            engine: "einsparse".into(),
            variant: product.variants()[1].into(),
            ms: if right { row.ms } else { f64::NAN },
            note: format!(
                "{}with lists of micro-tiles detection {:.1} us and product {:.1} us by themselves; err {error:.2} of the bound",
                if right { "" } else { "WRONG: " },
                detection,
                alone
            ),
            ..row
        })
    }

    /// The worst error of some rows, in multiples of its bound.
    fn error(&self, c: &Tensor<T>) -> Result<f64> {
        let checked = self.tokens.min(CHECKED);
        let apart = self.tokens / checked;
        let rows = (0..checked).map(|i| i * apart + i % apart);
        let a = |i: usize, k: usize| self.a.values()[i * HIDDEN + k];
        worst_error(a, self.w, c, rows)
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
        let (Some(a), Some(w)) = (self.a_there.address(), self.w_there.address()) else {
            return Err("the operands are not on the GPU".into());
        };
        let c = Buffer::new(self.tokens * OUTPUTS * size_of::<T>())?;
        let times = measure(gpu, effort, &mut || {
            cublas.gemm(dtype, self.extents(), [a, w, c.ptr])
        })?;
        recorder.add(Row {
            engine: "cublas".into(),
            variant: "dense product".into(),
            ..self.row(times)
        })
    }
}
