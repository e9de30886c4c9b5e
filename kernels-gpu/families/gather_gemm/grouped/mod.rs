//! Products of each row with the matrix W of its expert. A *choice* is one expert of one token. The routing sorts
//! choices by expert. A *slot* is a position in this order (not a stage of the ring). A row block (`panel`) is up to
//! 128 slots of one expert. A work item is a row block and a tile of columns. The grid is persistent, because the number
//! of row blocks is computed on the device.
//!
//! Warps 0 to 7 are two consumer warpgroups of 64 rows and all columns of the tile. Warps 8 to 11 are producers. Tiles
//! of 64 rows have one consumer warpgroup, so producers are warps 4 to 7. Without TMA all of their threads copy A and
//! W.
//!
//! ```text
//! gathered A   global -> stage       cp.async by all producer threads, eight lanes for 128 bytes of a row
//! adjacent A   global -> stage       TMA by the first producer thread
//! W            global -> stage       TMA by the first producer thread; in a cluster, half of W to both blocks
//! products     stage -> registers    wgmma; stage s-1 is released while the products of s run
//! epilogue     registers -> output buffer of the warpgroup -> C, while producers copy stages of the next tile
//! ```
//!
//! A stage contains A, then W, 128 bytes of each row along k. Each 64 rows of A and each 64 columns of W are one
//! shared-memory tile (128-byte swizzle). Three variants multiply e4m3. `scaled`: warps 12 to 15 scale W and write it
//! to the stages. `quantized`: Tensor Cores multiply e4m3 rows by e4m3 W. `codes`: `mma.sync` instead of
//! `wgmma`. Without fp8 Tensor Cores, the producers also convert the codes.

mod codes;
mod out;
mod producer;
mod quantized;
mod scaled;
mod work;

use crate::device::prelude::*;
use crate::families::gather_gemm::abi::*;
use work::Work;

buffers! {
    // `GroupedLaunch` checks the alignment of the operands, and `host/core/dynamic/grouped/product.rs`
    // their shapes. The routing on the same stream writes a choice of an existing token for each
    // slot, and row blocks of existing slots.
    unsafe GroupedParams {
        a: u16, ReadWrite;
        c: u8, ReadWrite;
        order: u32, Fresh;
        offsets: u32, Fresh;
        panels: u32, Fresh;
        weights: u32, Fresh;
        gate: u16, ReadWrite;
        scales: f32, Fresh;
        a_scales: u32, Fresh;
        c_scales: u32, ReadWrite;
    }
}

/// Registers of a producer thread, which holds eight rows, and of a consumer thread: one producer and two consumer
/// warpgroups use three times 168.
const PRODUCER_REGISTERS: u32 = 72;
const CONSUMER_REGISTERS: u32 = 216;
/// Registers of a consumer thread, and of any other thread if four warps write W: four times 128.
const SCALED_REGISTERS: [u32; 2] = [152, 104];
const DEPTH: u32 = GROUPED_DEPTH as u32;

impl<const CHUNKS: usize, F: GroupedForm> Stages for GroupedTile<CHUNKS, F> {
    /// A stage holds the halves of A, then W's chunks of 64 columns, those of gates first.
    const COUNT: usize = Self::STAGES;
    const STRIDE: usize = Self::STAGE;
    const FIRST_BARRIER: usize = Self::BARRIERS;

    /// In a cluster both thread blocks write to the stage, so the release arrives at the barriers of both.
    #[inline(always)]
    fn release(slot: u32) {
        // One lane arrives for all, after all have read.
        warp::sync(u32::MAX);
        let lane = gpu::opaque_thread() % 32;
        if lane == 0 {
            Self::empty(slot).arrive();
        }
        if Self::PAIRS && lane == 1 && cluster::size() > 1 {
            Self::empty(slot).remote(cluster::rank() ^ 1).arrive();
        }
    }
}

impl<const CHUNKS: usize, F: GroupedForm<A: Multiply, L: Loader>> GroupedTile<CHUNKS, F> {
    /// Whether work items and choices are loaded when used, instead of prefetched: the products leave no registers.
    const NO_PREFETCH: bool = !F::A::ASYNCHRONOUS && F::ORDER == QUANTIZED_COLUMNS;
    /// Whether the consumer warpgroups take turns to issue products. One then scales its sums while the Tensor Core
    /// multiplies for the other. CUTLASS' ping-pong kernels have such an order barrier between tiles. Here both
    /// warpgroups compute rows of one tile.
    const TURNS: bool = F::ORDER == QUANTIZED_COLUMNS && F::A::ASYNCHRONOUS;

