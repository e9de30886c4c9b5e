//! Blocks counted for many sizes at once, and the advice that follows.

use std::collections::BTreeSet;

use einsparse_formats::advice::{BLOCKS, Rates, Storage, advise, block_fills};
use einsparse_formats::proptest as strategy;
use einsparse_formats::stats::RowStats;
use einsparse_formats::{CsrPattern, Format, FormatError, Pattern, generate};
use proptest::prelude::*;

/// Blocks with an entry, one by one.
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
    // 17 x 5 has strips of its own, and with 23 rows the common height is beyond the matrix.
    for extra in [&[][..], &[(17, 5)], &[(17, 5), (23, 40)]] {
        let sizes = [&BLOCKS[..], extra].concat();
        for fill in block_fills(&csr, &sizes).unwrap() {
            let stats = RowStats::of_block_rows(&csr, fill.block).unwrap();
            assert_eq!(fill.blocks, stats.nnz as u64, "{:?}", fill.block);
        }
    }
}

/// 512 x 512 with full blocks of one size at a sixth of the places.
fn blocks(side: usize) -> CsrPattern {
    let grid = generate::blocks(512, 512, (side, side), 0.16, 3).unwrap();
    let values = vec![1.0f32; grid.columns().len() * side * side];
    let bsr = einsparse_formats::Bsr::new(grid, values).unwrap();
    let csr = einsparse_formats::convert::bsr_to_csr(&bsr).unwrap();
    csr.pattern().as_ref().clone()
}

#[test]
fn the_size_of_the_blocks_is_advised() {
    for side in [16, 32, 64] {
        let csr = blocks(side);
        let advice = advise(&csr, &Rates::default()).unwrap();
        let best = advice.best();
        let block = (side, side);
        assert_eq!(best.storage, Storage::Blocks { block });
        assert_eq!(best.storage.format(), Some(Format::Bsr { block }));
        assert_eq!((best.fill, best.stored), (1.0, csr.nnz() as u128));
        let density = csr.nnz() as f64 / 262144.0;
        let (_, rate) = *Rates::default()
            .blocks
            .iter()
            .find(|(b, _)| *b == block)
            .unwrap();
        assert!((best.cost.unwrap() - density / rate).abs() < 1e-12);
        assert_eq!(advice.offers.len(), 2 + BLOCKS.len());
        assert!(
            advice
                .to_string()
                .starts_with(&format!("bsr:{side}x{side} at 0."))
        );
    }
}

#[test]
fn entries_and_dense_have_their_place() {
    // Few scattered entries: every block is nearly empty.
    let thin = generate::uniform(512, 512, 0.001, 1).unwrap();
    let advice = advise(&thin, &Rates::default()).unwrap();
    assert_eq!(advice.best().storage, Storage::Entries);
    // A third of all places: no block is empty, and blocks of 128 run at .85 of dense.
    let thick = generate::uniform(512, 512, 0.33, 1).unwrap();
    let advice = advise(&thick, &Rates::default()).unwrap();
    assert_eq!(advice.best().storage, Storage::Dense);
    assert_eq!(advice.to_string(), "dense at 1.000 of a dense product");
    // A size of one's own, with a rate that wins.
    let rates = Rates {
        entries: 0.012,
        blocks: vec![((8, 512), 2.0)],
    };
    let advice = advise(&thick, &rates).unwrap();
    assert_eq!(advice.best().storage, Storage::Blocks { block: (8, 512) });
    assert_eq!(advice.best().cost, Some(0.5));
    assert!(
        advice.offers[2..12]
            .iter()
            .all(|offer| offer.cost.is_none())
    );
}

#[test]
fn nothing_costs_nothing() {
    for (rows, cols) in [(0, 0), (0, 9), (9, 0), (300, 200)] {
        let csr = CsrPattern::new(rows, cols, vec![0; rows + 1], vec![]).unwrap();
        let advice = advise(&csr, &Rates::default()).unwrap();
        assert_eq!(advice.best().storage, Storage::Entries);
        assert_eq!(advice.best().cost, Some(0.0));
        assert!(advice.offers.iter().all(|offer| !offer.fill.is_nan()));
    }
}

#[test]
fn what_cannot_be_counted_is_refused() {
    let csr = CsrPattern::new(1, 1, vec![0, 1], vec![0]).unwrap();
    assert!(matches!(
        block_fills(&csr, &[(16, 0)]),
        Err(FormatError::Shape { .. })
    ));
    assert!(matches!(
        block_fills(&csr, &[(1 << 32, 1)]),
        Err(FormatError::Overflow { .. })
    ));
    for rate in [0.0, -1.0, f64::NAN] {
        let rates = Rates {
            entries: rate,
            blocks: vec![],
        };
        let error = advise(&csr, &rates).unwrap_err();
        assert_eq!(error.to_string(), format!("rate is {rate}, above 0 wanted"));
    }
}
