//! Matrix of a launch, without its element type.

/// Row-major matrix in device memory.
#[derive(Clone, Copy, Debug)]
pub struct DenseMatrix {
    /// Device address of the first element.
    pub address: u64,
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub columns: usize,
    /// Row stride in elements.
    pub leading: usize,
}
