//! Attention at the entries of a mask, and over a cache. The kernels: `kernels-gpu/families/attention`.

use einsparse_kernels::table::Row;

use crate::machine::Machine;

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

/// Thread blocks of a persistent kernel that a GPU has at once.
pub(crate) fn resident(machine: &Machine, row: &Row) -> u32 {
    // Each thread block takes 1 KB of a multiprocessor's shared memory beside its own.
    let room = |bytes: u32| bytes.saturating_add(1024);
    let fit = room(machine.shared_bytes) / room(row.shared_bytes);
    machine.multiprocessors * row.min_blocks.min(fit).max(1)
}