    #[inline(always)]
    fn set_up(p: &GroupedParams, at: Maps) {
        if gpu::thread() == 0 {
            // Arrivals at `full`: each thread that copies by `cp.async` or writes codes, and one for the copies by TMA.
            let arrivals = match (F::ORDER, p.flags & GROUPED_GATHER) {
                _ if !F::L::BY_ONE => F::L::fills(GROUPED_PRODUCER_THREADS),
                (SCALED_COLUMNS, 0) => Self::FILL_NEIGHBOURS,
                (SCALED_COLUMNS, _) => Self::FILL_GATHERED,
                (_, 0) => 1,
                // Every producer thread, and the copies of W.
                _ => GROUPED_PRODUCER_THREADS + 1,
            };
            let blocks = if Self::paired(p) { 2 } else { 1 };
            Self::make_barriers(arrivals, blocks * Self::CONSUMER_WARPS);
            if Self::WRITES {
                Self::make_code_barriers();
            }
            F::L::prefetch_maps::<2>(at);
        }
        gpu::sync_threads();
        if Self::paired(p) {
            // From here on each thread block fills the other's stages.
            cluster::arrive_relaxed();
            cluster::wait();
        }
    }

    /// Multiplies and stores a warpgroup's 64 rows of every tile. For a row block without these rows the warpgroup only
    /// releases the stages. Data of the epilogue is prefetched, each value a tile before the one that depends on it.
    #[inline(always)]
    fn consume<E: WgmmaElem>(p: &GroupedParams) {
        let group = warp::uniform(gpu::thread() / 128);
        let mut tiles = Self::tiles(p);
        let mut ring = Ring::<Self>::consumer();
        if Self::TURNS {
            Self::first_turn(group);
        }
        let mut index = Self::first_work(p);
        let (mut work, mut later, mut choice) = (Work::NONE, Work::NONE, 0);
        if !Self::NO_PREFETCH {
            work = Self::work(p, index, tiles);
            later = Self::work(p, index + Self::stride(p), tiles);
            choice = Self::consumer_choice(p, work, group);
        }
        while index < tiles {
            if Self::TURNS {
                // The prefetch follows the products, which leave no registers for it.
                let mut acc = Acc::<CHUNKS>::zero();
                let rows = Self::count(work);
                let multiplies = group * 64 < rows;
                if multiplies {
                    Self::quantized_products(p, work, (group, choice), &mut ring, &mut acc);
                } else {
                    Self::skip_tile(p, &mut ring);
                }
                let (latest, choice_later, weight) =
                    Self::prefetch(p, (index, tiles), [work, later], (group, choice));
                if multiplies {
                    Self::epilogue::<E>(p, work, (group, 0), (choice, weight), &mut acc);
                }
                (work, later, choice) = (later, latest, choice_later);
            } else if Self::NO_PREFETCH {
                let work = Self::work(p, index, index + 1);
                if Self::own_group() * 64 < Self::count(work) {
                    Self::compute_halves::<E>(p, (index, work), 0, (0, 0), &mut ring);
                } else {
                    Self::skip_tile(p, &mut ring);
                }
                tiles = Self::tiles(p);
            } else {
                let (latest, choice_later, weight) =
                    Self::prefetch(p, (index, tiles), [work, later], (group, choice));
                if group * 64 < Self::count(work) {
                    Self::compute_halves::<E>(p, (index, work), group, (choice, weight), &mut ring);
                } else {
                    Self::skip_tile(p, &mut ring);
                }
                (work, later, choice) = (later, latest, choice_later);
            }
            index += Self::stride(p);
        }
        if Self::TURNS {
            Self::last_turn(group);
        }
    }

    /// Starts the loads of epilogue data: the work item two tiles ahead, the choice of this lane's row one tile ahead,
    /// and the weight of its row in this tile. Each load depends on a load of the previous tile, so it need not wait.
    #[inline(always)]
    fn prefetch(
        p: &GroupedParams,
        (index, tiles): (u32, u32),
        [work, later]: [Work; 2],
        (group, choice): (u32, u32),
    ) -> (Work, u32, u32) {
        (
            Self::work(p, index + 2 * Self::stride(p), tiles),
            Self::consumer_choice(p, later, group),
            Self::weight(p, work, group, choice),
        )
    }

    /// Multiplies and stores the warpgroup's 64 rows of a row block. A tile of 64 rows has one consumer warpgroup,
    /// which computes both halves of the row block one after the other.
    #[inline(always)]
    fn compute_halves<E: WgmmaElem>(
        p: &GroupedParams,
        (index, mut work): (u32, Work),
        mut group: u32,
        (mut choice, mut weight): (u32, u32),
        ring: &mut Ring<Self>,
    ) {
        loop {
            let mut acc = Acc::<CHUNKS>::zero();
            match (F::A::ASYNCHRONOUS, F::ORDER) {
                (false, QUANTIZED_COLUMNS) => Self::products_of_codes(p, work, ring, &mut acc),
                _ => Self::products::<E>(p, work, group, ring, &mut acc),
            }
            if Self::NO_PREFETCH {
                let index = warp::opaque(index);
                (work, group) = (Self::work(p, index, index + 1), Self::own_group());
                choice = Self::consumer_choice(p, work, group);
                weight = Self::weight(p, work, group, choice);
            }
            let held = Self::previous_stage(ring.slot);
            Self::epilogue::<E>(p, work, (group, held), (choice, weight), &mut acc);
            if F::ROWS == GROUPED_ROWS || Self::count(work) <= 64 {
                return;
            }
            work = Self::second_half(work);
            choice = Self::consumer_choice(p, work, group);
            weight = Self::weight(p, work, group, choice);
        }
    }

