//! Epilogue of the accumulators: split-K fix-up of a CTA tile that was cut, then scalar, bias, activation and store.

use crate::device::epilogue::{Output, output};
use crate::device::prelude::*;
use crate::device::split_k::{SplitK, fix_up_by};
use crate::device::store::StoreTile;
use crate::families::gemm::abi::*;

impl WgmmaParams {
    #[inline(always)]
    pub(super) fn output(&self, item: u32) -> Output {
        let o = output!(self);
        Output {
            c: o.c.row(item, self.c_item),
            // `opaque` keeps the test of the flags here: predicates held through the loop over CTA tiles cost
            // registers.
            flags: warp::opaque(self.flags),
            gate: self.gate().row(item, self.gate_item),
            gate_bytes: self.gate_bytes,
            ..o
        }
    }
}

impl<const CHUNKS: usize, F: PanelForm<A: Multiply, L: Loader>> Panel<CHUNKS, F> {
    /// Split-K fix-up of a CTA tile. Returns its number of stages (1 if cut) if this warpgroup stores it: if the tile
    /// is whole, or this part arrives last.
    #[inline(always)]
    pub(super) fn whole(
        p: &WgmmaParams,
        strip: Strip,
        group: u32,
        acc: &mut Acc<CHUNKS>,
        add: impl Fn(f32, f32) -> f32,
    ) -> Option<u32> {
        if strip.count() > 1 {
            let cut = SplitK {
                partial: p.partial(),
                counters: p.counters(),
                first: strip.first,
                part: strip.part(),
                parts: strip.count(),
                counter: strip.counter,
            };
            if !fix_up_by(cut, group, Self::scratch(), acc, add) {
                return None;
            }
        }
        // After the fix-up: partial sums of all thread blocks have one layout, whichever it is.
        F::A::exchange_quarters(acc, Self::place(strip, group).1.1, 1 + group);
        Some(if strip.count() > 1 { 1 } else { strip.stages })
    }

    /// Corner of a warpgroup's rows of a CTA tile, and its output buffer in shared memory.
    #[inline(always)]
    pub(super) fn place(strip: Strip, group: u32) -> ([u32; 2], (u32, Shared<u8>)) {
        // SAFETY: the host launches with `SHARED_BYTES`, which include the output buffers.
        let smem = unsafe { Shared::dynamic((Self::OUT + group as usize * SMEM_TILE) as u32) };
        let corner = [strip.row + group * HALF as u32, strip.column];
        (corner, (group, smem))
    }

    /// Epilogue and stores in the type of C, which may differ from that of A and B.
    #[inline(always)]
    pub(super) fn epilogue<E: Elem<Acc = f32>>(
        p: &WgmmaParams,
        strip: Strip,
        group: u32,
        acc: &mut Acc<CHUNKS>,
    ) {
        if let Some(stages) = Self::whole(p, strip, group, acc, |a, b| a + b) {
            let ((corner, smem), o) = (Self::place(strip, group), p.output(strip.item));
            if F::A::ASYNCHRONOUS {
                Self::write::<E, true>(o, p.m, corner, smem, stages, acc);
            } else {
                // A copy of a chunk would take registers, which other warps cannot release.
                Self::write::<E, false>(o, p.m, corner, smem, stages, acc);
            }
        }
    }

    /// [`StoreTile::write_as`] in the layout of C.
    #[inline(always)]
    fn write<E: Elem<Acc = f32>, const ROLLED: bool>(
        o: Output,
        m: u32,
        corner: [u32; 2],
        smem: (u32, Shared<u8>),
        stages: u32,
        acc: &mut Acc<CHUNKS>,
    ) {
        if const { F::ORDER & C_COLUMNS == 0 } {
            StoreTile::<CHUNKS, PLAIN>::write_as::<E, ROLLED>(o, m, corner, smem, stages, acc);
        } else {
            StoreTile::<CHUNKS, C_COLUMNS>::write_as::<E, ROLLED>(o, m, corner, smem, stages, acc);
        }
    }
}
