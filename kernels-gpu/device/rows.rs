//! Gather of matrix rows into a stage by four warps with `cp.async`, 128 bytes of each row. A warp copies 32 rows,
//! eight lanes for each row. The result has the 128-byte swizzle, like a box that the copy engine writes.

use super::memory::{Access, Global};
use super::ptx::warp;
use super::shared::Shared;
use crate::abi::PANEL_BYTES;

pub const ROWS: u32 = 32;

/// Rows of which a lane copies 16 bytes each, and a bit for each valid row.
pub type Rows = ([u32; 8], u32);

/// Rows that thread `thread` copies. Each lane of the warp holds one row index, `own`; the first `count` rows of all
/// are valid.
#[inline(always)]
pub fn of_thread(thread: u32, own: u32, count: u32) -> Rows {
    let (warp, lane) = (thread / 32, thread % 32);
    let (mut rows, mut valid) = ([0; 8], 0);
    unroll!(i < 8, {
        let row = 4 * i as u32 + lane / 8;
        rows[i] = warp::shfl(own, row);
        valid |= u32::from(warp * ROWS + row < count) << i;
    });
    (rows, valid)
}

/// Source matrix with elements of 2 bytes.
#[derive(Clone, Copy)]
pub struct Source<A> {
    pub matrix: Global<u16, A>,
    /// Row stride, bytes.
    pub row_bytes: u32,
    pub columns: u32,
}

/// Starts a thread's copies of a stage, from column `deep` on, to the rows at shared address `to`. Invalid rows are not
/// copied, because their products are never stored. `WHOLE`: all columns of the stage are inside of the matrix.
/// Otherwise columns outside are filled with zeros: the other operand is zero there, and zero times NaN would be NaN.
#[inline(always)]
pub fn gather<const WHOLE: bool, A: Access>(
    source: Source<A>,
    (rows, valid): Rows,
    thread: u32,
    deep: u32,
    to: Shared<u8>,
) {
    let (warp, lane) = (thread / 32, thread % 32);
    let (row, chunk) = (lane / 8, lane % 8);
    let to = to.bytes((warp * ROWS + row) * PANEL_BYTES as u32);
    let column = deep + chunk * 8;
    let from = source.matrix.at(column);
    unroll!(i < 8, {
        // Successive rows of a lane are four apart, so every second one has the same swizzle.
        let place = chunk ^ (row + 4 * (i as u32 % 2));
        let to = to.bytes(place * 16 + 4 * i as u32 * PANEL_BYTES as u32);
        let from = from.row(rows[i], source.row_bytes);
        if WHOLE {
            from.cp_async_16_if(to, valid & (1 << i));
        } else {
            let inside = valid & (1 << i) != 0 && column < source.columns;
            let (from, bytes) = if inside { (from, 16) } else { (source.matrix, 0) };
            from.cp_async_16(to, bytes);
        }
    });
}
