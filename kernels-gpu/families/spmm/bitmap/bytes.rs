//! A with byte positions. The four warps of a warpgroup expand a tile of 64 x 128 to a dense one in shared memory, each
//! lane in its own bank. The warpgroup multiplies it from there, and then clears the values. With `wgmma` two tiles
//! alternate: one is expanded while the other is multiplied.

use super::out::Strip;
use super::starts::Starts;
use super::{Filled, Ring, bring_starts, copier, offsets, units_before};
use crate::device::prelude::*;
use crate::device::ptx::wgmma_thin::Thin;
use crate::device::thin::{MultiplyThin, ThinElem};
use crate::families::spmm::abi::*;

/// Chunks of a bank whose addresses a warp keeps, to clear them. If a bank has more than four times as many chunks, the
/// whole tile is cleared instead.
const KEPT: usize = 3;
/// Warps of a warpgroup: chunk `j` of every bank belongs to warp `j % 4`.
const WARPS: u32 = 4;
const COUNTS: u32 = 128;

/// Shared addresses of this thread's values in an expanded tile.
#[derive(Clone, Copy)]
struct Spread {
    /// Chunks of this lane's bank.
    chunks: u32,
    places: [[u32; 4]; KEPT],
}

/// Indices of a warp in its warpgroup.
#[derive(Clone, Copy)]
struct PerWarp {
    group: u32,
    warp: u32,
    lane: u32,
    /// First of the warpgroup's expanded tiles.
    tile: u32,
}

impl PerWarp {
    #[inline(always)]
    fn new(tiles: u32) -> PerWarp {
        // Uniform over the warp, which the shuffle shows to ptxas.
        let group = warp::uniform(gpu::thread() / 128);
        PerWarp {
            group,
            warp: warp::uniform(gpu::thread() / 32 % WARPS),
            lane: gpu::thread() % 32,
            tile: copy::dynamic_shared() + BIT_HEAD as u32 + group * tiles * BYTE_TILE as u32,
        }
    }
}

/// Stages hold B; A is stored after the ring.
impl<const GROUPS: usize, const N: usize, F: ByteForm> Stages for ByteTile<GROUPS, N, F> {
    const COUNT: usize = BIT_STAGES;
    const STRIDE: usize = Self::B_BYTES;
    const FIRST_BARRIER: usize = 0;
    const FIRST_STAGE: usize = Self::HEAD;
}

