//! Detection of the nonzero parts of an operand.

pub mod channels;
pub mod detect;
pub mod pit_choice;

use crate::operations::{Entry, Own};

/// Operations of the family.
pub const OPERATIONS: &[Entry] = &[
    (detect::OP, Own(detect::run)),
    (channels::OP, Own(channels::run)),
    (pit_choice::OP, Own(pit_choice::run)),
];
