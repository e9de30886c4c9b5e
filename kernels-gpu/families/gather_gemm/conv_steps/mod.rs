//! Steps before and after a convolution: kernel maps by a hash table of voxels, transposed weights, sums of parts.

mod map;
mod weights;

use crate::device::prelude::*;
use crate::families::gather_gemm::abi::*;

buffers! {
    // `MapSteps` and `StrideSteps` allocate the arrays of a map for all rows and offsets, and
    // `kernel_map/on_device.rs` checks the voxels. `ConvProduct` and `WeightGradient` allocate
    // transposed weights and partial sums; their callers check the shapes of the others.
    unsafe ConvStepParams {
        source: u8, ReadOnly;
        out: u8, ReadWrite;
        table: u32, Fresh;
        offsets: u32, ReadOnly;
        raw: u32, ReadWrite;
        keys: u32, ReadWrite;
        order: u32, ReadWrite;
        neighbours: u32, ReadWrite;
        masks: u32, ReadWrite;
        count: u32, Fresh;
    }
}

#[inline(always)]
fn item() -> u32 {
    gpu::block_x() * CONV_STEP_THREADS + gpu::thread()
}

impl<W: WalkInfo, E: Elem<Acc = f32>, const STEP: u32> Kernel<W, E, ConvStepParams>
    for ConvStep<STEP>
{
    #[inline(always)]
    unsafe fn run(p: &ConvStepParams, _: Maps) {
        match STEP {
            CONV_TURN => weights::turn::<E>(p),
            CONV_SUM => weights::sum::<E>(p),
            CONV_INSERT => map::insert(p),
            CONV_NEIGHBOURS => map::neighbours(p),
            CONV_ARRANGE => map::arrange(p),
            CONV_SCHEDULE => map::schedule(p),
            CONV_STRIDE => map::stride(p),
            CONV_FIRST => map::first(p),
            CONV_TAKE => map::take(p),
            CONV_TRANSPOSE => map::transpose(p),
            _ => map::keys(p),
        }
    }
}
