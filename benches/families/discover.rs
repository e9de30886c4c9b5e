//! What of an operand holds something.

pub mod channels;
pub mod detect;
pub mod pit_choice;
