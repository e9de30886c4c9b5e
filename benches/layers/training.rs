//! A step of training with block masks that are other ones at each step: `Y = W X` of 4096 each way, half, nine tenths or 95 % of W's blocks of
//! 64 x 64 masked, and the gradients of X and of W, of the latter where W has blocks; beside cuBLAS on the whole of all three. Each a
//! captured CUDA graph. W is the left operand: its columns of 64 rows are found and packed for Y, its pieces of 64 elements of a row for
//! both gradients, at each step anew. With `-masking` the mask is also laid over the weights inside the time, as a product of
//! elements.
//!
//! `nnz` are the elements of blocks that are not masked; rates count three products of these.

use crate::device::{Buffer, Gpu, Result};
use crate::families::gather_gemm::pit_matmul::{EXTENT, stream, text, worst_error};
use crate::layers::encoder::in_a_graph;
use crate::peers::cublas::CuBlas;
use crate::problems::{Dtype, SEED};
use crate::record::{Recorder, Row};
use crate::timing::{Effort, Times, measure};
use einsparse::dynamic::{
    DynamicMatmul, DynamicMatmulGradient, Expected, GradientOfA, MatmulGradientOptions,
    MatmulOptions,
};
use einsparse::formats::{Dense, bf16, f16};
use einsparse::{Context, Options, Plan, Scalar, Stream, Tensor};
use rand::{Rng, SeedableRng, rngs::StdRng};
use rayon::prelude::*;

/// The name that `--op` knows.
pub const OP: &str = "training";
/// Shares of blocks that are masked, in percent.
const EMPTY: [u32; 3] = [50, 90, 95];
/// Rows and columns of a block.
const BLOCK: usize = 64;
/// Blocks of a row.
const ACROSS: usize = EXTENT / BLOCK;
/// So many rows of each output are checked.
const CHECKED: usize = 4;

/// Every share, f16 and bf16.
pub fn run(gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
    of_type::<f16>(gpu, effort, recorder, Dtype::F16)?;
    of_type::<bf16>(gpu, effort, recorder, Dtype::Bf16)
}

fn random<T: Scalar>(seed: u64) -> Result<Dense<T>> {
    let mut rng = StdRng::seed_from_u64(SEED + seed);
    let values = (0..EXTENT * EXTENT).map(|_| T::from_f64(rng.random_range(-1.73..1.73)));
    Dense::new([EXTENT, EXTENT], values.collect()).map_err(text)
}

fn of_type<T: Scalar>(
    gpu: &Gpu,
    effort: Effort,
    recorder: &mut Recorder,
    dtype: Dtype,
) -> Result<()> {
    let context = Context::cuda(0).map_err(text)?;
    let [weights, x, dy] = [random::<T>(1)?, random::<T>(2)?, random::<T>(3)?];
    let there = [&weights, &x, &dy].map(|dense| context.upload_dense(dense).map_err(text));
    let [weights_there, x_there, dy_there] = there;
    let there = [weights_there?, x_there?, dy_there?];
    for empty in EMPTY {
        let mut rng = StdRng::seed_from_u64(SEED + u64::from(empty));
        let blocks: Vec<bool> = (0..ACROSS * ACROSS)
            .map(|_| rng.random_range(0..100) >= empty)
            .collect();
        let case = Case {
            context: &context,
            stream: stream(gpu),
            dense: [&weights, &x, &dy],
            there: &there,
            blocks,
            empty,
        };
        let step = Step::new(&case)?;
        case.ours(gpu, effort, recorder, step)?;
        case.cublas(gpu, effort, recorder, dtype)?;
    }
    Ok(())
}

struct Case<'a, T: Scalar> {
    context: &'a Context,
    stream: Stream,
    /// Weights, X and the gradient of Y.
    dense: [&'a Dense<T>; 3],
    there: &'a [Tensor<T>; 3],
    /// Which blocks of W are not masked.
    blocks: Vec<bool>,
    empty: u32,
}

/// What a step runs, and what it leaves.
struct Step<T: Scalar> {
    masking: Plan<T>,
    forward: DynamicMatmul<T>,
    backward: DynamicMatmulGradient<T>,
    mask: Tensor<T>,
    w: Tensor<T>,
    y: Tensor<T>,
    dw: Tensor<T>,
    dx: Tensor<T>,
}

