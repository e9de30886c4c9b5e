//! All models by name.

#[path = "atoms.rs"]
pub mod atoms;
#[path = "block_masks.rs"]
pub mod block_masks;
#[path = "checkpoint.rs"]
pub mod checkpoint;
#[path = "common.rs"]
pub mod common;
#[path = "decode.rs"]
pub mod decode;
#[path = "decoder.rs"]
pub mod decoder;
#[path = "domains.rs"]
pub mod domains;
#[path = "dynamics.rs"]
pub mod dynamics;
#[path = "encoder.rs"]
pub mod encoder;
#[path = "force_field.rs"]
pub mod force_field;
#[path = "gcn.rs"]
pub mod gcn;
#[path = "graphs.rs"]
pub mod graphs;
#[path = "interaction.rs"]
pub mod interaction;
#[path = "maps.rs"]
pub mod maps;
#[path = "masked_net.rs"]
pub mod masked_net;
#[path = "mixing.rs"]
pub mod mixing;
#[path = "mobilenet.rs"]
pub mod mobilenet;
#[path = "mobilenet_weights.rs"]
pub mod mobilenet_weights;
#[path = "moe.rs"]
pub mod moe;
#[path = "moe_block.rs"]
pub mod moe_block;
#[path = "moe_dense.rs"]
pub mod moe_dense;
#[path = "opt_relu.rs"]
pub mod opt_relu;
#[path = "padded.rs"]
pub mod padded;
#[path = "point_cloud.rs"]
pub mod point_cloud;
#[path = "products.rs"]
pub mod products;
#[path = "pruned.rs"]
pub mod pruned;
#[path = "scans.rs"]
pub mod scans;
#[path = "sparse_training.rs"]
pub mod sparse_training;
#[path = "training.rs"]
pub mod training;
#[path = "transformer.rs"]
pub mod transformer;
#[path = "transformer_net.rs"]
pub mod transformer_net;
#[path = "transformer_weights.rs"]
pub mod transformer_weights;
#[path = "unet.rs"]
pub mod unet;
#[path = "wiring.rs"]
pub mod wiring;

use common::Run;

pub type Model = (&'static str, fn(&Run<'_>) -> einsparse::Result<()>);

pub const MODELS: &[Model] = &[
    ("decode", decode::run),
    ("encoder", encoder::run),
    ("force_field", dynamics::run),
    ("gcn", training::run),
    ("mobilenet", mobilenet::run),
    ("moe", moe::run),
    ("opt_relu", opt_relu::run),
    ("point_cloud", point_cloud::run),
    ("sparse_training", sparse_training::run),
    ("transformer", transformer::run),
];
