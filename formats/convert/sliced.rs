//! Conversion of CSR to sliced ELLPACK, and back. Slices are independent. Each is traversed twice, to count its chunks
//! and to fill them.

use super::cost;
use super::tasks::{csr_of_entries, cut, prefix_sum, row_tasks};
use crate::error::*;
use crate::parallel;
use crate::sliced_ell::{CHUNK, CHUNK_SLOTS, K_TILE, NO_ENTRY, REACH, SLICE, SORTED};
use crate::{
    AsSparse, Csr, CsrPattern, Element, PAD, Pattern, SlicedEll, SlicedEllPattern, Sparse,
    allocate, check,
};

/// Rows sorted by length within windows of [`SORTED`]: longest first, rows of equal length in order. [`PAD`] fills the
/// last slice.
fn sorted_rows(csr: &CsrPattern) -> Result<Vec<u32>> {
    let rows = csr.rows();
    let places = rows.next_multiple_of(SLICE);
    let mut order: Vec<u32> = check::reserved("order of rows", places)?;
    order.extend(0..rows as u32);
    let key = |&row: &u32| (std::cmp::Reverse(csr.row(row as usize).len()), row);
    parallel::chunks(&mut order, SORTED, &|_, window| window.sort_unstable_by_key(key));
    order.resize(places, PAD);
    Ok(order)
}

/// One chunk: its window, and the range of entries of each lane.
struct Taken<'a> {
    window: [u32; 2],
    lanes: &'a [(usize, usize); SLICE],
}

/// Divides a slice into chunks. `lanes` are the entry ranges of its rows. The order of the chunks defines the format.
fn walk(columns: &[u32], lanes: &[(usize, usize); SLICE], mut each: impl FnMut(Taken<'_>)) {
    let tile = |e: usize| columns[e] / K_TILE as u32;
    let mut at = *lanes;
    loop {
        let left = at.iter().filter(|(next, end)| next < end);
        let Some(first) = left.map(|&(next, _)| tile(next)).min() else {
            return;
        };
        let limit = (u64::from(first) + REACH as u64) * K_TILE as u64;
        let mut last = first;
        let mut taken = [(0, 0); SLICE];
        for (lane, taken) in at.iter_mut().zip(&mut taken) {
            let (start, end) = (lane.0, lane.1.min(lane.0 + CHUNK));
            while lane.0 < end && u64::from(columns[lane.0]) < limit {
                last = last.max(tile(lane.0));
                lane.0 += 1;
            }
            *taken = (start, lane.0);
        }
        each(Taken { window: [first, last + 1], lanes: &taken });
    }
}

/// Entry ranges of the rows of a slice.
fn lanes(csr: &CsrPattern, order: &[u32], slice: usize) -> [(usize, usize); SLICE] {
    let rows = &order[slice * SLICE..][..SLICE];
    std::array::from_fn(|lane| match rows[lane] {
        PAD => (0, 0),
        row => {
            let range = csr.row(row as usize);
            (range.start, range.end)
        }
    })
}

/// Order of the rows, and number of chunks of each slice.
fn survey(csr: &CsrPattern) -> Result<(Vec<u32>, Vec<usize>)> {
    let order = sorted_rows(csr)?;
    let count = |slice: usize| {
        let lanes = lanes(csr, &order, slice);
        if csr.cols() <= REACH * K_TILE {
            // Every window reaches the last column.
            let longest = lanes.iter().map(|(start, end)| end - start).max();
            return longest.unwrap_or(0).div_ceil(CHUNK);
        }
        let mut chunks = 0;
        walk(csr.columns(), &lanes, |_| chunks += 1);
        chunks
    };
    let counts = allocate::each("chunks of slices", order.len() / SLICE, &count)?;
    Ok((order, counts))
}

/// Number of slices and chunks of a matrix, from the traversal that would fill them.
pub(crate) fn sliced_chunks(csr: &CsrPattern) -> Result<(usize, u128)> {
    let (_, counts) = survey(csr)?;
    Ok((counts.len(), counts.iter().map(|&c| c as u128).sum()))
}

/// Converts CSR to sliced ELLPACK.
///
/// # Errors
/// Returns an error if the number of slots exceeds u32, or allocation fails.
pub fn csr_to_sliced_ell<T: Element>(csr: &Csr<T>) -> Result<SlicedEll<T>> {
    let p = csr.pattern();
    let (order, counts) = survey(p)?;
    let offsets = prefix_sum("chunks", counts.into_iter())?;
    let chunks = *offsets.last().unwrap_or(&0) as usize;
    let slots = check::product("slots", &[chunks, CHUNK_SLOTS])?;
    cost::slots::<T>(slots, slots / 2, csr.held())?;
    let mut windows = check::zeroed("windows", chunks * 2)?;
    let mut columns = check::zeroed("columns", slots / 2)?;
    let mut values = check::zeroed("values", slots)?;
    let slices = offsets.len() - 1;
    let tasks = row_tasks(slices, |s| offsets[s] as usize * CHUNK_SLOTS);
    let at = |each: usize| move |s: usize, offsets: &[u32]| offsets[s] as usize * each;
    let parts = cut(&mut windows, &tasks, |s| at(2)(s, &offsets))
        .into_iter()
        .zip(cut(&mut columns, &tasks, |s| at(CHUNK_SLOTS / 2)(s, &offsets)))
        .zip(cut(&mut values, &tasks, |s| at(CHUNK_SLOTS)(s, &offsets)));
    type Part<'p, T> = ((&'p mut [u32], &'p mut [u32]), &'p mut [T]);
    parallel::each_of(parts.collect(), &|own, ((windows, columns), values): Part<'_, T>| {
        let task = &tasks[own];
        let mut chunk = 0;
        for slice in task.clone() {
            walk(p.columns(), &lanes(p, &order, slice), |taken| {
                windows[chunk * 2..][..2].copy_from_slice(&taken.window);
                let columns = &mut columns[chunk * CHUNK_SLOTS / 2..][..CHUNK_SLOTS / 2];
                let values = &mut values[chunk * CHUNK_SLOTS..][..CHUNK_SLOTS];
                fill(csr, &taken, columns, values);
                chunk += 1;
            });
        }
    });
    let shape = [p.rows(), p.cols()];
    // SAFETY: `walk` visits every entry once, in the order of its row and inside its window.
    let pattern = unsafe {
        SlicedEllPattern::new_unchecked(shape, order, offsets, windows, columns, p.nnz())
    };
    Sparse::new(pattern, values)
}