impl<const GROUPS: usize, const N: usize, F: ByteForm<A: MultiplyThin, L: Loader>>
    ByteTile<GROUPS, N, F>
{
    /// Returns the shared address of A of a stage: counts, positions, values.
    #[inline(always)]
    fn a(p: &BitmapParams, slot: u32) -> u32 {
        copy::dynamic_shared()
            + Self::HEAD as u32
            + p.stages * Self::B_BYTES as u32
            + slot * p.slot_bytes
    }

    #[inline(always)]
    fn set_up(p: &BitmapParams, at: Maps) {
        // There are more threads than stages.
        let slot = gpu::thread();
        if slot < p.stages {
            barrier::init(Self::full(slot), F::L::arrivals(32, false));
            barrier::init(Self::empty(slot), GROUPS as u32 * WARPS);
            barrier::init_fence();
        }
        if slot == 0 {
            F::L::prefetch_maps::<1>(at);
        }
        gpu::sync_threads();
    }

    /// Returns this warp's indices, after its warpgroup's tiles are filled with zeros.
    #[inline(always)]
    fn own() -> PerWarp {
        let own = PerWarp::new(Self::SPREAD as u32);
        unroll!(i < Self::SPREAD, most 4, {
            Self::clear(own, own.tile + (i * BYTE_TILE) as u32);
        });
        barrier::sync_named(1 + own.group, 128);
        own
    }

    #[inline(always)]
    fn consume<E: ThinElem>(p: &BitmapParams) {
        let own = Self::own();
        let group = own.group;
        let mut ring = Ring::first(0);
        let mut before = Spread { chunks: 0, places: [[own.tile; 4]; KEPT] };
        let mut odd = 0;
        let mut round = 0;
        loop {
            let piece = p.piece(round);
            if piece.height == 0 {
                return;
            }
            round += 1;
            if group >= warp::uniform(piece.height) {
                Self::pass(p, &mut ring, piece.stages);
                continue;
            }
            let mut acc = Thin::<N>::zero();
            let (mut stage, mut last) = (0, 0);
            while stage < piece.stages {
                if !F::A::ASYNCHRONOUS {
                    Self::at_once::<E>(p, own, &mut ring, &mut acc);
                    stage += 1;
                    continue;
                }
                let (tile, other) = (own.tile + odd, own.tile + (BYTE_TILE as u32 - odd));
                barrier::wait(Self::full(ring.slot), ring.parity);
                let now = Self::spread(p, ring.slot, own, tile);
                F::A::wait_thin(&mut acc);
                if stage != 0 && p.stages != 1 {
                    Self::release(last);
                }
                F::A::fence_proxy_async();
                // The tile is complete, and no warp reads the other tile any more.
                barrier::sync_named(1 + group, 128);
                F::A::fence_thin(&mut acc);
                Self::multiply::<E>(&mut acc, tile, ring.slot);
                F::A::commit();
                Self::clear_values(own, before, other);
                barrier::sync_named(1 + group, 128);
                before = now;
                odd = BYTE_TILE as u32 - odd;
                last = ring.slot;
                if p.stages == 1 {
                    // With one stage the next copy can only start after these products.
                    F::A::wait_thin(&mut acc);
                    Self::release(last);
                }
                ring.advance(p.stages);
                stage += 1;
            }
            F::A::wait_thin(&mut acc);
            if F::A::ASYNCHRONOUS && stage != 0 && p.stages != 1 {
                Self::release(last);
            }
            Self::epilogue::<E>(p, piece, group, &mut acc);
        }
    }

    /// Expands the next stage's tile, multiplies it, and clears its values.
    #[inline(always)]
    fn at_once<E: ThinElem>(p: &BitmapParams, own: PerWarp, ring: &mut Ring, acc: &mut Thin<N>) {
        barrier::wait(Self::full(ring.slot), ring.parity);
        let now = Self::spread(p, ring.slot, own, own.tile);
        barrier::sync_named(1 + own.group, 128);
        Self::multiply::<E>(acc, own.tile, ring.slot);
        Self::release(ring.slot);
        ring.advance(p.stages);
        barrier::sync_named(1 + own.group, 128);
        Self::clear_values(own, now, own.tile);
        barrier::sync_named(1 + own.group, 128);
    }

    /// Stores a warpgroup's sums by the epilogue of [`Strip`].
    #[inline(always)]
    fn epilogue<E: ThinElem>(p: &BitmapParams, piece: BitPiece, group: u32, acc: &mut Thin<N>) {
        match N {
            16 => Strip::<GROUPS, N, 4>::epilogue::<E>(p, piece, group, acc),
            32 => Strip::<GROUPS, N, 2>::epilogue::<E>(p, piece, group, acc),
            _ => Strip::<GROUPS, N, 1>::epilogue::<E>(p, piece, group, acc),
        }
    }

    /// Releases stages without rows for this warpgroup.
    #[inline(always)]
    fn pass(p: &BitmapParams, ring: &mut Ring, stages: u32) {
        let mut stage = 0;
        while stage < stages {
            barrier::wait(Self::full(ring.slot), ring.parity);
            Self::release(ring.slot);
            ring.advance(p.stages);
            stage += 1;
        }
    }

    /// Expands this warp's chunks of a stage.
    #[inline(always)]
    fn spread(p: &BitmapParams, slot: u32, own: PerWarp, tile: u32) -> Spread {
        let a = Self::a(p, slot);
        let chunks = copy::ld_shared_b8(a + own.group * BYTE_COUNTS as u32 + own.lane);
        let (front, all) = if F::L::BY_ONE {
            let offset = copy::ld_shared_b32(offsets::<F::L>(slot) + own.group * 4);
            (offset & 0xffff, offset >> 16)
        } else {
            let chunks = [own.group * 4, GROUPS as u32 * 4];
            let [front, all] = chunks.map(|at| units_before::<F::L>(slot, at) * BYTE_UNIT as u32);
            (front, all)
        };
        let bank = tile + own.lane * 4;
        let places = a + COUNTS + front * 4;
        let values = a + COUNTS + all * 4 + front * 8;
        // Two chunks at once, further ones one after the other.
        let turns = [own.warp, own.warp + WARPS];
        let at = turns.map(|turn| chunk_of(chunks, turn, own.lane));
        let words = at.map(|at| copy::ld_shared_b32(places + at * 4));
        let pairs = at.map(|at| copy::ld_shared_v2(values + at * 8));
        let [first, second] = words.map(|word| addresses(word, bank));
        bits::store_halves(first, halves(pairs[0]), chunks > turns[0]);
        bits::store_halves(second, halves(pairs[1]), chunks > turns[1]);
        let mut third = first;
        let mut turn = own.warp + 2 * WARPS;
        while warp::ballot(chunks > turn) != 0 {
            let at = chunk_of(chunks, turn, own.lane);
            third = addresses(copy::ld_shared_b32(places + at * 4), bank);
            let pair = copy::ld_shared_v2(values + at * 8);
            bits::store_halves(third, halves(pair), chunks > turn);
            turn += WARPS;
        }
        Spread { chunks, places: [first, second, third] }
    }

    /// Stores zeros where [`spread`](Self::spread) stored values.
    #[inline(always)]
    fn clear_values(own: PerWarp, before: Spread, tile: u32) {
        if warp::ballot(before.chunks > WARPS * KEPT as u32) != 0 {
            Self::clear(own, tile);
            return;
        }
        unroll!(t < KEPT, {
            let valid = before.chunks > own.warp + WARPS * t as u32;
            bits::store_halves(before.places[t], [0; 4], valid);
        });
    }

    /// Stores zeros in this warp's quarter of a tile.
    #[inline(always)]
    fn clear(own: PerWarp, tile: u32) {
        let first = tile + (own.warp * 32 + own.lane) * 16;
        unroll!(i < BYTE_TILE / (128 * 16), {
            copy::st_shared_v4(first + i as u32 * 128 * 16, [0; 4])
        });
    }

    #[inline(always)]
    fn multiply<E: ThinElem>(acc: &mut Thin<N>, tile: u32, slot: u32) {
        let row = (N * 2) as u32;
        let (a, b) = (frag::descriptor(0, 128, 16), frag::descriptor(0, row, 16));
        // The lowest bits of a descriptor are the address in units of 16 bytes.
        let tile = a as u32 | warp::uniform(tile) >> 4;
        let from = b as u32 | warp::uniform(Self::stage(slot)) >> 4;
        let at = |descriptor: u64, low: u32| descriptor & 0xffff_ffff_0000_0000 | low as u64;
        F::A::mma_thin_shared::<E, N>(acc, at(a, tile), at(b, from));
    }
}

