//! B and C in the memory of the host: columns come and go in chunks. What a plan of all columns finds, whatever the
//! limit and wherever A lies.

use crate::support::{Rng, gpu, on_both, spread};
use einsparse::formats::{Csr, Dense, f16};
use einsparse::ops::HostSpmm;
use einsparse::{Context, Error, Operand, Result, Scalar};

const ROWS: usize = 300;
const INNER: usize = 210;

fn matrix<T: Scalar>(seed: u64) -> Csr<T> {
    let lens: Vec<usize> = (0..ROWS).map(|row| row * 37 % 23).collect();
    let pattern = spread(&lens, INNER);
    let values = Rng(seed).integers(pattern.columns().len());
    Csr::new(pattern, values).unwrap()
}

fn wanted<T: Scalar>(a: &Csr<T>, b: &Dense<T>) -> Dense<T> {
    let cpu = Context::cpu();
    einsparse::ops::spmm(&cpu, a, b)
        .unwrap()
        .to_dense()
        .unwrap()
}

/// Of B and C a column, for each chunk under way.
fn column<T>() -> usize {
    2 * (ROWS + INNER) * size_of::<T>()
}

/// Runs twice, with other values the second time; the line that tells of the chunks.
fn agrees<T: Scalar>(ctx: &Context, n: usize, limit: usize, pinned: bool) -> Result<String> {
    let of = |a: &Csr<T>| match pinned {
        true => ctx.pin(a),
        false => ctx.upload(a),
    };
    let (first, second) = (matrix::<T>(1), matrix::<T>(2));
    let a = of(&first)?;
    let mut product = HostSpmm::new(ctx, &a, n, limit)?;
    for (seed, a) in [(5, &first), (6, &second)] {
        let b = Dense::new([INNER, n], Rng(seed).integers(INNER * n))?;
        let mut c = Dense::from_fn([ROWS, n], |_| T::from_f64(f64::NAN))?;
        let operand = of(a)?;
        product.run(&operand, &b, &mut c)?;
        assert!(c == wanted(a, &b), "{} {n} columns, {limit} bytes", T::NAME);
    }
    let told = product.to_string();
    Ok(told.lines().next().unwrap_or_default().to_owned())
}

#[test]
fn columns_come_and_go_in_chunks() {
    on_both(&[columns]);
}

fn columns(ctx: &Context) {
    let chunks = [
        (1, 1, "chunks of 1,"),
        (70, 7, "chunks of 7,"),
        (70, 40, "chunks of 32,"),
        (64, 1000, "chunks of 32,"),
        (20, 1000, "chunks of 20,"),
        (600, 1000, "chunks of 96,"),
    ];
    for (n, columns, told) in chunks {
        let limit = columns * column::<f32>();
        let found = agrees::<f32>(ctx, n, limit, false).unwrap();
        assert!(found.contains(told), "{found}");
        agrees::<f16>(ctx, n, limit, false).unwrap();
    }
    // A lies on the host, in chunks of rows of its own.
    for limit in [60_000, 200_000, 4_000_000] {
        agrees::<f32>(ctx, 100, limit, true).unwrap();
    }
    assert!(agrees::<f32>(ctx, 0, 1000, false).is_ok());
}

#[test]
fn a_run_that_is_refused_leaves_the_next_one_whole() {
    let Some(ctx) = gpu() else { return };
    let (a, other) = (matrix::<f32>(1), matrix::<f32>(2));
    let on_gpu = ctx.upload(&a).unwrap();
    let mut product = HostSpmm::new(&ctx, &on_gpu, 100, 20 * column::<f32>()).unwrap();
    let b = Dense::new([INNER, 100], Rng(5).integers(INNER * 100)).unwrap();
    let mut c = Dense::zeros([ROWS, 100]).unwrap();
    let host: Operand<'_, f32> = (&other).into();
    assert!(product.run(host, &b, &mut c).is_err());
    product.run(&on_gpu, &b, &mut c).unwrap();
    assert!(c == wanted(&a, &b));
}

#[test]
fn what_does_not_fit_is_told_with_numbers() {
    let cpu = Context::cpu();
    let a = cpu.upload(&matrix::<f32>(1)).unwrap();
    let little = HostSpmm::new(&cpu, &a, 8, 100).unwrap_err();
    assert!(
        matches!(little, Error::Overflow { limit: 100, .. }),
        "{little}"
    );
    let dense = cpu.zeros::<f32>(&[4]).unwrap();
    let told = HostSpmm::new(&cpu, &dense, 8, 1 << 20)
        .unwrap_err()
        .to_string();
    assert!(told.contains("[4]"), "{told}");
    let mut product = HostSpmm::new(&cpu, &a, 8, 1 << 20).unwrap();
    let (b, mut c) = (
        Dense::zeros([INNER, 9]).unwrap(),
        Dense::zeros([ROWS, 8]).unwrap(),
    );
    let told = product.run(&a, &b, &mut c).unwrap_err().to_string();
    assert!(
        told.contains("[210, 9]") && told.contains("[210, 8]"),
        "{told}"
    );
}
