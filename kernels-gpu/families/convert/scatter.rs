//! Stores 16-bit values at their positions in another form of their matrix.

use crate::device::prelude::*;
use crate::families::convert::abi::*;

buffers! {
    // `Scatter` in `host/core/families/convert/scatter.rs` uploads one place for each value. Its callers
    // give as many values, and an output that contains all places.
    unsafe ScatterParams {
        values: u16, ReadOnly;
        places: u32, ReadOnly;
        out: u16, ReadWrite;
    }
}

impl<W: WalkInfo, E: ElemInfo> Kernel<W, E, ScatterParams> for Four {
    #[inline(always)]
    unsafe fn run(p: &ScatterParams, _: Maps) {
        let first = gpu::block_x() as u64 * Self::ITEMS as u64 + gpu::thread() as u64;
        let mut places = [0; 4];
        let mut values = [0; 4];
        unroll!(i < 4, {
            let own = first + i as u64 * Self::THREADS as u64;
            let inside = own < p.count as u64;
            places[i] = p.places().at(own).ld_if(inside);
            values[i] = p.values().at(own).ld_if(inside);
        });
        unroll!(i < 4, {
            let own = first + i as u64 * Self::THREADS as u64;
            if own < p.count as u64 && places[i] != u32::MAX {
                p.out().at(places[i]).st(values[i]);
            }
        });
    }
}
