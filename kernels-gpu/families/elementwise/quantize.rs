//! Quantization of rows to e4m3 with scales: eight lanes for each block of neighbours.

use crate::device::prelude::*;
use crate::device::quantize::quantize;
use crate::families::elementwise::abi::*;

impl<W: WalkInfo, E: Elem<Acc = f32>> Kernel<W, E, QuantizeParams> for QuantizeTile {
    #[inline(always)]
    unsafe fn run(p: &QuantizeParams, _: u64) {
        grid::launch_dependents();
        grid::wait_dependency();
        let lane = gpu::thread() % QUANTIZE_LANES;
        // Index of a block, not of a thread: 2^32 threads would wrap around.
        let index = gpu::block_x() * (ELEMENTWISE_THREADS / QUANTIZE_LANES)
            + gpu::thread() / QUANTIZE_LANES;
        let (row, block) = p.across.of(index);
        let column = block * QUANTIZED_BLOCK as u32 + lane * 8;
        let inside = row < p.rows && column < p.columns;
        let from = p.x + row as u64 * p.x_row as u64 + column as u64 * 2;
        let (codes, scale) = quantize::<E>(&E::ld_global::<8>(from, inside));
        if inside {
            global::st_v2(p.codes + row as u64 * p.columns as u64 + column as u64, codes);
        }
        if lane == 0 && row < p.rows {
            global::st_b32(p.scales + index as u64 * 4, scale);
        }
    }
}
