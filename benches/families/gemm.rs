//! Block-sparse and dense matrices on Tensor Cores.

pub mod accumulate;
pub mod dense;
pub mod layer;
pub mod narrow;
pub mod nm_narrow;

use crate::operations::{Entry, Own, Table};
use crate::sweep;

/// Operations of the family.
pub const OPERATIONS: &[Entry] = &[
    ("block_spmm", Table(sweep::run)),
    ("nm_spmm", Table(sweep::run)),
    (dense::OP, Own(dense::run)),
    (accumulate::OP, Own(accumulate::run)),
    ("narrow", Own(narrow::run)),
    ("nm_narrow", Own(nm_narrow::run)),
    ("layer", Own(layer::run)),
];
