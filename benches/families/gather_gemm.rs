//! Gathered rows times matrices: convolutions, micro-tiles, experts.

pub mod conv;
mod experts;
mod ffn;
mod gated_moe;
pub mod micro;
mod moe;
mod pit;
pub mod pit_conv;

use crate::prelude::*;

/// Operations of the family.
pub const OPERATIONS: &[Entry] = &[
    (conv::OP, Own(conv::run)),
    ("pit_matmul", Own(pit::left)),
    ("pit_tf32", Own(pit::tf32)),
    ("pit_turned", Own(pit::turned)),
    ("pit_right", Own(pit::right)),
    (pit_conv::OP, Own(pit_conv::run)),
    (ffn::OP, Own(ffn::run)),
    (moe::OP, Own(moe::run)),
    (gated_moe::OP, Own(gated_moe::run)),
];
