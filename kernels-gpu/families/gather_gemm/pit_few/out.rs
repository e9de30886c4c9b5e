//! Epilogue of a cluster. Each part of a tile finishes the same number of atoms (16 rows x 8 columns). The other parts
//! send their sums to its shared memory, and it adds them in the order of the parts: every run gives the same bits.

use super::Sums;
use crate::device::prelude::*;
use crate::families::gather_gemm::abi::*;

impl<const MT: usize, const WARPS: usize, const TOGETHER: bool> FewRows<MT, WARPS, TOGETHER> {
    /// Returns the barrier on which the sums of the other parts arrive.
    #[inline(always)]
    pub(super) fn summed() -> Shared<Mbarrier> {
        // SAFETY: `SHARED_BYTES` of the tile includes the barrier, or the word in its place.
        unsafe { Shared::dynamic(Self::SUMMED as u32) }
    }

    /// Returns the number of atoms that each part finishes.
    #[inline(always)]
    fn share(p: &PitFewParams) -> u32 {
        Self::ATOMS as u32 >> p.parts.trailing_zeros()
    }

    /// Returns whether a lane has sums of rows that exist: with one row, four lanes do.
    #[inline(always)]
    pub(super) fn has_rows(p: &PitFewParams) -> bool {
        frag::accumulator(gpu::thread() % 32, 0).0 < p.m
    }

    /// Returns the bytes of sums that the other parts send.
    #[inline(always)]
    pub(super) fn from_others(p: &PitFewParams) -> u32 {
        let bytes = p.m.min(8) * (Self::ATOM / 8) as u32;
        Self::share(p) * (p.parts - 1) * bytes
    }

    /// Stores the sums, or this thread block's share of the cluster's sums.
    #[inline(always)]
    pub(super) fn epilogue<E: Elem<Acc = f32>>(p: &PitFewParams, sums: &Sums) {
        if p.parts > 1 {
            // The other parts run, and have initialized their barriers.
            cluster::wait();
        }
        Self::store_sums(p, sums);
        gpu::sync_threads();
        if p.parts > 1 {
            Self::summed().wait(0);
        }
        Self::join::<E>(p);
    }

    /// Returns the address of this lane's sums of an atom by a part.
    #[inline(always)]
    fn sums_at(slot: u32) -> Shared<[u32; 4]> {
        let lane = gpu::thread() % 32;
        // SAFETY: `SHARED_BYTES` of a cluster's tile includes the sums of all atoms, one slot each.
        let first = unsafe { Shared::<[u32; 4]>::dynamic(Self::SUMS as u32) };
        first.bytes(slot * Self::ATOM as u32).at(lane)
    }

    /// Sends this warp's atoms to the parts that finish them. Pairs of neighbouring atoms, which are sectors of C, are
    /// distributed round-robin.
    #[inline(always)]
    fn store_sums(p: &PitFewParams, sums: &Sums) {
        let own = cluster::rank();
        let first = own * Self::share(p);
        let some = Self::has_rows(p);
        unroll!(i < MT / 16, most 4, {
            unroll!(q < 2, {
                let across = gpu::thread() / 32 * 2 + q as u32;
                let two = (i * Self::ATOMS_ACROSS / 2) as u32 + across;
                let rank = two & (p.parts - 1);
                let at = Self::sums_at(first + 2 * (two >> p.parts.trailing_zeros()));
                let bar = Self::summed().remote(rank);
                unroll!(j < 2, {
                    let at = at.bytes((j * Self::ATOM) as u32);
                    let four = sums[i][2 * q + j].map(f32::to_bits);
                    if some && rank == own {
                        at.st(four);
                    } else if some {
                        at.remote(rank).st_async(four, bar);
                    }
                });
            });
        });
    }

    /// Adds the sums of this thread block's atoms, and stores them.
    #[inline(always)]
    fn join<E: Elem<Acc = f32>>(p: &PitFewParams) {
        let share = Self::share(p);
        let mut slot = gpu::thread() / 32;
        while slot < share && Self::has_rows(p) {
            let mut parts = [[0.0; 4]; FEW_PARTS as usize];
            unroll!(q < 8, {
                let part = q as u32;
                if part < p.parts {
                    parts[q] = Self::sums_at(part * share + slot).ld().map(f32::from_bits);
                }
            });
            let mut sum = [0.0; 4];
            unroll!(q < 8, { unroll!(i < 4, { sum[i] += parts[q][i] }) });
            let two = ((slot / 2) << p.parts.trailing_zeros()) + cluster::rank();
            Self::store::<E>(p, 2 * two + slot % 2, sum);
            slot += WARPS as u32;
        }
    }

    /// Stores an atom of the tile within the bounds of C; `n` is even.
    #[inline(always)]
    pub(super) fn store<E: Elem<Acc = f32>>(p: &PitFewParams, atom: u32, sums: [f32; 4]) {
        let across = Self::ATOMS_ACROSS as u32;
        let (row, column) = frag::accumulator(gpu::thread() % 32, 0);
        let row = atom / across * 16 + row;
        let column = Self::tile(p) * Self::COLUMNS + atom % across * 8 + column;
        unroll!(h < 2, {
            let row = row + 8 * h as u32;
            let at = p.c::<E>().row(row, p.ldc_bytes).at(column);
            let pair = [sums[2 * h], sums[2 * h + 1]];
            if row < p.m && column < p.n {
                if p.flags & FEW_PAIRS != 0 {
                    at.st_rounded(&pair);
                } else {
                    at.st_rounded(&[pair[0]]);
                    at.at(1u32).st_rounded(&[pair[1]]);
                }
            }
        });
    }
}
