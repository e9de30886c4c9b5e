//! The kernels on a GPU: every row of the table, exact on integers; random values within their bound;
//! the rule of zeros; determinism, graphs, raw addresses; real matrices. Skipped loudly without a GPU; what can
//! run on the CPU executor does so too, which tests the expectations.

mod attention;
mod batched;
mod batches;
mod bitmap;
mod bundles;
mod cases;
mod convert;
mod dense;
mod dense_rows;
mod driver;
mod entries;
mod files;
mod int8;
mod kept;
mod large;
mod levels;
mod linear;
mod narrow;
mod nm;
mod nm_narrow;
mod numbers;
mod orders;
mod places;
mod relaxed;
mod rows;
mod runs;
mod sampled;
mod sddmm;
mod softmax;
mod sparse_linear;
mod staged;
mod transposed;
mod wide;
mod workspace;
mod zeros;
