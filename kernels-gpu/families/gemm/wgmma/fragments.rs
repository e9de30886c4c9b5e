//! A warpgroup that multiplies by `mma.sync`. A warp has all 64 rows of its warpgroup and a quarter of the columns: as
//! many sums as `wgmma` leaves it, for a third of the loads that 16 rows of all columns would take.

use crate::device::mma::MmaElem;
use crate::device::prelude::*;
use crate::families::gemm::abi::*;

impl<
    const PM: usize,
    const PK: usize,
    const CHUNKS: usize,
    const ORDER: u32,
    const BYTES: usize,
    A: AtomInfo,
    L: Loader,
> Panel<PM, PK, CHUNKS, ORDER, BYTES, A, L>
{
    /// Adds the products of a stage. Sums lie by 16 rows, then by 8 columns of the warp's own.
    #[inline(always)]
    pub(super) fn multiply_fragments<E: MmaElem>(
        acc: &mut Acc<CHUNKS>,
        slot: u32,
        group: u32,
        mask: u32,
    ) {
        let (warp, lane) = gpu::warp_and_lane();
        let (smem, b_tile) = Self::operands(slot, group);
        let a_base = warp::rematerialize(Self::a_base(smem, lane));
        let b_base = Self::b_base(b_tile, warp * (16 * CHUNKS as u32), lane);
        let b_base = warp::rematerialize(b_base);
        let mut there = u32::MAX;
        if ORDER & IN_REGISTERS != 0 && PK > 1 {
            there = copy::load_shared_b32(Self::mask(slot) + 4) >> (group * 4);
            there = warp::shuffle::<32>(there, 0, u32::MAX);
        }
        unroll!(step < STEPS, {
            if PK >= Self::DEPTH || mask >> (2 * step) & 1 != 0 {
                let mut b = [[0u32; 4]; CHUNKS];
                unroll!(n < CHUNKS, most 4, {
                    b[n] = Self::b_fragments(b_base, step, n);
                });
                unroll!(m < 4, {
                    if there >> (8 * step + m) & 1 != 0 {
                        let a = Self::a_fragment(a_base, step, m);
                        unroll!(n < CHUNKS, most 4, {
                            unroll!(half < 2, {
                                let atom = m * 2 * CHUNKS + 2 * n + half;
                                let (c, at) = (atom / 8, atom % 8 * 4);
                                let mut sums = [0, 1, 2, 3].map(|i| acc.0[c][at + i]);
                                E::mma(&mut sums, a, [b[n][2 * half], b[n][2 * half + 1]]);
                                unroll!(i < 4, { acc.0[c][at + i] = sums[i] });
                            });
                        });
                    }
                });
            }
        });
    }

    /// Where this lane reads A's first fragment, in a tile at shared `smem`.
    #[inline(always)]
    fn a_base(smem: u32, lane: u32) -> u32 {
        let (row, chunk) = if ORDER & A_COLUMNS == 0 {
            frag::ldmatrix_x4(lane)
        } else {
            frag::ldmatrix_x4_columns(lane)
        };
        if ORDER & IN_REGISTERS == 0 {
            let row_bytes = Self::A_ROW as u32;
            smem + frag::swizzled(row * row_bytes + chunk * 16, row_bytes)
        } else if ORDER & A_COLUMNS == 0 {
            smem + row * Self::A_ROW as u32 + chunk * 16
        } else {
            // A piece may have fewer rows than a fragment.
            smem + Self::column_piece(chunk * 8) + row * Self::A_ROW as u32
        }
    }

    /// Bytes of a row of A as it lies in shared memory.
    pub(super) const A_ROW: usize = if ORDER & A_COLUMNS == 0 { PK } else { PM } * BYTES;

    /// Byte of row `row` of A in a tile of pieces that lie column by column.
    #[inline(always)]
    const fn column_piece(row: u32) -> u32 {
        let (piece, row) = (row / PM as u32, row % PM as u32);
        piece * (Self::DEPTH * PM * BYTES) as u32 + row * BYTES as u32
    }

    /// A's fragment of rows `16 m ..` in a step. Rows are swizzled by bits that neither changes, so places of other
    /// fragments differ from the first by bits and sums: addresses of each take no registers.
    #[inline(always)]
    fn a_fragment(base: u32, step: usize, m: usize) -> [u32; 4] {
        let deep = step * Self::STEP_DEPTH;
        let (slice, within) = (deep / PK, (deep % PK * BYTES) as u32);
        if ORDER & A_COLUMNS != 0 {
            let down = (deep * Self::A_ROW) as u32;
            return matrix::ldmatrix_x4_trans(if ORDER & IN_REGISTERS == 0 {
                (base ^ (m * 16 * BYTES) as u32) + down
            } else {
                base + Self::column_piece(m as u32 * 16) + down
            });
        }
        let from = if ORDER & IN_REGISTERS == 0 {
            (base ^ within) + (slice * HALF * PK * BYTES + m * 16 * Self::A_ROW) as u32
        } else {
            let (piece, row) = (m * 16 / PM, m * 16 % PM);
            base + within + (Self::a_place(slice, piece) + row * Self::A_ROW) as u32
        };
        matrix::ldmatrix_x4(from)
    }

    /// Where this lane reads B's first fragment of the columns from `column` on.
    #[inline(always)]
    fn b_base(b_tile: u32, column: u32, lane: u32) -> u32 {
        if ORDER & B_COLUMNS == 0 {
            let (row, chunk) = frag::ldmatrix_x4(lane);
            let byte = row * PANEL_BYTES as u32 + column % 64 * BYTES as u32 + chunk * 16;
            let tile = b_tile + column / 64 * SMEM_TILE as u32;
            tile + frag::swizzled(byte, PANEL_BYTES as u32)
        } else {
            let (row, chunk) = frag::ldmatrix_x4_columns(lane);
            let row_bytes = (PK * BYTES) as u32;
            b_tile + frag::swizzled((column + row) * row_bytes + chunk * 16, row_bytes)
        }
    }

    /// B's fragments of 16 columns, `16 n` behind the first, in a step.
    #[inline(always)]
    fn b_fragments(base: u32, step: usize, n: usize) -> [u32; 4] {
        let deep = step * Self::STEP_DEPTH;
        if ORDER & B_COLUMNS == 0 {
            const { assert!(CHUNKS != 3, "columns of a warp lie in one tile") };
            let from = (base ^ (n * 16 * BYTES) as u32) + (deep * PANEL_BYTES) as u32;
            matrix::ldmatrix_x4_trans(from)
        } else {
            let (slice, within) = (deep / PK, (deep % PK * BYTES) as u32);
            let row_bytes = PK * BYTES;
            let places = (slice * CHUNKS * 64 + n * 16) * row_bytes;
            matrix::ldmatrix_x4((base ^ within) + places as u32)
        }
    }

    /// Gives each warp the sums of its 16 rows, all columns, as `wgmma` leaves them.
    #[inline(always)]
    pub(super) fn settle(acc: &mut Acc<CHUNKS>, group: u32) {
        if A::ASYNCHRONOUS {
            return;
        }
        let (warp, lane) = gpu::warp_and_lane();
        let smem = copy::arena() + (Self::OUT + group as usize * SMEM_TILE) as u32 + lane * 16;
        // Of each 16 rows one atom in a round: what a warp sends and what it receives are the same four atoms of its
        // registers.
        unroll!(n < 2 * CHUNKS, {
            unroll!(m < 4, {
                let atom = m * 2 * CHUNKS + n;
                let (c, at) = (atom / 8, atom % 8 * 4);
                let four = [0, 1, 2, 3].map(|i| acc.0[c][at + i].to_bits());
                copy::store_shared_v4(smem + (m as u32 * 4 + warp) * 512, four);
            });
            barrier::sync_named(1 + group, 128);
            unroll!(m < 4, {
                let atom = m * 2 * CHUNKS + n;
                let (c, at) = (atom / 8, atom % 8 * 4);
                let four = copy::load_shared_v4(smem + (warp * 4 + m as u32) * 512);
                unroll!(i < 4, { acc.0[c][at + i] = f32::from_bits(four[i]) });
            });
            barrier::sync_named(1 + group, 128);
        });
    }
}
