//! The models by their names.

#[path = "common.rs"]
pub mod common;
#[path = "gcn.rs"]
pub mod gcn;
#[path = "graphs.rs"]
pub mod graphs;
#[path = "mobilenet.rs"]
pub mod mobilenet;
#[path = "mobilenet_weights.rs"]
pub mod mobilenet_weights;
#[path = "opt_relu.rs"]
pub mod opt_relu;
#[path = "products.rs"]
pub mod products;
#[path = "training.rs"]
pub mod training;

use common::Run;

pub type Model = (&'static str, fn(&Run<'_>) -> einsparse::Result<()>);

pub const MODELS: [Model; 3] = [
    ("gcn", training::run),
    ("opt_relu", opt_relu::run),
    ("mobilenet", mobilenet::run),
];
