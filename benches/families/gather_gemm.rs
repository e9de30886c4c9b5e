//! Gathered rows times matrices: convolutions, micro-tiles, experts.

pub mod conv;
pub mod ffn;
pub mod gated_moe;
pub mod micro;
pub mod moe;
pub mod pit_conv;
pub mod pit_matmul;
pub mod pit_right;
pub mod pit_tf32;
pub mod pit_turned;

use crate::operations::{Entry, Own};

/// Operations of the family.
pub const OPERATIONS: &[Entry] = &[
    (conv::OP, Own(conv::run)),
    (pit_matmul::OP, Own(pit_matmul::run)),
    (pit_tf32::OP, Own(pit_tf32::run)),
    (pit_turned::OP, Own(pit_turned::run)),
    (pit_right::OP, Own(pit_right::run)),
    (pit_conv::OP, Own(pit_conv::run)),
    (ffn::OP, Own(ffn::run)),
    (moe::OP, Own(moe::run)),
    (gated_moe::OP, Own(gated_moe::run)),
];
