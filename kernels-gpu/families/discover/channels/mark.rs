//! Marks the nonempty columns. A thread has the same eight columns of several rows. Marks are combined by OR over the
//! warp, in shared memory and in L2, so they do not depend on the order of thread blocks.

use crate::device::prelude::*;
use crate::families::discover::abi::*;
use crate::families::discover::elements::{gathered, mark};

/// Bits 0 to 7: columns of the vector with a nonzero in the rows from `row` to `end`, every `p.step`th.
#[inline(always)]
fn columns(p: &ChannelsParams, vector: u32, row: u32, end: u32) -> u32 {
    let item = gpu::block_y() as u64 * p.rows as u64;
    let distance = p.step as u64 * p.row_bytes;
    let mut at = p.source().bytes((item + row as u64) * p.row_bytes).at(vector);
    let mut row = row;
    let mut marks = [0; 4];
    while row < end {
        let mut raw = [[0; 4]; CHANNEL_LOADS as usize];
        unroll!(i < 8, {
            let row = row + i as u32 * p.step;
            raw[i] = at.row(i as u32, distance).ld_row::<16>(row, end);
        });
        unroll!(i < 8, {
            unroll!(w < 4, { marks[w] |= mark(raw[i][w], 16, p.above) });
        });
        row += CHANNEL_LOADS * p.step;
        at = at.row(CHANNEL_LOADS, distance);
    }
    let mut found = 0;
    unroll!(w < 4, { found |= gathered(marks[w], 16) << (2 * w) });
    // Columns past the last one are masked.
    let left = p.columns.saturating_sub(vector * CHANNEL_VECTOR);
    found & ((1 << left.min(CHANNEL_VECTOR)) - 1)
}

impl<W: WalkInfo, E: ElemInfo> Kernel<W, E, ChannelsParams> for MarkChannels {
    #[inline(always)]
    unsafe fn run(p: &ChannelsParams, _: Maps) {
        let (thread, lane) = (gpu::thread(), gpu::thread() % 32);
        grid::launch_dependents();
        // SAFETY: `MarkChannels` has `CHANNEL_WORDS` words.
        let words = unsafe { Shared::<u32>::dynamic(0) };
        if thread < CHANNEL_WORDS {
            words.at(thread).st(0);
        }
        gpu::sync_threads();
        let (part, across) = p.across.of(gpu::block_x());
        let (first, own) = p.width.of(thread);
        let width = p.width.value;
        let vector = across * width + own;
        let top = part * p.block_rows;
        let end = (top + p.block_rows).min(p.rows);
        let valid = first < p.step && vector < p.vectors.value;
        grid::wait_dependency();
        let found = columns(p, vector, top + first, if valid { end } else { 0 });
        let mut bits = found << (own % 4 * CHANNEL_VECTOR);
        // Lanes with the same columns have equal distances only if `width` is a power of two. Otherwise shared memory
        // combines all.
        let even = width.is_power_of_two();
        if even {
            let mut distance = width;
            while distance < 32 {
                bits |= warp::shfl_xor(bits, distance);
                distance *= 2;
            }
        }
        if bits != 0 && (!even || lane < width) {
            words.at(own / 4).red_or(bits);
        }
        gpu::sync_threads();
        if thread < CHANNEL_WORDS {
            let bits = words.at(thread).ld();
            let word = across * (width / 4) + thread;
            if bits != 0 && word < p.words {
                let marks = p.marks().at(gpu::block_y() as u64 * p.words as u64);
                marks.at(word).red_or(bits);
            }
        }
    }
}