/// Writes one chunk.
fn fill<T: Element>(csr: &Csr<T>, taken: &Taken<'_>, columns: &mut [u32], values: &mut [T]) {
    let first = taken.window[0] * K_TILE as u32;
    let lines = columns.as_chunks_mut::<{ CHUNK / 2 }>().0.iter_mut();
    let lines = lines.zip(values.as_chunks_mut::<CHUNK>().0);
    for (&(start, end), (columns, values)) in taken.lanes.iter().zip(lines) {
        let mut local = [NO_ENTRY; CHUNK];
        for (i, entry) in (start..end).enumerate() {
            local[i] = csr.pattern().columns()[entry] - first;
            values[i] = csr.values()[entry];
        }
        for (word, pair) in columns.iter_mut().zip(local.as_chunks::<2>().0) {
            *word = pair[0] | pair[1] << 16;
        }
    }
}

/// Converts sliced ELLPACK to CSR.
///
/// # Errors
/// Returns an error if allocation fails.
pub fn sliced_ell_to_csr<T: Element>(sell: &SlicedEll<T>) -> Result<Csr<T>> {
    cost::to_csr(sell.as_sparse())?;
    let p = sell.pattern();
    let mut places = check::zeroed("rows", p.rows())?;
    for (place, &row) in p.order().iter().enumerate().take(p.rows()) {
        places[row as usize] = place;
    }
    // Slots of a row, chunk by chunk. Entries precede padding in each chunk.
    let slots = |row: usize| {
        let (slice, lane) = (places[row] / SLICE, places[row] % SLICE);
        let of = move |chunk: usize| (chunk * SLICE + lane) * CHUNK;
        p.chunks(slice).flat_map(move |c| of(c)..of(c) + CHUNK)
    };
    let entries = |row: usize| {
        let all = slots(row).map(|slot| (p.column(slot), sell.values()[slot]));
        all.filter(|&(column, _)| column != PAD)
    };
    // SAFETY: the columns of a row ascend from chunk to chunk.
    unsafe { csr_of_entries((p.rows(), p.cols()), entries) }
}
