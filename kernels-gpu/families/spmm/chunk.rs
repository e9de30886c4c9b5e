//! Slices: one lane's share of a chunk (four slots of its row), and the epilogue of a row.

use crate::device::epilogue::{Output, finish, row_bias, scale};
use crate::device::prelude::*;
use crate::families::spmm::abi::*;

/// Addresses of the windows, columns and values of chunks. A window is the range of tiles of B that a chunk needs.
#[derive(Clone, Copy)]
pub struct Slots {
    pub windows: Global<u32, ReadOnly>,
    pub columns: Global<u16, ReadWrite>,
    pub values: Global<u8, ReadWrite>,
}

/// One lane's share of a chunk.
#[derive(Clone, Copy)]
pub struct Chunk {
    window: u32,
    columns: [u32; 2],
    values: Raw,
}

impl Chunk {
    #[inline(always)]
    pub fn load<E: Elem>(p: Slots, chunk: u32, lane: u32, ok: bool) -> Chunk {
        let slot = chunk as u64 * CHUNK_SLOTS as u64 + (lane * CHUNK_STEPS as u32) as u64;
        let from = p.values.cast::<E>().at(slot);
        Chunk {
            window: p.windows.at(chunk).ld_if(ok),
            columns: p.columns.at(slot).cast::<[u32; 2]>().ld_once_if(ok),
            values: if E::BYTES == 2 {
                let [a, b] = from.cast::<[u32; 2]>().ld_once_if(ok);
                [a, b, 0, 0]
            } else {
                from.cast::<[u32; 4]>().ld_once_if(ok)
            },
        }
    }

    /// Loads chunk `first` and chunk `first + step`, each only if it is before `end`.
    #[inline(always)]
    pub fn two<E: Elem>(p: Slots, [first, end]: [u32; 2], step: u32) -> [Chunk; 2] {
        let lane = gpu::thread() % 32;
        let fetch = |chunk: u32| Chunk::load::<E>(p, chunk, lane, chunk < end);
        [fetch(first), fetch(first + step)]
    }

    /// Returns the first tile of B that the chunk needs, and one past the last.
    #[inline(always)]
    pub fn window(&self) -> [u32; 2] {
        let first = self.window >> WINDOW_BITS;
        [first, first + self.window % (1 << WINDOW_BITS)]
    }

    /// Returns the local column and value of step `i`, a constant after unrolling.
    #[inline(always)]
    pub fn entry<E: Elem<Acc = f32>>(&self, i: usize) -> (u32, f32) {
        let word = self.columns[(i / 2) & 1];
        let local = if i % 2 == 0 { word & 0xffff } else { word >> 16 };
        let value = E::get(&self.values, i);
        (local, if local == NO_ENTRY { 0.0 } else { value })
    }
}

/// Applies the epilogue to `N` neighbouring sums of a row and stores them. `row` is as in [`StagedParams::rows`].
#[inline(always)]
pub fn put_row<E: Elem<Acc = f32>, const N: usize>(
    output: impl Fn() -> Output,
    row: u32,
    column: u32,
    sums: [f32; N],
) {
    if row == u32::MAX {
        return;
    }
    let o = output();
    let (len, row) = (u32::from(row & EMPTY_ROW == 0), row & !EMPTY_ROW);
    let factors = (scale::<E>(o, len), row_bias::<E>(o, row));
    if N > 1 && o.flags & FLAG_VECTORS != 0 {
        finish::<E, N>(o, row, column, factors, sums);
    } else {
        unroll!(j < N, { finish::<E, 1>(o, row, column + j as u32, factors, [sums[j]]) });
    }
}
