//! Consumer warpgroup: waits for a stage, issues its `wgmma`s, and releases the previous stage.

use crate::device::prelude::*;
use crate::families::gemm::abi::*;

impl<const CHUNKS: usize, F: PanelForm<A: Multiply, L: Loader>> Panel<CHUNKS, F> {
    /// Multiplies a warpgroup's 64 rows of every CTA tile, and calls the epilogue.
    #[inline(always)]
    pub(super) fn consume<E: WgmmaElem>(p: &WgmmaParams) {
        let group = gpu::thread() / 128;
        let mut later = Self::strip(p, 0);
        let mut round = 0;
        let mut ring = Ring::<Self>::consumer();
        while later.row != NO_STRIP {
            let strip = later;
            round += 1;
            // Without registers from other warps, the next CTA tile cannot be held during the products.
            if F::A::ASYNCHRONOUS {
                later = Self::strip(p, round);
            }
            let mut acc = Acc::<CHUNKS>::zero();
            let mut s = 0;
            while s < strip.stages {
                let slot = ring.wait_full();
                let mask = Self::mask_of(slot, group);
                if !F::A::ASYNCHRONOUS && F::ORDER & IN_REGISTERS != 0 {
                    if mask & 0x55 != 0 {
                        Self::multiply_pieces::<E>(&mut acc, slot, group, mask);
                    }
                    Self::release(slot);
                } else if mask & 0x55 != 0 && F::ORDER & IN_REGISTERS != 0 {
                    let a = Self::fragments(slot, group);
                    F::A::fence(&mut acc);
                    Self::multiply_registers::<E>(&mut acc, slot, mask, a);
                    F::A::commit();
                    // The products read the fragments' registers until then. The other warpgroup keeps the Tensor Cores
                    // busy.
                    F::A::wait::<CHUNKS, 0>(&mut acc);
                    Self::release(slot);
                } else if mask & 0x55 != 0 {
                    F::A::fence(&mut acc);
                    Self::multiply::<E>(&mut acc, slot, group, mask);
                    ring.issued::<F::A, CHUNKS>(&mut acc);
                } else {
                    ring.drain::<F::A, CHUNKS>(&mut acc);
                    Self::release(slot);
                }
                ring.advance();
                s += 1;
            }
            ring.drain::<F::A, CHUNKS>(&mut acc);
            let strip = match F::A::ASYNCHRONOUS {
                true => strip,
                false => Self::strip(p, warp::opaque(round) - 1),
            };
            Self::epilogue::<E>(p, strip, group, &mut acc);
            if !F::A::ASYNCHRONOUS {
                later = Self::strip(p, round);
            }
        }
    }

    #[inline(always)]
    fn multiply<E: WgmmaElem>(acc: &mut Acc<CHUNKS>, slot: u32, group: u32, mask: u32) {
        let (smem, b_tile) = Self::operands(slot, group);
        unroll!(step < STEPS, {
            if F::PK >= Self::DEPTH || mask >> (2 * step) & 1 != 0 {
                let (a, b) = (Self::a(smem, step), Self::b(b_tile, step));
                F::A::mma_ordered::<E, CHUNKS>(acc, a, b, F::ORDER);
            }
        });
    }

    /// Loads A's fragments of a stage for this warp's 16 rows; zeros for absent pieces.
    #[inline(always)]
    fn fragments(slot: u32, group: u32) -> [[u32; 4]; STEPS] {
        let (warp, lane) = gpu::warp_and_lane();
        let valid = Self::mask(slot).cast::<u32>().at(1).ld() >> (group * 4 + warp);
        let valid = warp::uniform(valid);
        let smem = Self::stage(slot).bytes(group * SMEM_TILE as u32);
        let mut a = [[0u32; 4]; STEPS];
        unroll!(step < STEPS, {
            if F::ORDER & A_COLUMNS == 0 {
                let (row, chunk) = frag::ldmatrix_x4(lane);
                let row = warp * 16 + row;
                let (piece, row) = (row / F::PM as u32, row % F::PM as u32);
                let (slice, within) =
                    (step * Self::STEP_DEPTH / F::PK, step * Self::STEP_DEPTH % F::PK);
                let place =
                    Self::a_place(slice, 0) as u32 + piece * (F::PM * F::PK * F::BYTES) as u32;
                let row = smem.bytes(place).bytes(row * (F::PK * F::BYTES) as u32);
                let from = row.bytes((within * F::BYTES) as u32).bytes(chunk * 16);
                a[step] = from.ldmatrix_if(valid >> (8 * step) & 1 != 0);
            } else {
                let (k, chunk) = frag::ldmatrix_x4_columns(lane);
                let row = warp * 16 + chunk * 8;
                let (piece, row) = (row / F::PM as u32, row % F::PM as u32);
                let place = piece * (Self::DEPTH * F::PM * F::BYTES) as u32;
                let deep = (step * Self::STEP_DEPTH) as u32 + k;
                let from = smem.bytes(place).bytes((deep * F::PM as u32 + row) * F::BYTES as u32);
                let valid = F::PK == 1 || valid >> (8 * step) & 1 != 0;
                a[step] = from.ldmatrix_trans_if(valid);
            }
        });
        a
    }

