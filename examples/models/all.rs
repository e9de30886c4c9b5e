//! The models by their names.

#[path = "block_masks.rs"]
pub mod block_masks;
#[path = "common.rs"]
pub mod common;
#[path = "encoder.rs"]
pub mod encoder;
#[path = "gcn.rs"]
pub mod gcn;
#[path = "graphs.rs"]
pub mod graphs;
#[path = "maps.rs"]
pub mod maps;
#[path = "masked_net.rs"]
pub mod masked_net;
#[path = "opt_relu.rs"]
pub mod opt_relu;
#[path = "padded.rs"]
pub mod padded;
#[path = "point_cloud.rs"]
pub mod point_cloud;
#[path = "products.rs"]
pub mod products;
#[path = "scans.rs"]
pub mod scans;
#[path = "sparse_training.rs"]
pub mod sparse_training;
#[path = "training.rs"]
pub mod training;
#[path = "unet.rs"]
pub mod unet;
#[path = "wiring.rs"]
pub mod wiring;

use common::Run;

pub type Model = (&'static str, fn(&Run<'_>) -> einsparse::Result<()>);

pub const MODELS: [Model; 5] = [
    ("encoder", encoder::run),
    ("gcn", training::run),
    ("opt_relu", opt_relu::run),
    ("point_cloud", point_cloud::run),
    ("sparse_training", sparse_training::run),
];
