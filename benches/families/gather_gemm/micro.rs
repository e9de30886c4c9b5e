//! Shared code of benches with micro-tiles: operands with a share of empty tiles, the product with dynamic detection,
//! the whole product by cuBLAS, and the check of both.

use crate::prelude::*;
use einsparse::Plan;
use einsparse::dynamic::{Dynamic, SparsityHint};

/// Rows and columns of every matrix.
pub const EXTENT: usize = 4096;
/// Shares of empty micro-tiles, in percent.
pub const EMPTY: [u32; 4] = [0, 50, 90, 95];

/// Returns a random matrix with this share of empty micro-tiles, and the number of nonempty ones.
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
    let dense = Dense::new([EXTENT, EXTENT], values)?;
    Ok((dense, full))
}

/// Other operand: uniform values of variance 1.
pub fn uniform<T: Scalar>() -> Result<Dense<T>> {
    let mut rng = StdRng::seed_from_u64(SEED + 1);
    let values = (0..EXTENT * EXTENT).map(|_| T::from_f64(rng.random_range(-1.73..1.73)));
    Ok(Dense::new([EXTENT, EXTENT], values.collect())?)
}

/// Indices of `count` checked rows.
pub fn checked(count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |i| i * (EXTENT / count) + i * 7)
}

/// Row of a square product with `entries` nonzero elements in A.
pub fn row<T: Scalar>(op: &str, workload: String, entries: usize, times: &Times) -> Row {
    Row::new(op, workload, [EXTENT; 3], entries, T::DTYPE.name())
        .timed(times)
        .flops(2.0 * (entries * EXTENT) as f64)
        .dense()
}

/// Operand for which kernels of all micro-tiles are offered.
pub fn dynamic<T: Scalar>(tensor: &Tensor<T>) -> Operand<'_, T> {
    Dynamic::new(tensor).expecting(SparsityHint::MicroTiles(0.01)).into()
}

/// Plans a product with a [`dynamic`] operand by the kernel of these micro-tiles, such as `128x1`. The kernel for few
/// rows is named `few`.
pub fn skipping<T: Scalar>(
    bench: &Bench<'_>,
    text: &str,
    operands: &[(&str, Operand<'_, T>)],
    (micro, options): (&str, Options),
) -> Result<Plan<T>> {
    let (all, _) = bench.plan::<T, T>(text, operands, &options)?;
    let is_asked = |name: &&str| match micro {
        "few" => name.starts_with("pit_few"),
        _ => name.starts_with("pit_") && name.ends_with(&format!("_{micro}")),
    };
    let mut names = all.choice().candidates().map(|(name, _)| name);
    let name = names.find(is_asked).ok_or_else(|| format!("no kernel of {micro}: {all}"))?;
    Ok(bench.plan(text, operands, &Options { variant: Some(name.into()), ..options })?.0)
}

/// Times einsparse with detection.
pub fn found<T: Scalar>(
    bench: &Bench<'_>,
    (micro, options): (&str, Options),
    [a, b]: [&Tensor<T>; 2],
    error: impl Fn(&Tensor<T>) -> Result<f64>,
    (row, said): (impl Fn(&Times) -> Row, &str),
) -> Result<()> {
    let operands = [("A", dynamic(a)), ("B", b.into())];
    let plan = skipping(bench, SPMM, &operands, (micro, options))?;
    let mut c = bench.zeros::<T>(plan.out_shape())?;
    let times = bench.measure(|| plan.run(&operands, &mut c, &bench.stream))?;
    let error = error(&c)?;
    let note = format!("{said}detection inside; err {error:.2} of the bound");
    bench.add(row(&times).ours(plan.variant()).judged(error <= 1.0, note))
}

/// Product of cuBLAS in one of its storage orders.
type Gemm = fn(&CuBlas, Dtype, [usize; 3], [u64; 3]) -> Result<()>;

/// Times the whole product by cuBLAS, on the same operands.
pub fn whole<T: Scalar>(
    bench: &Bench<'_>,
    (dtype, extents, gemm): (Dtype, [usize; 3], Gemm),
    [a, b]: [&Tensor<T>; 2],
    row: impl Fn(&Times) -> Row,
) -> Result<()> {
    let tf32 = dtype == Dtype::Tf32;
    let Ok(cublas) = CuBlas::open(bench.gpu, tf32) else {
        return Ok(());
    };
    let [m, _, n] = extents;
    let c = Buffer::new(m * n * size_of::<T>())?;
    let all = [at(a)?, at(b)?, c.ptr];
    let times = bench.measure(|| gemm(&cublas, dtype, extents, all))?;
    let name = if tf32 { "cublas-tf32" } else { "cublas" };
    bench.add(row(&times).by(name, "dense product"))
}

/// Max error of these rows of `C = A B`, in multiples of its bound.
pub fn worst_error<T: Scalar>(
    a: impl Fn(usize, usize) -> T,
    b: &Dense<T>,
    c: &Tensor<T>,
    rows: impl Iterator<Item = usize>,
) -> Result<f64> {
    let c = c.to_dense()?;
    let (depth, n) = (b.shape()[0], b.shape()[1]);
    let mut worst: f64 = 0.0;
    for i in rows {
        let mut sums = vec![Sum::default(); n];
        for k in 0..depth {
            let x = a(i, k).to_f64();
            if x == 0.0 {
                continue;
            }
            for (sum, y) in sums.iter_mut().zip(&b.values()[k * n..][..n]) {
                sum.add(x * y.to_f64());
            }
        }
        for (found, sum) in c.values()[i * n..][..n].iter().zip(&sums) {
            worst = worse(worst, share::<T>(found.to_f64(), sum));
        }
    }
    Ok(worst)
}

/// Error in multiples of its bound: one rounding of the result, and those of sums in f32.
pub fn share<T: Scalar>(found: f64, sum: &Sum) -> f64 {
    let unit = if T::NAME == "bf16" { -8 } else { -11 };
    let (unit, of_sum) = (f64::powi(2.0, unit), f64::powi(2.0, -24));
    let bound = unit * sum.value.abs() + 4.0 * of_sum * 64.0 * sum.size;
    let error = (found - sum.value).abs();
    if error == 0.0 { 0.0 } else { error / bound }
}