impl<T: Scalar> Step<T> {
    fn new(case: &Case<'_, T>) -> Result<Self> {
        let context = case.context;
        let mask = |i: &[usize]| match case.kept(i[0], i[1]) {
            true => T::ONE,
            false => T::ZERO,
        };
        let mask = Dense::from_fn(vec![EXTENT; 2], mask).map_err(text)?;
        let mask = context.upload_dense(&mask).map_err(text)?;
        let operands = [("V", (&case.there[0]).into()), ("Z", (&mask).into())];
        let masking = context.plan("W[o,i] = V[o,i] * Z[o,i]", &operands, &Options::default());
        let options = MatmulOptions {
            height: BLOCK,
            ..MatmulOptions::default()
        };
        let forward = DynamicMatmul::new(context, [EXTENT; 3], options);
        let options = MatmulGradientOptions {
            of_a: GradientOfA::MicroTiles,
            expected: Expected::MicroTiles(1.0 - f64::from(case.empty) / 100.0),
            ..MatmulGradientOptions::default()
        };
        let backward = DynamicMatmulGradient::with(context, [EXTENT; 3], options);
        let zeros = || context.zeros::<T>(&[EXTENT; 2]).map_err(text);
        Ok(Step {
            masking: masking.map_err(text)?,
            forward: forward.map_err(text)?,
            backward: backward.map_err(text)?,
            mask,
            w: zeros()?,
            y: zeros()?,
            dw: zeros()?,
            dx: zeros()?,
        })
    }

    fn masking(&mut self, case: &Case<'_, T>) -> Result<()> {
        let operands = [("V", (&case.there[0]).into()), ("Z", (&self.mask).into())];
        let run = self.masking.run(&operands, &mut self.w, &case.stream);
        run.map_err(text)
    }

    fn forward(&mut self, case: &Case<'_, T>) -> Result<()> {
        let x = &case.there[1];
        let run = self.forward.run(&self.w, x, &mut self.y, &case.stream);
        run.map_err(text)
    }

    fn backward(&mut self, case: &Case<'_, T>) -> Result<()> {
        let operands = [&self.w, &case.there[1], &case.there[2]];
        let outputs = [&mut self.dw, &mut self.dx];
        let run = self.backward.run(operands, outputs, &case.stream);
        run.map_err(text)
    }
}

