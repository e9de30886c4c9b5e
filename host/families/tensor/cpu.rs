//! The same on the CPU.

mod gathers;
mod message;

pub(crate) use gathers::{Matrix, gathers};
pub(crate) use message::Largest;
