//! Attention at the entries of a mask, and with a cache. The kernels are in `kernels-gpu/families/attention`.

use einsparse_kernels::table::Row;

use crate::machine::Machine;

pub(crate) mod attention;
pub mod cpu;
pub(crate) mod decode;
pub(crate) mod key_blocks;
pub mod masks;
pub mod queries;

pub use attention::RawAttention;
pub use attention::{AttentionExtents, AttentionLaunch, AttentionLists};
pub(crate) use decode::{DecodeExtents, DecodeLaunch, RawDecode};
pub use key_blocks::{KeyBlocksLaunch, RawKeyBlocks};
pub use masks::{MaskLaunch, RawFlags};

/// Returns the number of thread blocks of a persistent kernel that a GPU holds at once.
pub fn resident(machine: &Machine, row: &Row) -> u32 {
    // Each thread block reserves 1 KB of shared memory in addition to its own.
    let room = |bytes: u32| bytes.saturating_add(1024);
    let fit = room(machine.shared_bytes) / room(row.shared_bytes);
    machine.multiprocessors * row.min_blocks.min(fit).max(1)
}

#[cfg(test)]
mod tests {
    use einsparse_kernels::table::kernels;

    use super::*;

    #[test]
    fn thread_blocks_follow_shared_memory_and_registers() {
        let row = |name: &str| kernels().iter().find(|row| row.name == name).unwrap();
        let of = |name: &str, shared: u32| {
            let machine = Machine::H200.with_shared_bytes(shared << 10);
            resident(&machine, row(name)) / machine.multiprocessors
        };
        assert_eq!([227, 163].map(|shared| of("attention_f16_d128", shared)), [1, 1]);
        for name in ["attention_mma_f16_d64", "attention_mma_f16_d128"] {
            assert_eq!([227, 163].map(|shared| of(name, shared)), [2, 2], "{name}");
        }
        assert_eq!(of("attention_mma_f16_d64", 99), 2);
        assert_eq!(of("attention_mma_f16_d128", 99), 1);
        assert_eq!([227, 163, 99].map(|shared| of("attention_decode_f16_d64", shared)), [2, 1, 1]);
    }
}
