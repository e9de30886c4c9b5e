//! Tests of bitmaps and bytemaps together: conversions over several tiles and row blocks, size in bits.

use super::round_trips::assert_valid;
use einsparse_formats::{AnySparse, Csr, CsrPattern, Format, convert, f16, generate, stats};

/// Matrices by rows, columns and density: empty ones, extents at the edges of tiles and row blocks, no nonzeros.
fn matrices([height, width]: [usize; 2]) -> impl Iterator<Item = Csr<f32>> {
    let shapes = [
        (0, 5, 1.0),
        (5, 0, 1.0),
        (1, 1, 1.0),
        (height, width, 1.0),
        (height + 1, width - 1, 0.5),
        (300, 200, 0.3),
        (700, 130, 0.05),
        (513, 257, 0.0),
    ];
    shapes.into_iter().map(|(rows, cols, density)| matrix(rows, cols, density))
}

pub fn matrix(rows: usize, cols: usize, density: f64) -> Csr<f32> {
    let pattern = generate::uniform(rows, cols, density, 7).unwrap();
    let values = (1..=pattern.columns().len()).map(|v| v as f32).collect();
    Csr::new(pattern, values).unwrap()
}

/// Checks that a tensor has the nonzeros of its original matrix, and the sizes of its statistics.
fn holds(any: &AnySparse<f32>, csr: &Csr<f32>) {
    assert_eq!(any.nnz(), csr.nnz());
    assert_eq!(any.to_csr().unwrap(), *csr);
    assert_eq!(any.entries(), AnySparse::from(csr.clone()).entries());
    let counted = stats::slots(csr.pattern(), any.format()).unwrap();
    let index: usize = any.arrays().iter().map(|array| array.data.len()).sum();
    assert_eq!((counted.index, counted.values), (index as u128, any.slots() as u128));
    assert_eq!(counted.values - counted.padding, csr.nnz() as u128);
}

/// Conversions over several tiles and row blocks, and of a stored zero.
#[test]
fn conversions_over_tiles_and_panels() {
    let stored_zero = CsrPattern::new(1, 3, vec![0, 2], vec![0, 2]).unwrap();
    let stored_zero = Csr::new(stored_zero, vec![0.0f32, 1.0]).unwrap();
    for (format, tile) in [(Format::Bitmap, [64, 64]), (Format::Bytemap, [64, 128])] {
        for csr in matrices(tile).chain([stored_zero.clone()]) {
            let any = csr.convert(format).unwrap();
            assert_valid(&any);
            holds(&any, &csr);
            let dense = AnySparse::from(csr.clone()).to_dense().unwrap();
            assert_eq!(any.to_dense().unwrap(), dense);
            if format == Format::Bitmap && csr.values().first() != Some(&0.0) {
                assert_eq!(AnySparse::from(convert::dense_to_bitmap(&dense).unwrap()), any);
            }
        }
    }
}

/// Values, and at most 1.1 bits per position, including padding; bytemaps up to a density of .1.
#[test]
fn tiles_are_small() {
    for (format, densities) in
        [(Format::Bitmap, [0.5, 0.3, 0.1, 0.05]), (Format::Bytemap, [0.1, 0.08, 0.05, 0.02])]
    {
        for density in densities {
            let csr = matrix(1024, 2048, density).map_values(f16::from_f32);
            let any = csr.convert(format).unwrap();
            let index: usize = any.arrays().iter().map(|a| a.data.len() * 4).sum();
            let bits = 8 * (index + 2 * (any.slots() - csr.nnz()));
            let each = bits as f64 / (1024.0 * 2048.0);
            assert!(each <= 1.1, "{format}: {each} at {density}");
        }
    }
}
