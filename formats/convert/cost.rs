//! Memory of conversions that is proportional to rows, columns and tiles, whether or not they have entries. It is
//! compared with the size of the tensor before any allocation.

use super::tasks::LEAST;
use crate::bytemap::{self, COUNT_WORDS};
use crate::error::*;
use crate::{AnyPattern, Csr, Element, Format, SparseRef, allocate, bitmap};

/// Name, count, and bytes per element.
type Part = (&'static str, u128, usize);

/// Returns an error that names the largest part if the parts together exceed the memory limit.
fn within(parts: &[Part], held: u64) -> Result<()> {
    let bytes = |&(_, count, each): &Part| count.saturating_mul(each as u128);
    let all = parts.iter().map(bytes).fold(0, u128::saturating_add);
    let limit = allocate::limits().of(held);
    match parts.iter().max_by_key(|part| bytes(part)) {
        Some(&(what, count, _)) if all > u128::from(limit) => {
            Err(FormatError::Limit { what, count, bytes: all, held, limit })
        }
        _ => Ok(()),
    }
}

/// Bytes per row for the conversion to CSR: offsets, and counts of rows.
fn csr_parts(pattern: AnyPattern<'_>) -> [Part; 1] {
    let each = match pattern {
        AnyPattern::Csr(_) => 0,
        AnyPattern::Coo(_) | AnyPattern::GroupCoo(_) | AnyPattern::Ell(_) => 4,
        AnyPattern::Csc(_) => 8,
        AnyPattern::HybridGroupCoo(_) | AnyPattern::Bitmap(_) | AnyPattern::Bytemap(_) => 12,
        AnyPattern::Nm(_) => 20,
        _ => 28,
    };
    let rows = pattern.shape().first().copied().unwrap_or(0);
    [("rows", rows as u128, each)]
}

/// Memory in addition to CSR: counts of rows and columns, one set of block columns per thread, and the words of tiles.
fn format_parts([rows, cols]: [usize; 2], entries: usize, format: Format) -> [Part; 3] {
    let at_once = |tasks: usize| rayon::current_num_threads().min(tasks.max(1));
    let of =
        |row: usize, col: usize| [("rows", rows, row), ("columns", cols, col), ("tiles", 0, 0)];
    let parts = match format {
        Format::Coo | Format::Csr | Format::Ell | Format::GroupCoo { .. } | Format::Nm { .. } => {
            of(0, 0)
        }
        Format::Csc => of(0, 8),
        Format::HybridGroupCoo => of(9, 0),
        Format::SlicedEll => of(10, 0),
        Format::Bsr { block }
        | Format::BlockCoo { block }
        | Format::BlockGroupCoo { block, .. } => [
            ("block rows", rows.div_ceil(block.0.max(1)), 28),
            ("block columns", cols.div_ceil(block.1.max(1)), 5 * at_once((rows + entries) / LEAST)),
            ("tiles", 0, 0),
        ],
        Format::Bitmap => {
            let grid = bitmap::Grid::new(rows, cols);
            // Offsets of the lanes of a row of tiles, one array per thread.
            let threads = at_once(grid.down.div_ceil(bitmap::PANEL));
            let lanes = ("columns of tiles", grid.across, 16 * bitmap::BITS * threads);
            [
                lanes,
                ("tiles", grid.tiles(), 4 * bitmap::WORDS + 12),
                ("rows of tiles", grid.down, 96),
            ]
        }
        Format::Bytemap => {
            let grid = bytemap::grid(rows, cols);
            let banks = ("columns of tiles", grid.across, 256 * at_once(grid.down));
            // Two copies of the counts, slices of positions and values, and starts.
            [
                banks,
                ("tiles", grid.tiles(), 12 * COUNT_WORDS + 72),
                ("rows of tiles", grid.down, 96),
            ]
        }
    };
    parts.map(|(what, count, each)| (what, count as u128, each))
}

/// # Errors
/// Returns [`FormatError::Limit`] if the rows need more memory in CSR than is allowed for the tensor.
pub(super) fn to_csr<T: Element>(from: SparseRef<'_, T>) -> Result<()> {
    within(&csr_parts(from.pattern()), from.held())
}

/// # Errors
/// Returns [`FormatError::Limit`] if rows, columns or tiles need more memory in the format than is allowed for the
/// matrix.
pub(super) fn from_csr<T: Element>(csr: &Csr<T>, format: Format) -> Result<()> {
    let shape = [csr.pattern().rows(), csr.pattern().cols()];
    within(&format_parts(shape, csr.nnz(), format), csr.held())
}

/// [`from_csr`] for conversions from any format through CSR. The memory of both steps is allocated at the same time.
pub(super) fn by_csr<T: Element>(from: SparseRef<'_, T>, format: Format) -> Result<()> {
    let &[rows, cols] = from.pattern().shape() else {
        return Ok(());
    };
    let stays = matches!(from, SparseRef::Coo(_) | SparseRef::GroupCoo(_))
        && matches!(format, Format::Coo | Format::GroupCoo { .. });
    if stays {
        return Ok(());
    }
    let parts =
        [&csr_parts(from.pattern())[..], &format_parts([rows, cols], from.pattern().nnz(), format)]
            .concat();
    within(&parts, from.held())
}

/// Validates that the arrays of a format, and the offsets of the CSR from which they are built, fit the memory limit
/// for a tensor of `held` bytes. Slots are counted only if the offsets are larger than the tensor. In this case, the
/// limit that follows from the CSR is too high.
///
/// # Errors
/// Returns [`FormatError::Limit`], and the errors of [`slots`](crate::stats::slots).
pub(super) fn with_padding<T: Element>(held: u64, csr: &Csr<T>, format: Format) -> Result<()> {
    let offsets = 4 * csr.pattern().rows() as u128;
    if offsets <= u128::from(held) {
        return Ok(());
    }
    let made = crate::stats::slots(csr.pattern(), format)?;
    let bytes = made.bytes(size_of::<T>()).saturating_add(offsets);
    let limit = allocate::limits().of(held);
    if bytes <= u128::from(limit) {
        return Ok(());
    }
    Err(FormatError::Limit { what: "slots with padding", count: made.values, bytes, held, limit })
}

/// Validates that `count` slots, including padding, and `words` index words fit the memory limit for the tensor.
///
/// # Errors
/// Returns [`FormatError::Limit`].
pub(super) fn slots<T: Element>(count: usize, words: usize, held: u64) -> Result<()> {
    let values = count as u128 * size_of::<T>() as u128;
    let bytes = values + 4 * words as u128;
    allocate::extent_bytes("slots with padding", count as u128, bytes, held)
}
