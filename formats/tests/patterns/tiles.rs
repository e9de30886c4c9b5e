//! Shared tests of bitmap tiles and byte maps.

use einsparse_formats::{AnySparse, Csr, CsrPattern, f16, generate, stats};

/// Matrices by rows, columns and density: empty ones, extents at the edges of tiles and row blocks, no nonzeros.
pub fn matrices([height, width]: [usize; 2]) -> impl Iterator<Item = Csr<f32>> {
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
pub fn holds(any: &AnySparse<f32>, csr: &Csr<f32>) {
    assert_eq!(any.nnz(), csr.nnz());
    assert_eq!(any.to_csr().unwrap(), *csr);
    assert_eq!(any.entries(), AnySparse::from(csr.clone()).entries());
    let counted = stats::slots(csr.pattern(), any.format()).unwrap();
    let index: usize = any.arrays().iter().map(|array| array.data.len()).sum();
    assert_eq!((counted.index, counted.values), (index as u128, any.slots() as u128));
    assert_eq!(counted.values - counted.padding, csr.nnz() as u128);
}

/// A row of three elements with a stored zero.
pub fn stored_zero() -> Csr<f32> {
    let pattern = CsrPattern::new(1, 3, vec![0, 2], vec![0, 2]).unwrap();
    Csr::new(pattern, vec![0.0f32, 1.0]).unwrap()
}

/// Checks for at most 1.1 bits per position in addition to the values, including padding.
pub fn is_small(density: f64, of: impl Fn(&Csr<f16>) -> AnySparse<f16>) {
    let csr = matrix(1024, 2048, density);
    let csr = csr.map_values(f16::from_f32);
    let any = of(&csr);
    let index: usize = any.arrays().iter().map(|a| a.data.len() * 4).sum();
    let bits = 8 * (index + 2 * (any.slots() - csr.nnz()));
    let each = bits as f64 / (1024.0 * 2048.0);
    assert!(each <= 1.1, "{each} at {density}");
}
