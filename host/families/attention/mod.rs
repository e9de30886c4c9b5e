//! Attention at the entries of a mask, and over a cache. The kernels: `kernels-gpu/families/attention`.

pub(crate) mod attention;
pub(crate) mod cpu;
pub(crate) mod decode;
pub(crate) mod key_blocks;
pub(crate) mod masks;
pub(crate) mod queries;

pub use attention::RawAttention;
pub(crate) use attention::{AttentionExtents, AttentionLaunch, AttentionLists};
pub(crate) use decode::{DecodeExtents, DecodeLaunch, RawDecode};
pub(crate) use key_blocks::{KeyBlocksLaunch, RawKeyBlocks};
pub(crate) use masks::{MaskLaunch, RawFlags};
