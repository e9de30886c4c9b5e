//! Addresses of elements, and the elements of a thread.

use crate::device::prelude::*;
use crate::families::elementwise::abi::ELEMENTWISE_THREADS;

/// Address of an element of a matrix whose rows are `row_bytes` bytes apart.
#[inline(always)]
pub(super) fn element<E: Elem>(
    matrix: Global<E, ReadWrite>,
    row_bytes: u32,
    [row, column]: [u32; 2],
) -> Global<E, ReadWrite> {
    matrix.row(row, row_bytes).bytes(column * E::BYTES)
}

/// Row and index in the row of this thread's vector, of `rows` rows of `across` vectors; `None` outside.
#[inline(always)]
pub(super) fn own_vector(rows: u32, across: u32) -> Option<[u64; 2]> {
    let index = gpu::block_x() as u64 * ELEMENTWISE_THREADS as u64 + gpu::thread() as u64;
    let row = index.checked_div(across as u64)?;
    (row < rows as u64).then_some([row, index - row * across as u64])
}

/// Applies the activation to a vector.
#[inline(always)]
pub(super) fn gate<E: Elem<Acc = f32>, const V: usize>(flags: u32, raw: &Raw) -> [f32; V] {
    let of_four = |first: usize| {
        glu::gate::<E>(flags, [0usize, 1, 2, 3].map(|i| E::get(raw, (first + i) % V)))
    };
    let fours = [of_four(0), of_four(4)];
    let mut out = [0.0; V];
    unroll!(i < V, { out[i] = fours[i / 4][i % 4] });
    out
}
