//! Rows of sequences of varying lengths: packed, normalized, and stored back at their source rows. One warp per row;
//! the number of rows is read on the device. Packing adds up the lengths itself, like `detect_lengths`. Through that
//! list it would need one more kernel, one more dependent load per row, and the ends of sequences would be missing.

use crate::device::lanes::{UP, sum_of};
use crate::device::prelude::*;
use crate::device::strided::strided;
use crate::families::discover::abi::*;
use crate::families::discover::sequences::rows_before;

buffers! {
    // `Encoder::check` and `ResidualNorm::forward` check the shapes (`host/nn/encoder`). `PackLaunch` checks alignment,
    // and allocates ranges and sources for all rows that it packs (`host/core/families/discover/live_rows.rs`).
    unsafe LiveRowsParams {
        x: u16, Fresh;
        y: u16, Fresh;
        out: u16, ReadWrite;
        scale: [u32; 4], Fresh;
        shift: [u32; 4], Fresh;
        lengths: u32, Fresh;
        ranges: [u32; 2], ReadWrite;
        sources: u32, Fresh;
        live: u32, Fresh;
        ahead[]: u8, ReadWrite;
    }
}

const WARPS: u32 = DETECT_THREADS / 32;

/// Scales of the columns in shared memory; the shifts follow after `NORM_COLUMNS` elements.
#[inline(always)]
fn affine() -> Shared<u16> {
    // SAFETY: `NormRows` has `NORM_COLUMNS` elements of both after `NORM_AFFINE` bytes.
    unsafe { Shared::dynamic(NORM_AFFINE) }
}

/// A lane's part of a row of 16-bit elements: vectors of 8, 256 elements apart.
type Part = [[u32; 4]; 4];

/// First element of vector `v` of a lane, and whether it is inside the row.
#[inline(always)]
fn vector(p: &LiveRowsParams, v: usize) -> (u32, bool) {
    let column = gpu::thread() % 32 * 8 + 256 * v as u32;
    (column, column < p.columns)
}

/// Loads the row that begins at `from`; zeros if it is not `valid`.
#[inline(always)]
fn load(p: &LiveRowsParams, from: Global<u16, Fresh>, valid: bool) -> Part {
    let mut raw = [[0; 4]; 4];
    unroll!(v < 4, {
        let (column, inside) = vector(p, v);
        raw[v] = from.at(column).cast::<[u32; 4]>().ld_if(inside && valid);
    });
    raw
}

impl PackRows {
    /// Copies a row, or writes zeros; one warp. All loads are issued before the first wait.
    #[inline(always)]
    fn copy_row(p: &LiveRowsParams, from: Global<u16, Fresh>, to: u32, valid: bool) {
        let to = p.out().row(to, p.out_row);
        let words = load(p, from, valid);
        unroll!(v < 4, {
            let (column, inside) = vector(p, v);
            if inside {
                to.at(column).cast::<[u32; 4]>().st(words[v]);
            }
        });
    }

    /// Stores sequence range and source row of a packed row; one lane.
    #[inline(always)]
    fn say(p: &LiveRowsParams, row: u32, range: [u32; 2], source: u32) {
        p.ranges().at(row).st(range);
        p.sources().at(row).st(source);
    }

    /// Prefetches this thread block's share of a matrix into L2; one thread.
    #[inline(always)]
    fn fetch(p: &LiveRowsParams, which: usize) {
        let (bytes, part) = (p.ahead_bytes[which], p.ahead_part[which]);
        let from = (gpu::block_y() * gpu::grid_x() + gpu::block_x()) * part;
        if from < bytes {
            p.ahead(which).bytes(from).bulk_prefetch(part.min(bytes - from));
        }
    }
}

