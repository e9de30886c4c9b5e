//! The 64 positions, one after the other, that a thread block sums up of an offset of the weights' gradient.

use crate::device::prelude::*;
use crate::families::gather_gemm::abi::{CONV_ABSENT, ConvPart, ConvWordsParams};

/// A walk over a part's list.
pub struct Places {
    /// Where it began.
    pub part: ConvPart,
    /// Next word of the list.
    at: u64,
    left: u32,
    /// Read already: whoever asks should not wait.
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

    /// The number of the next 64 positions, or [`CONV_ABSENT`].
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
