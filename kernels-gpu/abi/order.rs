//! How operands lie in memory: bits that a tile is made with.

/// A's pieces row by row (as BSR stores blocks), B as `[k, n]`.
pub const PLAIN: u32 = 0;
/// A's pieces column by column: the product takes A's transpose without copying it.
pub const A_COLUMNS: u32 = 1;
/// B as `[n, k]`.
pub const B_COLUMNS: u32 = 2;
/// C as `[n, m]`.
pub const C_COLUMNS: u32 = 8;
/// A's pieces go from shared memory to registers, as they lie in memory; absent ones are no copy at all. For pieces
/// narrower than a stage.
pub const IN_REGISTERS: u32 = 4;
/// Pieces of one column: a column by column layout by nature, and registers because columns of 32 rows are too short
/// for the places that tensor copies write to.
pub const COLUMN_PIECES: u32 = A_COLUMNS | IN_REGISTERS;
/// The dense matrix stands on the left: `C[n,m] = B[n,k] * A[m,k]`, or `A[k,m]` with [`A_COLUMNS`].
pub const ON_THE_LEFT: u32 = B_COLUMNS | C_COLUMNS;
/// X as `[m, k]`, Y as `[n, k]`.
pub const BOTH_ROWS: u32 = B_COLUMNS;
/// X as `[k, m]`, Y as `[k, n]`.
pub const BOTH_COLUMNS: u32 = A_COLUMNS;
