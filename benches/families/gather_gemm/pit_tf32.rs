//! Products of f32 as TF32 with an A of which half, nine tenths or 95 % of the micro-tiles are empty, detection inside the time, beside
//! dense ones: cuBLAS in TF32, and the dense kernel that a plan takes.

use crate::device::{Buffer, Gpu, Result};
use crate::families::gather_gemm::pit_matmul::{
    EXTENT, by_themselves, sample, stream, text, worst_error,
};
use crate::peers::cublas::CuBlas;
use crate::problems::{Dtype, SEED};
use crate::record::{Recorder, Row};
use crate::timing::{Effort, Times, measure};
use einsparse::dynamic::{DynamicMatmul, MatmulOptions};
use einsparse::formats::Dense;
use einsparse::{Context, Options, Precision, Tensor};
use rand::{Rng, SeedableRng, rngs::StdRng};

pub const OP: &str = "pit_tf32";
/// Rows of a micro-tile, and shares of them that are empty, in percent.
const HEIGHTS: [usize; 2] = [128, 64];
const EMPTY: [u32; 4] = [0, 50, 90, 95];
/// So many rows of C are checked.
const CHECKED: usize = 16;

/// Rounded to TF32, to nearest, ties away from zero: what the kernels multiply.
fn rounded(x: f32) -> f32 {
    f32::from_bits((x.to_bits() + 0x1000) & !0x1fff)
}

struct Case<'a> {
    a: Dense<f32>,
    /// B as it is multiplied.
    b: &'a Dense<f32>,
    a_there: Tensor<f32>,
    b_there: &'a Tensor<f32>,
    height: usize,
    empty: u32,
    entries: usize,
}

/// Every height and share.
pub fn run(gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
    let context = Context::cuda(0).map_err(text)?;
    let mut rng = StdRng::seed_from_u64(SEED + 1);
    let b = (0..EXTENT * EXTENT).map(|_| rng.random_range(-1.73f32..1.73));
    let b = Dense::new([EXTENT, EXTENT], b.collect()).map_err(text)?;
    let b_there = context.upload_dense(&b).map_err(text)?;
    let b = b.values().iter().map(|&x| rounded(x));
    let b = Dense::new([EXTENT, EXTENT], b.collect()).map_err(text)?;
    let cublas = CuBlas::open(gpu, true).ok();
    for height in HEIGHTS {
        for empty in EMPTY {
            let (a, full) = sample::<f32>((height, 1), empty)?;
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
            case.ours(gpu, effort, recorder, &context)?;
            case.dense(gpu, effort, recorder, &context)?;
            if let Some(cublas) = &cublas {
                case.cublas(gpu, effort, recorder, cublas)?;
            }
        }
    }
    Ok(())
}

impl Case<'_> {
    fn row(&self, times: Times) -> Row {
        let flops = 2.0 * (self.entries * EXTENT) as f64;
        Row {
            op: OP.into(),
            workload: format!("micro{}x1-e{}", self.height, f64::from(self.empty) / 100.0),
            m: EXTENT,
            k: EXTENT,
            n: EXTENT,
            nnz: self.entries,
            dtype: "tf32".into(),
            ms: times.cold,
            ms_warm: Some(times.warm),
            gflops: Some(flops / times.cold / 1e6),
            zeros: "dense".into(),
            ..Row::default()
        }
    }

    /// The worst error of some rows, in multiples of its bound.
    fn error(&self, c: &Tensor<f32>) -> Result<f64> {
        let rows = (0..CHECKED).map(|i| i * (EXTENT / CHECKED) + i * 7);
        let a = |i: usize, k: usize| rounded(self.a.values()[i * EXTENT + k]);
        worst_error(a, self.b, c, rows)
    }

    fn ours(
        &self,
        gpu: &Gpu,
        effort: Effort,
        recorder: &mut Recorder,
        context: &Context,
    ) -> Result<()> {
        let options = MatmulOptions {
            height: self.height,
            precision: Precision::Tf32,
            ..MatmulOptions::default()
        };
        let mut product = DynamicMatmul::<f32>::new(context, [EXTENT; 3], options).map_err(text)?;
        let mut c = context.zeros::<f32>(&[EXTENT; 2]).map_err(text)?;
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
                "{}detection {:.1} us and product {:.1} us by themselves; err {error:.2} of the bound",
                if error <= 1.0 { "" } else { "WRONG: " },
                detection,
                alone
            ),
            ..row
        })
    }

    /// The whole product by our own dense kernel.
    fn dense(
        &self,
        gpu: &Gpu,
        effort: Effort,
        recorder: &mut Recorder,
        context: &Context,
    ) -> Result<()> {
        let options = Options {
            precision: Precision::Tf32,
            ..Options::default()
        };
        let operands = [("A", (&self.a_there).into()), ("B", self.b_there.into())];
        let line = "C[m,n] = A[m,k] * B[k,n]";
        let plan = context.plan(line, &operands, &options).map_err(text)?;
        let mut c = context.zeros::<f32>(&[EXTENT; 2]).map_err(text)?;
        let stream = stream(gpu);
        let times = measure(gpu, effort, &mut || {
            plan.run(&operands, &mut c, &stream).map_err(text)
        })?;
        let error = self.error(&c)?;
        recorder.add(Row {
            engine: "einsparse".into(),
            variant: plan.variant().into(),
            ms: if error <= 1.0 { times.cold } else { f64::NAN },
            note: format!(
                "{}dense product; err {error:.2} of the bound",
                if error <= 1.0 { "" } else { "WRONG: " }
            ),
            ..self.row(times)
        })
    }

    /// The whole product by cuBLAS, on the same operands.
    fn cublas(
        &self,
        gpu: &Gpu,
        effort: Effort,
        recorder: &mut Recorder,
        cublas: &CuBlas,
    ) -> Result<()> {
        let (Some(a), Some(b)) = (self.a_there.address(), self.b_there.address()) else {
            return Err("the operands are not on the GPU".into());
        };
        let c = Buffer::new(EXTENT * EXTENT * size_of::<f32>())?;
        let times = measure(gpu, effort, &mut || {
            cublas.gemm(Dtype::Tf32, [EXTENT; 3], [a, b, c.ptr])
        })?;
        recorder.add(Row {
            engine: "cublas-tf32".into(),
            variant: "dense product".into(),
            ..self.row(times)
        })
    }
}
