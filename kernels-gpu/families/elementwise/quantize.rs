//! Quantization of rows to e4m3 with scales: eight lanes for each block of neighbours.

use crate::device::prelude::*;
use crate::device::quantize::quantize;
use crate::families::elementwise::abi::*;

buffers! {
    // `dynamic::grouped` checks the shape and the alignment of the rows by `QuantizeLaunch::check`.
    // `QuantizeLaunch` allocates the outputs.
    unsafe QuantizeParams {
        x<E: Elem>: E, ReadWrite;
        codes: u8, ReadWrite;
        scales: u32, ReadWrite;
    }
}

impl<W: WalkInfo, E: Elem<Acc = f32>> Kernel<W, E, QuantizeParams> for QuantizeTile {
    #[inline(always)]
    unsafe fn run(p: &QuantizeParams, _: Maps) {
        grid::launch_dependents();
        grid::wait_dependency();
        let lane = gpu::thread() % QUANTIZE_LANES;
        // Index of a block, not of a thread: 2^32 threads would wrap around.
        let index = gpu::block_x() * (ELEMENTWISE_THREADS / QUANTIZE_LANES)
            + gpu::thread() / QUANTIZE_LANES;
        let (row, block) = p.across.of(index);
        let column = block * QUANTIZED_BLOCK as u32 + lane * 8;
        let inside = row < p.rows && column < p.columns;
        let from = p.x::<E>().row(row, p.x_row).at(column);
        let (codes, scale) = quantize::<E>(&from.ld_raw::<8>(inside));
        if inside {
            p.codes().row(row, p.columns).at(column).cast::<[u32; 2]>().st(codes);
        }
        if lane == 0 && row < p.rows {
            p.scales().at(index).st(scale);
        }
    }
}
