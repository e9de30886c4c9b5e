//! Epilogue of a window's accumulators: split-K fix-up if the window was cut along k, scaling, and stores block by
//! block.

use crate::device::prelude::*;
use crate::device::split_k::{SplitK, fix_up};
use crate::device::store::chunk::{ROWS, stage_rows, staged};
use crate::families::sddmm::abi::*;
use crate::families::sddmm::stages::scale;

impl<const CHUNKS: usize, F: WindowForm<A: Multiply, L: Loader>> Sampled<CHUNKS, F> {
    #[inline(always)]
    pub(super) fn epilogue<E: WgmmaElem>(
        p: &SampledParams,
        window: Window,
        warpgroup: u32,
        live: u32,
        acc: &mut Acc<CHUNKS>,
    ) {
        let parts = window.parts >> 16;
        if parts > 1 {
            let cut = SplitK {
                partial: p.partial(),
                counters: p.counters(),
                first: window.first,
                part: window.parts & 0xffff,
                parts,
                counter: window.counter,
            };
            if !fix_up(cut, warpgroup, Self::scratch(), acc) {
                return;
            }
        }
        // After the fix-up: partial sums of all thread blocks have one layout, whichever it is.
        F::A::exchange_quarters(acc, Self::out(warpgroup), 1 + warpgroup);
        scale(acc, E::scalar(p.alpha));
        let group = warpgroup * 4 + gpu::opaque_thread() / 32 % 4;
        let row = (window.window * PLACE_GROUPS as u32 + group) as u64;
        let places = p.places().at(row * Self::PIECES as u64);
        let in_halves = warp::opaque(p.flags) & (FLAG_ACCUMULATE | FLAG_MASK_VALUES) == 0;
        unroll!(c < CHUNKS, most 4, {
            if live >> c & 1 != 0 {
                let places = places.at((c * 64 / F::P) as u64);
                if in_halves {
                    Self::store::<E>(p, places, warpgroup, &acc.0[c]);
                } else {
                    Self::update::<E>(p, places, &acc.0[c]);
                }
            }
        });
    }

    /// Output buffer of a warpgroup.
    #[inline(always)]
    fn out(warpgroup: u32) -> Shared<u8> {
        // SAFETY: the host launches with `SHARED_BYTES`, which include these buffers.
        unsafe { Shared::dynamic(Self::OUT as u32) }.bytes(warpgroup * SMEM_TILE as u32)
    }

    /// Address of the values at `place`.
    #[inline(always)]
    fn address<E, A>(values: Global<E, A>, place: u32) -> Global<E, A> {
        values.row(place, (PLACE_ELEMENTS * 2) as u64)
    }

    /// Stores a chunk of 64 columns through shared memory, each warp its own 16 rows, by rows of 16 bytes a lane.
    #[inline(always)]
    fn store<E: WgmmaElem>(
        p: &SampledParams,
        places: Global<u32, ReadOnly>,
        warpgroup: u32,
        acc: &[f32; 32],
    ) {
        let (lane, warp) = gpu::lane_and_warp();
        let column = lane % 8 * 8;
        let place = places.bytes(column / F::P as u32 * 4).ld();
        let smem = Self::out(warpgroup).bytes(warp * 2048);
        let own = frag::ldmatrix_x4(lane);
        warp::sync(u32::MAX);
        stage_rows::<E>(acc, smem, own);
        warp::sync(u32::MAX);
        let to = Self::address(p.values::<E>(), place).bytes(column % F::P as u32 * 2);
        unroll!(j < 4, {
            let row = j as u32 * 4 + lane / 8;
            let eight = staged(smem, row, lane);
            if place != NO_PLACE {
                to.row(row, p.row_bytes).cast::<[u32; 4]>().st(eight);
            }
        });
    }

    /// Stores a chunk of 64 columns in pairs from registers: sums are not rounded before the mask or the addition.
    #[inline(always)]
    fn update<E: WgmmaElem>(p: &SampledParams, places: Global<u32, ReadOnly>, acc: &[f32; 32]) {
        let lane = gpu::opaque_thread() % 32;
        unroll!(j < 8, {
            let place = places.at((j * 8 / F::P) as u64).ld();
            let column = (j * 8 % F::P) as u32 + lane % 4 * 2;
            unroll!(r < 2, {
                let row = lane / 4 + r as u32 * 8;
                let offset = row as u64 * p.row_bytes as u64 + column as u64 * 2;
                let to = Self::address(p.values::<E>(), place).bytes(offset);
                let valid = place != NO_PLACE;
                let masked = valid && p.flags & FLAG_MASK_VALUES != 0;
                let mask = Self::address(p.mask::<E>(), place).bytes(offset).ld_raw::<2>(masked);
                let old = to.ld_raw::<2>(valid && p.flags & FLAG_ACCUMULATE != 0);
                let mut pair = [0.0; 2];
                unroll!(i < 2, {
                    let x = acc[4 * j + ROWS[r] + i];
                    let x = if masked { x * E::get(&mask, i) } else { x };
                    pair[i] = x + E::get(&old, i);
                });
                if valid {
                    to.st_rounded(&pair);
                }
            });
        });
    }
}
