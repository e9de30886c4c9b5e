//! Conversions between formats on the GPU.

pub mod blocks;
pub mod entries;

use crate::operations::{Entry, Own, Table};
use crate::problems;

/// Operations of the family.
pub const OPERATIONS: &[Entry] = &[
    (problems::DENSE_TO_BLOCKS, Table(blocks::run)),
    (problems::CSR_TO_BLOCKS, Table(blocks::run)),
    (entries::OP, Own(entries::run)),
];
