//! The product. Sums of all rows of a receiver's output stay in registers while its entries pass.

use super::path::{each_path, product};
use super::{Lane, ask_ahead, channel_of, entry, load_w, load_x, load_y, next_row, positions};
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
        let warp = gpu::block_x() as u64 * EQUIVARIANT_WARPS as u64 + gpu::thread() as u64 / 32;
        let chunks = p.width.div_ceil(32) as u64;
        // Never zero, which only the host knows: device code may not panic.
        let row = warp.checked_div(chunks).unwrap_or(0);
        if row >= p.rows as u64 {
            return;
        }
        let channel = (warp - row * chunks) as u32 * 32 + gpu::thread() % 32;
        let lane = Lane {
            row: row as u32,
            channel,
            inside: channel < p.width,
        };
        // Lanes past the last channel compute that one again, and store nothing.
        let own = channel.min(p.width - 1);
        let [mut at, end] = positions(p, lane.row);
        let mut sums = [[E::ZERO; 7]; MOST_PATHS];
        let mut next = entry(p, at, at < end);
        while at < end {
            warp::stay_rolled();
            let [edge, other] = next;
            at += 1;
            next = entry(p, at, at < end);
            ask_ahead::<E>(p, next[0], lane.channel, at < end);
            let x = load_x::<E, LARGEST>(p, channel_of::<E>(p, 0, other, own), true);
            let from = channel_of::<E>(p, 2, edge, own);
            let mut w = [E::ZERO; MOST_PATHS];
            load_w::<E>(
                p,
                from,
                const { [0, Self::PATHS.below(1 + ODD as usize)] },
                &mut w,
                true,
            );
            let y = load_y::<E, LARGEST>(p, edge);
            each_path!(A B C, {
                if const { Self::PATHS.number([A, B, C]) < Self::PATHS.count } {
                    let number = const { Self::PATHS.number([A, B, C]) };
                    // A degree of the output ahead: registers do not hold the weights of all.
                    if const { Self::PATHS.number([A, B, C]) == Self::PATHS.below(C) } {
                        let paths = const { [Self::PATHS.below(C + 1), Self::PATHS.below(C + 2)] };
                        load_w::<E>(p, from, paths, &mut w, true);
                    }
                    if p.wanted >> number & 1 != 0 {
                        let m = product::<E, A, B, C>(&x, &y);
                        unroll!(k < 2 * C + 1, {
                            sums[number][k] = E::fma(w[number], m[k], sums[number][k]);
                        });
                    }
                }
            });
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
