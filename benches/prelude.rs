//! Imports that almost every bench of a family uses.

pub use crate::bench::{Bench, Step, ab, at, forced, precise, timed};
pub use crate::check::{
    Sum, add_line, exact, over, relative, rounding, roundoff, rows_error, worse,
};
pub use crate::device::{Buffer, Result, or_said};
pub use crate::operations::{Entry, Own, Table};
pub use crate::ours::SPMM;
pub(crate) use crate::ours::by_dtype;
pub use crate::peers::cublas::{CuBlas, Order};
pub use crate::problems::{Dtype, Problem, SEED, Source};
pub use crate::record::Row;
pub use crate::timing::Times;
pub(crate) use crate::values;
pub use crate::values::{NORMAL, value, values};
pub use einsparse::formats::{Csr, Dense, bf16, f16};
pub use einsparse::{Context, Operand, Options, Scalar, SparseTensor, Tensor};
pub use rand::{Rng, SeedableRng, rngs::StdRng};
