//! Epilogue, and the split-K fix-up of CTA tiles that several thread blocks share. Each warp processes its 16 rows
//! independently, without waiting for other warps.

use crate::device::epilogue::{Output, finish, output, row_bias, scale};
use crate::device::prelude::*;
use crate::device::ptx::wgmma_thin::Thin;
use crate::device::thin::ThinElem;
use crate::families::spmm::abi::*;
use crate::families::spmm::parts;

impl BitmapParams {
    #[inline(always)]
    fn output(&self) -> Output {
        Output {
            // Read here: predicates carried through the loop over stages cost registers.
            flags: warp::opaque(self.flags),
            ..output!(self)
        }
    }
}

/// Sums of a CTA tile, `GROUPS` warpgroups of 64 rows each times `N` columns. `AHEAD` (up to 8) pieces of a split CTA
/// tile are loaded at once, as far as registers suffice.
pub(super) struct Strip<const GROUPS: usize, const N: usize, const AHEAD: usize>;

impl<const GROUPS: usize, const N: usize, const AHEAD: usize> Strip<GROUPS, N, AHEAD> {
    /// Stores the sums of a whole CTA tile to C, and those of a piece to its slot. The warp that arrives last adds the
    /// slots in order and stores the result to C.
    #[inline(always)]
    pub(super) fn epilogue<E: ThinElem>(
        p: &BitmapParams,
        piece: BitPiece,
        group: u32,
        acc: &mut Thin<N>,
    ) {
        let count = piece.parts >> 16;
        if count == 1 || Self::fix_up(p, piece, acc) {
            Self::write::<E>(p, piece, group, acc);
        }
    }

    /// Stores the partial sums of this piece. Returns true for the warp that arrives last, which then has the sum over
    /// all pieces.
    #[inline(always)]
    fn fix_up(p: &BitmapParams, piece: BitPiece, acc: &mut Thin<N>) -> bool {
        let (warp, lane) = (gpu::opaque_thread() / 32, gpu::opaque_thread() % 32);
        let (part, count) = (piece.parts & 0xffff, piece.parts >> 16);
        let place = |part: u32| {
            let slot = (piece.first + part) as u64 * (GROUPS * 4) as u64 + warp as u64;
            p.partial().bytes(slot * (eights(N) * 512) as u64).at(lane).cast()
        };
        let counter = p.counters().at(piece.counter * (GROUPS * 4) as u32 + warp);
        match N {
            1 | 8 => parts::join::<32, 4, AHEAD>(place, counter, [part, count], &mut acc.0),
            16 => parts::join::<32, 8, AHEAD>(place, counter, [part, count], &mut acc.0),
            32 => parts::join::<32, 16, AHEAD>(place, counter, [part, count], &mut acc.0),
            _ => parts::join::<32, 32, AHEAD>(place, counter, [part, count], &mut acc.0),
        }
    }

    /// Applies the epilogue to the warp's 16 rows and stores them.
    #[inline(always)]
    fn write<E: ThinElem>(p: &BitmapParams, piece: BitPiece, group: u32, acc: &Thin<N>) {
        let (warp, lane) = gpu::warp_and_lane();
        let top = piece.row + group * BIT_TILE as u32 + warp * 16;
        let o = p.output();
        unroll!(half < 2, {
            let (row, column) = frag::accumulator(lane, 2 * half as u32);
            let row = top + row;
            if row < p.m {
                let factors = (scale::<E>(o, piece.entries), row_bias::<E>(o, row));
                unroll!(j < eights(N), {
                    let column = piece.column + j as u32 * 8 + column;
                    let pair = [acc.0[4 * j + 2 * half], acc.0[4 * j + 2 * half + 1]];
                    if o.flags & FLAG_VECTORS != 0 {
                        finish::<E, 2>(o, row, column, factors, pair);
                    } else {
                        finish::<E, 1>(o, row, column, factors, [pair[0]]);
                        finish::<E, 1>(o, row, column + 1, factors, [pair[1]]);
                    }
                });
            }
        });
    }
}
