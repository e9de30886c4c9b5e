//! Gathered rows times matrices: convolutions, micro-tiles, experts.

pub mod conv;
pub mod ffn;
pub mod micro;
pub mod moe;
pub mod pit_conv;
pub mod pit_matmul;
pub mod pit_right;
pub mod pit_tf32;
pub mod pit_turned;
