//! Layouts of operands: bits of the `ORDER` of a tile.

/// A's pieces row-major (as BSR stores blocks), B as `[k, n]`.
pub const PLAIN: u32 = 0;
/// A's pieces column-major: the product uses A's transpose without a transposed copy.
pub const A_COLUMNS: u32 = 1;
/// B as `[n, k]`.
pub const B_COLUMNS: u32 = 2;
/// C as `[n, m]`.
pub const C_COLUMNS: u32 = 8;
/// A's pieces are copied without a swizzle and loaded from shared memory into registers. Absent pieces are not copied.
/// For pieces narrower than a stage.
pub const IN_REGISTERS: u32 = 4;
/// Column-major pieces, loaded into registers. Pieces of one column are column-major by definition; columns of 32 rows
/// are too short for the destinations of tensor copies.
pub const COLUMN_PIECES: u32 = A_COLUMNS | IN_REGISTERS;
/// The dense matrix is the left operand: `C[n,m] = B[n,k] * A[m,k]`, or `A[k,m]` with [`A_COLUMNS`].
pub const ON_THE_LEFT: u32 = B_COLUMNS | C_COLUMNS;
/// X as `[m, k]`, Y as `[n, k]`.
pub const BOTH_ROWS: u32 = B_COLUMNS;
/// X as `[k, m]`, Y as `[k, n]`.
pub const BOTH_COLUMNS: u32 = A_COLUMNS;
