//! The product. A warp has a row, the receiver, and 32 channels. The sums of all rows of the output stay in registers
//! over the entries. X, Y and W of an entry are in shared memory. Copies for later entries overlap the products.

use super::entries::Entries;
use super::path::{each_path, product};
use super::{Lane, channel_of, next_row, positions};
use crate::device::prelude::*;
use crate::families::tensor::abi::*;

impl<F: EquivariantForm> Equivariant<false, 1, F> {
    #[inline(always)]
    pub(super) fn forward<E: Elem>(p: &EquivariantParams) {
        let warp = gpu::block_x() as u64 * EQUIVARIANT_WARPS as u64 + gpu::thread() as u64 / 32;
        let chunks = p.width.div_ceil(32) as u64;
        // The host guarantees a nonzero divisor. `checked_div` avoids a panic, which device code must not have.
        let row = warp.checked_div(chunks).unwrap_or(0);
        if row >= p.rows as u64 {
            return;
        }
        let first = (warp - row * chunks) as u32 * 32;
        let channel = first + gpu::thread() % 32;
        let lane = Lane { row: row as u32, channel, inside: channel < p.width };
        let mut entries = Entries::<false, 1, F>::new::<E>(p, positions(p, lane.row), first);
        let mut sums = [[E::ZERO; 7]; MOST_PATHS];
        while entries.any() {
            warp::nounroll();
            entries.wait();
            let [x] = entries.x::<E>();
            let y = entries.y::<E>();
            let [mut w] = entries.weight::<E>(0, 0);
            each_path!(Self::PATHS, A B C number, {
                let weight = w;
                [w] = entries.weight::<E>(0, (number + 1).min(Self::PATHS.count - 1));
                if p.wanted >> number & 1 != 0 {
                    let m = product::<E, A, B, C>(&x, &y);
                    unroll!(k < 2 * C + 1, {
                        sums[number][k] = E::fma(weight, m[k], sums[number][k]);
                    });
                }
            });
            entries.replace::<E>(p, 0);
            entries.turn(p);
        }
        if lane.inside {
            let item = channel_of::<E>(p, 3, lane.row, channel);
            each_path!(Self::PATHS, A B C number, {
                if p.wanted >> number & 1 != 0 {
                    let mut at = item.bytes(p.paths[number][0]);
                    unroll!(k < 2 * C + 1, {
                        at.st_rounded(&[sums[number][k]]);
                        at = next_row(at, p.row_bytes[1]);
                    });
                }
            });
        }
    }
}
