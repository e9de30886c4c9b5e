//! Conversion to block formats in a context, on the CPU: which blocks are kept, their contents, and refused inputs.

use crate::support::Rng;
use crate::support::assert_error;
use einsparse::formats::convert::BlockChoice;
use einsparse::formats::{
    AnySparse, Csr, Dense, Format, FormatError, bf16, convert, f16, generate,
};
use einsparse::registry::Scalar;
use einsparse::{Context, Error};

/// Small integers. About half of the 8 x 8 tiles are zero.
fn patches<T: Scalar>(m: usize, k: usize, seed: u64) -> Dense<T> {
    let mut rng = Rng(seed);
    let zero: Vec<bool> =
        (0..m.div_ceil(8) * k.div_ceil(8)).map(|_| rng.word().is_multiple_of(2)).collect();
    let salt = rng.word();
    Dense::from_fn([m, k], |i| {
        let mut at = Rng(salt ^ (i[0] * k + i[1]) as u64);
        let value = (at.word() % 9) as f64 - 4.0;
        let empty = zero[i[0] / 8 * k.div_ceil(8) + i[1] / 8];
        T::from_f64(if empty { 0.0 } else { value })
    })
    .unwrap()
}

fn made<T: Scalar>(dense: &Dense<T>, format: Format, choice: BlockChoice) -> AnySparse<T> {
    let ctx = Context::cpu();
    let dense = ctx.upload_dense(dense).unwrap();
    let blocks = ctx.blocks_from_dense(&dense, format, choice).unwrap();
    blocks.to_host().unwrap()
}

const BLOCKS: [(usize, usize); 6] = [(16, 16), (32, 32), (16, 48), (5, 3), (1, 64), (64, 1)];

fn formats(block: (usize, usize)) -> [Format; 4] {
    [
        Format::Bsr { block },
        Format::BlockCoo { block },
        Format::BlockGroupCoo { block, group: None },
        Format::BlockGroupCoo { block, group: Some(3) },
    ]
}

/// The blocks that contain a nonzero are those that a conversion from CSR yields.
fn loses_nothing<T: Scalar>() {
    for (m, k) in [(0, 0), (0, 9), (9, 0), (1, 1), (40, 70), (96, 33)] {
        let dense = patches::<T>(m, k, 3);
        let csr = AnySparse::from(convert::dense_to_csr(&dense).unwrap());
        for format in BLOCKS.into_iter().flat_map(formats) {
            let wanted = csr.convert(format).unwrap();
            let choices = [
                BlockChoice::NonZero,
                BlockChoice::Norm(0.0),
                BlockChoice::Top(usize::MAX),
                BlockChoice::TopPerRow(usize::MAX),
            ];
            for choice in choices {
                assert_eq!(made(&dense, format, choice), wanted, "{m} x {k} {format} {choice:?}");
            }
            let on_cpu = Context::cpu().upload(&csr).unwrap();
            let blocks = on_cpu.to_blocks(format).unwrap();
            assert_eq!(blocks.to_host().unwrap(), wanted, "{m} x {k} {format}");
        }
    }
}

#[test]
fn every_block_with_an_element_loses_nothing() {
    loses_nothing::<f32>();
    loses_nothing::<f64>();
    loses_nothing::<f16>();
    loses_nothing::<bf16>();
}

/// Positions of the kept blocks, read from the format that stores them explicitly.
fn places(dense: &Dense<f32>, block: (usize, usize), choice: BlockChoice) -> Vec<(u32, u32)> {
    match made(dense, Format::BlockCoo { block }, choice) {
        AnySparse::BlockCoo(a) => {
            let columns = a.pattern().block_cols().iter().copied();
            a.pattern().block_rows().iter().copied().zip(columns).collect()
        }
        other => panic!("{other:?}"),
    }
}

