//! SDDMM at unstructured nonzeros on Tensor Cores: tiles that contain entries are computed densely, and the entries are
//! picked from them ("compute dense, store sparse"). A persistent thread block runs on each multiprocessor. The ring of
//! stages and the producer and consumer warps are those of the module `wgmma`.

mod out;

use super::stages::{self, index};
use crate::device::fill::make_ring;
use crate::device::prelude::*;
use crate::families::sddmm::abi::*;

buffers! {
    // `SddmmTiles::new` makes the lists from the pattern. `OnGpu::arrays_of` checks that S and the mask have this
    // pattern.
    unsafe SddmmTilesParams {
        panes: [u32; 4], ReadOnly;
        groups: [u32; 2], ReadOnly;
        bases: u32, ReadOnly;
        picks: u32, ReadOnly;
        values: u8, ReadWrite;
        mask: u8, ReadWrite;
    }
}

/// Element type in which tiles are multiplied.
pub trait TileElem: Elem<Acc = f32> {
    /// `D += A B`, 32 bytes deep. `TA`, `TB` 1: the operand is contiguous along m or n instead of k; 16-bit types only.
    fn mma<A: Multiply, const C: usize, const TA: i32, const TB: i32>(
        acc: &mut Acc<C>,
        a: u64,
        b: u64,
    );
}

impl<E: WgmmaElem> TileElem for E {
    #[inline(always)]
    fn mma<A: Multiply, const C: usize, const TA: i32, const TB: i32>(
        acc: &mut Acc<C>,
        a: u64,
        b: u64,
    ) {
        A::mma::<E, C, TA, TB>(acc, a, b)
    }
}

impl TileElem for Tf32 {
    #[inline(always)]
    fn mma<A: Multiply, const C: usize, const TA: i32, const TB: i32>(
        acc: &mut Acc<C>,
        a: u64,
        b: u64,
    ) {
        A::mma_tf32::<C>(acc, a, b, true)
    }
}

#[inline(always)]
fn pane(p: &SddmmTilesParams, round: u32) -> Global<[u32; 4], ReadOnly> {
    p.panes().bytes(index(round) * size_of::<Pane>() as u64)
}

/// A consumer thread's data of a tile: loaded one tile ahead, so that only the picks wait for it.
#[derive(Clone, Copy)]
struct PerThread {
    row: u32,
    live: u32,
    picks: Picks,
    /// In lane i: the base of row i of this warp's rows.
    base: u32,
}

/// A producer thread's data of a tile.
#[derive(Clone, Copy)]
struct Copies {
    row: u32,
    live: u32,
    picks: Picks,
    /// First column of this thread's chunk.
    column: u32,
}

impl PerThread {
    #[inline(always)]
    fn load(p: &SddmmTilesParams, round: u32) -> PerThread {
        let valid = round < p.rounds;
        let warp = gpu::opaque_thread() / 32;
        let lane = gpu::opaque_thread() % PICK_ROWS as u32;
        let group = index(round) * PICK_GROUPS as u64 + warp as u64;
        let [row, live] = pane(p, round).cast::<[u32; 2]>().ld_if(valid);
        let [start, words] = p.groups().at(group).ld_if(valid);
        let base = p.bases().at(group * PICK_ROWS as u64 + lane as u64);
        PerThread {
            row: if valid { row } else { NO_STRIP },
            live,
            picks: Picks { start, words },
            base: base.ld_if(valid),
        }
    }
}

impl<const CHUNKS: usize, F: PickForm> Stages for PickTile<CHUNKS, F> {
    /// A stage holds X's two halves, then Y's chunks of 64 columns.
    const COUNT: usize = Self::STAGES;
    const STRIDE: usize = Self::STAGE;
    const FIRST_BARRIER: usize = Self::BARRIERS;
}

impl<const CHUNKS: usize, F: PickForm<A: Multiply, L: Loader>> PickTile<CHUNKS, F> {
    /// Whether X and Y are contiguous along k.
    const X_ALONG: bool = F::ORDER & A_COLUMNS == 0;
    const Y_ALONG: bool = F::ORDER & B_COLUMNS != 0;

    /// Descriptor of a warpgroup's X for a step of 32 bytes along k.
    #[inline(always)]
    fn x(smem: Shared<u8>, step: usize) -> u64 {
        stages::operand(smem, step, Self::X_ALONG, PANEL_BYTES as u32)
    }

