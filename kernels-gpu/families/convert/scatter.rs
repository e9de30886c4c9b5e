//! Values to the places they have in another form of their matrix.

use crate::device::prelude::*;
use crate::families::convert::abi::*;

impl<W: WalkInfo, E: ElemInfo> Kernel<W, E, ScatterParams> for Four {
    #[inline(always)]
    unsafe fn run(p: &ScatterParams, _: u64) {
        let bytes = E::DTYPE.bytes() as u64;
        let first = gpu::block_x() as u64 * Self::ITEMS as u64 + gpu::thread() as u64;
        let mut places = [0; 4];
        let mut values = [[0; 2]; 4];
        unroll!(i < 4, {
            let own = first + i as u64 * Self::THREADS as u64;
            let inside = own < p.count as u64;
            places[i] = global::load_b32(p.places + own * 4, inside);
            let from = p.values + own * bytes;
            values[i][0] = if bytes == 2 {
                global::load_b16(from, inside)
            } else {
                global::load_b32(from, inside)
            };
            if bytes == 8 {
                values[i][1] = global::load_b32(from + 4, inside);
            }
        });
        unroll!(i < 4, {
            let own = first + i as u64 * Self::THREADS as u64;
            if own < p.count as u64 && places[i] != u32::MAX {
                let to = p.out + places[i] as u64 * bytes;
                if bytes == 2 {
                    global::store_b16(to, values[i][0]);
                } else {
                    global::store_b32(to, values[i][0]);
                }
                if bytes == 8 {
                    global::store_b32(to + 4, values[i][1]);
                }
            }
        });
    }
}
