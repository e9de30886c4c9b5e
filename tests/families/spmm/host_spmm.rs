//! B and C in host memory: columns are copied in chunks. Results equal those of a plan over all columns for any limit,
//! with A on the GPU, in page-locked memory or in other host memory.

use crate::support::assert_error;
use crate::support::dense::{integers, nan};
use crate::support::{Rng, gpu, on_both, small, spread};
use einsparse::formats::{Csr, Dense, f16};
use einsparse::ops::HostSpmm;
use einsparse::{Context, Error, Operand, Scalar, SparseTensor};

const ROWS: usize = 300;
const INNER: usize = 210;

fn matrix<T: Scalar>(seed: u64) -> Csr<T> {
    let lens: Vec<usize> = (0..ROWS).map(|row| row * 37 % 23).collect();
    let pattern = spread(&lens, INNER);
    let values = Rng(seed).integers(pattern.columns().len());
    Csr::new(pattern, values).unwrap()
}

fn wanted<T: Scalar>(a: &Csr<T>, b: &Dense<T>) -> Dense<T> {
    let cpu = Context::unchecked_cpu();
    einsparse::ops::spmm(&cpu, a, b).unwrap().to_dense().unwrap()
}

/// Returns the bytes of one column of B and C, for each of three chunks in flight.
fn column<T>() -> usize {
    3 * (ROWS + INNER) * size_of::<T>()
}

#[derive(Clone, Copy)]
enum Place {
    There,
    Pinned,
    Host,
}

fn operand<'a, T: Scalar>(there: &'a Option<SparseTensor<T>>, a: &'a Csr<T>) -> Operand<'a, T> {
    there.as_ref().map_or(a.into(), Operand::from)
}

/// Runs twice, with other values the second time; returns the description of chunks and plan.
fn agrees<T: Scalar>(ctx: &Context, n: usize, limit: usize, place: Place) -> String {
    let (first, second) = (matrix::<T>(1), matrix::<T>(2));
    let [there, later] = [&first, &second].map(|a| match place {
        Place::There => Some(ctx.upload(a).unwrap()),
        Place::Pinned => Some(ctx.pin(a).unwrap()),
        Place::Host => None,
    });
    let mut product = HostSpmm::new(ctx, operand(&there, &first), n, limit).unwrap();
    for (seed, there, a) in [(5, &there, &first), (6, &later, &second)] {
        let b = integers(&[INNER, n], seed);
        let mut c = nan(&[ROWS, n]);
        product.run(operand(there, a), &b, &mut c).unwrap();
        let what = format!("{} {n} columns, {limit} bytes", T::NAME);
        assert!(c == wanted(a, &b), "{what}");
    }
    product.to_string()
}

on_both! {
    columns_come_and_go_in_chunks: cpu [columns], gpu [columns];
}

fn columns(ctx: &Context) {
    let chunks = [
        (1, 1, "chunks of 1,"),
        (70, 7, "chunks of 7,"),
        (70, 40, "chunks of 32,"),
        (64, 1000, "chunks of 32,"),
        (20, 1000, "chunks of 20,"),
        (600, 1000, "chunks of 64,"),
    ];
    for (n, columns, told) in chunks {
        let limit = columns * column::<f32>();
        let found = agrees::<f32>(ctx, n, limit, Place::There);
        assert!(found.contains(told), "{found}");
        agrees::<f16>(ctx, n, limit, Place::There);
    }
    // A in host memory is streamed in its own chunks of rows, or kept on the GPU if it fits.
    for (limit, told) in [(60_000, "buffers"), (4_000_000, "A kept on the GPU")] {
        for place in [Place::Pinned, Place::Host] {
            let found = agrees::<f32>(ctx, 100, limit, place);
            assert!(found.contains(told) || !ctx.is_cuda(), "{found}");
        }
    }
    agrees::<f32>(ctx, 0, 1000, Place::There);
}

#[test]
fn a_run_that_is_refused_leaves_the_next_one_whole() {
    let Some(ctx) = gpu() else { return };
    let (a, other) = (matrix::<f32>(1), matrix::<f32>(2));
    let on_gpu = ctx.upload(&a).unwrap();
    let mut product = HostSpmm::new(&ctx, &on_gpu, 100, 20 * column::<f32>()).unwrap();
    let b = integers(&[INNER, 100], 5);
    let mut c = Dense::zeros([ROWS, 100]).unwrap();
    let host: Operand<'_, f32> = (&other).into();
    let told = product.run(host, &b, &mut c).unwrap_err().to_string();
    assert!(told.contains('A'), "{told}");
    product.run(&on_gpu, &b, &mut c).unwrap();
    assert!(c == wanted(&a, &b));
}

/// Copies of chunks take longer than a launch, so a product that does not wait for them gives wrong results.
#[test]
fn products_wait_for_their_columns() {
    let Some(ctx) = gpu() else { return };
    let rows = if small() { 2_000 } else { 200_000 };
    let pattern = spread(&vec![1; rows], rows);
    let a = Csr::new(pattern, Rng(1).integers::<f32>(rows)).unwrap();
    let on_gpu = ctx.upload(&a).unwrap();
    let limit = 32 * 3 * 2 * rows * 4;
    let mut product = HostSpmm::new(&ctx, &on_gpu, 256, limit).unwrap();
    let mut c = Dense::zeros([rows, 256]).unwrap();
    for seed in [5, 6] {
        let b = integers(&[rows, 256], seed);
        product.run(&on_gpu, &b, &mut c).unwrap();
        assert!(c == wanted(&a, &b));
    }
}

on_both! {
    /// The limit that an error names is enough for chunks, and one byte less is not.
    the_least_limit_is_told: cpu [least_limit], gpu [least_limit];
}

fn least_limit(ctx: &Context) {
    let pinned = ctx.pin(matrix::<f32>(1)).unwrap();
    let least = |limit| match HostSpmm::new(ctx, &pinned, 8, limit) {
        Err(Error::Overflow { value, what, .. }) if what.contains("a column") => value as usize,
        // A quarter of the limit may still be too small for A.
        Err(Error::Overflow { .. }) | Ok(_) => 0,
        Err(other) => panic!("{other}"),
    };
    let told = least(100);
    assert!(told > 0 && least(told - 1) == told && least(told) == 0);
}

#[test]
fn what_does_not_fit_is_told_with_numbers() {
    let cpu = Context::unchecked_cpu();
    let a = cpu.upload(matrix::<f32>(1)).unwrap();
    let little = HostSpmm::new(&cpu, &a, 8, 100).unwrap_err();
    assert_error!(little, Error::Overflow { limit: 100, .. });
    let dense = cpu.zeros::<f32>(&[4]).unwrap();
    let error = HostSpmm::new(&cpu, &dense, 8, 1 << 20).unwrap_err();
    assert_error!(error, Error::Shape { left, .. } if left == "shape [4]");
    let mut product = HostSpmm::new(&cpu, &a, 8, 1 << 20).unwrap();
    let (b, mut c) = (Dense::zeros([INNER, 9]).unwrap(), Dense::zeros([ROWS, 8]).unwrap());
    let error = product.run(&a, &b, &mut c).unwrap_err();
    assert_error!(
        error,
        Error::Shape { left, right, .. }
            if [left, right].iter().any(|shape| shape.contains("[210, 9]"))
    );
}
