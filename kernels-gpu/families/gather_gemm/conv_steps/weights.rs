//! Transposition of weights through shared memory, in tiles of 32 x 32, and sums of a gradient's parts.

use super::item;
use crate::device::prelude::*;
use crate::families::gather_gemm::abi::*;

/// Transposes `[t, r, c]` to `[t, c, r]`, a thread block for each tile. Grid: tiles of c, tiles of r, t.
#[inline(always)]
pub fn turn<E: Elem>(p: &ConvStepParams) {
    let [rows, columns, leading] = p.strides;
    let (x, y) = (gpu::thread() % 32, gpu::thread() / 32);
    let (left, top) = (gpu::block_x() * 32, gpu::block_y() * 32);
    let matrix = gpu::block_z() as u64;
    // SAFETY: `SHARED_BYTES` of the tile includes 32 rows of 33 words. A barrier separates stores and loads.
    let tile = unsafe { Shared::<u32>::dynamic(0) };
    let place = |row: u32, column: u32| tile.at(row * 33 + column);
    let load = |at: Global<E, ReadOnly>, ok: bool| match E::BYTES {
        2 => at.cast::<u16>().ld_if(ok),
        _ => at.cast::<u32>().ld_if(ok),
    };
    unroll!(i < 4, {
        let (row, column) = (top + y + i as u32 * 8, left + x);
        let line = (matrix * rows as u64 + row as u64) * leading as u64;
        let at = p.source().cast::<E>().at(line + column as u64);
        let word = load(at, row < rows && column < columns);
        place(y + i as u32 * 8, x).st(word);
    });
    gpu::sync_threads();
    unroll!(i < 4, {
        let (row, column) = (left + y + i as u32 * 8, top + x);
        let line = (matrix * columns as u64 + row as u64) * p.leading as u64;
        let at = p.out().cast::<E>().at(line + column as u64);
        let word = place(x, y + i as u32 * 8).ld();
        let inside = row < columns && column < rows;
        match E::BYTES {
            2 => at.cast::<u16>().st_if(word, inside),
            _ => at.cast::<u32>().st_if(word, inside),
        }
    });
}

/// Parts that are loaded before the first is added.
const AHEAD: usize = 8;

/// Sums the parts of each element of the gradient, in order. `rows`: number of elements. `strides`: elements of a
/// matrix and of a row. `table`: range of the parts of each offset.
#[inline(always)]
pub fn sum<E: Elem<Acc = f32>>(p: &ConvStepParams) {
    let element = item();
    if element >= p.rows {
        return;
    }
    let [matrix, width, _] = p.strides;
    let offset = element.checked_div(matrix).unwrap_or(0);
    let within = element - offset * matrix;
    // SAFETY: no kernel writes the ranges of parts.
    let table = unsafe { p.table().with::<ReadOnly>() };
    let place = |i: u32| table.at(offset + i).ld();
    let (mut part, end) = (place(0), place(1));
    let mut sum = 0f32;
    while part < end {
        let mut ahead = [0f32; AHEAD];
        unroll!(i < AHEAD, {
            let own = part + i as u32;
            let at = p.source().cast::<f32>().at(own as u64 * matrix as u64 + within as u64);
            ahead[i] = at.ld_if(own < end);
        });
        unroll!(i < AHEAD, {
            sum += ahead[i];
        });
        part += AHEAD as u32;
    }
    let row = element.checked_div(width).unwrap_or(0);
    let place = row as u64 * p.leading as u64 + (element - row * width) as u64;
    p.out().cast::<E>().at(place).st_rounded(&[sum]);
}