    /// Returns the index of the stage before `slot` in the ring. After the products of a tile, it is the tile's last
    /// stage.
    #[inline(always)]
    fn previous_stage(slot: u32) -> u32 {
        if slot == 0 { Self::STAGES as u32 - 1 } else { slot - 1 }
    }

    /// Multiplies a tile and releases its stages. Synchronous atoms keep the last stage: the epilogue stores through
    /// it.
    #[inline(always)]
    fn products<E: WgmmaElem>(
        p: &GroupedParams,
        work: Work,
        group: u32,
        ring: &mut Ring<Self>,
        acc: &mut Acc<CHUNKS>,
    ) {
        // A tile of 128 rows multiplies all of them: tests would cost more.
        let rows = if F::ROWS == GROUPED_ROWS { 64 } else { Self::count(work) };
        let mut deep = 0;
        while deep < p.k {
            let slot = ring.wait_full();
            // `cp.async` wrote the gathered rows through the generic proxy. The consumer fences, because no producer
            // thread waits for its copies: they arrive at the mbarrier themselves.
            F::A::fence_proxy_async();
            F::A::fence(acc);
            Self::multiply::<E>(acc, slot, group, rows);
            deep += DEPTH;
            if F::A::ASYNCHRONOUS || deep < p.k {
                ring.issued::<F::A, _>(acc);
            }
            ring.advance();
        }
        ring.drain::<F::A, _>(acc);
    }

    #[inline(always)]
    fn multiply<E: WgmmaElem>(acc: &mut Acc<CHUNKS>, slot: u32, group: u32, rows: u32) {
        let stage = Self::stage(slot);
        let a_tile = stage.bytes(group * SMEM_TILE as u32);
        let tiles = (a_tile, stage.bytes(Self::A_BYTES as u32));
        unroll!(step < 4, { Self::multiply_step::<E>(acc, tiles, step as u32, rows) });
    }

    /// Multiplies a step of 32 bytes along k.
    #[inline(always)]
    fn multiply_step<E: WgmmaElem>(
        acc: &mut Acc<CHUNKS>,
        (smem, b_tile): (Shared<u8>, Shared<u8>),
        step: u32,
        rows: u32,
    ) {
        let row = PANEL_BYTES as u32;
        let a = smem.bytes(step * 32).descriptor(row, 16);
        let b = match F::ORDER & B_COLUMNS {
            0 => b_tile.bytes(step * 16 * row).descriptor(row, SMEM_TILE as u32),
            _ => b_tile.bytes(step * 32).descriptor(row, 16),
        };
        match F::ORDER & B_COLUMNS {
            0 => F::A::mma_rows::<E, CHUNKS, 0, 1>(acc, a, b, rows),
            _ => F::A::mma_rows::<E, CHUNKS, 0, 0>(acc, a, b, rows),
        }
    }

    /// Waits for and releases the stages of a tile without rows of this warpgroup.
    #[inline(always)]
    fn skip_tile(p: &GroupedParams, ring: &mut Ring<Self>) {
        let mut deep = 0;
        while deep < p.k {
            ring.wait_full();
            Self::release(ring.slot);
            ring.advance();
            deep += Self::STAGE_K;
        }
    }
}

impl<W: WalkInfo, E: WgmmaElem, const CHUNKS: usize, F: GroupedForm<A: Multiply, L: Loader>>
    Kernel<W, E, GroupedParams> for GroupedTile<CHUNKS, F>
{
    #[inline(always)]
    unsafe fn run(p: &GroupedParams, at: Maps) {
        Self::set_up(p, at);
        if gpu::thread() >= Self::CONSUMER_WARPS * 32 {
            if Self::WRITES {
                F::A::setmaxnreg_dec::<{ SCALED_REGISTERS[1] }>();
                if gpu::thread() >= Self::CONSUMER_WARPS * 32 + GROUPED_PRODUCER_THREADS {
                    Self::scale::<E>(p);
                } else {
                    Self::produce_scaled(p, at);
                }
                return;
            }
            F::A::setmaxnreg_dec::<PRODUCER_REGISTERS>();
            if Self::CONVERTS {
                Self::convert::<E>(p);
            } else if !F::L::BY_ONE || p.flags & GROUPED_GATHER != 0 {
                Self::produce_gathered(p, at);
            } else if gpu::thread() == Self::CONSUMER_WARPS * 32 {
                Self::produce_adjacent(p, at);
            }
        } else {
            if Self::WRITES {
                F::A::setmaxnreg_inc::<{ SCALED_REGISTERS[0] }>();
            } else {
                F::A::setmaxnreg_inc::<CONSUMER_REGISTERS>();
            }
            grid::wait_dependency();
            // After the wait: a kernel that starts early may rely on all that precedes this kernel.
            grid::launch_dependents();
            Self::consume::<E>(p);
            Self::clear_dropped(p);
            if Self::paired(p) {
                // The other thread block arrives at barriers of this one until it is done, so this one must not exit
                // before.
                cluster::arrive();
                cluster::wait();
            }
        }
    }
}
