//! Unstructured sparse A times a dense matrix.

pub mod decode;
mod epilogue;
mod int8;
mod streaming;
mod turned;

use crate::prelude::*;
use crate::sweep;

/// Operations of the family.
pub const OPERATIONS: &[Entry] = &[
    ("spmm", Table(sweep::run)),
    ("decode", Own(decode::run)),
    (turned::OP, Own(turned::run)),
    (epilogue::OP, Own(epilogue::run)),
    ("int8", Own(int8::run)),
    (streaming::OP, Own(streaming::run)),
];
