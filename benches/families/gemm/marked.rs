//! Detection in the epilogue of the product that makes the zeros: `C[m,n] = relu(A[m,k] * B[k,n])` of 4096 each way, with and without a
//! bit left for each micro-tile of C, and what it takes to make lists and packed values of the bits. The product without bits
//! is the same kernel of the family `wgmma`.
//!
//! `nnz` are the elements of the micro-tiles of C that are not empty.

use crate::device::{Gpu, Result};
use crate::problems::SEED;
use crate::record::{Recorder, Row};
use crate::timing::{Effort, Times, measure};
use einsparse::dynamic::{DynamicMatmul, MatmulOptions, ReluMatmul};
use einsparse::formats::{Dense, bf16, f16};
use einsparse::{Context, Options, Plan, Scalar, Stream, Tensor};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::fmt::Display;

/// The name that `--op` knows.
pub const OP: &str = "fused_detect";
/// Rows and columns of every matrix.
const EXTENT: usize = 4096;
/// Shares of columns that are zero behind the ReLU, in percent.
const EMPTY: [u32; 2] = [0, 90];

fn text(e: impl Display) -> String {
    e.to_string()
}

/// Both types, both shares.
pub fn run(gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
    marked::<bf16>(gpu, effort, recorder)?;
    marked::<f16>(gpu, effort, recorder)
}

/// A without negative elements, and a B of which this share of columns has no positive ones.
fn operands<T: Scalar>(context: &Context, empty: u32) -> Result<[Tensor<T>; 2]> {
    let mut rng = StdRng::seed_from_u64(SEED + 8);
    let a = (0..EXTENT * EXTENT).map(|_| T::from_f64(rng.random_range(0.0..1.73)));
    let a = Dense::new([EXTENT, EXTENT], a.collect()).map_err(text)?;
    let below: Vec<bool> = (0..EXTENT)
        .map(|_| rng.random_range(0..100) < empty)
        .collect();
    let b = (0..EXTENT * EXTENT).map(|i| {
        let x: f64 = rng.random_range(-1.73..1.73);
        T::from_f64(if below[i % EXTENT] { -x.abs() } else { x })
    });
    let b = Dense::new([EXTENT, EXTENT], b.collect()).map_err(text)?;
    let upload = |dense: &Dense<T>| context.upload_dense(dense).map_err(text);
    Ok([upload(&a)?, upload(&b)?])
}

fn plain<T: Scalar>(context: &Context, [a, b]: &[Tensor<T>; 2]) -> Result<Plan<T>> {
    let options = Options {
        variant: Some(format!("wgmma_{}_64x64_n256", T::DTYPE.name())),
        ..Options::default()
    };
    let operands = [("A", a.into()), ("B", b.into())];
    let plan = context.plan("C[m,n] = relu(A[m,k] * B[k,n])", &operands, &options);
    plan.map_err(text)
}

fn marked<T: Scalar>(gpu: &Gpu, effort: Effort, recorder: &mut Recorder) -> Result<()> {
    let context = Context::cuda(0).map_err(text)?;
    // SAFETY: the bench's stream belongs to the primary context and outlives every case.
    let stream = unsafe { Stream::from_raw(gpu.stream.cast()) };
    for empty in EMPTY {
        let [a, b] = operands::<T>(&context, empty)?;
        let mut c = context.zeros::<T>(&[EXTENT; 2]).map_err(text)?;
        let both = [a, b];
        let plan = plain(&context, &both)?;
        let [a, b] = &both;
        let without = measure(gpu, effort, &mut || {
            let operands = [("A", a.into()), ("B", b.into())];
            plan.run(&operands, &mut c, &stream).map_err(text)
        })?;
        let wanted = c.to_dense().map_err(text)?;
        let mut product = ReluMatmul::<T>::new(&context, [EXTENT; 3], 128).map_err(text)?;
        let with = measure(gpu, effort, &mut || {
            product.run(a, b, &mut c, &stream).map_err(text)
        })?;
        product.list(&c, &stream).map_err(text)?;
        gpu.wait()?;
        let found = c.to_dense().map_err(text)?;
        let lists = product.index().to_lists().map_err(text)?;
        let right = found.values() == wanted.values() && lists == full(wanted.values());
        // All of it: bits, lists, values.
        let all = measure(gpu, effort, &mut || {
            product.run(a, b, &mut c, &stream).map_err(text)?;
            product.list(&c, &stream).map_err(text)
        })?;
        let options = MatmulOptions::default();
        let mut apart = DynamicMatmul::<T>::new(&context, [EXTENT; 3], options).map_err(text)?;
        let looked = measure(gpu, effort, &mut || {
            let operands = [("A", a.into()), ("B", b.into())];
            plan.run(&operands, &mut c, &stream).map_err(text)?;
            apart.detect(&c, &stream).map_err(text)
        })?;
        let tiles: usize = lists.iter().map(Vec::len).sum();
        let row = |times: Times, variant: &str, note: String| Row {
            op: OP.into(),
            workload: format!("relu-{EXTENT}-e{}", f64::from(empty) / 100.0),
            m: EXTENT,
            k: EXTENT,
            n: EXTENT,
            nnz: tiles * 128,
            dtype: T::DTYPE.name().into(),
            engine: "einsparse".into(),
            variant: variant.into(),
            ms: if right { times.cold } else { f64::NAN },
            ms_warm: Some(times.warm),
            gflops: Some(2.0 * (EXTENT as f64).powi(3) / times.cold / 1e6),
            zeros: "dense".into(),
            note: format!("{}{note}", if right { "" } else { "WRONG: " }),
            ..Row::default()
        };
        let over = |times: Times| 100.0 * (times.cold / without.cold - 1.0);
        let [name, list] = product.variants();
        let rows = [
            row(without, plan.variant(), "no detection".into()),
            row(with, name, format!("bits: {:+.1} %", over(with))),
            row(
                all,
                list,
                format!("bits, lists and values: {:+.1} %", over(all)),
            ),
            row(
                looked,
                apart.variants()[0],
                format!(
                    "another look at C, lists and values: {:+.1} %",
                    over(looked)
                ),
            ),
        ];
        for row in rows {
            recorder.add(row)?;
        }
    }
    Ok(())
}

/// The columns of every 128 rows that hold something.
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
