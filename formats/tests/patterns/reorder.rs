//! Permutations, and orders that increase the fill of blocks.

use einsparse_formats::proptest as strategy;
use einsparse_formats::reorder::{Options, reorder_both, reorder_columns, reorder_rows};
use einsparse_formats::{
    AnySparse, Bsr, Csr, CsrPattern, Dense, FormatError, Permutation, convert, fill, generate,
    reference,
};
use proptest::prelude::*;

/// A permutation that depends on `seed`.
fn shuffled(len: usize, seed: u64) -> Permutation {
    let mut order: Vec<u32> = (0..len as u32).collect();
    let key = |i: &u32| {
        let z = (u64::from(*i) + 1 + seed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (z ^ (z >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 7
    };
    order.sort_by_key(key);
    Permutation::new(order).unwrap()
}

fn filled(csr: &CsrPattern, block: (usize, usize)) -> fill::BlockFill {
    fill::block_fills(csr, &[block]).unwrap()[0]
}

/// 1024 x 1024 with 32 x 32 blocks at a tenth of the positions. `share`: fraction of their elements that are nonzeros.
fn blocks(share: f64) -> CsrPattern {
    let grid = generate::blocks(1024, 1024, (32, 32), 0.1, 5).unwrap();
    let values = vec![1.0f32; grid.columns().len() * 1024];
    let full = convert::bsr_to_csr(&Bsr::new(grid, values).unwrap()).unwrap();
    let keep = generate::uniform(1024, 1024, share, 9).unwrap();
    let (mut offsets, mut columns) = (vec![0], Vec::new());
    for row in 0..1024 {
        let kept = &keep.columns()[keep.row(row)];
        let all = &full.pattern().columns()[full.pattern().row(row)];
        columns.extend(all.iter().filter(|c| kept.binary_search(c).is_ok()));
        offsets.push(columns.len() as u32);
    }
    CsrPattern::new(1024, 1024, offsets, columns).unwrap()
}

#[test]
fn shuffled_rows_are_found_again() {
    for (share, before, after) in [(1.0, 0.13, 0.95), (0.5, 0.07, 0.47), (0.2, 0.04, 0.18)] {
        let blocks = blocks(share);
        let mixed = shuffled(1024, 1).pattern_rows(&blocks).unwrap();
        let order = reorder_rows(&mixed, (32, 32), &Options::default()).unwrap();
        let sorted = order.pattern_rows(&mixed).unwrap();
        let was = filled(&mixed, (32, 32)).fill();
        let is = filled(&sorted, (32, 32)).fill();
        assert!(was < before && is > after, "{share}: {was} to {is}");
    }
}

#[test]
fn shuffled_columns_are_found_again() {
    let mixed = shuffled(1024, 2).pattern_columns(&blocks(1.0)).unwrap();
    let order = reorder_columns(&mixed, (32, 32), &Options::default()).unwrap();
    let sorted = order.pattern_columns(&mixed).unwrap();
    let was = filled(&mixed, (32, 32)).fill();
    let is = filled(&sorted, (32, 32)).fill();
    assert!(was < 0.13 && is > 0.9, "{was} to {is}");
}

#[test]
fn rows_and_columns_shuffled_together_are_found_again() {
    for (share, after) in [(1.0, 0.9), (0.5, 0.4)] {
        let mixed = shuffled(1024, 3).pattern_rows(&blocks(share)).unwrap();
        let mixed = shuffled(1024, 4).pattern_columns(&mixed).unwrap();
        let (rows, columns) = reorder_both(&mixed, (32, 32), &Options::default()).unwrap();
        let sorted = rows.pattern_rows(&mixed).unwrap();
        let sorted = columns.pattern_columns(&sorted).unwrap();
        let was = filled(&mixed, (32, 32)).fill();
        let is = filled(&sorted, (32, 32)).fill();
        assert!(was < 0.13 && is > after, "{share}: {was} to {is}");
    }
}

#[test]
fn what_cannot_be_improved_stays() {
    let full = blocks(1.0);
    let order = reorder_rows(&full, (32, 32), &Options::default()).unwrap();
    assert!(order.is_identity());
    let (rows, columns) = reorder_both(&full, (32, 32), &Options::default()).unwrap();
    assert!(rows.is_identity() && columns.is_identity());
    for (rows, cols) in [(0, 0), (0, 5), (7, 0), (40, 40)] {
        let empty = CsrPattern::new(rows, cols, vec![0; rows + 1], vec![]).unwrap();
        let order = reorder_rows(&empty, (4, 4), &Options::default()).unwrap();
        assert_eq!((order.len(), order.is_identity()), (rows, true));
        let order = reorder_columns(&empty, (4, 4), &Options::default()).unwrap();
        assert_eq!((order.len(), order.is_identity()), (cols, true));
    }
}

#[test]
fn the_order_does_not_depend_on_threads() {
    let mixed = shuffled(1024, 6).pattern_rows(&blocks(0.3)).unwrap();
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        let pool = pool.build().unwrap();
        pool.install(|| reorder_both(&mixed, (16, 16), &Options::default()).unwrap())
    };
    assert_eq!(on(1), on(3));
}

#[test]
fn permutations_are_checked() {
    let p = Permutation::new(vec![2, 0, 1]).unwrap();
    assert_eq!(p.inverse().order(), [1, 2, 0]);
    assert!(p.then(&p.inverse()).unwrap().is_identity());
    assert!(!p.is_identity() && !p.is_empty() && p.len() == 3);
    let error = Permutation::new(vec![0, 3, 1]).unwrap_err();
    assert_eq!(error.to_string(), "order[1] = 3 must be below 3");
    let error = Permutation::new(vec![0, 2, 0]).unwrap_err();
    assert_eq!(error.to_string(), "order[2] = 0: is order[0] already");
    let a = Csr::new(CsrPattern::new(2, 4, vec![0, 1, 2], vec![3, 0]).unwrap(), vec![1.0f64, 2.0])
        .unwrap();
    let wrong = |what, found| FormatError::Length { array: what, found, expected: 3 };
    assert_eq!(p.rows(&a).unwrap_err(), wrong("rows", 2));
    assert_eq!(p.columns(&a).unwrap_err(), wrong("columns", 4));
    let dense = Dense::<f32>::zeros([4, 2]).unwrap();
    assert_eq!(p.dense_rows(&dense).unwrap_err(), wrong("rows", 4));
    let four = Permutation::identity(4).unwrap();
    assert_eq!(p.then(&four).unwrap_err(), wrong("order", 4));
    assert_eq!(four.dense_rows(&dense).unwrap(), dense);
}

#[test]
fn options_are_checked() {
    let csr = blocks(1.0);
    let with = |similarity, hashes| Options { similarity, hashes };
    for options in [with(-0.1, 8), with(1.5, 8), with(f64::NAN, 8), with(0.5, 0), with(0.5, 65)] {
        let error = reorder_rows(&csr, (32, 32), &options).unwrap_err();
        assert!(matches!(error, FormatError::Shape { .. }), "{error}");
    }
    let error = reorder_rows(&csr, (0, 32), &Options::default()).unwrap_err();
    assert!(matches!(error, FormatError::Shape { .. }), "{error}");
}

proptest! {
    #[test]
    fn permuted_products_are_permuted(
        a in strategy::csr::<f64>(24),
        block in strategy::block(6),
        similarity in 0.0f64..1.0,
        hashes in 1usize..6,
        both: bool,
    ) {
        let options = Options { similarity, hashes };
        let csr = a.pattern();
        let (rows, columns) = if both {
            reorder_both(csr, block, &options).unwrap()
        } else {
            let rows = reorder_rows(csr, block, &options).unwrap();
            let moved = rows.pattern_rows(csr).unwrap();
            let columns = reorder_columns(&moved, block, &options).unwrap();
            (rows, columns)
        };
        let moved = columns.columns(&rows.rows(&a).unwrap()).unwrap();
        let p = moved.pattern();
        // The checked constructor accepts the arrays that were created without checks.
        let checked = CsrPattern::new(p.rows(), p.cols(), p.offsets().to_vec(), p.columns().to_vec());
        prop_assert_eq!(&checked.unwrap(), &**p);
        prop_assert_eq!(&columns.pattern_columns(&rows.pattern_rows(csr).unwrap()).unwrap(), &**p);
        prop_assert!(filled(p, block).blocks <= filled(csr, block).blocks);
        let back = rows.inverse().rows(&columns.inverse().columns(&moved).unwrap()).unwrap();
        prop_assert_eq!(&back, &a);
        let b = Dense::from_fn([csr.cols(), 3], |i| (i[0] * 5 + i[1]) as f64 - 7.0).unwrap();
        let c = reference::spmm(&AnySparse::from(a.clone()), &b).unwrap();
        let moved_b = columns.dense_rows(&b).unwrap();
        let moved_c = reference::spmm(&AnySparse::from(moved.clone()), &moved_b).unwrap();
        prop_assert_eq!(&moved_c, &rows.dense_rows(&c).unwrap());
        prop_assert_eq!(&rows.inverse().dense_rows(&moved_c).unwrap(), &c);
    }

    #[test]
    fn any_order_is_undone(a in strategy::csr::<f32>(30), seed in 0u64..1000) {
        let (rows, columns) = (shuffled(a.shape()[0], seed), shuffled(a.shape()[1], seed + 1));
        let moved = columns.columns(&rows.rows(&a).unwrap()).unwrap();
        prop_assert_eq!(&rows.rows(&columns.columns(&a).unwrap()).unwrap(), &moved);
        let entries = AnySparse::from(a.clone()).entries();
        for (at, value) in &AnySparse::from(moved.clone()).entries() {
            let old = vec![rows.order()[at[0]] as usize, columns.order()[at[1]] as usize];
            prop_assert_eq!(entries.get(&old), Some(value));
        }
        let back = columns.inverse().columns(&rows.inverse().rows(&moved).unwrap()).unwrap();
        prop_assert_eq!(back, a);
    }
}
