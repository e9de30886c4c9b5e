//! SDDMM at single entries on Tensor Cores: tiles that hold entries are computed densely, and the entries picked out of
//! them ("compute dense, store sparse"). A persistent thread block per multiprocessor; ring of stages and split into
//! copying and multiplying warps are those of the module `wgmma`.

mod out;

use crate::device::prelude::*;
use crate::families::sddmm::abi::*;

/// An element type that tiles are multiplied in.
pub trait TileElem: Elem<Acc = f32> {
    /// `D += A B`, 32 bytes deep. `TA`, `TB` 1: the operand is contiguous along m, n instead of k; 16-bit types only.
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
fn index(round: u32) -> u64 {
    (round * gpu::grid_x() + gpu::block_x()) as u64
}

#[inline(always)]
fn pane(p: &SddmmTilesParams, round: u32) -> u64 {
    p.panes + index(round) * size_of::<Pane>() as u64
}

/// What a warp that multiplies knows of a tile: loaded a tile ahead, so that only the picks wait for it.
#[derive(Clone, Copy)]
struct PerThread {
    row: u32,
    live: u32,
    picks: Picks,
    /// Lane i: of row i of this warp's rows.
    base: u32,
}

/// What a thread that copies knows of a tile.
#[derive(Clone, Copy)]
struct Copies {
    row: u32,
    live: u32,
    picks: Picks,
    /// Of this thread's chunk.
    column: u32,
}

impl PerThread {
    #[inline(always)]
    fn load(p: &SddmmTilesParams, round: u32) -> PerThread {
        let valid = round < p.rounds;
        let warp = gpu::opaque_thread() / 32;
        let lane = gpu::opaque_thread() % PICK_ROWS as u32;
        let group = index(round) * PICK_GROUPS as u64 + warp as u64;
        let [row, live] = global::ld_nc_v2(pane(p, round), valid);
        let [start, words] = global::ld_nc_v2(p.groups + group * 8, valid);
        let base = p.bases + (group * PICK_ROWS as u64 + lane as u64) * 4;
        PerThread {
            row: if valid { row } else { NO_STRIP },
            live,
            picks: Picks { start, words },
            base: global::ld_nc_b32(base, valid),
        }
    }
}

impl<const CHUNKS: usize, const ORDER: u32, const BYTES: usize, A, L: LoaderInfo> Stages
    for PickTile<CHUNKS, ORDER, BYTES, A, L>
{
    /// A stage is X's halves, then Y's chunks of 64 columns.
    const COUNT: usize = Self::STAGES;
    const STRIDE: usize = Self::STAGE;
    const FIRST_BARRIER: usize = Self::BARRIERS;
}

impl<const CHUNKS: usize, const ORDER: u32, const BYTES: usize, A: Multiply, L: Loader>
    PickTile<CHUNKS, ORDER, BYTES, A, L>
{
    /// X lies along k, and Y does.
    const X_ALONG: bool = ORDER & A_COLUMNS == 0;
    const Y_ALONG: bool = ORDER & B_COLUMNS != 0;

    /// X of one warpgroup for a step of 16 along k.
    #[inline(always)]
    fn x(smem: u32, step: usize) -> u64 {
        Self::operand(smem, step, Self::X_ALONG)
    }

    /// Y for a step of 16 along k.
    #[inline(always)]
    fn y(b_tile: u32, step: usize) -> u64 {
        Self::operand(b_tile, step, Self::Y_ALONG)
    }

    /// Tiles of 64 rows of 128 bytes, along k or across it.
    #[inline(always)]
    fn operand(smem: u32, step: usize, along_k: bool) -> u64 {
        let row = PANEL_BYTES as u32;
        if along_k {
            frag::descriptor(smem + step as u32 * 32, row, 16)
        } else {
            frag::descriptor(smem + step as u32 * 16 * row, row, SMEM_TILE as u32)
        }
    }

    #[inline(always)]
    fn set_up(at: u64) {
        if gpu::thread() != 0 {
            return;
        }
        L::prefetch_maps::<2>(at);
        Self::make_barriers(L::arrivals(COPIERS, false), CONSUMERS);
    }

    /// Which copy this thread has the word of. Neighbouring ones in different warps where a thread starts a copy: those
    /// that the lanes of a warp start go out one after the other.
    #[inline(always)]
    fn copy() -> u32 {
        let thread = gpu::opaque_thread() % COPIERS;
        if L::BY_ONE { thread % 32 * 4 + thread / 32 } else { thread % 32 }
    }

    #[inline(always)]
    fn copies(p: &SddmmTilesParams, round: u32) -> Copies {
        let valid = round < p.rounds;
        let chunk = Self::copy().wrapping_sub(2);
        let [row, live, start, words] = global::ld_nc_v4(pane(p, round), valid);
        let column = pane(p, round) + 16 + chunk as u64 * 4;
        Copies {
            row: if valid { row } else { NO_STRIP },
            live,
            picks: Picks { start, words },
            column: global::ld_nc_b32(column, valid && chunk < CHUNKS as u32),
        }
    }

    /// The copies of a stage, a half of X or a chunk of Y each, bring to the same place a stage further along k each
    /// time.
    #[inline(always)]
    fn produce(p: &SddmmTilesParams, at: u64, first: Copies) {
        let thread = gpu::thread() % COPIERS;
        let own = Self::copy();
        let mut ring = Ring::<Self>::producer();
        let mut round = 0;
        let mut later = first;
        while later.row != NO_STRIP {
            let Copies { row, live, column, .. } = later;
            // The lists are long where rows are full, and HBM is far.
            if thread == 127 && later.picks.words > 0 {
                let from = p.picks + later.picks.start as u64 * 4;
                L::prefetch_line(from, later.picks.words.next_multiple_of(4) * 4);
            }
            let chunks = live >> 8;
            let across = if own < 2 { row + own * HALF as u32 } else { column };
            let bytes = ((live & 1) + (live >> 1 & 1) + chunks) * SMEM_TILE as u32;
            round += 1;
            later = Self::copies(p, round);
            let mut stage = 0;
            while stage < p.stages {
                let (slot, k) = (ring.wait_empty(), stage * Self::DEPTH as u32);
                L::expect(ring.full(), thread, bytes, false);
                L::each(2 + chunks, across, |lane, across| {
                    let i = if L::BY_ONE { own } else { lane };
                    let wanted = if i < 2 { live >> i & 1 != 0 } else { i - 2 < chunks };
                    if wanted {
                        Self::start(p, at, (slot, i), [k, across]);
                    }
                });
                L::started(ring.full(), thread);
                stage += 1;
                ring.advance();
            }
        }
        L::wait_own();
    }

    /// Starts copy `i` of a stage, from these places along k and across.
    #[inline(always)]
    fn start(p: &SddmmTilesParams, at: u64, (slot, i): (u32, u32), [k, across]: [u32; 2]) {
        let team = Team { thread: gpu::thread() % COPIERS, threads: COPIERS };
        let place = |along: bool| if along { [k, across] } else { [across, k] };
        // A stage is as deep as 128 bytes have elements, and 16-bit elements lie across k alone.
        let shape = Shape { rows: HALF, row_bytes: PANEL_BYTES, element: BYTES };
        let (to, full) = (Self::stage(slot) + i * SMEM_TILE as u32, Self::full(slot));
        let (at, map, place) = match i {
            0 | 1 => (at, p.x_map, place(Self::X_ALONG)),
            _ => (at + 128, p.y_map, place(Self::Y_ALONG)),
        };
        L::tile(team, to, (at, &map), place, shape, full);
    }

    #[inline(always)]
    fn consume<E: TileElem>(p: &SddmmTilesParams, first: PerThread) {
        let warpgroup = gpu::thread() / 128;
        let mut later = first;
        let mut round = 0;
        let mut ring = Ring::<Self>::consumer();
        while later.row != NO_STRIP {
            let now = later;
            // They arrive while the tile is multiplied.
            let first = Self::first(p, now.picks);
            round += 1;
            later = PerThread::load(p, round);
            // The same for all lanes, and the shuffle tells ptxas so (C7519).
            let all = warp::uniform(now.live);
            let (live, chunks) = (all >> warpgroup & 1, all >> 8);
            // One warpgroup half a turn behind: its sums leave while the other multiplies, and the other way round. In
            // a ring that holds less than a tile, the one ahead would wait for stages that the other has not read.
            let apart = BYTES == 2 && round == 1 && p.rounds > 1 && p.stages <= Self::STAGES as u32;
            if apart && warpgroup == 1 {
                barrier::sync_named(1, CONSUMERS * 32);
            }
            let mut acc = Acc::<CHUNKS>::zero();
            let mut s = 0;
            while s < p.stages {
                let slot = ring.wait_full();
                if BYTES == 4 {
                    Self::round(slot);
                }
                if live == 0 {
                    Self::release_pending(slot);
                } else {
                    A::fence(&mut acc);
                    Self::multiply::<E>(&mut acc, (slot, warpgroup), chunks);
                    ring.issued::<A, _>(&mut acc);
                }
                ring.advance();
                s += 1;
            }
            ring.drain::<A, _>(&mut acc);
            if apart && warpgroup == 0 {
                barrier::arrive_named(1, CONSUMERS * 32);
            }
            if live != 0 {
                A::exchange_quarters(&mut acc, Self::out(warpgroup), 2 + warpgroup);
                Self::epilogue::<E>(p, now, first, &mut acc);
            }
        }
    }

    /// Rounds a stage to TF32 where it lies, both warpgroups together: products would cut the bits off.
    #[inline(always)]
    fn round(slot: u32) {
        let place = Self::stage(slot) + gpu::opaque_thread() * 16;
        let mut i = 0;
        while i < (Self::STAGE / (CONSUMERS as usize * 512)) as u32 {
            let at = place + i * CONSUMERS * 512;
            let four = copy::ld_shared_v4(at).map(matrix::cvt_rna_tf32);
            copy::st_shared_v4(at, four);
            i += 1;
        }
        A::fence_proxy_async();
        barrier::sync_named(1, CONSUMERS * 32);
    }

    /// The products of one stage, of the chunks that are there. Two of four at a time: a choice between all at once and
    /// some takes more registers than there are (C7511).
    #[inline(always)]
    fn multiply<E: TileElem>(acc: &mut Acc<CHUNKS>, (slot, warpgroup): (u32, u32), chunks: u32) {
        const { assert!(!A::QUARTERS || CHUNKS <= 2, "sums of a pair lie as those of all") };
        let (smem, b_tile) = Self::operands(slot, warpgroup);
        if CHUNKS < 4 {
            return Self::steps::<E, CHUNKS>(acc, smem, b_tile);
        }
        unroll!(pair < 2, {
            if chunks > 2 * pair as u32 {
                let at = (2 * pair) & (CHUNKS - 1);
                let mut two = Acc([acc.0[at], acc.0[(at + 1) & (CHUNKS - 1)]]);
                Self::steps::<E, 2>(&mut two, smem, b_tile + (2 * pair * SMEM_TILE) as u32);
                [acc.0[at], acc.0[(at + 1) & (CHUNKS - 1)]] = two.0;
            }
        });
    }

    #[inline(always)]
    fn steps<E: TileElem, const C: usize>(acc: &mut Acc<C>, smem: u32, b_tile: u32) {
        unroll!(step < STEPS, {
            let (x, y) = (Self::x(smem, step), Self::y(b_tile, step));
            if ORDER == BOTH_ROWS {
                E::mma::<A, C, 0, 0>(acc, x, y)
            } else {
                E::mma::<A, C, 1, 1>(acc, x, y)
            }
        });
    }
}

impl<
    W: WalkInfo,
    E: TileElem,
    const CHUNKS: usize,
    const ORDER: u32,
    const BYTES: usize,
    A: Multiply,
    L: Loader,
> Kernel<W, E, SddmmTilesParams> for PickTile<CHUNKS, ORDER, BYTES, A, L>
{
    #[inline(always)]
    unsafe fn run(p: &SddmmTilesParams, at: u64) {
        // What comes first is on its way while the barriers are made. Behind the last tile there is nothing to load.
        let copies = gpu::thread() >= CONSUMERS * 32;
        let (other, own) = if copies { (0, p.rounds) } else { (p.rounds, 0) };
        let (copied, multiplied) = (Self::copies(p, other), PerThread::load(p, own));
        Self::set_up(at);
        gpu::sync_threads();
        roles!(A: Self::produce(p, at, copied), Self::consume::<E>(p, multiplied));
    }
}
