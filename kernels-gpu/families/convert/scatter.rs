//! Stores 16-bit values at their positions in another form of their matrix.

use crate::device::prelude::*;
use crate::families::convert::abi::*;

impl<W: WalkInfo, E: ElemInfo> Kernel<W, E, ScatterParams> for Four {
    #[inline(always)]
    unsafe fn run(p: &ScatterParams, _: u64) {
        let first = gpu::block_x() as u64 * Self::ITEMS as u64 + gpu::thread() as u64;
        let mut places = [0; 4];
        let mut values = [0; 4];
        unroll!(i < 4, {
            let own = first + i as u64 * Self::THREADS as u64;
            let inside = own < p.count as u64;
            places[i] = global::ld_nc_b32(p.places + own * 4, inside);
            values[i] = global::ld_nc_b16(p.values + own * 2, inside);
        });
        unroll!(i < 4, {
            let own = first + i as u64 * Self::THREADS as u64;
            if own < p.count as u64 && places[i] != u32::MAX {
                global::st_b16(p.out + places[i] as u64 * 2, values[i]);
            }
        });
    }
}
