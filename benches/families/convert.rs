//! From one format to another, on the GPU.

pub mod blocks;
pub mod entries;
