//! The product. The sums of all rows of a receiver's output stay in registers over its entries.

use super::entries::Entries;
use super::path::{each_path, product};
use super::{Lane, channel_of, next_row, positions};
use crate::device::prelude::*;
use crate::families::tensor::abi::*;

impl<const LARGEST: u32, const ODD: bool, const BLOCKS: u32>
    EquivariantForward<LARGEST, ODD, BLOCKS>
{
    const PATHS: Paths = Paths::of(LARGEST as usize, ODD);
}

impl<W: WalkInfo, E: Elem, const LARGEST: u32, const ODD: bool, const BLOCKS: u32>
    Kernel<W, E, EquivariantParams> for EquivariantForward<LARGEST, ODD, BLOCKS>
{
    #[inline(always)]
    unsafe fn run(p: &EquivariantParams, _: u64) {
        Entries::<false, 1, EquivariantOf<LARGEST, ODD, BLOCKS>>::prepare(p);
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
        let mut entries = Entries::<false, 1, EquivariantOf<LARGEST, ODD, BLOCKS>>::new::<E>(
            p,
            positions(p, lane.row),
            first,
        );
        let mut sums = [[E::ZERO; 7]; MOST_PATHS];
        while entries.any() {
            warp::nounroll();
            entries.wait();
            let [x] = entries.x::<E>();
            let y = entries.y::<E>();
            let [mut w] = entries.weight::<E>(0, 0);
            each_path!(A B C, {
                if const { Self::PATHS.number([A, B, C]) < Self::PATHS.count } {
                    let number = const { Self::PATHS.number([A, B, C]) };
                    let weight = w;
                    [w] = entries.weight::<E>(0, (number + 1).min(Self::PATHS.count - 1));
                    if p.wanted >> number & 1 != 0 {
                        let m = product::<E, A, B, C>(&x, &y);
                        unroll!(k < 2 * C + 1, {
                            sums[number][k] = E::fma(weight, m[k], sums[number][k]);
                        });
                    }
                }
            });
            entries.replace::<E>(p, 0);
            entries.turn(p);
        }
        if lane.inside {
            let item = channel_of::<E>(p, 3, lane.row, channel);
            each_path!(A B C, {
                if const { Self::PATHS.number([A, B, C]) < Self::PATHS.count } {
                    let number = const { Self::PATHS.number([A, B, C]) };
                    if p.wanted >> number & 1 != 0 {
                        let mut at = item + p.paths[number][0] as u64;
                        unroll!(k < 2 * C + 1, {
                            E::store::<1>(at, &[sums[number][k]]);
                            at = next_row(at, p.row_bytes[1]);
                        });
                    }
                }
            });
        }
    }
}