    /// Descriptor of Y for a step of 32 bytes along k.
    #[inline(always)]
    fn y(b_tile: Shared<u8>, step: usize) -> u64 {
        stages::operand(b_tile, step, Self::Y_ALONG, PANEL_BYTES as u32)
    }

    #[inline(always)]
    fn copies(p: &SddmmTilesParams, round: u32) -> Copies {
        let valid = round < p.rounds;
        let chunk = stages::own_copy::<F::L>().wrapping_sub(2);
        let [row, live, start, words] = pane(p, round).ld_if(valid);
        let column = pane(p, round).at(1u32).cast::<u32>().at(chunk);
        Copies {
            row: if valid { row } else { NO_STRIP },
            live,
            picks: Picks { start, words },
            column: column.ld_if(valid && chunk < CHUNKS as u32),
        }
    }

    /// Starts all copies. A copy of a stage is a half of X or a chunk of Y. It writes to the same offset of every
    /// stage, one stage further along k each time.
    #[inline(always)]
    fn produce(p: &SddmmTilesParams, at: Maps, first: Copies) {
        let thread = stages::team().thread;
        let own = stages::own_copy::<F::L>();
        let mut ring = Ring::<Self>::producer();
        let mut round = 0;
        let mut later = first;
        while later.row != NO_STRIP {
            let Copies { row, live, column, .. } = later;
            // Lists are long if rows are full, and the latency of HBM is long.
            if thread == 127 && later.picks.words > 0 {
                let from = p.picks().at(later.picks.start);
                F::L::prefetch_line(from, later.picks.words.next_multiple_of(4) * 4);
            }
            let chunks = live >> 8;
            let across = if own < 2 { row + own * HALF as u32 } else { column };
            let bytes = ((live & 1) + (live >> 1 & 1) + chunks) * SMEM_TILE as u32;
            round += 1;
            later = Self::copies(p, round);
            let mut stage = 0;
            while stage < p.stages {
                let k = stage * Self::DEPTH as u32;
                let own = [own, across];
                stages::fill::<_, F::L>(&mut ring, bytes, 2 + chunks, own, |slot, i, across| {
                    let wanted = if i < 2 { live >> i & 1 != 0 } else { i - 2 < chunks };
                    if wanted {
                        Self::start(p, at, (slot, i), [k, across]);
                    }
                });
                stage += 1;
            }
        }
        F::L::wait_own();
    }

    /// Starts copy `i` of a stage, from these positions along and across k.
    #[inline(always)]
    fn start(p: &SddmmTilesParams, at: Maps, (slot, i): (u32, u32), [k, across]: [u32; 2]) {
        let team = stages::team();
        let place = |along: bool| if along { [k, across] } else { [across, k] };
        // One shape for both orders: a stage is 128 bytes deep, and only 16-bit elements are contiguous across k.
        let shape = Shape { rows: HALF, row_bytes: PANEL_BYTES, element: F::BYTES };
        let (to, full) = (Self::stage(slot).bytes(i * SMEM_TILE as u32), Self::full(slot));
        let (at, map, place) = match i {
            0 | 1 => (at.map(0), p.x_map, place(Self::X_ALONG)),
            _ => (at.map(1), p.y_map, place(Self::Y_ALONG)),
        };
        F::L::tile(team, to, (at, &map), place, shape, full);
    }

