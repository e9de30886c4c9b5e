//! Product that marks the nonempty micro-tiles of C. Warps examine the rows that they store, and set a bit for each
//! column with a nonzero element in these rows. The bits do not depend on the order of the warps.

use super::consumer::Epilogue;
use crate::device::epilogue::Output;
use crate::device::prelude::*;
use crate::device::store::StoreTile;
use crate::device::store::chunk::{Chunk, Spot};
use crate::device::store::chunk::{stage_rows, staged};
use crate::families::gemm::abi::*;

/// OR of 16 bytes of four rows, word by word: rows `lane / 8 + 4 j` of a warp's 16, columns from `lane % 8 * 8` on.
/// Zeros outside C.
type Seen = [u32; 4];

/// Marks 2-byte elements whose magnitude is not 0, in the top bits of both halves.
#[inline(always)]
fn mark(word: u32) -> u32 {
    ((word & 0x7fff_7fff) + 0x7fff_7fff) & 0x8000_8000
}

impl MarkedParams {
    /// Sets the bits of 64 columns for a warp's rows. Lane `8 r + c` holds columns `8 c ..`.
    #[inline(always)]
    fn set(&self, [row, column]: [u32; 2], seen: Seen) {
        let lane = gpu::opaque_thread() % 32;
        let mut found = 0;
        unroll!(w < 4, {
            let marks = mark(seen[w]);
            found |= (marks >> 15 & 1 | marks >> 30 & 2) << (2 * w);
        });
        let placed = found << (lane % 4 * 8);
        let low = warp::or(if lane % 8 < 4 { placed } else { 0 });
        let high = warp::or(if lane % 8 < 4 { 0 } else { placed });
        let bits = if lane == 0 { low } else { high };
        if lane < 2 && bits != 0 {
            let word = (row >> self.height) * self.words + column / 32 + lane;
            global::red_or(self.marks + word as u64 * 4, bits);
        }
    }

    /// Stores chunk `c` through shared memory, each warp its own 16 rows, and sets its bits.
    #[inline(always)]
    fn store<E: Elem<Acc = f32>>(&self, o: Output, spot: Spot, c: u32, x: &Chunk) {
        let lane = spot.lane;
        let [top, left] = [spot.corner[0] + spot.warp * 16, spot.corner[1] + c * 64];
        let smem = spot.smem + spot.warp * 2048;
        let own = frag::ldmatrix_x4(lane);
        warp::sync(u32::MAX);
        stage_rows::<E>(x, smem, own);
        warp::sync(u32::MAX);
        let column = left + lane % 8 * 8;
        let mut seen = [0; 4];
        unroll!(j < 4, {
            let own = j as u32 * 4 + lane / 8;
            if top + own < spot.m && column < o.n {
                let eight = staged(smem, own, lane);
                let line = o.c + (top + own) as u64 * o.ldc_bytes as u64;
                global::st_v4(line + column as u64 * 2, eight);
                // The OR keeps every nonzero magnitude.
                unroll!(w < 4, { seen[w] |= eight[w] });
            }
        });
        self.set([top, left], seen);
    }
}

impl<
    E,
    const PM: usize,
    const PK: usize,
    const CHUNKS: usize,
    const ORDER: u32,
    const BYTES: usize,
    A: Multiply,
    L: Loader,
> Epilogue<E, MarkedParams, CHUNKS> for Panel<PM, PK, CHUNKS, ORDER, BYTES, A, L>
where
    E: WgmmaElem,
{
    #[inline(always)]
    fn product(params: &MarkedParams) -> &WgmmaParams {
        &params.product
    }

    #[inline(always)]
    fn epilogue_for(params: &MarkedParams, strip: Strip, group: u32, acc: &mut Acc<CHUNKS>) {
        Self::epilogue_marked::<E>(params, strip, group, acc);
    }
}

impl<
    const PM: usize,
    const PK: usize,
    const CHUNKS: usize,
    const ORDER: u32,
    const BYTES: usize,
    A: Multiply,
    L: Loader,
> Panel<PM, PK, CHUNKS, ORDER, BYTES, A, L>
{
    /// [`Self::epilogue`] for a C that allows 16-byte accesses.
    #[inline(always)]
    fn epilogue_marked<E: Elem<Acc = f32>>(
        marked: &MarkedParams,
        strip: Strip,
        group: u32,
        acc: &mut Acc<CHUNKS>,
    ) {
        let p = &marked.product;
        let Some(stages) = Self::whole(p, strip, group, acc, |a, b| a + b) else {
            return;
        };
        let (o, m) = (p.output(strip.item), p.m);
        let corner = [strip.row + group * HALF as u32, strip.column];
        if corner[0] >= m {
            return;
        }
        let smem = copy::dynamic_shared() + (Self::OUT + group as usize * SMEM_TILE) as u32;
        let spot = Spot::of(m, corner, (group, smem));
        let rows = StoreTile::<CHUNKS, ORDER>::rows::<E>(o, spot, stages);
        if o.flags & (FLAG_BIAS_COLUMNS | FLAG_GELU) == 0 {
            StoreTile::<CHUNKS, ORDER>::scale_and_relu(o, rows, acc);
            unroll!(c < CHUNKS, most 4, {
                marked.store::<E>(o, spot, c as u32, &acc.0[c]);
            });
        } else {
            let mut c = warp::opaque(0);
            while c < CHUNKS as u32 {
                warp::nounroll();
                let spot = spot.opaque();
                let x = StoreTile::<CHUNKS, ORDER>::finished::<E>(o, spot, rows, c, acc);
                marked.store::<E>(o, spot, c, &x);
                c += 1;
            }
        }
    }
}
