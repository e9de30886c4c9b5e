//! Layers of models, with losses and optimisers. A layer has `forward` and, if it is trained, `backward`.

// Modules of the crates below, at the paths under which this crate uses them.
use einsparse_core::{
    context, cpu, dynamic, families, launch, operator, ops, plan, registry, tensor, values,
};
use einsparse_cuda::{device, driver, kernel};
use einsparse_formats::parallel;
use einsparse_lang::{einsum, error};

use std::sync::Arc;

use crate::context::Context;
use crate::device::Device;
use crate::error::Result;
use crate::operator::Operator;

mod activation;
mod bias_gradient;
mod cross_entropy;
mod embedding;
mod encoder;
mod feed_forward;
mod glu;
mod linear;
mod moe;
mod optimizer;
mod rms_norm;
mod rotary;
mod router;
mod weight_gradient;

pub use activation::Activation;
pub use bias_gradient::BiasGradient;
pub use cross_entropy::CrossEntropy;
pub use embedding::{Embedding, Greedy};
pub use encoder::{Encoder, EncoderOptions, EncoderWeights, ResidualNorm, ResidualNormGradient};
pub use feed_forward::{FeedForward, FeedForwardOptions};
pub use glu::Glu;
pub use linear::{Linear, LinearOptions};
pub use moe::{Moe, MoeGradients, MoeInputs, MoeOptions};
pub use optimizer::{Adam, AdamOptions, Sgd, SgdOptions};
pub use rms_norm::RmsNorm;
pub use rotary::{Rotary, RotaryOptions};
pub use router::{Router, RouterOptions};
pub use weight_gradient::WeightGradient;

/// Creates the operator of a layer.
fn operator_of<L>(
    context: &Context,
    make: impl FnOnce(&Arc<Device>) -> Result<L>,
) -> Result<Operator<L>> {
    // SAFETY: layers validate their operands with the methods of a run before they queue it.
    unsafe { Operator::of_layer(context, make) }
}
