//! Params of a conversion that follow from the shape and the selection.

use einsparse_formats::convert::BlockChoice;
use einsparse_kernels::abi::Divisor;
use einsparse_kernels::families::{
    CONVERT_NON_ZERO, CONVERT_TOP, ConvertParams, PIECE, SELECT_PART,
};

use super::Request;
use crate::error::Result;
use crate::launch::{MAX_GRID_X, within};
use crate::registry::Dtype;

/// Elements of a row of blocks that a warp of the CSR step writes at once.
const CHUNK_ELEMENTS: usize = 8192;

/// Returns the params without addresses, the blocks of a selection, and the number of selections, which may be 0.
pub(crate) fn geometry(request: &Request) -> Result<(ConvertParams, (usize, usize))> {
    let Request { m, k, block: (bm, bk), group, choice, dtype } = *request;
    let small = |what, value| within(what, value, MAX_GRID_X);
    let (rows, columns) = (m.div_ceil(bm), k.div_ceil(bk));
    let grid = rows.saturating_mul(columns);
    // The last part of a selection may end after its last block.
    let most = (u32::MAX - SELECT_PART) as usize;
    within("blocks of the grid", grid, most)?;
    within("elements of a block", bm.saturating_mul(bk), u32::MAX as usize)?;
    let (down, across) = (bm.div_ceil(PIECE.0 as usize), bk.div_ceil(PIECE.1 as usize));
    small("rows of pieces", rows.saturating_mul(down))?;
    small("pieces of a row", columns.saturating_mul(across))?;
    let (flags, floor, top) = kept(choice, dtype);
    let candidates = match choice {
        Some(BlockChoice::TopPerRow(_)) => columns,
        _ => grid,
    };
    let selections = match (flags & CONVERT_TOP, candidates) {
        (0, _) | (_, 0) => (0, 0),
        _ => (candidates, grid / candidates),
    };
    let position_bits = u32::BITS - (candidates.saturating_sub(1) as u32).leading_zeros();
    let params = ConvertParams {
        m: small("rows", m)?,
        k: small("columns", k)?,
        block_m: Divisor::new(small("block rows", bm)?),
        block_k: Divisor::new(small("block columns", bk)?),
        group: Divisor::new(small("group", group)?),
        block_rows: rows as u32,
        block_columns: Divisor::new(columns as u32),
        words: columns.div_ceil(32) as u32,
        piece_rows: Divisor::new(down as u32),
        piece_columns: Divisor::new(across as u32),
        top: top.min(candidates) as u32,
        candidates: Divisor::new(candidates as u32),
        parts: Divisor::new(candidates.div_ceil(SELECT_PART as usize) as u32),
        position_bits,
        dropped_bits: match dtype {
            Dtype::F64 => position_bits,
            _ => 32,
        },
        chunk_slots: (CHUNK_ELEMENTS / bk).max(1) as u32,
        floor,
        flags,
        ..ConvertParams::default()
    };
    Ok((params, selections))
}

/// Returns the flags of a selection, the rank above which it keeps blocks, and the number of blocks that it keeps.
fn kept(choice: Option<BlockChoice>, dtype: Dtype) -> (u32, u64, usize) {
    match choice {
        None => (0, 0, 0),
        Some(BlockChoice::NonZero) => (CONVERT_NON_ZERO, 0, 0),
        Some(BlockChoice::Norm(threshold)) => (0, floor(threshold, dtype), 0),
        // No rank is above the maximum, so no block is kept.
        Some(BlockChoice::Top(0) | BlockChoice::TopPerRow(0)) => (0, u64::MAX, 0),
        Some(BlockChoice::Top(n) | BlockChoice::TopPerRow(n)) => (CONVERT_TOP, 0, n),
    }
}

/// Returns the largest sum of squares that is <= the square of the threshold, as an integer of the same order.
fn floor(threshold: f64, dtype: Dtype) -> u64 {
    let limit = threshold * threshold;
    if dtype == Dtype::F64 {
        return limit.to_bits();
    }
    let near = limit as f32;
    let below = if f64::from(near) > limit { near.next_down() } else { near };
    u64::from(below.to_bits()) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_that_a_selection_would_run_past_are_refused() {
        let request = |m, k| Request {
            m,
            k,
            block: (1, 1),
            group: 1,
            choice: Some(BlockChoice::Top(1)),
            dtype: Dtype::F16,
        };
        let (params, selections) = geometry(&request(65_535, 65_536)).unwrap();
        assert_eq!(selections, (65_535 * 65_536, 1));
        let ends = params.parts.value.checked_mul(SELECT_PART);
        assert!(ends.is_some_and(|end| end >= params.candidates.value));
        let refused = geometry(&request(65_537, 65_535)).unwrap_err().to_string();
        assert!(refused.contains("blocks of the grid is 4294967295"), "{refused}");
    }

    #[test]
    fn a_floor_is_the_largest_sum_that_is_not_kept() {
        for threshold in [0.0, 1e-30, 0.1, 1.0, 3.3333, 1e10, 1e25, f64::INFINITY] {
            let limit = threshold * threshold;
            let last = f32::from_bits((floor(threshold, Dtype::F16) >> 32) as u32);
            assert!(f64::from(last) <= limit, "{threshold}");
            let next = last.next_up();
            assert!(f64::from(next) > limit || last.is_infinite(), "{threshold}");
            assert_eq!(floor(threshold, Dtype::F64), limit.to_bits());
        }
    }
}
