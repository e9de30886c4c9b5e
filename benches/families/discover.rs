//! Detection of the nonzero parts of an operand.

mod channels;
mod detect;
mod pit_choice;

use crate::prelude::*;

/// Operations of the family.
pub const OPERATIONS: &[Entry] = &[
    (detect::OP, Own(detect::run)),
    (channels::OP, Own(channels::run)),
    (pit_choice::OP, Own(pit_choice::run)),
];
