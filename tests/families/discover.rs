//! Detection of the nonzero parts of an operand: micro-tiles, channels, routes.

mod channels;
mod detect;
mod router;
pub(super) mod routing;