    #[inline(always)]
    fn consume<E: TileElem>(p: &SddmmTilesParams, first: PerThread) {
        let warpgroup = gpu::thread() / 128;
        let mut later = first;
        let mut round = 0;
        let mut ring = Ring::<Self>::consumer();
        while later.row != NO_STRIP {
            let now = later;
            // The picks arrive while the tile is multiplied.
            let first = Self::first(p, now.picks);
            round += 1;
            later = PerThread::load(p, round);
            // `uniform` tells ptxas that the value is the same in all lanes (C7519).
            let all = warp::uniform(now.live);
            let (live, chunks) = (all >> warpgroup & 1, all >> 8);
            // Ping-pong: one warpgroup runs half a tile behind, so one stores while the other multiplies. In a ring
            // that holds less than a tile, the warpgroup ahead would wait for stages that the other has not read.
            let apart =
                F::BYTES == 2 && round == 1 && p.rounds > 1 && p.stages <= Self::STAGES as u32;
            if apart && warpgroup == 1 {
                barrier::sync_named(1, CONSUMER_WARPS * 32);
            }
            let mut acc = Acc::<CHUNKS>::zero();
            let mut s = 0;
            while s < p.stages {
                let slot = ring.wait_full();
                if F::BYTES == 4 {
                    Self::round(slot);
                }
                if live == 0 {
                    Self::release(slot);
                } else {
                    F::A::fence(&mut acc);
                    Self::multiply::<E>(&mut acc, (slot, warpgroup), chunks);
                    ring.issued::<F::A, _>(&mut acc);
                }
                ring.advance();
                s += 1;
            }
            ring.drain::<F::A, _>(&mut acc);
            if apart && warpgroup == 0 {
                barrier::arrive_named(1, CONSUMER_WARPS * 32);
            }
            if live != 0 {
                F::A::exchange_quarters(&mut acc, Self::out(warpgroup), 2 + warpgroup);
                Self::epilogue::<E>(p, now, first, &mut acc);
            }
        }
    }

    /// Rounds a stage to TF32 in place, by both warpgroups together: products would truncate.
    #[inline(always)]
    fn round(slot: u32) {
        let place = Self::stage(slot).cast::<[u32; 4]>().at(gpu::opaque_thread());
        let mut i = 0;
        while i < (Self::STAGE / (CONSUMER_WARPS as usize * 512)) as u32 {
            let at = place.at(i * CONSUMER_WARPS * 32);
            at.st(at.ld().map(matrix::cvt_rna_tf32));
            i += 1;
        }
        F::A::fence_proxy_async();
        barrier::sync_named(1, CONSUMER_WARPS * 32);
    }

    /// Issues the products of one stage for the chunks that are present. Two of four at a time: a choice between all
    /// chunks and some takes more registers than are available (C7511).
    #[inline(always)]
    fn multiply<E: TileElem>(acc: &mut Acc<CHUNKS>, (slot, warpgroup): (u32, u32), chunks: u32) {
        const { assert!(!F::A::QUARTERS || CHUNKS <= 2, "quarters: at most two chunks") };
        let (smem, b_tile) = Self::operands(slot, warpgroup);
        if CHUNKS < 4 {
            return Self::steps::<E, CHUNKS>(acc, smem, b_tile);
        }
        unroll!(pair < 2, {
            if chunks > 2 * pair as u32 {
                let at = (2 * pair) & (CHUNKS - 1);
                let mut two = Acc([acc.0[at], acc.0[(at + 1) & (CHUNKS - 1)]]);
                Self::steps::<E, 2>(&mut two, smem, b_tile.bytes((2 * pair * SMEM_TILE) as u32));
                [acc.0[at], acc.0[(at + 1) & (CHUNKS - 1)]] = two.0;
            }
        });
    }

    #[inline(always)]
    fn steps<E: TileElem, const C: usize>(acc: &mut Acc<C>, smem: Shared<u8>, b_tile: Shared<u8>) {
        unroll!(step < STEPS, {
            let (x, y) = (Self::x(smem, step), Self::y(b_tile, step));
            if F::ORDER == BOTH_ROWS {
                E::mma::<F::A, C, 0, 0>(acc, x, y)
            } else {
                E::mma::<F::A, C, 1, 1>(acc, x, y)
            }
        });
    }
}

impl<W: WalkInfo, E: TileElem, const CHUNKS: usize, F: PickForm<A: Multiply, L: Loader>>
    Kernel<W, E, SddmmTilesParams> for PickTile<CHUNKS, F>
{
    #[inline(always)]
    unsafe fn run(p: &SddmmTilesParams, at: Maps) {
        // The first loads overlap with the initialization of the barriers. Round `p.rounds` is past the last tile:
        // nothing is loaded.
        let copies = gpu::thread() >= CONSUMER_WARPS * 32;
        let (other, own) = if copies { (0, p.rounds) } else { (p.rounds, 0) };
        let (copied, multiplied) = (Self::copies(p, other), PerThread::load(p, own));
        make_ring::<Self, F::L, 2>(at, F::L::arrivals(PRODUCER_THREADS, false));
        roles!(F::A: Self::produce(p, at, copied), Self::consume::<E>(p, multiplied));
    }
}
