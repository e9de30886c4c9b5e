//! Rows of a matrix that four warps gather into a stage, 128 bytes of each: a warp brings 32 of them, eight lanes a
//! row.

use super::ptx::{copy, warp};
use crate::abi::PANEL_BYTES;

pub const ROWS: u32 = 32;

/// The rows that a lane brings 16 bytes of, and a bit for each that is there.
pub type Rows = ([u32; 8], u32);

/// The rows that thread `thread` of those that gather brings; the lanes of its warp hold one each, `own`, and the first
/// `count` of all are there.
#[inline(always)]
pub fn shared_out(thread: u32, own: u32, count: u32) -> Rows {
    let (warp, lane) = (thread / 32, thread % 32);
    let (mut rows, mut valid) = ([0; 8], 0);
    unroll!(i < 8, {
        let row = 4 * i as u32 + lane / 8;
        rows[i] = warp::shfl(own, row);
        valid |= u32::from(warp * ROWS + row < count) << i;
    });
    (rows, valid)
}

/// A matrix of elements of 2 bytes that rows are gathered of.
#[derive(Clone, Copy)]
pub struct Source {
    pub address: u64,
    /// Bytes from one row to the next.
    pub row_bytes: u32,
    pub columns: u32,
}

/// Starts a thread's copies of a stage, from column `deep` on, to the rows at shared `to`. Rows that are not there are
/// not copied: whoever multiplies them stores nothing of it. `WHOLE`: the stage ends within the matrix; what lies
/// behind its columns has to be zero, since it is multiplied with zeros.
#[inline(always)]
pub fn bring<const WHOLE: bool>(
    source: Source,
    (rows, valid): Rows,
    thread: u32,
    deep: u32,
    to: u32,
) {
    let (warp, lane) = (thread / 32, thread % 32);
    let (row, chunk) = (lane / 8, lane % 8);
    let to = to + (warp * ROWS + row) * PANEL_BYTES as u32;
    let column = deep + chunk * 8;
    let from = source.address + column as u64 * 2;
    unroll!(i < 8, {
        // Rows of eight lanes are four apart: every other one is swizzled alike.
        let place = chunk ^ (row + 4 * (i as u32 % 2));
        let to = to + place * 16 + 4 * i as u32 * PANEL_BYTES as u32;
        let from = from + rows[i] as u64 * source.row_bytes as u64;
        if WHOLE {
            copy::cp_async_16_if(to, from, valid & (1 << i));
        } else {
            let inside = valid & (1 << i) != 0 && column < source.columns;
            let (from, bytes) = if inside { (from, 16) } else { (source.address, 0) };
            copy::cp_async_16(to, from, bytes);
        }
    });
}
