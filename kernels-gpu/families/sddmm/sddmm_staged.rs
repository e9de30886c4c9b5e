//! SDDMM at unstructured nonzeros from shared memory: a thread block copies some rows of Y there once, and its segments
//! of lanes compute runs of entries in these columns, as in the module `sddmm`.

use super::sddmm::{Run, add, lane, slice};
use crate::device::prelude::*;
use crate::device::walk::Walk;
use crate::families::sddmm::abi::*;

buffers! {
    // `SddmmStaged::new` makes the shelves from the pattern, one for each thread block.
    unsafe SddmmStagedParams {
        shelves: [u32; 4], ReadOnly;
    }
}

/// Rows of Y in shared memory.
#[inline(always)]
fn shelf() -> Shared<u8> {
    // SAFETY: the host launches with `SHARED_BYTES`, and `SddmmStaged::new` makes shelves that fit.
    unsafe { Shared::dynamic(0) }
}

/// Copies this thread block's rows of Y, one row a warp at a time.
#[inline(always)]
fn stage(p: &SddmmParams, column: u32, columns: u32, threads: u32) {
    let row_bytes = p.k * 4;
    let mut row = gpu::thread() / 32;
    while row < columns {
        let from = p.y().row(column + row, p.ldy_bytes);
        let to = shelf().bytes(row * row_bytes);
        let mut at = gpu::thread() % 32 * 16;
        while at < row_bytes {
            from.bytes(at).cp_async_16(to.bytes(at), 16);
            at += 512;
        }
        row += threads / 32;
    }
    copy::cp_async_commit();
    copy::cp_async_wait::<0>();
    gpu::sync_threads();
}

impl<W: Walk, E: Elem, const REP: usize, const FLIGHT: usize, F: ShelfForm>
    Kernel<W, E, SddmmStagedParams> for StagedDots<REP, FLIGHT, F>
{
    #[inline(always)]
    unsafe fn run(p: &SddmmStagedParams, _at: Maps) {
        const { assert!(FLIGHT == 4 || FLIGHT == 8) };
        let [column, columns, first, items] = p.shelves().at(gpu::block_x()).ld();
        let p = &p.sddmm;
        stage(p, column, columns, Self::THREADS);
        let item = |index: u32| p.items().at(first + index).ld_once_if(index < items);
        let mut index = gpu::thread() / F::LANES;
        let mut later = item(index);
        // The segments of a warp iterate as often as the first of them: shuffles require all lanes.
        while warp::uniform(index) < items {
            let [row, start, len, _] = later;
            index += Self::ITEMS;
            later = item(index);
            let from = p.x().row(row, p.ldx_bytes).cast();
            let x = slice::<E, 4, REP>(p, from, 0, len > 0, F::LANES);
            let lane = lane(F::LANES);
            let run = Run { start, len };
            run.entries::<E>(p, F::LANES, |at, own| {
                // Past the end of the run the column is 0, and the first row in shared memory is read.
                let valid = at + gpu::thread() % (SAMPLES as u32) < len;
                let row = if valid { own - column } else { 0 };
                let row = shelf().bytes(row * p.k * 4).address();
                let mut sums = [E::ZERO; SAMPLES];
                add::<E, 4, REP>(&x, &mut sums, FLIGHT, |u| {
                    let row = warp::shfl_segment(SAMPLES as u32, row, u, u32::MAX);
                    // SAFETY: another lane's row.
                    let from = unsafe { Shared::<[u32; 4]>::new(row) }.at(lane);
                    let mut raw = [[0u32; 4]; REP];
                    unroll!(r < REP, {
                        if (lane + r as u32 * F::LANES) * 4 < p.k {
                            raw[r] = from.at(r as u32 * F::LANES).ld();
                        }
                    });
                    raw
                });
                sums
            });
        }
    }
}
