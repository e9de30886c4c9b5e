//! Detection in the epilogue of the product that makes the zeros: `C[m,n] = relu(A[m,k] * B[k,n])`, each extent 4096,
//! with and without one bit for each micro-tile of C. Also measures the conversion of the bits to lists and packed
//! values. The product without bits is the same kernel of the family `wgmma`.
//!
//! `nnz` is the elements of the nonempty micro-tiles of C.

use crate::prelude::*;
use einsparse::Plan;
use einsparse::dynamic::{DynamicMatmul, MatmulOptions, SparseSide};

pub const OP: &str = "fused_detect";
/// Rows and columns of every matrix.
const EXTENT: usize = 4096;
/// Shares of columns that are zero after the ReLU, in percent.
const EMPTY: [u32; 2] = [0, 90];

/// Measures both types and both shares.
pub fn run(bench: &Bench<'_>) -> Result<()> {
    marked::<bf16>(&bench.anew()?)?;
    marked::<f16>(&bench.anew()?)
}

/// Nonnegative A, and a B in which this share of columns has only negative elements.
fn operands<T: Scalar>(bench: &Bench<'_>, empty: u32) -> Result<[Tensor<T>; 2]> {
    let mut rng = StdRng::seed_from_u64(SEED + 8);
    let a = (0..EXTENT * EXTENT).map(|_| T::from_f64(rng.random_range(0.0..1.73)));
    let a = bench.tensor(&[EXTENT, EXTENT], a.collect())?;
    let below: Vec<bool> = (0..EXTENT).map(|_| rng.random_range(0..100) < empty).collect();
    let b = (0..EXTENT * EXTENT).map(|i| {
        let x: f64 = rng.random_range(-1.73..1.73);
        T::from_f64(if below[i % EXTENT] { -x.abs() } else { x })
    });
    Ok([a, bench.tensor(&[EXTENT, EXTENT], b.collect())?])
}

fn plain<T: Scalar>(bench: &Bench<'_>, [a, b]: &[Tensor<T>; 2]) -> Result<Plan<T>> {
    let variant = format!("wgmma_{}_64x64_n256", T::DTYPE.name());
    let operands = [("A", a.into()), ("B", b.into())];
    let expression = "C[m,n] = relu(A[m,k] * B[k,n])";
    Ok(bench.plan(expression, &operands, &forced(Some(&variant)))?.0)
}

fn marked<T: Scalar>(bench: &Bench<'_>) -> Result<()> {
    let (context, stream) = (&bench.context, &bench.stream);
    for empty in EMPTY {
        let both = operands::<T>(bench, empty)?;
        let mut c = bench.zeros::<T>(&[EXTENT; 2])?;
        let plan = plain(bench, &both)?;
        let [a, b] = &both;
        let operands = [("A", a.into()), ("B", b.into())];
        let without = bench.measure(|| plan.run(&operands, &mut c, stream))?;
        let wanted = c.to_dense()?;
        let options = MatmulOptions { sparse: SparseSide::Output, ..MatmulOptions::default() };
        let mut product = DynamicMatmul::<T>::new(context, [EXTENT; 3], &options)?;
        let with = bench.measure(|| product.multiply(a, b, &mut c, stream))?;
        bench.once(|| product.detect(&c, stream))?;
        let found = c.to_dense()?;
        let lists = product.index().to_lists()?;
        let right = found.values() == wanted.values() && lists == full(wanted.values());
        // Time of bits, lists and values.
        let all = bench.measure(|| product.forward(a, b, &mut c, stream))?;
        let mut apart = DynamicMatmul::<T>::new(context, [EXTENT; 3], &MatmulOptions::default())?;
        let looked = bench.measure(|| {
            plan.run(&operands, &mut c, stream)?;
            apart.detect(&c, stream)
        })?;
        let tiles: usize = lists.iter().map(Vec::len).sum();
        let workload = format!("relu-{EXTENT}-e{}", f64::from(empty) / 100.0);
        let add = |times: Times, variant: &str, note: &str| {
            let more = 100.0 * (times.cold / without.cold - 1.0);
            let note = match note {
                "no detection" => note.to_owned(),
                _ => format!("{note}: {more:+.1} %"),
            };
            let row = Row::new(OP, &workload, [EXTENT; 3], tiles * 128, T::DTYPE.name())
                .ours(variant)
                .timed(&times)
                .flops(2.0 * (EXTENT as f64).powi(3));
            bench.add(row.dense().judged(right, note))
        };
        let names = product.variants();
        add(without, plan.variant(), "no detection")?;
        add(with, names[0], "bits")?;
        add(all, names[1], "bits, lists and values")?;
        let again = "another look at C, lists and values";
        add(looked, apart.variants()[0], again)?;
    }
    Ok(())
}

/// Nonempty columns of every 128 rows.
fn full<T: Scalar>(values: &[T]) -> Vec<Vec<u32>> {
    let panel = |rows: &[T]| {
        let mut any = vec![false; EXTENT];
        for row in rows.chunks(EXTENT) {
            for (any, x) in any.iter_mut().zip(row) {
                *any |= x.to_f64() != 0.0;
            }
        }
        let columns = any.iter().enumerate().filter(|(_, any)| **any);
        columns.map(|(column, _)| column as u32).collect()
    };
    values.chunks(128 * EXTENT).map(panel).collect()
}
