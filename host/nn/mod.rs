//! Layers of models: what holds weights, or puts operations together. Each has `forward` and, where it is trained,
//! `backward`.

mod encoder;
mod feed_forward;
mod linear;
mod moe;
mod router;

pub use encoder::{EncoderLayer, EncoderOptions, EncoderWeights, ResidualNorm};
pub use feed_forward::{FeedForward, FeedForwardOptions};
pub use linear::{Linear, LinearOptions};
pub use moe::{Moe, MoeGradients, MoeOptions};
pub use router::{Router, RouterOptions};
