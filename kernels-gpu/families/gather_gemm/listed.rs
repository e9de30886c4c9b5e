//! Gather of listed rows into a stage. The rows of a stage are distributed over four warps. Lanes hold the indices of
//! their warp's rows, and copy 16 bytes of each.

use crate::device::memory::Stored;
use crate::device::prelude::*;
use crate::families::discover::abi::NO_TILE;

/// A lane's 16 bytes of each row of a matrix.
#[derive(Clone, Copy)]
pub struct Source {
    /// The matrix: a valid address for copies that read nothing.
    pub matrix: Global<u8, ReadWrite>,
    /// Address of the lane's 16 bytes in row 0, and 1 if they exist.
    pub from: Global<u8, ReadWrite>,
    pub inside: u32,
    /// Row stride, bytes.
    pub row_bytes: u32,
}

/// Rows of a stage that a warp copies. All are constants after inlining.
#[derive(Clone, Copy)]
pub struct Share {
    /// Number of rows, up to 16.
    pub rows: u32,
    /// Lanes that copy a row together, a power of two.
    pub lanes: u32,
    /// Bytes of 64 columns of all rows in the stage.
    pub slab: u32,
}

/// Number of a producer thread.
#[inline(always)]
pub fn producer() -> u32 {
    gpu::opaque_thread() - CONSUMER_WARPS * 32
}

impl Source {
    /// Source of the columns from `column` on, of `columns`.
    #[inline(always)]
    pub fn new<T: Stored>(
        matrix: Global<T, ReadWrite>,
        [column, columns]: [u32; 2],
        row_bytes: u32,
    ) -> Self {
        Source {
            matrix: matrix.cast(),
            from: matrix.at(column).cast(),
            inside: u32::from(column < columns),
            row_bytes,
        }
    }

    /// Starts the copy of a row to shared `to`, from `beyond` bytes after the lane's columns on. `WHOLE`: the row
    /// exists. Otherwise it is zero if it is missing ([`NO_TILE`]), since zeros of the other operand times a NaN would
    /// be NaN.
    #[inline(always)]
    pub fn copy<const WHOLE: bool>(self, row: u32, beyond: u32, to: Shared<u8>) {
        let from = self.from.row(row, self.row_bytes).bytes(beyond);
        if WHOLE {
            from.cp_async_16_if(to, self.inside);
        } else {
            let valid = self.inside != 0 && row != NO_TILE;
            let from = if valid { from } else { self.matrix };
            from.cp_async_16_or_zero(to, valid);
        }
    }

    /// Starts this warp's copies to the tile at shared `to`, swizzled. Lane `i` holds the index of row `i` of the warp.
    /// `WHOLE`: all rows exist.
    #[inline(always)]
    pub fn gather<const WHOLE: bool>(self, share: Share, rows: u32, to: Shared<u8>) {
        let thread = producer();
        let (warp, lane) = (thread / 32, thread % 32);
        // This lane's row among those that a warp copies at once.
        let (own, lane) = (lane >> share.lanes.trailing_zeros(), lane & (share.lanes - 1));
        let to = to.bytes(lane / 8 * share.slab + warp * share.rows * PANEL_BYTES as u32);
        unroll!(eight < 2, {
            unroll!(i < 8, {
                let first = (8 * eight + i) as u32 * (32 / share.lanes);
                if first < share.rows {
                    let place = first + own;
                    let row = warp::shfl(rows, place);
                    let within = first % 8 + own;
                    let to = to.bytes(((lane % 8) ^ within) * 16).bytes(place * PANEL_BYTES as u32);
                    self.copy::<WHOLE>(row, 0, to);
                }
            });
        });
    }
}
