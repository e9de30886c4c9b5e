//! Nonempty columns of the items of a batch. `mark` reads all items once and stores a bit per column. `pack` makes
//! lists of the bits and copies the columns, which L2 still has if the items fit in it. Within a kernel, thread blocks
//! do not wait for each other.

mod mark;
mod pack;

use crate::device::memory::buffers;
use crate::families::discover::abi::ChannelsParams;

buffers! {
    // `ChannelDetector::run` checks the shape of the items (`host/core/dynamic/channels.rs`). `ChannelsLaunch` checks their
    // alignment and allocates the other arrays (`host/core/families/discover/channels.rs`).
    unsafe ChannelsParams {
        source: [u32; 4], Fresh;
        marks: u32, Fresh;
        counters: u64, Fresh;
        lists: u32, ReadWrite;
        counts: u32, ReadWrite;
        packed: u16, ReadWrite;
    }
}
