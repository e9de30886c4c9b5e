//! Detection of the nonzero parts of an operand: micro-tiles, channels, samples, routes.

mod channels;
mod choice;
mod detect;
mod router;
pub(super) mod routing;
