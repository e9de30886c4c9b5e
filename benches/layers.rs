//! Whole layers, each of several families.

pub mod encoder;
pub mod ffn_layer;
pub mod gradients;
pub mod models;
pub mod ranks;
pub mod training;
