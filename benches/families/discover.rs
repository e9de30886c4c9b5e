//! What of an operand holds something.

pub mod channels;
pub mod pit_choice;