/// A matrix with one number in each block of 2 x 2. The norms are 3 1 2 / 2 0 5.
fn six() -> Dense<f32> {
    let norms = [[3.0, 1.0, 2.0], [-2.0, 0.0, 5.0]];
    Dense::from_fn([4, 6], |i| match (i[0] % 2, i[1] % 2) {
        (1, 0) => norms[i[0] / 2][i[1] / 2],
        _ => 0.0,
    })
    .unwrap()
}

#[test]
fn the_largest_norms_win_and_the_first_of_equals() {
    let (a, block) = (six(), (2, 2));
    let kept = |choice| places(&a, block, choice);
    assert_eq!(kept(BlockChoice::Norm(2.0)), [(0, 0), (1, 2)]);
    assert_eq!(kept(BlockChoice::Norm(1.9)), [(0, 0), (0, 2), (1, 0), (1, 2)]);
    assert_eq!(kept(BlockChoice::Norm(f64::INFINITY)), []);
    assert_eq!(kept(BlockChoice::Top(0)), []);
    assert_eq!(kept(BlockChoice::Top(3)), [(0, 0), (0, 2), (1, 2)]);
    assert_eq!(kept(BlockChoice::TopPerRow(2)), [(0, 0), (0, 2), (1, 0), (1, 2)]);
    // A block of zeros is never among the largest.
    assert_eq!(kept(BlockChoice::Top(6)).len(), 5);
    assert_eq!(kept(BlockChoice::TopPerRow(3)).len(), 5);
}

#[test]
fn nan_is_the_largest_and_minus_zero_is_nothing() {
    let mut a = six();
    a.values_mut()[2 * 6 + 2] = f32::NAN;
    a.values_mut()[4] = -0.0;
    for choice in [BlockChoice::Norm(f64::INFINITY), BlockChoice::Top(1)] {
        assert_eq!(places(&a, (2, 2), choice), [(1, 1)]);
    }
    let zeros = Dense::from_fn([2, 2], |_| -0.0f32).unwrap();
    assert_eq!(places(&zeros, (2, 2), BlockChoice::NonZero), []);
    // The square of 1e-30 underflows in f32, but the block is not zero.
    let small = Dense::from_fn([2, 2], |_| 1e-30f32).unwrap();
    assert_eq!(places(&small, (2, 2), BlockChoice::Norm(0.0)), []);
    assert_eq!(places(&small, (2, 2), BlockChoice::NonZero), [(0, 0)]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let ctx = Context::cpu();
    let dense = ctx.upload_dense(&six()).unwrap();
    let with = |format: &str, choice| {
        let format = format.parse().unwrap();
        ctx.blocks_from_dense(&dense, format, choice).unwrap_err()
    };
    for (threshold, value) in [(-1.0, "-1"), (f64::NAN, "NaN")] {
        let error = with("bsr:2x2", BlockChoice::Norm(threshold));
        assert_error!(error, Error::Format(FormatError::Shape { found, .. }) if found == value);
    }
    let error = with("csr", BlockChoice::NonZero);
    assert_error!(
        error,
        Error::OutOfRange { name, value, .. } if name == "format" && value == "csr"
    );
    let zero = Format::Bsr { block: (0, 2) };
    let refused = ctx.blocks_from_dense(&dense, zero, BlockChoice::NonZero);
    assert_error!(
        refused.unwrap_err(),
        Error::Format(FormatError::Shape { what: "block rows", .. })
    );
    let cube = ctx.zeros::<f32>(&[2, 2, 2]).unwrap();
    let format = Format::Bsr { block: (2, 2) };
    let refused = ctx.blocks_from_dense(&cube, format, BlockChoice::NonZero);
    assert_error!(refused.unwrap_err(), Error::Format(FormatError::Shape { what: "order", .. }));
    let pattern = generate::karate();
    let ones = vec![1f32; pattern.columns().len()];
    let coo = AnySparse::from(Csr::new(pattern, ones).unwrap()).convert(Format::Coo).unwrap();
    let refused = ctx.upload(coo).unwrap().to_blocks(format).unwrap_err();
    assert_error!(refused, Error::StorageFormat { found, .. } if found == "coo");
}