    /// Issues the `wgmma`s of one stage with A in registers.
    #[inline(always)]
    fn multiply_registers<E: WgmmaElem>(
        acc: &mut Acc<CHUNKS>,
        slot: u32,
        mask: u32,
        a: [[u32; 4]; STEPS],
    ) {
        let b_tile = Self::stage(slot).bytes(2 * SMEM_TILE as u32);
        unroll!(step < STEPS, {
            if mask >> (2 * step) & 1 != 0 {
                if F::ORDER & B_COLUMNS == 0 {
                    F::A::mma_registers::<E, CHUNKS, 1>(acc, a[step], Self::b(b_tile, step));
                } else {
                    F::A::mma_registers::<E, CHUNKS, 0>(acc, a[step], Self::b(b_tile, step));
                }
            }
        });
    }

    /// Issues the synchronous products of one stage. A warp skips rows without a piece.
    #[inline(always)]
    fn multiply_pieces<E: WgmmaElem>(acc: &mut Acc<CHUNKS>, slot: u32, group: u32, mask: u32) {
        let (warp, lane) = gpu::warp_and_lane();
        let (smem, b_tile) = Self::operands(slot, group);
        let own = if F::A::QUARTERS { 0 } else { warp };
        let first = smem.bytes(Self::lane_place(own * 16, lane)).opaque();
        let mut there = u32::MAX;
        if F::PK > 1 {
            there = Self::mask(slot).cast::<u32>().at(1).ld() >> (group * 4 + own);
            there = warp::uniform(there);
        }
        unroll!(step < STEPS, {
            if mask >> (2 * step) & 1 != 0 {
                let b = Self::b(b_tile, step);
                let rows = |m: u32| {
                    let is_there = there >> (8 * step as u32 + m) & 1 != 0;
                    is_there.then(|| Self::piece_fragment(first, step, m as usize))
                };
                if F::ORDER & B_COLUMNS == 0 {
                    F::A::mma_fragments::<E, CHUNKS, 1>(acc, rows, b);
                } else {
                    F::A::mma_fragments::<E, CHUNKS, 0>(acc, rows, b);
                }
            }
        });
    }

    /// Bytes of a row of a piece in shared memory.
    const PIECE_ROW: usize = if F::ORDER & A_COLUMNS == 0 { F::PK } else { F::PM } * F::BYTES;

    /// Byte that a lane reads of the fragment of rows `top ..`. A piece may have fewer rows than a fragment.
    #[inline(always)]
    fn lane_place(top: u32, lane: u32) -> u32 {
        if F::ORDER & A_COLUMNS == 0 {
            let (row, chunk) = frag::ldmatrix_x4(lane);
            // Pieces of successive rows are stored one after the other.
            (top + row) * Self::PIECE_ROW as u32 + chunk * 16
        } else {
            let (deep, chunk) = frag::ldmatrix_x4_columns(lane);
            Self::column_piece(top + chunk * 8) + deep * Self::PIECE_ROW as u32
        }
    }

    /// Byte of row `row` of A in a tile of pieces that are stored column by column.
    #[inline(always)]
    const fn column_piece(row: u32) -> u32 {
        let (piece, row) = (row / F::PM as u32, row % F::PM as u32);
        piece * (Self::DEPTH * F::PM * F::BYTES) as u32 + row * F::BYTES as u32
    }

    /// Loads A's fragment `m` x 16 rows below the one that this lane reads at `first`, in a step.
    #[inline(always)]
    fn piece_fragment(first: Shared<u8>, step: usize, m: usize) -> [u32; 4] {
        let deep = step * Self::STEP_DEPTH;
        if F::ORDER & A_COLUMNS != 0 {
            let down = (deep * Self::PIECE_ROW) as u32;
            return first.bytes(Self::column_piece(m as u32 * 16)).bytes(down).ldmatrix_trans();
        }
        let (slice, within) = (deep / F::PK, deep % F::PK * F::BYTES);
        let (piece, row) = (m * 16 / F::PM, m * 16 % F::PM);
        let place = within + Self::a_place(slice, piece) + row * Self::PIECE_ROW;
        first.bytes(place as u32).ldmatrix()
    }
}
