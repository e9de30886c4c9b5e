//! What of an operand holds something: detection, channels, samples, routes.

mod channels;
mod choice;
mod detect;
mod router;
pub(super) mod routing;
