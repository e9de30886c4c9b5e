//! Attention at the entries of a mask. The kernels: `kernels-gpu/families/attention`.

pub(crate) mod attention;
pub(crate) mod cpu;
pub(crate) mod masks;
pub(crate) mod queries;

pub(crate) use attention::{AttentionExtents, AttentionLaunch, AttentionLists};
pub use attention::{RawAttention, RawHeads};
pub(crate) use masks::{MaskLaunch, RawFlags};
