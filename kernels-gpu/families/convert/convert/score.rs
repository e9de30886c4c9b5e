//! Score of every piece of a dense matrix: the sum of squares, columns from top to bottom, then neighboring columns in
//! pairs; or whether the piece has a nonzero.

use super::piece_rows;
use crate::device::lanes::{UP, reduce, sum_of};
use crate::device::prelude::*;
use crate::families::convert::abi::*;

impl<W: WalkInfo, E: Elem, const ALIGNED: bool> Kernel<W, E, ConvertParams> for Score<ALIGNED> {
    #[inline(always)]
    unsafe fn run(p: &ConvertParams, _: Maps) {
        grid::launch_dependents();
        match (ALIGNED, E::BYTES) {
            (false, _) => score::<E, 1>(p),
            (true, 8) => score::<E, 2>(p),
            (true, 4) => score::<E, 4>(p),
            (true, _) => score::<E, 8>(p),
        }
    }
}

#[inline(always)]
fn score<E: Elem, const V: usize>(p: &ConvertParams) {
    let (slab, chunk) = p.chunks.of(gpu::block_x());
    let piece = chunk * (SCAN_THREADS >> p.lane_bits) + (gpu::thread() >> p.lane_bits);
    let pieces = p.block_columns.value * p.piece_columns.value;
    let (block_column, beside) = p.piece_columns.of(piece);
    let (_, first, rows) = piece_rows(p, slab);
    let lanes = 1u32 << p.lane_bits;
    let own = gpu::thread() & (lanes - 1);
    let within = beside * PIECE.1 + own * V as u32;
    let column = block_column.wrapping_mul(p.block_k.value).wrapping_add(within);
    let inside = piece < pieces && within < p.block_k.value && column < p.k;
    let mut from = p.source::<E>().row(first, p.row_bytes).at(column);
    let mut sums = [E::ZERO; 8];
    let mut bits = 0;
    let mut row = 0;
    while row < rows {
        let mut raw = [[0u32; 4]; 8];
        unroll!(r < 8, {
            let at = from.row(r as u32, p.row_bytes);
            raw[r] = at.ld_raw::<V>(inside && row + (r as u32) < rows);
        });
        unroll!(r < 8, {
            unroll!(w < 4, { bits |= raw[r][w] & E::MAGNITUDE[w] });
            unroll!(i < V, {
                let x = E::get(&raw[r], i);
                sums[i] = E::add(sums[i], E::mul(x, x));
            });
        });
        from = from.bytes(8 * p.row_bytes);
        row += 8;
    }
    let pair = |a: usize, b: usize| E::add(sums[a], sums[b]);
    let (left, right) = (E::add(pair(0, 1), pair(2, 3)), E::add(pair(4, 5), pair(6, 7)));
    let mut sum = E::add(left, right);
    sum = sum_of::<E>(sum, UP, 1..lanes);
    bits = reduce(bits, UP, 1..lanes, |x, distance| x | warp::shfl_xor(x, distance));
    if own == 0 && piece < pieces {
        if p.flags & CONVERT_NON_ZERO != 0 {
            sum = E::scalar(if bits == 0 { 0.0 } else { 1.0 });
        }
        let at = slab as u64 * pieces as u64 + piece as u64;
        p.scores::<E>().at(at).st(sum);
    }
}
