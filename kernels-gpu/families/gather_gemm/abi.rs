//! Tiles and parameters of the family.

mod conv;
mod conv_steps;
mod grouped;
mod grouped_grad;
mod pit;
mod pit_conv;
mod pit_few;
mod pit_tf32;

pub use conv::*;
pub use conv_steps::*;
pub use grouped::*;
pub use grouped_grad::*;
pub use pit::*;
pub use pit_conv::*;
pub use pit_few::*;
pub use pit_tf32::*;
