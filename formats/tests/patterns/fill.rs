//! Block counts for many block sizes at once.

use std::collections::BTreeSet;

use einsparse_formats::fill::{BLOCKS, block_fills};
use einsparse_formats::proptest as strategy;
use einsparse_formats::stats::RowStats;
use einsparse_formats::{CsrPattern, FormatError, Pattern, generate};
use proptest::prelude::*;

/// Counts the blocks with a nonzero one by one.
fn plain(csr: &CsrPattern, (bm, bk): (usize, usize)) -> u64 {
    let mut blocks = BTreeSet::new();
    for row in 0..csr.rows() {
        for e in csr.row(row) {
            blocks.insert((row / bm, csr.columns()[e] as usize / bk));
        }
    }
    blocks.len() as u64
}

proptest! {
    #[test]
    fn counts_are_those_of_the_blocks(
        a in strategy::csr::<f32>(60),
        mut sizes in prop::collection::vec(strategy::block(70), 0..6),
    ) {
        let csr = a.pattern();
        sizes.extend(BLOCKS);
        let fills = block_fills(csr, &sizes).unwrap();
        prop_assert_eq!(fills.len(), sizes.len());
        for (fill, size) in fills.iter().zip(&sizes) {
            prop_assert_eq!((fill.block, fill.blocks), (*size, plain(csr, *size)), "{:?}", size);
            prop_assert_eq!(fill.stored(), u128::from(fill.blocks) * (size.0 * size.1) as u128);
            prop_assert!(fill.fill() > 0.0 && fill.fill() <= 1.0);
        }
    }
}

#[test]
fn many_tasks_count_no_block_twice() {
    let csr = generate::uniform(3001, 2003, 0.03, 7).unwrap();
    assert!(csr.nnz() > 1 << 17);
    // The common multiple of the heights grows with 17 x 5, and exceeds the matrix with 23 x 40.
    for extra in [&[][..], &[(17, 5)], &[(17, 5), (23, 40)]] {
        let sizes = [&BLOCKS[..], extra].concat();
        for fill in block_fills(&csr, &sizes).unwrap() {
            let stats = RowStats::of_block_rows(&csr, fill.block).unwrap();
            assert_eq!(fill.blocks, stats.nnz as u64, "{:?}", fill.block);
        }
    }
}

#[test]
fn what_cannot_be_counted_is_refused() {
    let csr = CsrPattern::new(1, 1, vec![0, 1], vec![0]).unwrap();
    assert!(matches!(block_fills(&csr, &[(16, 0)]), Err(FormatError::Shape { .. })));
    assert!(matches!(block_fills(&csr, &[(1 << 32, 1)]), Err(FormatError::Overflow { .. })));
}
