//! The models by their names.

#[path = "atoms.rs"]
pub mod atoms;
#[path = "common.rs"]
pub mod common;
#[path = "decode.rs"]
pub mod decode;
#[path = "decoder.rs"]
pub mod decoder;
#[path = "dynamics.rs"]
pub mod dynamics;
#[path = "force_field.rs"]
pub mod force_field;
#[path = "gcn.rs"]
pub mod gcn;
#[path = "graphs.rs"]
pub mod graphs;
#[path = "interaction.rs"]
pub mod interaction;
#[path = "mixing.rs"]
pub mod mixing;
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
    ("force_field", dynamics::run),
    ("gcn", training::run),
    ("moe", moe::run),
    ("opt_relu", opt_relu::run),
];
