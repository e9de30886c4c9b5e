//! Accumulators on their way out: added to those of the strip's other pieces where it was cut, finished, and sent to C.

use crate::device::epilogue::{Output, output};
use crate::device::prelude::*;
use crate::device::split_k::fix_up;
use crate::device::store::StoreTile;
use crate::families::gemm::abi::*;
use crate::families::gemm::wgmma::split_k_of;

impl WgmmaParams {
    #[inline(always)]
    pub(super) fn output(&self, item: u32) -> Output {
        Output {
            c: self.c + item as u64 * self.c_item,
            // Tested here and now: predicates held through the loop over strips cost registers.
            flags: warp::rematerialize(self.flags),
            gate: self.gate + item as u64 * self.gate_item,
            gate_bytes: self.gate_bytes,
            ..output!(self)
        }
    }
}

impl<const PM: usize, const PK: usize, const CHUNKS: usize, const ORDER: u32, const BYTES: usize>
    Panel<PM, PK, CHUNKS, ORDER, BYTES>
{
    #[inline(always)]
    pub(super) fn epilogue<E: Elem<Acc = f32>>(
        p: &WgmmaParams,
        strip: Strip,
        group: u32,
        acc: &mut Acc<CHUNKS>,
    ) {
        let mut stages = strip.stages;
        if strip.count() > 1 {
            if !fix_up(split_k_of(p, strip), group, Self::scratch(), acc) {
                return;
            }
            stages = 1;
        }
        Self::finish_and_store::<E>(p, strip, group, stages, acc);
    }

    /// Epilogue and stores in the type of C, which need not be that of A and B.
    #[inline(always)]
    fn finish_and_store<E: Elem<Acc = f32>>(
        p: &WgmmaParams,
        strip: Strip,
        group: u32,
        stages: u32,
        acc: &mut Acc<CHUNKS>,
    ) {
        let smem = copy::arena() + (Self::OUT + group as usize * SMEM_TILE) as u32;
        let corner = [strip.row + group * HALF as u32, strip.column];
        StoreTile::<CHUNKS, ORDER>::write::<E>(
            p.output(strip.item),
            p.m,
            corner,
            (group, smem),
            stages,
            acc,
        );
    }
}
