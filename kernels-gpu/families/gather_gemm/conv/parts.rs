//! Blocks of 64 positions over which a thread block of `conv_grad` or `conv_pairs` sums the weights' gradient at one
//! kernel offset.

use crate::device::prelude::*;
use crate::families::gather_gemm::abi::{CONV_ABSENT, ConvPart, ConvWordsParams};

/// First row and column of this thread block's tile of the gradient.
#[inline(always)]
pub fn corner<T: Tile>(p: &ConvWordsParams) -> (u32, u32) {
    let across = p.base.n.div_ceil(T::COLUMNS);
    let block = gpu::block_y();
    let row = block.checked_div(across).unwrap_or(0);
    (row * T::ITEMS, (block - row * across) * T::COLUMNS)
}

/// Iterator over a part's list of blocks.
pub struct Places {
    /// The part.
    pub part: ConvPart,
    /// Next word of the list.
    list: Global<u32, ReadOnly>,
    left: u32,
    /// Prefetched, so that [`Self::next`] does not wait for a load.
    ahead: u32,
}

impl Places {
    #[inline(always)]
    pub fn of(p: &ConvWordsParams) -> Places {
        let part = ConvPart::of(p.parts().at(gpu::block_x()).ld());
        let mut places = Places {
            list: p.base.schedule().at(part.first),
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
        let read = self.list.ld_if(valid);
        self.ahead = if valid { read } else { CONV_ABSENT };
        self.list = self.list.at(1u32);
        self.left = self.left.saturating_sub(1);
        next
    }
}
