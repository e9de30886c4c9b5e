//! Epilogue of parts that form no cluster: each stores its sums in global memory. The part that arrives last adds those
//! of all parts in their order: every run gives the same bits.

use super::Sums;
use crate::device::prelude::*;
use crate::device::split_k::block_arrives_last;
use crate::families::gather_gemm::abi::*;

impl<const MT: usize, const WARPS: usize, const TOGETHER: bool> FewRows<MT, WARPS, TOGETHER> {
    /// Returns the address of this lane's sums of a part of this tile.
    #[inline(always)]
    fn left_at(p: &PitFewParams, part: u32) -> Global<[u32; 4], Fresh> {
        let (warp, lane) = Self::own();
        let slot = Self::tile(p) * p.parts + part;
        let first = p.partial().row(slot, (Self::ATOMS * Self::ATOM) as u64);
        first.bytes(warp * 4 * Self::ATOM as u32 + lane * 16)
    }

    /// Returns the byte offset of this warp's atom from [`Self::left_at`].
    const fn place(i: usize, j: usize) -> u64 {
        ((i * Self::ATOMS_ACROSS + j) * Self::ATOM) as u64
    }

    /// Stores the tile, or only this part's sums for the part that arrives last.
    #[inline(always)]
    pub(super) fn add_parts<E: Elem<Acc = f32>>(p: &PitFewParams, sums: &mut Sums) {
        if p.parts > 1 {
            Self::leave(p, sums);
            let counter = p.counters().at(Self::tile(p));
            if !block_arrives_last(counter, p.parts, Self::summed().cast()) {
                return;
            }
            Self::add(p, sums);
        }
        let warp = gpu::thread() / 32;
        unroll!(i < MT / 16, most 4, {
            unroll!(j < 4, {
                let atom = (i * Self::ATOMS_ACROSS + j) as u32 + warp * 4;
                Self::store::<E>(p, atom, sums[i][j]);
            });
        });
    }

    #[inline(always)]
    fn leave(p: &PitFewParams, sums: &Sums) {
        let to = Self::left_at(p, Self::part(p));
        if Self::has_rows(p) {
            unroll!(i < MT / 16, most 4, {
                unroll!(j < 4, {
                    to.bytes(Self::place(i, j)).st(sums[i][j].map(f32::to_bits));
                });
            });
        }
    }

    /// Adds the sums of all parts, in order.
    #[inline(always)]
    fn add(p: &PitFewParams, sums: &mut Sums) {
        let valid = Self::has_rows(p);
        *sums = [[[0.0; 4]; 4]; 4];
        let mut part = 0;
        while part < p.parts {
            let from = Self::left_at(p, part);
            unroll!(i < MT / 16, most 4, {
                let mut four = [[0; 4]; 4];
                unroll!(j < 4, {
                    four[j] = from.bytes(Self::place(i, j)).ld_if(valid);
                });
                unroll!(j < 4, {
                    unroll!(r < 4, { sums[i][j][r] += f32::from_bits(four[j][r]) });
                });
            });
            part += 1;
        }
    }
}
