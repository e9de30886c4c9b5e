//! Blocks of 64 positions over which a thread block of `conv_grad` or `conv_pairs` sums the weights' gradient at one
//! kernel offset.

use crate::device::prelude::*;
use crate::families::gather_gemm::abi::{CONV_ABSENT, ConvPart, ConvWordsParams};

/// Iterator over a part's list of blocks.
pub struct Places {
    /// The part.
    pub part: ConvPart,
    /// Address of the next word of the list.
    at: u64,
    left: u32,
    /// Prefetched, so that [`Self::next`] does not wait for a load.
    ahead: u32,
}

impl Places {
    #[inline(always)]
    pub fn of(p: &ConvWordsParams) -> Places {
        let part = ConvPart::of(global::ld_nc_v4(p.parts + gpu::block_x() as u64 * 16, true));
        let mut places = Places {
            at: p.base.schedule + part.first as u64 * 4,
            left: part.count,
            ahead: CONV_ABSENT,
            part,
        };
        places.next();
        places
    }

    /// Returns the number of the next 64 positions, or [`CONV_ABSENT`].
    #[inline(always)]
    pub fn next(&mut self) -> u32 {
        let next = self.ahead;
        let valid = self.left > 0;
        let read = global::ld_nc_b32(self.at, valid);
        self.ahead = if valid { read } else { CONV_ABSENT };
        self.at += 4;
        self.left = self.left.saturating_sub(1);
        next
    }
}
