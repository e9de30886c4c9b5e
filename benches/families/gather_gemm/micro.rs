//! What benches of micro-tiles share: operands of which a share is empty, the product by tiles found while running, the
//! whole of it by cuBLAS, and the check of both.

use crate::prelude::*;
use einsparse::dynamic::{DynamicMatmul, MatmulOptions};

/// Rows and columns of every matrix.
pub const EXTENT: usize = 4096;
/// Shares of micro-tiles that are empty, in percent.
pub const EMPTY: [u32; 4] = [0, 50, 90, 95];

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
    let dense = Dense::new([EXTENT, EXTENT], values)?;
    Ok((dense, full))
}

/// The other operand: uniform values of variance 1.
pub fn uniform<T: Scalar>() -> Result<Dense<T>> {
    let mut rng = StdRng::seed_from_u64(SEED + 1);
    let values = (0..EXTENT * EXTENT).map(|_| T::from_f64(rng.random_range(-1.73..1.73)));
    Ok(Dense::new([EXTENT, EXTENT], values.collect())?)
}

/// So many rows that are checked.
pub fn checked(count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |i| i * (EXTENT / count) + i * 7)
}

/// A row of a square product with so many elements that count.
pub fn row<T: Scalar>(op: &str, workload: String, entries: usize, times: &Times) -> Row {
    Row::new(op, workload, [EXTENT; 3], entries, T::DTYPE.name())
        .timed(times)
        .flops(2.0 * (entries * EXTENT) as f64)
        .dense()
}

/// Ours, detection inside; the row says what detection and product take by themselves.
pub fn found<T: Scalar>(
    bench: &Bench<'_>,
    (extents, options): ([usize; 3], MatmulOptions),
    [a, b]: [&Tensor<T>; 2],
    error: impl Fn(&Tensor<T>) -> Result<f64>,
    (row, said): (impl Fn(&Times) -> Row, &str),
) -> Result<()> {
    let (stream, [m, _, n]) = (&bench.stream, extents);
    let mut product = DynamicMatmul::<T>::new(&bench.context, extents, &options)?;
    let mut c = bench.zeros::<T>(&[m, n])?;
    let times = bench.measure(|| product.forward(a, b, &mut c, stream))?;
    let error = error(&c)?;
    let detection = bench.measure(|| product.detect(a, stream))?.cold * 1e3;
    let alone = bench.measure(|| product.multiply(a, b, &mut c, stream))?;
    let alone = alone.cold * 1e3;
    let note = format!(
        "{said}detection {detection:.1} us and product {alone:.1} us by themselves; err {error:.2} of the bound"
    );
    let row = row(&times).ours(product.variants().pop().unwrap_or_default());
    bench.add(row.judged(error <= 1.0, note))
}

/// One of cuBLAS' orders of axes.
type Gemm = fn(&CuBlas, Dtype, [usize; 3], [u64; 3]) -> Result<()>;

/// The whole product by cuBLAS, on the same operands.
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

/// The worst error of these rows of `C = A B`, in multiples of its bound.
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

/// An error in multiples of its bound: one rounding, and those of sums in f32.
pub fn share<T: Scalar>(found: f64, sum: &Sum) -> f64 {
    let unit = if T::NAME == "bf16" { -8 } else { -11 };
    let (unit, of_sum) = (f64::powi(2.0, unit), f64::powi(2.0, -24));
    let bound = unit * sum.value.abs() + 4.0 * of_sum * 64.0 * sum.size;
    let error = (found - sum.value).abs();
    if error == 0.0 { 0.0 } else { error / bound }
}