impl<const GROUPS: usize, const N: usize, F: ByteForm<A: MultiplyThin, L: Loader>> Filled<GROUPS>
    for ByteTile<GROUPS, N, F>
{
    const BY_ONE: bool = F::L::BY_ONE;
    const B_COPIED: bool = F::L::BY_ONE;

    #[inline(always)]
    fn copy_a(p: &BitmapParams, piece: BitPiece, stage: u32, own: Starts, ring: Ring) {
        let lane = gpu::thread() % 32;
        if F::L::BY_ONE && lane != 0 {
            return;
        }
        let slot = ring.slot;
        let tile = piece.tile + stage * piece.step;
        let unit = BYTE_UNIT as u32;
        // The last start is the end of the last tile.
        let chunks = (own[GROUPS] - own[0]) * unit;
        let counts = piece.height * BYTE_COUNTS as u32;
        if !F::L::BY_ONE {
            bring_starts::<GROUPS, F::L>(p, piece, tile, slot);
        } else if lane == 0 {
            let mut starts = [0; 8];
            unroll!(j < GROUPS, { starts[j] = ((own[j] - own[0]) * unit) | (chunks << 16) });
            let [a, b, c, d, ..] = starts;
            copy::st_shared_v4(offsets::<F::L>(slot), [a, b, c, d]);
        }
        let (to, full) = (Self::a(p, slot), Self::full(slot));
        F::L::expect(full, lane, counts + chunks * 12 + Self::B_BYTES as u32, false);
        let team = Team { thread: lane, threads: 32 };
        let first = p.words().row(tile, BYTE_COUNTS as u64);
        F::L::line(team, to, first, counts, full);
        if chunks != 0 {
            let places = p.words().at(p.places as u64 + own[0] as u64);
            F::L::long_line(team, to + COUNTS, places, chunks * 4, full);
            let values = p.values().row(own[0], 32u32);
            F::L::long_line(team, to + COUNTS + chunks * 4, values, chunks * 8, full);
        }
    }

    #[inline(always)]
    fn copy_b(p: &BitmapParams, at: Maps, piece: BitPiece, stage: u32, ring: Ring) {
        let lane = gpu::thread() % 32;
        if F::L::BY_ONE && lane != 0 {
            return;
        }
        let (to, full) = (Self::stage(ring.slot), Self::full(ring.slot));
        let k = (piece.place + stage) * BYTE_DEPTH as u32;
        let half = (BYTE_DEPTH / 2) as u32;
        let (team, map) = (Team { thread: lane, threads: 32 }, (at.map(0), &p.b_map));
        let shape = Shape { rows: BYTE_DEPTH / 2, row_bytes: N * 2, element: 2 };
        F::L::tile(team, to, map, [piece.column, k], shape, full);
        F::L::tile(team, to + half * N as u32 * 2, map, [piece.column, k + half], shape, full);
        F::L::started(full, lane);
    }
}

