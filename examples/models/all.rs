//! The models by their names.

#[path = "common.rs"]
pub mod common;
#[path = "decode.rs"]
pub mod decode;
#[path = "decoder.rs"]
pub mod decoder;
#[path = "gcn.rs"]
pub mod gcn;
#[path = "graphs.rs"]
pub mod graphs;
#[path = "moe.rs"]
pub mod moe;
#[path = "moe_block.rs"]
pub mod moe_block;
#[path = "opt_relu.rs"]
pub mod opt_relu;
#[path = "products.rs"]
pub mod products;
#[path = "pruned.rs"]
pub mod pruned;
#[path = "training.rs"]
pub mod training;

use common::Run;

pub type Model = (&'static str, fn(&Run<'_>) -> einsparse::Result<()>);

pub const MODELS: &[Model] = &[
    ("decode", decode::run),
    ("gcn", training::run),
    ("moe", moe::run),
    ("opt_relu", opt_relu::run),
];