impl<W: WalkInfo, E: Elem<Acc = f32>> Kernel<W, E, LiveRowsParams> for PackRows {
    #[inline(always)]
    unsafe fn run(p: &LiveRowsParams, _: Maps) {
        if gpu::thread() == 0 {
            Self::fetch(p, 0);
        }
        grid::wait_dependency();
        // After the wait: the next kernel may rely on the end of the launches that this one waited for.
        grid::launch_dependents();
        let (item, thread) = (gpu::block_x(), gpu::thread());
        let (before, length) = rows_before(p.lengths(), p.items, p.distance, item);
        let base = before.min(p.most);
        let count = length.min(p.most - base);
        let (lane, first) = (thread % 32, gpu::block_y() * WARPS + thread / 32);
        strided(first, count, WARPS * PACK_PARTS, |row| {
            let source = item * p.distance + row;
            let packed = p.flags & LIVE_ROWS_PACKED != 0;
            let from = if packed { base + row } else { source };
            Self::copy_row(p, p.x().row(from, p.x_row), base + row, true);
            if lane == 0 {
                Self::say(p, base + row, [base, base + count], source);
            }
        });
        if item + 1 == p.items {
            let all = base + count;
            if thread == 0 && gpu::block_y() == 0 {
                p.live().st(all);
            }
            let end = all.next_multiple_of(PACK_PAD);
            strided(all + first, end, WARPS * PACK_PARTS, |row| {
                Self::copy_row(p, p.x(), row, false);
                if lane == 0 {
                    Self::say(p, row, [all, all], 0);
                }
            });
        }
        if thread == 0 {
            unroll!(which < 3, { Self::fetch(p, which + 1) });
        }
    }
}

impl NormRows {
    /// Address of a row of `x`.
    #[inline(always)]
    fn of_x(p: &LiveRowsParams, row: u32) -> Global<u16, Fresh> {
        p.x().row(row, p.x_row)
    }

    /// Copies scales and shifts to shared memory; all threads.
    #[inline(always)]
    fn stage_affine(p: &LiveRowsParams) {
        let at = gpu::thread() * 16;
        let inside = at < p.columns * 2;
        let raw = [p.scale(), p.shift()].map(|from| from.bytes(at).ld_if(inside));
        if inside {
            let to = affine().bytes(at);
            to.cast::<[u32; 4]>().st(raw[0]);
            to.at(NORM_COLUMNS).cast::<[u32; 4]>().st(raw[1]);
        }
    }

    /// Adds, normalizes and stores a row; one warp.
    #[inline(always)]
    fn norm<E: Elem<Acc = f32>>(p: &LiveRowsParams, to: u32, raw: [&Part; 2]) {
        let mut values = [[0f32; 8]; 4];
        let mut sum = 0.0;
        unroll!(v < 4, {
            unroll!(i < 8, {
                values[v][i] = E::get(&raw[0][v], i) + E::get(&raw[1][v], i);
                sum += values[v][i];
            });
        });
        let share = matrix::rcp_approx(p.columns as f32);
        let mean = sum_of::<F32>(sum, UP, 1..32) * share;
        let mut squares = 0.0;
        unroll!(v < 4, {
            let (_, inside) = vector(p, v);
            unroll!(i < 8, {
                let off = if inside { values[v][i] - mean } else { 0.0 };
                squares = matrix::fma_f32(off, off, squares);
            });
        });
        let by = matrix::rsqrt_approx(sum_of::<F32>(squares, UP, 1..32) * share + p.epsilon);
        let out = p.out().row(to, p.out_row);
        unroll!(v < 4, {
            let (column, inside) = vector(p, v);
            if inside {
                let from = affine().at(column);
                let factor = from.cast::<[u32; 4]>().ld();
                let summand = from.at(NORM_COLUMNS).cast::<[u32; 4]>().ld();
                let mut results = [0f32; 8];
                unroll!(i < 8, {
                    let own = (values[v][i] - mean) * by;
                    results[i] = matrix::fma_f32(own, E::get(&factor, i), E::get(&summand, i));
                });
                out.at(column).cast::<E>().st_rounded(&results);
            }
        });
    }
}

impl<W: WalkInfo, E: Elem<Acc = f32>> Kernel<W, E, LiveRowsParams> for NormRows {
    #[inline(always)]
    unsafe fn run(p: &LiveRowsParams, _: Maps) {
        grid::launch_dependents();
        // While the preceding launch ends, all inputs that it does not write are loaded.
        let early = p.flags & LIVE_ROWS_EARLY != 0;
        if !early {
            grid::wait_dependency();
        }
        let live = p.live().ld();
        Self::stage_affine(p);
        let mut row = gpu::block_x() * WARPS + gpu::thread() / 32;
        let mut x = load(p, Self::of_x(p, row), row < live);
        let scatter = p.flags & LIVE_ROWS_SCATTER != 0;
        if early {
            grid::wait_dependency();
        }
        gpu::sync_threads();
        while row < live {
            let y = p.y().row(row, p.y_row);
            let y = load(p, y, p.y != 0);
            let source = p.sources().at(row).ld_if(scatter);
            Self::norm::<E>(p, if scatter { source } else { row }, [&x, &y]);
            row += gpu::grid_x() * WARPS;
            x = load(p, Self::of_x(p, row), row < live);
        }
    }
}
