//! Blocks on Tensor Cores: a persistent thread block per multiprocessor. Four warps start copies into a ring of stages,
//! two warpgroups multiply what has arrived (`wgmma` or `mma.sync`), 64 rows of C each, and send C out.
//! A stage holds slices of B that the pieces of A in these 128 rows share.

mod consumer;
#[cfg(any(module = "marked", module = "marked_mma", not(target_arch = "nvptx64")))]
mod marked;
pub mod narrow;
mod out;
mod producer;

use crate::device::prelude::*;
use crate::families::gemm::abi::*;

/// Registers of a thread that copies and of one that multiplies, through which passes what C holds.
const REGISTERS: [u32; 2] = [40, 232];

impl<
    const PM: usize,
    const PK: usize,
    const CHUNKS: usize,
    const ORDER: u32,
    const BYTES: usize,
    A: AtomInfo,
    L: LoaderInfo,
> Stages for Panel<PM, PK, CHUNKS, ORDER, BYTES, A, L>
{
    /// A stage is A's halves, then B's chunks of 64 columns.
    const COUNT: usize = Self::STAGES;
    const STRIDE: usize = Self::STAGE;
    const FIRST_BARRIER: usize = Self::BARRIERS;
}

impl<
    const PM: usize,
    const PK: usize,
    const CHUNKS: usize,
    const ORDER: u32,
    const BYTES: usize,
    A: Multiply,
    L: Loader,
> Panel<PM, PK, CHUNKS, ORDER, BYTES, A, L>
{
    /// This thread block's strip of a round; none past the last round.
    #[inline(always)]
    fn strip(p: &WgmmaParams, round: u32) -> Strip {
        let valid = round < p.rounds;
        let index = round * gpu::grid_x() + gpu::block_x();
        let at = p.strips + index as u64 * size_of::<Strip>() as u64;
        let [row, column, record, stages] = global::ld_nc_v4(at, valid);
        let [first, parts, counter, item] = global::ld_nc_v4(at + 16, valid);
        Strip {
            row: if valid { row } else { NO_STRIP },
            column,
            record,
            stages,
            first,
            parts,
            counter,
            // Columns of A take all registers: the host runs them one of a batch after the other.
            item: if PK > 1 { item } else { 0 },
        }
    }

    #[inline(always)]
    pub(in crate::families) fn set_up(at: u64) {
        // Every warp that copies arrives: one without copies in a stage must not fall a round behind. And every warp
        // that multiplies: in a stage without work for its warpgroup nothing else holds it to the others.
        if gpu::thread() == 0 {
            Self::make_barriers(L::arrivals(Self::COPIERS, true), CONSUMERS);
            L::prefetch_maps::<2>(at);
        }
        gpu::sync_threads();
    }

    /// Place of the mask and the sixteenths of the stage's record.
    #[inline(always)]
    fn mask(slot: u32) -> u32 {
        copy::dynamic_shared() + (Self::BARRIERS + Self::STAGES * 16) as u32 + slot * 8
    }

    /// The mask of a stage for a warpgroup, the same for all lanes. The shuffle tells ptxas so: it serialises `wgmma`
    /// behind a branch that might diverge (C7519).
    #[inline(always)]
    fn mask_of(slot: u32, group: u32) -> u32 {
        let mask = copy::ld_shared_b32(Self::mask(slot)) >> group;
        warp::uniform(mask)
    }

    /// Two words for the warpgroups that fix up, and one that nobody reads.
    #[inline(always)]
    fn scratch() -> u32 {
        copy::dynamic_shared() + (Self::BARRIERS + Self::STAGES * 24) as u32
    }

    /// Byte of a piece of A in its warpgroup's tile of shared memory.
    #[inline(always)]
    const fn a_place(slice: usize, piece: usize) -> usize {
        let bytes = PM * PK * BYTES;
        if ORDER & COLUMN_PIECES == IN_REGISTERS {
            (slice * Self::PIECES + piece) * bytes
        } else if ORDER & A_COLUMNS == 0 {
            slice * HALF * PK * BYTES + piece * bytes
        } else {
            piece * Self::DEPTH * PM * BYTES + slice * bytes
        }
    }

    /// A of one warpgroup for a step.
    #[inline(always)]
    fn a(smem: u32, step: usize) -> u64 {
        if ORDER & A_COLUMNS == 0 {
            let (slice, within) = (step * Self::STEP_DEPTH / PK, step * Self::STEP_DEPTH % PK);
            let place = slice * HALF * PK * BYTES + within * BYTES;
            frag::descriptor(smem + place as u32, (PK * BYTES) as u32, 16)
        } else {
            let (row, deep) = ((PM * BYTES) as u32, (step * Self::STEP_DEPTH) as u32);
            frag::descriptor(smem + deep * row, row, Self::DEPTH as u32 * row)
        }
    }

    /// B for a step.
    #[inline(always)]
    fn b(b_tile: u32, step: usize) -> u64 {
        if ORDER & B_COLUMNS == 0 {
            let row = PANEL_BYTES as u32;
            frag::descriptor(b_tile + (step * Self::STEP_DEPTH) as u32 * row, row, SMEM_TILE as u32)
        } else {
            let (slice, within) = (step * Self::STEP_DEPTH / PK, step * Self::STEP_DEPTH % PK);
            let place = slice * CHUNKS * 64 * PK * BYTES + within * BYTES;
            frag::descriptor(b_tile + place as u32, (PK * BYTES) as u32, 16)
        }
    }
}

impl<
    W: WalkInfo,
    E: WgmmaElem,
    const PM: usize,
    const PK: usize,
    const CHUNKS: usize,
    const ORDER: u32,
    A: Multiply,
    L: Loader,
> Kernel<W, E, WgmmaParams> for Panel<PM, PK, CHUNKS, ORDER, 2, A, L>
{
    #[inline(always)]
    unsafe fn run(p: &WgmmaParams, at: u64) {
        Self::set_up(at);
        if ORDER == COLUMN_PIECES {
            // Columns of pieces take more to copy.
            roles!(A: Self::produce(p, at), Self::consume::<E, _>(p));
        } else {
            roles!(A: REGISTERS, Self::produce(p, at), Self::consume::<E, _>(p));
        }
    }
}
