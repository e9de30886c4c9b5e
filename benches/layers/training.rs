//! Training step with block masks that change at each step: `Y = W X`, each extent 4096, and the gradients of X and of
//! W. Half, nine tenths or 95 % of W's blocks of 64 x 64 are masked. The gradient of W is computed only where W has
//! blocks. The baseline is cuBLAS on all three whole products. Each is a captured CUDA graph. W is the left operand. At
//! each step, its columns of 64 rows are detected and packed for Y, and its pieces of 64 elements of a row for both
//! gradients. With `-masking`, the time also includes the elementwise product of mask and weights.
//!
//! `nnz` is the elements of unmasked blocks; rates count three products of these.

use crate::families::gather_gemm::micro::worst_error;
use crate::families::gather_gemm::micro::{EXTENT, checked, dynamic, row, share, skipping};
use crate::prelude::*;
use einsparse::dynamic::{DynamicMatmulGradient, GradientOfA, SparsityHint};
use einsparse::{Determinism, Plan};
use rayon::prelude::*;

pub const OP: &str = "training";
/// Shares of masked blocks, in percent.
const EMPTY: [u32; 3] = [50, 90, 95];
/// Rows and columns of a block.
const BLOCK: usize = 64;
/// Blocks in a row.
const ACROSS: usize = EXTENT / BLOCK;
/// Number of checked rows of each output.
const CHECKED: usize = 4;

/// Measures every share in f16 and bf16.
pub fn run(bench: &Bench<'_>) -> Result<()> {
    of_type::<f16>(&bench.anew()?, Dtype::F16)?;
    of_type::<bf16>(&bench.anew()?, Dtype::Bf16)
}

fn random<T: Scalar>(seed: u64) -> Result<Dense<T>> {
    let mut rng = StdRng::seed_from_u64(SEED + seed);
    let values = (0..EXTENT * EXTENT).map(|_| T::from_f64(rng.random_range(-1.73..1.73)));
    Ok(Dense::new([EXTENT, EXTENT], values.collect())?)
}

fn of_type<T: Scalar>(bench: &Bench<'_>, dtype: Dtype) -> Result<()> {
    let [weights, x, dy] = [random::<T>(1)?, random::<T>(2)?, random::<T>(3)?];
    let upload = |dense| bench.upload(dense);
    let there = [upload(&weights)?, upload(&x)?, upload(&dy)?];
    for empty in EMPTY {
        let mut rng = StdRng::seed_from_u64(SEED + u64::from(empty));
        let blocks: Vec<bool> =
            (0..ACROSS * ACROSS).map(|_| rng.random_range(0..100) >= empty).collect();
        let case = Case { bench, dense: [&weights, &x, &dy], there: &there, blocks, empty };
        case.ours(Step::new(&case)?)?;
        case.cublas(dtype)?;
    }
    Ok(())
}

struct Case<'a, T: Scalar> {
    bench: &'a Bench<'a>,
    /// Weights, X and the gradient of Y.
    dense: [&'a Dense<T>; 3],
    there: &'a [Tensor<T>; 3],
    /// Whether each block of W is unmasked.
    blocks: Vec<bool>,
    empty: u32,
}

fn kept(blocks: &[bool], row: usize, column: usize) -> bool {
    blocks[row / BLOCK * ACROSS + column / BLOCK]
}

/// Operators and outputs of a step.
struct Step<T: Scalar> {
    masking: Plan<T>,
    forward: Plan<T>,
    backward: DynamicMatmulGradient<T>,
    mask: Tensor<T>,
    w: Tensor<T>,
    y: Tensor<T>,
    dw: Tensor<T>,
    dx: Tensor<T>,
}

impl<T: Scalar> Step<T> {
    fn new(case: &Case<'_, T>) -> Result<Self> {
        let (bench, blocks) = (case.bench, &case.blocks);
        let mask = |i: &[usize]| match kept(blocks, i[0], i[1]) {
            true => T::ONE,
            false => T::ZERO,
        };
        let mask = bench.upload(&Dense::from_fn(vec![EXTENT; 2], mask)?)?;
        let operands = [("V", (&case.there[0]).into()), ("Z", (&mask).into())];
        let expression = "W[o,i] = V[o,i] * Z[o,i]";
        let (masking, _) = bench.plan(expression, &operands, &Options::default())?;
        let operands = [("W", dynamic(&mask)), ("X", (&case.there[1]).into())];
        let micro = (&*format!("{BLOCK}x1"), Options::default());
        let forward = skipping(bench, "Y[o,t] = W[o,i] * X[i,t]", &operands, micro)?;
        let backward = DynamicMatmulGradient::new(
            &bench.context,
            [EXTENT; 3],
            GradientOfA::MicroTiles,
            SparsityHint::MicroTiles(1.0 - f64::from(case.empty) / 100.0),
            Determinism::Strict,
        )?;
        let zeros = || bench.zeros::<T>(&[EXTENT; 2]);
        Ok(Step {
            masking,
            forward,
            backward,
            mask,
            w: zeros()?,
            y: zeros()?,
            dw: zeros()?,
            dx: zeros()?,
        })
    }

    fn masking(&mut self, case: &Case<'_, T>) -> Result<()> {
        let operands = [("V", (&case.there[0]).into()), ("Z", (&self.mask).into())];
        let stream = &case.bench.stream;
        Ok(self.masking.run(&operands, &mut self.w, stream)?)
    }

