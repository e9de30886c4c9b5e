//! Sliced ELLPACK: layout of rows and nonzeros, errors of the constructor, matrices wider than a window.

use super::round_trips::assert_valid;
use einsparse_formats::{
    AnySparse, Csr, CsrPattern, Format, FormatError, PAD, Pattern, SlicedEllPattern, generate,
    stats,
};

const WINDOW: usize = SlicedEllPattern::REACH * SlicedEllPattern::K_TILE;

/// Numbers the nonzeros from 1, as their values.
fn numbered(pattern: CsrPattern) -> Csr<f32> {
    let values = (1..=pattern.nnz()).map(|i| i as f32).collect();
    Csr::new(pattern, values).unwrap()
}

fn sliced(csr: &Csr<f32>) -> einsparse_formats::SlicedEll<f32> {
    csr.try_into().unwrap()
}

#[test]
fn rows_are_sorted_and_entries_lie_lane_by_lane() {
    // Row 0 has columns 0 and 65, row 1 is empty, row 2 has five columns from 64 on.
    let columns = vec![0, 65, 64, 65, 66, 70, 127];
    let csr = numbered(CsrPattern::new(3, 200, vec![0, 2, 2, 7], columns).unwrap());
    let sell = sliced(&csr);
    let p = sell.pattern();
    assert_eq!(p.order()[..4], [2, 0, 1, PAD]);
    assert_eq!((p.order().len(), p.offsets()), (32, &[0, 2][..]));
    // The second chunk contains only the last nonzero of row 2, in the second tile.
    assert_eq!(p.windows(), [0, 2, 1, 2]);
    let none = 0xffff;
    assert_eq!(p.columns()[..2], [64 | 65 << 16, 66 | 70 << 16]);
    assert_eq!(p.columns()[2..4], [65 << 16, none | none << 16]);
    assert_eq!(p.columns()[64], 63 | none << 16);
    assert_eq!(sell.values()[..8], [3.0, 4.0, 5.0, 6.0, 1.0, 2.0, 0.0, 0.0]);
    assert_eq!(sell.values()[128..130], [7.0, 0.0]);
    assert_eq!((p.nnz(), p.slots(), p.value_shape()), (7, 256, vec![2, 32, 4]));
    assert_eq!((p.column(3), p.column(6), p.column(128)), (70, PAD, 127));
}

#[test]
fn rows_that_run_ahead_of_the_window_wait() {
    let far = 3 * WINDOW as u32;
    let columns = vec![far, far + 1, 0, 1, 2, 3, 4];
    let csr = numbered(CsrPattern::new(2, far as usize + 2, vec![0, 2, 7], columns).unwrap());
    let sell = sliced(&csr);
    // Two chunks for row 1, first in order; row 0 waits until only its nonzeros are left.
    let tile = far / 64;
    assert_eq!(sell.pattern().windows(), [0, 1, 0, 1, tile, tile + 1]);
    assert_eq!(AnySparse::from(sell).to_csr().unwrap(), csr);
}

#[test]
fn wide_matrices_go_there_and_back() {
    for (rows, cols, density) in [(200, 5 * WINDOW, 0.002), (70, 3 * WINDOW, 0.1), (9000, 40, 0.1)]
    {
        let csr = numbered(generate::uniform(rows, cols, density, 3).unwrap());
        let any = AnySparse::from(csr.clone());
        let sell = any.convert(Format::SlicedEll).unwrap();
        assert_valid(&sell);
        assert_eq!(sell.to_csr().unwrap(), csr);
        let slots = stats::slots(csr.pattern(), Format::SlicedEll).unwrap();
        let words: usize = sell.arrays().iter().map(|a| a.data.len()).sum();
        assert_eq!((slots.index, slots.values), (words as u128, sell.slots() as u128));
        assert_eq!(slots.padding, (sell.slots() - csr.nnz()) as u128);
    }
}

/// At its intended densities, the format takes less memory than CSR in f32.
#[test]
fn takes_fewer_bytes_than_csr() {
    for density in [0.3, 0.1, 0.05] {
        let csr = generate::uniform(4096, 4096, density, 20).unwrap();
        let bytes = |format| stats::slots(&csr, format).unwrap().bytes(4) as f64;
        let ratio = bytes(Format::SlicedEll) / bytes(Format::Csr);
        assert!((0.75..0.9).contains(&ratio), "{density}: {ratio}");
    }
}

#[test]
fn the_constructor_refuses() {
    let csr = numbered(CsrPattern::new(2, 130, vec![0, 3, 4], vec![0, 70, 129, 5]).unwrap());
    let sell = sliced(&csr);
    let p = sell.pattern();
    let with = |change: &dyn Fn(&mut [Vec<u32>; 4])| {
        let mut arrays = [p.order(), p.offsets(), p.windows(), p.columns()].map(<[u32]>::to_vec);
        change(&mut arrays);
        let [order, offsets, windows, columns] = arrays;
        SlicedEllPattern::new(2, 130, order, offsets, windows, columns)
    };
    assert_eq!(with(&|_| ()).unwrap(), **p);
    let index = |array, position, value, bound| {
        Err(FormatError::InvalidIndex { array, position, value, bound })
    };
    assert_eq!(with(&|a| a[0][1] = 0), index("rows", 1, 0, 2));
    assert_eq!(with(&|a| a[0][1] = 2), index("rows", 1, 2, 2));
    assert_eq!(with(&|a| a[0][2] = 1), index("rows", 2, 1, 0));
    assert_eq!(with(&|a| a[2][1] = 4), index("windows", 1, 4, 4));
    assert_eq!(with(&|a| a[2][1] = 2), index("columns", 2, 129, 128));
    // A column before its predecessor, a column after padding, and a column in a lane without a row.
    assert!(matches!(
        with(&|a| a[3][0] = 70 | 70 << 16),
        Err(FormatError::Order { array: "columns", position: 1, previous: 70, value: 70 })
    ));
    assert_eq!(with(&|a| a[3][2] = 0xffff | 9 << 16), index("columns", 5, 9, 0));
    assert_eq!(with(&|a| a[3][4] = 1 | 0xffff << 16), index("columns", 8, 1, 0));
    assert!(matches!(with(&|a| a[1][1] = 2), Err(FormatError::Length { .. })));
    assert!(matches!(with(&|a| a[3].truncate(3)), Err(FormatError::Length { .. })));
}