/// Returns the index in its tile of chunk `turn` of this lane's bank. It follows all earlier chunks of every bank, and
/// chunks `turn` of lower lanes.
#[inline(always)]
fn chunk_of(chunks: u32, turn: u32, lane: u32) -> u32 {
    let earlier = warp::sum(if chunks < turn { chunks } else { turn });
    let beside = warp::ballot(chunks > turn) & ((1 << lane) - 1);
    earlier + beside.count_ones()
}

/// Returns the shared addresses of the values of four positions. Each byte holds a line of 128 bytes and, in bit 0, the
/// half of the bank's four bytes.
#[inline(always)]
fn addresses(places: u32, bank: u32) -> [u32; 4] {
    let (lines, halves) = (places & 0xfefe_fefe, places & 0x0101_0101);
    [0, 8, 16, 24].map(|at| bits::dp4a(lines, 64 << at, bits::dp4a(halves, 2 << at, bank)))
}

#[inline(always)]
fn halves([a, b]: [u32; 2]) -> [u32; 4] {
    [a, a >> 16, b, b >> 16]
}

impl<W: WalkInfo, E: ThinElem, const GROUPS: usize, const N: usize, F> Kernel<W, E, BitmapParams>
    for ByteTile<GROUPS, N, F>
where
    F: ByteForm<A: MultiplyThin, L: Loader>,
{
    #[inline(always)]
    unsafe fn run(p: &BitmapParams, at: Maps) {
        Self::set_up(p, at);
        if gpu::thread() >= GROUPS as u32 * 128 {
            Self::produce(p, at, copier(p, GROUPS as u32 * 128, Self::PRODUCER_THREADS));
        } else {
            grid::wait_dependency();
            grid::launch_dependents();
            Self::consume::<E>(p);
        }
    }
}
