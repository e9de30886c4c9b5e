//! Columns of eight rows: they contain every nonzero once, have the right counts, and are refused if a 16-bit count
//! overflows.

use einsparse_formats::vectors::{STEP, VectorPattern, WINDOW, sampled_steps};
use einsparse_formats::{CsrPattern, FormatError, generate};

fn runs(pattern: &CsrPattern) -> Vec<(u32, u32)> {
    let offsets = pattern.offsets().windows(2);
    offsets.map(|w| (w[0], w[1] - w[0])).collect()
}

fn check(pattern: &CsrPattern) {
    let rows = runs(pattern);
    let made = VectorPattern::from_rows(pattern.cols(), &rows, pattern.columns()).unwrap();
    assert_eq!(made.shape(), [pattern.rows(), pattern.cols()]);
    assert_eq!(made.windows().len(), pattern.rows().div_ceil(WINDOW));
    for (row, entries) in made.to_rows().into_iter().enumerate() {
        let places = pattern.row(row);
        let wanted = places.map(|p| (p as u32, pattern.columns()[p]));
        assert_eq!(entries, wanted.collect::<Vec<_>>(), "row {row}");
    }
    let mut vectors = 0;
    for (at, window) in made.windows().iter().enumerate() {
        let rows = at * WINDOW..pattern.rows().min((at + 1) * WINDOW);
        let mut columns: Vec<u32> =
            rows.clone().flat_map(|r| pattern.row(r)).map(|p| pattern.columns()[p]).collect();
        columns.sort_unstable();
        columns.dedup();
        assert_eq!(window.vectors as usize, columns.len(), "window {at}");
        let steps = &made.steps()[window.first as usize..][..columns.len().div_ceil(STEP)];
        let mut all = steps.iter().flat_map(|step| step.columns);
        assert!(all.by_ref().take(columns.len()).eq(columns.iter().copied()), "window {at}");
        // The remaining slots repeat the last column, where no row has a nonzero.
        assert!(all.all(|c| Some(&c) == columns.last()), "window {at}");
        for (r, row) in rows.enumerate() {
            assert_eq!(window.filled >> r & 1 != 0, !pattern.row(row).is_empty(), "row {row}");
        }
        vectors += columns.len() as u64;
    }
    assert_eq!(made.vectors(), vectors);
    let (steps, longest) = sampled_steps(&rows, pattern.columns());
    let windows = made.windows().iter();
    assert_eq!(steps, made.steps().len() as u64);
    assert_eq!(longest, windows.map(|w| w.vectors.div_ceil(STEP as u32).into()).max().unwrap_or(0));
}

#[test]
fn vectors_hold_every_entry_once() {
    for (rows, cols, density) in [
        (0, 5, 0.5),
        (1, 1, 1.0),
        (7, 300, 0.2),
        (8, 16, 1.0),
        (9, 17, 1.0),
        (64, 70_000, 0.001),
        // Large enough to be counted in pieces.
        (17, 3_000, 0.6),
        (333, 257, 0.03),
        (40, 5, 0.0),
    ] {
        check(&generate::uniform(rows, cols, density, 3).unwrap());
    }
    check(&generate::banded(1000, 27).unwrap());
    // A full row between empty ones.
    let offsets = (0..=20).map(|r| if r > 11 { 500 } else { 0 }).collect();
    check(&CsrPattern::new(20, 500, offsets, (0..500).collect()).unwrap());
}

#[test]
fn rows_may_lie_apart() {
    // As in ELL, slots between the ranges of rows belong to no row.
    let rows = [(4, 2), (0, 1), (9, 0)];
    let made = VectorPattern::from_rows(8, &rows, &[6, 9, 9, 9, 1, 6]).unwrap();
    assert_eq!(made.to_rows(), [vec![(4, 1), (5, 6)], vec![(0, 6)], vec![]]);
    assert_eq!((made.windows()[0].base, made.windows()[0].filled), (0, 0b011));
}

#[test]
fn eight_rows_span_65536_values_at_the_most() {
    let whole = 1 << 13;
    let rows: Vec<(u32, u32)> = (0..8).map(|r| (r * whole, whole)).collect();
    let columns: Vec<u32> = (0..8).flat_map(|_| 0..whole).chain([0]).collect();
    let made = VectorPattern::from_rows(whole as usize, &rows, &columns).unwrap();
    assert_eq!(made.vectors(), u64::from(whole));
    assert_eq!(made.to_rows()[7].last(), Some(&(65_535, whole - 1)));
    let steps = u64::from(whole) / STEP as u64;
    assert_eq!(sampled_steps(&rows, &columns), (steps, steps));
    let apart = [(0, 1), (65_536, 1)];
    let error = VectorPattern::from_rows(9, &apart, &columns).unwrap_err();
    assert_eq!(
        error,
        FormatError::Overflow { what: "values that eight rows span", value: 65_537, limit: 65_536 }
    );
    assert_eq!(sampled_steps(&apart, &columns), (0, 0));
}