    fn forward(&mut self, case: &Case<'_, T>) -> Result<()> {
        let (x, stream) = (&case.there[1], &case.bench.stream);
        let operands = [("W", (&self.w).into()), ("X", x.into())];
        Ok(self.forward.run(&operands, &mut self.y, stream)?)
    }

    fn backward(&mut self, case: &Case<'_, T>) -> Result<()> {
        let operands = [&self.w, &case.there[1], &case.there[2]];
        let (outputs, stream) = ([&mut self.dw, &mut self.dx], &case.bench.stream);
        Ok(self.backward.backward(operands, outputs, stream)?)
    }
}

impl<T: Scalar> Case<'_, T> {
    fn kept(&self, row: usize, column: usize) -> bool {
        kept(&self.blocks, row, column)
    }

    /// An element of W.
    fn weight(&self, row: usize, column: usize) -> T {
        match self.kept(row, column) {
            true => self.dense[0].values()[row * EXTENT + column],
            false => T::ZERO,
        }
    }

    fn row(&self, suffix: &str, times: &Times) -> Row {
        let full = self.blocks.iter().filter(|kept| **kept).count() * BLOCK * BLOCK;
        let share = f64::from(self.empty) / 100.0;
        let workload = format!("block{BLOCK}x{BLOCK}-e{share}{suffix}");
        row::<T>(OP, workload, full, times).flops(6.0 * (full * EXTENT) as f64)
    }

    fn ours(&self, mut step: Step<T>) -> Result<()> {
        let bench = self.bench;
        let with = bench.in_a_graph(|| {
            step.masking(self)?;
            step.forward(self)?;
            step.backward(self)
        })?;
        // Without masking, on the W that the last run masked.
        let without = bench.in_a_graph(|| {
            step.forward(self)?;
            step.backward(self)
        })?;
        let error = self.error(&step)?;
        let forward = bench.measure(|| step.forward(self))?.cold * 1e3;
        let backward = bench.measure(|| step.backward(self))?.cold * 1e3;
        let masking = bench.measure(|| step.masking(self))?.cold * 1e3;
        let (first, others) = (step.forward.variant(), step.backward.variants());
        for (suffix, times) in [("", without), ("-masking", with)] {
            let row = self.row(suffix, &times);
            let note = format!(
                "a CUDA graph; forward {forward:.1} us, gradients {backward:.1} us, mask {masking:.1} us by \
                 themselves; \
                 err {error:.2} of the bound"
            );
            let row = row.ours(format!("{first} + {}", others.join(" + ")));
            bench.add(row.judged(error <= 1.0, note))?;
        }
        Ok(())
    }

    /// Max error of some rows of all outputs, in multiples of its bound.
    fn error(&self, step: &Step<T>) -> Result<f64> {
        let rows = || checked(CHECKED);
        let [_, x, dy] = self.dense;
        let of_y = worst_error(|i, k| self.weight(i, k), x, &step.y, rows())?;
        let of_x = worst_error(|i, k| self.weight(k, i), dy, &step.dx, rows())?;
        Ok(of_y.max(of_x).max(self.weight_error(&step.dw)?))
    }

    /// Max error of the gradient of W, which is zero where W is masked.
    fn weight_error(&self, dw: &Tensor<T>) -> Result<f64> {
        let dw = dw.to_dense()?;
        let ([_, x, dy], blocks) = (self.dense, &self.blocks);
        let line = |dense: &'_ Dense<T>, row: usize| -> Vec<f64> {
            let line = &dense.values()[row * EXTENT..(row + 1) * EXTENT];
            line.iter().map(|v| v.to_f64()).collect()
        };
        let error = |row: usize, of_y: &[f64], column: usize| {
            let x = match kept(blocks, row, column) {
                true => line(x, column),
                false => Vec::new(),
            };
            let sum: Sum = x.iter().zip(of_y).map(|(x, y)| x * y).collect();
            let found = dw.values()[row * EXTENT + column].to_f64();
            worse(0.0, share::<T>(found, &sum))
        };
        let worst = checked(CHECKED).map(|row| {
            let of_y = line(dy, row);
            let errors = (0..EXTENT).into_par_iter();
            let errors = errors.map(|column| error(row, &of_y, column));
            errors.reduce(|| 0.0, f64::max)
        });
        Ok(worst.fold(0.0, f64::max))
    }

    /// Times all three products by cuBLAS.
    fn cublas(&self, dtype: Dtype) -> Result<()> {
        let Ok(cublas) = CuBlas::open(self.bench.gpu, false) else {
            return Ok(());
        };
        let [w, x, dy] = self.there.each_ref().map(at);
        let (w, x, dy) = (w?, x?, dy?);
        let room = || Buffer::new(EXTENT * EXTENT * size_of::<T>());
        let [y, dx, dw] = [room()?, room()?, room()?];
        let times = self.bench.in_a_graph(|| {
            cublas.gemm(dtype, [EXTENT; 3], [w, x, y.ptr])?;
            cublas.gemm_turned(dtype, [EXTENT; 3], [w, dy, dx.ptr])?;
            cublas.gemm_by_rows(dtype, [EXTENT; 3], [dy, x, dw.ptr])
        })?;
        let row = self.row("", &times).by("cublas", "three dense products");
        (self.bench).add(row.note("a CUDA graph; no mask inside"))
    }
}
