//! Patterns with the row lengths of pruned weight matrices: mean, standard deviation and fraction of empty rows, as
//! measured on the Deep Learning Matrix Collection (Gale, Zaharia, Young, Elsen, SC 2020). Columns are uniform in each
//! row.

use super::random::{Purpose, Stream, by_rows};
use crate::error::*;
use crate::{CsrPattern, allocate, check};

/// Returns a pattern of `round(rows * cols * density)` entries. `row_std` is the standard deviation of the row lengths
/// over all rows, including empty ones. `empty_rows` is the fraction of empty rows. With the columns of CHOSEN.txt:
/// `row_std = cov * mean_row`, `empty_rows = empty_rows / rows`.
///
/// Lengths are log-normal, clamped to the range 1 to `cols`. The width of the distribution is searched until `row_std`
/// is met as closely as the other numbers allow. Empty rows alone already cause a spread.
///
/// ```
/// // body_encoder_layer_3_ffn_conv1_fully_connected at sparsity 0.9: 2048 x 512, cov 0.50, 16 empty rows.
/// let pattern = einsparse_formats::generate::pruned(2048, 512, 0.1, 0.5 * 51.2, 16.0 / 2048.0, 1)?;
/// assert_eq!(pattern.columns().len(), 104_858);
/// # Ok::<(), einsparse_formats::FormatError>(())
/// ```
///
/// # Errors
/// Returns [`FormatError::Shape`] for a fraction or standard deviation out of range, or for more entries than the
/// non-empty rows can hold. Returns [`FormatError::Overflow`] if a count exceeds the index type.
pub fn pruned(
    rows: usize,
    cols: usize,
    density: f64,
    row_std: f64,
    empty_rows: f64,
    seed: u64,
) -> Result<CsrPattern> {
    check::fraction("density", density)?;
    check::fraction("fraction of empty rows", empty_rows)?;
    if !(row_std >= 0.0 && row_std.is_finite()) {
        return Err(check::shape("standard deviation", row_std, "a finite number, not negative"));
    }
    check::matrix(rows, cols)?;
    let entries = check::fits("entries", (rows as f64 * cols as f64 * density).round() as u128)?;
    allocate::extent("rows", rows as u128, 16, 12 * entries as u64)?;
    let filled = (rows - (rows as f64 * empty_rows).round() as usize).min(entries);
    if entries > filled * cols {
        let expected = format!("at most {} in {filled} non-empty rows", filled * cols);
        return Err(check::shape("entries", entries, expected));
    }
    let mut stream = Stream::new(seed, Purpose::PrunedLengths, 0);
    let mut places = check::reserved("rows", filled)?;
    stream.distinct(filled, rows, &mut places);
    let mut lengths = check::zeroed("lengths of rows", rows)?;
    for (place, length) in
        places.iter().zip(Lengths::new(filled, cols, entries, &mut stream).search(rows, row_std))
    {
        lengths[*place as usize] = length;
    }
    let drawn = (seed, Purpose::PrunedColumns);
    by_rows(rows, cols, entries as u64, drawn, |row, stream, columns| {
        stream.distinct(lengths[row], cols, columns);
    })
}

/// Lengths of the non-empty rows as a function of the width of their distribution.
struct Lengths {
    normals: Vec<f64>,
    cols: usize,
    entries: usize,
}

impl Lengths {
    fn new(filled: usize, cols: usize, entries: usize, stream: &mut Stream) -> Self {
        let mut normals: Vec<f64> =
            (0..filled.div_ceil(2)).flat_map(|_| stream.normals()).collect();
        normals.truncate(filled);
        Self { normals, cols, entries }
    }

    /// Finds the width by bisection: the spread increases with the width.
    fn search(&self, rows: usize, row_std: f64) -> Vec<usize> {
        let (mut low, mut high) = (0.0, 8.0);
        for _ in 0..24 {
            let middle = (low + high) / 2.0;
            if spread(&self.at(middle), rows) < row_std { low = middle } else { high = middle }
        }
        let [below, above] = [self.at(low), self.at(high)];
        let miss = |lengths: &[usize]| (spread(lengths, rows) - row_std).abs();
        if miss(&below) <= miss(&above) { below } else { above }
    }

    /// Lengths whose sum is exactly `entries`: the scale is found by bisection, and the missing entries are added one
    /// by one.
    fn at(&self, width: f64) -> Vec<usize> {
        let weights: Vec<f64> =
            self.normals.iter().map(|normal| libm::exp(width * normal)).collect();
        let length =
            |weight: f64, scale: f64| ((weight * scale).round() as usize).clamp(1, self.cols);
        let total = |scale: f64| weights.iter().map(|weight| length(*weight, scale)).sum::<usize>();
        let (mut low, mut high) = (0.0, self.cols as f64);
        while total(high) < self.entries {
            high *= 2.0;
        }
        for _ in 0..40 {
            let middle = (low + high) / 2.0;
            if total(middle) < self.entries { low = middle } else { high = middle }
        }
        let mut lengths: Vec<usize> = weights.iter().map(|weight| length(*weight, low)).collect();
        let mut missing = self.entries - lengths.iter().sum::<usize>();
        while missing > 0 {
            for length in lengths.iter_mut().filter(|length| **length < self.cols).take(missing) {
                *length += 1;
                missing -= 1;
            }
        }
        lengths
    }
}

/// Standard deviation of the lengths over all `rows`. `lengths` contains the non-empty rows.
fn spread(lengths: &[usize], rows: usize) -> f64 {
    let mean = lengths.iter().sum::<usize>() as f64 / rows.max(1) as f64;
    let square =
        lengths.iter().map(|length| (*length as f64).powi(2)).sum::<f64>() / rows.max(1) as f64;
    (square - mean * mean).max(0.0).sqrt()
}
