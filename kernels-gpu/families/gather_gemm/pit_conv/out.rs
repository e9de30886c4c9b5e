//! Epilogue through shared memory: whole lines of C, or only the listed columns.

use super::Work;
use crate::device::prelude::*;
use crate::device::store::chunk::{stage_rows, staged};
use crate::families::gather_gemm::abi::*;

/// Row of C of a position that does not exist, or column of C of such a filter.
const NOWHERE: u32 = u32::MAX;

impl<F: PitConvForm<A: Multiply, L: Loader>> PitConv<F> {
    /// Returns the output buffer of a warpgroup.
    #[inline(always)]
    pub(super) fn out(group: u32) -> Shared<u8> {
        // SAFETY: `SHARED_BYTES` of the tile includes both output buffers.
        unsafe { Shared::dynamic(Self::OUT as u32 + group * SMEM_TILE as u32) }
    }

    /// Returns the row of C for which lanes 0 to 15 of this warp hold data; lanes 16 to 31 hold the same rows.
    #[inline(always)]
    fn line(p: &PitConvParams, work: Work, group: u32) -> u32 {
        let thread = gpu::opaque_thread();
        let row = thread / 32 % 4 * 16 + thread % 16 + if F::MT == 128 { group * 64 } else { 0 };
        let (down, right) = p.wide.of(row);
        let [x, y] = [work.corner[0] + down, work.corner[1] + right];
        if x < p.out[0] && y < p.out[1] {
            (work.image * p.out[0] + x) * p.out[1] + y
        } else {
            NOWHERE
        }
    }

    /// Stores a warpgroup's rows of a tile; `columns` is the number of columns of B.
    #[inline(always)]
    pub(super) fn epilogue<E: WgmmaElem, const C: usize>(
        p: &PitConvParams,
        work: Work,
        (group, columns): (u32, u32),
        acc: &Acc<C>,
    ) {
        let line = Self::line(p, work, group);
        let left = work.column + if F::MT == 128 { 0 } else { group * 64 * C as u32 };
        let warp = gpu::opaque_thread() / 32 % 4;
        let smem = Self::out(group).bytes(warp * 16 * 128);
        unroll!(c < C, most 4, {
            // The lanes have read the previous 64 columns.
            warp::sync(u32::MAX);
            stage_rows::<E>(&acc.0[c], smem, frag::ldmatrix_x4(gpu::opaque_thread() % 32));
            warp::sync(u32::MAX);
            let left = left + 64 * c as u32;
            if F::FILTERS {
                Self::scatter(p, (left, columns), line, smem);
            } else {
                Self::store(p, left, line, smem);
            }
        });
    }

    /// Stores whole lines of 128 bytes.
    #[inline(always)]
    fn store(p: &PitConvParams, left: u32, line: u32, smem: Shared<u8>) {
        let lane = gpu::opaque_thread() % 32;
        let column = left + lane % 8 * 8;
        unroll!(j < 4, {
            let row = 4 * j as u32 + lane / 8;
            let line = warp::shfl(line, row);
            let eight = staged(smem, row, lane);
            if line != NOWHERE && column < p.filters {
                let to = p.c().row(line, p.ldc_bytes).at(column);
                to.cast::<[u32; 4]>().st(eight);
            }
        });
    }

    /// Stores each column to that of its filter. A lane has two columns, 32 apart, so that adjacent listed filters are
    /// stored together.
    #[inline(always)]
    fn scatter(p: &PitConvParams, (left, columns): (u32, u32), line: u32, smem: Shared<u8>) {
        let lane = gpu::opaque_thread() % 32;
        let mut filters = [NOWHERE; 2];
        unroll!(i < 2, {
            let place = left + lane + 32 * i as u32;
            let listed = p.lists().at(place).ld_if(place < columns);
            filters[i] = if place < columns { listed } else { NOWHERE };
        });
        let mut row = 0;
        while row < 16 {
            let line = warp::shfl(line, row);
            let to = p.c().row(line, p.ldc_bytes);
            unroll!(i < 2, {
                let column = lane + 32 * i as u32;
                let from = frag::swizzle(row, column / 8, PANEL_BYTES as u32);
                let value = smem.bytes(from).cast::<u16>().at(column % 8).ld();
                let valid = line != NOWHERE && filters[i] != NOWHERE;
                let to = to.at(filters[i]);
                let to = if valid { to } else { p.c() };
                to.st_if(value, valid);
            });
            row += 1;
        }
    }
}
