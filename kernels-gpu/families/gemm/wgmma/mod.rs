//! Block-sparse products on Tensor Cores: a persistent thread block for each multiprocessor. Four producer warps start
//! copies into a ring of stages. Two consumer warpgroups multiply the stages (`wgmma` or `mma.sync`) and store C, 64
//! rows each. A stage holds slices of B that the pieces of A in these 128 rows share.

mod consumer;
pub mod narrow;
mod out;
mod producer;

use crate::device::fill::make_ring;
use crate::device::prelude::*;
use crate::families::gemm::abi::*;

/// Registers of a producer thread and of a consumer thread. Old values of C pass through the consumer's registers.
const REGISTERS: [u32; 2] = [40, 232];

buffers! {
    // `Einsum::check` checks the shapes of the operands, and `gemm::panel` the alignment of A's
    // values. The plan makes records, strips and heads, which no kernel writes, and allocates slots
    // and counters for all cut tiles.
    unsafe WgmmaParams {
        records: u32, ReadOnly;
        strips: [u32; 4], ReadOnly;
        heads: u32, ReadOnly;
        a: u8, ReadWrite;
        zeros: u8, ReadWrite;
        gate: u8, ReadWrite;
        partial: [u32; 4], Fresh;
        counters: u32, Fresh;
    }
}

impl<const CHUNKS: usize, F: PanelForm> Stages for Panel<CHUNKS, F> {
    /// A stage holds A's two halves, then B's chunks of 64 columns.
    const COUNT: usize = Self::STAGES;
    const STRIDE: usize = Self::STAGE;
    const FIRST_BARRIER: usize = Self::BARRIERS;
}

impl<const CHUNKS: usize, F: PanelForm<A: Multiply, L: Loader>> Panel<CHUNKS, F> {
    /// CTA tile (`Strip`) of this thread block in a round; `NO_STRIP` past the last round.
    #[inline(always)]
    fn strip(p: &WgmmaParams, round: u32) -> Strip {
        let valid = round < p.rounds;
        let index = round * gpu::grid_x() + gpu::block_x();
        let at = p.strips().row(index, size_of::<Strip>() as u64);
        let [row, column, record, stages] = at.ld_if(valid);
        let [first, parts, counter, item] = at.at(1u32).ld_if(valid);
        Strip {
            row: if valid { row } else { NO_STRIP },
            column,
            record,
            stages,
            first,
            parts,
            counter,
            // One-column pieces of A take all registers: the host launches the items of a batch one after the other.
            item: if F::PK > 1 { item } else { 0 },
        }
    }

    #[inline(always)]
    fn set_up(at: Maps) {
        // Every producer warp arrives, so that a warp without copies in a stage cannot fall a round behind. Every
        // consumer warp arrives: in a stage without work for its warpgroup, nothing else synchronizes its warps.
        make_ring::<Self, F::L, 2>(at, F::L::arrivals(Self::PRODUCER_THREADS, true));
    }

    /// Address of the stage's mask, and of the bits of its 16-row groups.
    #[inline(always)]
    fn mask(slot: u32) -> Shared<[u32; 2]> {
        // SAFETY: the host launches with `SHARED_BYTES`, which include the masks of all stages.
        let first =
            unsafe { Shared::<[u32; 2]>::dynamic((Self::BARRIERS + Self::STAGES * 16) as u32) };
        first.at(slot)
    }

    /// Mask of a stage for a warpgroup, the same in all lanes. The shuffle tells ptxas so: ptxas serializes `wgmma` in
    /// a branch that might diverge (C7519).
    #[inline(always)]
    fn mask_of(slot: u32, group: u32) -> u32 {
        let mask = Self::mask(slot).cast::<u32>().ld() >> group;
        warp::uniform(mask)
    }

    /// Address of two words for the split-K fix-up of the warpgroups, and of a word that is never read.
    #[inline(always)]
    fn scratch() -> Shared<u32> {
        // SAFETY: the host launches with `SHARED_BYTES`, which include these words.
        unsafe { Shared::dynamic((Self::BARRIERS + Self::STAGES * 24) as u32) }
    }

    /// Byte offset of a piece of A in its warpgroup's tile of shared memory.
    #[inline(always)]
    const fn a_place(slice: usize, piece: usize) -> usize {
        let bytes = F::PM * F::PK * F::BYTES;
        if F::ORDER & COLUMN_PIECES == IN_REGISTERS {
            (slice * Self::PIECES + piece) * bytes
        } else if F::ORDER & A_COLUMNS == 0 {
            slice * HALF * F::PK * F::BYTES + piece * bytes
        } else {
            piece * Self::DEPTH * F::PM * F::BYTES + slice * bytes
        }
    }

    /// Descriptor of a warpgroup's A for a step.
    #[inline(always)]
    fn a(smem: Shared<u8>, step: usize) -> u64 {
        if F::ORDER & A_COLUMNS == 0 {
            let (slice, within) =
                (step * Self::STEP_DEPTH / F::PK, step * Self::STEP_DEPTH % F::PK);
            let place = slice * HALF * F::PK * F::BYTES + within * F::BYTES;
            smem.bytes(place as u32).descriptor((F::PK * F::BYTES) as u32, 16)
        } else {
            let (row, deep) = ((F::PM * F::BYTES) as u32, (step * Self::STEP_DEPTH) as u32);
            smem.bytes(deep * row).descriptor(row, Self::DEPTH as u32 * row)
        }
    }

    /// Descriptor of B for a step.
    #[inline(always)]
    fn b(b_tile: Shared<u8>, step: usize) -> u64 {
        if F::ORDER & B_COLUMNS == 0 {
            let row = PANEL_BYTES as u32;
            b_tile.bytes((step * Self::STEP_DEPTH) as u32 * row).descriptor(row, SMEM_TILE as u32)
        } else {
            let (slice, within) =
                (step * Self::STEP_DEPTH / F::PK, step * Self::STEP_DEPTH % F::PK);
            let place = slice * CHUNKS * 64 * F::PK * F::BYTES + within * F::BYTES;
            b_tile.bytes(place as u32).descriptor((F::PK * F::BYTES) as u32, 16)
        }
    }
}

impl<
    W: WalkInfo,
    E: WgmmaElem,
    const CHUNKS: usize,
    const PM: usize,
    const PK: usize,
    const ORDER: u32,
    A: Multiply,
    L: Loader,
> Kernel<W, E, WgmmaParams> for Panel<CHUNKS, PanelOf<PM, PK, ORDER, 2, A, L>>
{
    #[inline(always)]
    unsafe fn run(p: &WgmmaParams, at: Maps) {
        Self::set_up(at);
        if ORDER == COLUMN_PIECES {
            // Copies of pieces that are stored column by column need more registers.
            roles!(A: Self::produce(p, at), Self::consume::<E>(p));
        } else {
            roles!(A: REGISTERS, Self::produce(p, at), Self::consume::<E>(p));
        }
    }
}