impl<T: Scalar> Case<'_, T> {
    fn kept(&self, row: usize, column: usize) -> bool {
        self.blocks[row / BLOCK * ACROSS + column / BLOCK]
    }

    /// An element of W.
    fn weight(&self, row: usize, column: usize) -> T {
        match self.kept(row, column) {
            true => self.dense[0].values()[row * EXTENT + column],
            false => T::ZERO,
        }
    }

    fn row(&self, times: Times) -> Row {
        let full = self.blocks.iter().filter(|kept| **kept).count() * BLOCK * BLOCK;
        Row {
            op: OP.into(),
            workload: format!("block{BLOCK}x{BLOCK}-e{}", f64::from(self.empty) / 100.0),
            m: EXTENT,
            k: EXTENT,
            n: EXTENT,
            nnz: full,
            dtype: T::DTYPE.name().into(),
            ms: times.cold,
            ms_warm: Some(times.warm),
            gflops: Some(6.0 * (full * EXTENT) as f64 / times.cold / 1e6),
            zeros: "dense".into(),
            ..Row::default()
        }
    }

    fn ours(
        &self,
        gpu: &Gpu,
        effort: Effort,
        recorder: &mut Recorder,
        mut step: Step<T>,
    ) -> Result<()> {
        let with = in_a_graph(gpu, effort, &self.stream, &mut || {
            step.masking(self)?;
            step.forward(self)?;
            step.backward(self)
        })?;
        // On the W that is left.
        let without = in_a_graph(gpu, effort, &self.stream, &mut || {
            step.forward(self)?;
            step.backward(self)
        })?;
        let error = self.error(&step)?;
        let right = error <= 1.0;
        let forward = measure(gpu, effort, &mut || step.forward(self))?.cold * 1e3;
        let backward = measure(gpu, effort, &mut || step.backward(self))?.cold * 1e3;
        let masking = measure(gpu, effort, &mut || step.masking(self))?.cold * 1e3;
        let forward_name = step.forward.variants()[1];
        for (suffix, times) in [("", without), ("-masking", with)] {
            let row = self.row(times);
            recorder.add(Row {
                workload: format!("{}{suffix}", row.workload),
                engine: "einsparse".into(),
                variant: format!("{forward_name} + {}", step.backward.variants().join(" + ")),
                ms: if right { times.cold } else { f64::NAN },
                note: format!(
                    "{}a CUDA graph; forward {forward:.1} us, gradients {backward:.1} us, mask {masking:.1} us by themselves; \
                     err {error:.2} of the bound",
                    if right { "" } else { "WRONG: " },
                ),
                ..row
            })?;
        }
        Ok(())
    }

    /// The worst error of some rows of all outputs, in multiples of its bound.
    fn error(&self, step: &Step<T>) -> Result<f64> {
        let rows = || (0..CHECKED).map(|i| i * (EXTENT / CHECKED) + i * 7);
        let [_, x, dy] = self.dense;
        let of_y = worst_error(|i, k| self.weight(i, k), x, &step.y, rows())?;
        let of_x = worst_error(|i, k| self.weight(k, i), dy, &step.dx, rows())?;
        Ok(of_y.max(of_x).max(self.weight_error(&step.dw, rows())?))
    }

    /// The same of the gradient of W, which is zero where W is masked.
    fn weight_error(&self, dw: &Tensor<T>, rows: impl Iterator<Item = usize>) -> Result<f64> {
        let dw = dw.to_dense().map_err(text)?;
        let [_, x, dy] = self.dense;
        let unit = if T::NAME == "bf16" { -8 } else { -11 };
        let (unit, sum) = (f64::powi(2.0, unit), f64::powi(2.0, -24));
        let line = |dense: &'_ Dense<T>, row: usize| -> Vec<f64> {
            let line = &dense.values()[row * EXTENT..(row + 1) * EXTENT];
            line.iter().map(|v| v.to_f64()).collect()
        };
        let share = |row: usize, of_y: &[f64], column: usize| {
            let found = dw.values()[row * EXTENT + column].to_f64();
            let (mut wanted, mut size) = (0.0, 0.0);
            if self.kept(row, column) {
                for (x, y) in line(x, column).iter().zip(of_y) {
                    wanted += x * y;
                    size += (x * y).abs();
                }
            }
            let error = (found - wanted).abs();
            let bound = unit * wanted.abs() + 4.0 * sum * 64.0 * size;
            match error {
                0.0 => 0.0,
                error if error.is_nan() => f64::INFINITY,
                error => error / bound,
            }
        };
        let worst = rows.map(|row| {
            let of_y = line(dy, row);
            let shares = (0..EXTENT).into_par_iter();
            shares
                .map(|column| share(row, &of_y, column))
                .reduce(|| 0.0, f64::max)
        });
        Ok(worst.fold(0.0, f64::max))
    }

    /// All three products by cuBLAS.
    fn cublas(
        &self,
        gpu: &Gpu,
        effort: Effort,
        recorder: &mut Recorder,
        dtype: Dtype,
    ) -> Result<()> {
        let Ok(cublas) = CuBlas::open(gpu, false) else {
            return Ok(());
        };
        let [Some(w), Some(x), Some(dy)] = self.there.each_ref().map(Tensor::address) else {
            return Err("the operands are not on the GPU".into());
        };
        let room = || Buffer::new(EXTENT * EXTENT * size_of::<T>());
        let [y, dx, dw] = [room()?, room()?, room()?];
        let times = in_a_graph(gpu, effort, &self.stream, &mut || {
            cublas.gemm(dtype, [EXTENT; 3], [w, x, y.ptr])?;
            cublas.gemm_turned(dtype, [EXTENT; 3], [w, dy, dx.ptr])?;
            cublas.gemm_by_rows(dtype, [EXTENT; 3], [dy, x, dw.ptr])
        })?;
        recorder.add(Row {
            engine: "cublas".into(),
            variant: "three dense products".into(),
            note: "a CUDA graph; no mask inside".into(),
            ..self.row(times)
        })
    }
}
