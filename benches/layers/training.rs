//! Training step with block masks that change at each step: `Y = W X`, each extent 4096, and the gradients of X and of
//! W. Half, nine tenths or 95 % of W's blocks of 64 x 64 are masked. The gradient of W is computed only where W has
//! blocks. The baseline is cuBLAS on all three whole products. Each is a captured CUDA graph. W is the left operand. At
//! each step, its columns of 64 rows are detected and packed for Y, and its pieces of 64 elements of a row for both
//! gradients. With `-masking`, the time also includes the elementwise product of mask and weights.
//!
//! `nnz` is the elements of unmasked blocks; rates count three products of these.

use crate::check::product_error;
use crate::families::gather_gemm::micro::{EXTENT, checked, dynamic, row, skipping};
use crate::prelude::*;
use einsparse::dynamic::{DynamicMatmulGradient, GradientOfA, SparsityHint};
use einsparse::{Determinism, Plan};

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

fn of_type<T: Scalar>(bench: &Bench<'_>, dtype: Dtype) -> Result<()> {
    let [weights, x, dy] = [1, 2, 3].map(|seed| values::dense::<T>(&[EXTENT; 2], seed, NORMAL));
    let there = bench.uploads([&weights, &x, &dy])?;
    for empty in EMPTY {
        let mut rng = StdRng::seed_from_u64(SEED + u64::from(empty));
        let blocks: Vec<bool> =
            (0..ACROSS * ACROSS).map(|_| rng.random_range(0..100) >= empty).collect();
        let host = Host { dense: [&weights, &x, &dy].map(Dense::values), blocks };
        let case = Case { bench, dtype, host, there: &there, empty };
        case.ours(Step::new(&case)?)?;
        case.cublas()?;
    }
    Ok(())
}

struct Case<'a, T: Scalar> {
    bench: &'a Bench<'a>,
    dtype: Dtype,
    host: Host<'a, T>,
    there: &'a [Tensor<T>; 3],
    empty: u32,
}

/// Operands in host memory.
struct Host<'a, T> {
    /// Weights, X and the gradient of Y.
    dense: [&'a [T]; 3],
    /// Whether each block of W is unmasked.
    blocks: Vec<bool>,
}

impl<T: Scalar> Host<'_, T> {
    fn kept(&self, row: usize, column: usize) -> bool {
        self.blocks[row / BLOCK * ACROSS + column / BLOCK]
    }

    /// An element of W.
    fn weight(&self, row: usize, column: usize) -> T {
        match self.kept(row, column) {
            true => self.dense[0][row * EXTENT + column],
            false => T::ZERO,
        }
    }
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
        let bench = case.bench;
        let host = &case.host;
        let mask = |i: &[usize]| if host.kept(i[0], i[1]) { T::ONE } else { T::ZERO };
        let mask = bench.upload(&Dense::from_fn(vec![EXTENT; 2], mask)?)?;
        let operands = [("V", (&case.there[0]).into()), ("Z", (&mask).into())];
        let expression = "W[o,i] = V[o,i] * Z[o,i]";
        let (masking, _) = bench.plan(expression, &operands, &Options::default())?;
        let operands = [("W", dynamic(&mask)), ("X", (&case.there[1]).into())];
        let micro = (&*format!("{BLOCK}x1"), Options::default());
        let text = "Y[o,t] = W[o,i] * X[i,t]";
        let options = skipping(bench, text, &operands, micro)?;
        let (forward, _) = bench.plan(text, &operands, &options)?;
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
    fn row(&self, suffix: &str) -> Row {
        let full = self.host.blocks.iter().filter(|kept| **kept).count() * BLOCK * BLOCK;
        let share = f64::from(self.empty) / 100.0;
        let workload = format!("block{BLOCK}x{BLOCK}-e{share}{suffix}");
        row(OP, workload, full, self.dtype).flops(6.0 * (full * EXTENT) as f64)
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
            let note = format!(
                "a CUDA graph; forward {forward:.1} us, gradients {backward:.1} us, mask {masking:.1} us by themselves"
            );
            let row = self.row(suffix).ours(format!("{first} + {}", others.join(" + ")));
            bench.add(row.timed(&times).note(note).error(error))?;
        }
        Ok(())
    }

    /// Max error of some rows of all outputs. The gradient of W is zero where W is masked.
    fn error(&self, step: &Step<T>) -> Result<f64> {
        let host = &self.host;
        let [_, x, dy] = host.dense;
        let of_y = product_error(|i, k| host.weight(i, k), x, &step.y, checked(CHECKED))?;
        let of_x = product_error(|i, k| host.weight(k, i), dy, &step.dx, checked(CHECKED))?;
        let terms = |row: usize, sums: &mut [Sum]| {
            let of_y = &dy[row * EXTENT..][..EXTENT];
            for (column, sum) in sums.iter_mut().enumerate() {
                if host.kept(row, column) {
                    let pairs = x[column * EXTENT..][..EXTENT].iter().zip(of_y);
                    *sum = pairs.map(|(x, y)| x.to_f64() * y.to_f64()).collect();
                }
            }
        };
        let dw = step.dw.to_dense()?;
        let of_w = rows_error(dw.values(), EXTENT, checked(CHECKED), terms, rounding::<T>(EXTENT));
        Ok([of_y, of_x, of_w].into_iter().fold(0.0, worse))
    }

    /// Times all three products by cuBLAS.
    fn cublas(&self) -> Result<()> {
        let Some(cublas) = self.bench.cublas(false) else {
            return Ok(());
        };
        let [w, x, dy] = self.there.each_ref().map(at);
        let (w, x, dy) = (w?, x?, dy?);
        let room = || Buffer::new(EXTENT * EXTENT * size_of::<T>());
        let [y, dx, dw] = [room()?, room()?, room()?];
        let gemm = |all, order| cublas.gemm(self.dtype, [EXTENT; 3], all, order);
        let times = self.bench.in_a_graph(|| {
            gemm([w, x, y.ptr], Order::Rows)?;
            gemm([w, dy, dx.ptr], Order::Turned)?;
            gemm([dy, x, dw.ptr], Order::AlongK)
        })?;
        let row = self.row("").by("cublas", "three dense products").timed(&times);
        self.bench.add(row.note("a CUDA graph; no mask inside"))
    }
}
