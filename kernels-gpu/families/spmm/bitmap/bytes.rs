//! A with byte positions. The four warps of a warpgroup expand a tile of 64 x 128 to a dense one in shared memory, each
//! lane in its own bank. The warpgroup multiplies it from there, and then clears the values. With `wgmma` two tiles
//! alternate: one is expanded while the other is multiplied.

use super::out::Strip;
use super::starts::Starts;
use super::{Filled, Ring, bring_starts, offsets, shared, units_before};
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
    tile: Shared<u8>,
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
            tile: shared().bytes(BIT_HEAD as u32 + group * tiles * BYTE_TILE as u32),
        }
    }
}

impl<const GROUPS: usize, const N: usize, F: BitForm> Stages for ByteTile<GROUPS, N, F> {
    const COUNT: usize = BIT_STAGES;
    const STRIDE: usize = Self::B_BYTES;
    const FIRST_BARRIER: usize = 0;
    const FIRST_STAGE: usize = Self::HEAD;
}

impl<const GROUPS: usize, const N: usize, F: BitForm<A: MultiplyThin, L: Loader>>
    ByteTile<GROUPS, N, F>
{
    /// Returns this warp's indices, after its warpgroup's tiles are filled with zeros.
    #[inline(always)]
    fn own() -> PerWarp {
        let own = PerWarp::new(Self::SPREAD as u32);
        unroll!(i < Self::SPREAD, most 4, {
            Self::clear(own, own.tile.bytes((i * BYTE_TILE) as u32));
        });
        barrier::sync_named(1 + own.group, 128);
        own
    }

    #[inline(always)]
    fn consume<E: ThinElem>(p: &BitmapParams) {
        let own = Self::own();
        let group = own.group;
        let mut ring = Ring::first(0);
        let mut before = Spread { chunks: 0, places: [[own.tile.address(); 4]; KEPT] };
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
                let (tile, other) = (own.tile.bytes(odd), own.tile.bytes(BYTE_TILE as u32 - odd));
                Self::wait_for(ring);
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
            match N {
                16 => Strip::<GROUPS, N, 4>::epilogue::<E>(p, piece, group, &mut acc),
                32 => Strip::<GROUPS, N, 2>::epilogue::<E>(p, piece, group, &mut acc),
                _ => Strip::<GROUPS, N, 1>::epilogue::<E>(p, piece, group, &mut acc),
            }
        }
    }

    /// Expands the next stage's tile, multiplies it, and clears its values.
    #[inline(always)]
    fn at_once<E: ThinElem>(p: &BitmapParams, own: PerWarp, ring: &mut Ring, acc: &mut Thin<N>) {
        Self::wait_for(*ring);
        let now = Self::spread(p, ring.slot, own, own.tile);
        barrier::sync_named(1 + own.group, 128);
        Self::multiply::<E>(acc, own.tile, ring.slot);
        Self::release(ring.slot);
        ring.advance(p.stages);
        barrier::sync_named(1 + own.group, 128);
        Self::clear_values(own, now, own.tile);
        barrier::sync_named(1 + own.group, 128);
    }

    /// Expands this warp's chunks of a stage.
    #[inline(always)]
    fn spread(p: &BitmapParams, slot: u32, own: PerWarp, tile: Shared<u8>) -> Spread {
        let a = Self::a(p, slot);
        let chunks = a.bytes(own.group * BYTE_COUNTS as u32 + own.lane).ld();
        let (front, all) = if F::L::BY_ONE {
            let offset = offsets::<F::L>(slot).at(own.group).ld();
            (offset & 0xffff, offset >> 16)
        } else {
            let tiles = [own.group, GROUPS as u32];
            let [front, all] =
                tiles.map(|tile| units_before::<F::L>(slot, tile) * BYTE_UNIT as u32);
            (front, all)
        };
        let bank = tile.bytes(own.lane * 4);
        let places = a.bytes(COUNTS).cast::<u32>().at(front);
        let values = a.bytes(COUNTS + all * 4).cast::<[u32; 2]>().at(front);
        // Two chunks at once, further ones one after the other.
        let turns = [own.warp, own.warp + WARPS];
        let at = turns.map(|turn| chunk_of(chunks, turn, own.lane));
        let words = at.map(|at| places.at(at).ld());
        let pairs = at.map(|at| values.at(at).ld());
        let [first, second] = words.map(|word| addresses(word, bank));
        store(first, halves(pairs[0]), chunks > turns[0]);
        store(second, halves(pairs[1]), chunks > turns[1]);
        let mut third = first;
        let mut turn = own.warp + 2 * WARPS;
        while warp::ballot(chunks > turn) != 0 {
            let at = chunk_of(chunks, turn, own.lane);
            third = addresses(places.at(at).ld(), bank);
            store(third, halves(values.at(at).ld()), chunks > turn);
            turn += WARPS;
        }
        Spread { chunks, places: [first, second, third] }
    }

    /// Stores zeros where [`spread`](Self::spread) stored values.
    #[inline(always)]
    fn clear_values(own: PerWarp, before: Spread, tile: Shared<u8>) {
        if warp::ballot(before.chunks > WARPS * KEPT as u32) != 0 {
            Self::clear(own, tile);
            return;
        }
        unroll!(t < KEPT, {
            let valid = before.chunks > own.warp + WARPS * t as u32;
            store(before.places[t], [0; 4], valid);
        });
    }

    /// Stores zeros in this warp's quarter of a tile.
    #[inline(always)]
    fn clear(own: PerWarp, tile: Shared<u8>) {
        let first = tile.cast::<[u32; 4]>().at(own.warp * 32 + own.lane);
        unroll!(i < BYTE_TILE / (128 * 16), { first.at(i as u32 * 128).st([0; 4]) });
    }

    #[inline(always)]
    fn multiply<E: ThinElem>(acc: &mut Thin<N>, tile: Shared<u8>, slot: u32) {
        let row = (N * 2) as u32;
        let (a, b) = (frag::descriptor(0, 128, 16), frag::descriptor(0, row, 16));
        // The lowest bits of a descriptor are the address in units of 16 bytes.
        let tile = a as u32 | warp::uniform(tile.address()) >> 4;
        let from = b as u32 | warp::uniform(Self::stage(slot).address()) >> 4;
        let at = |descriptor: u64, low: u32| descriptor & 0xffff_ffff_0000_0000 | low as u64;
        F::A::mma_thin_shared::<E, N>(acc, at(a, tile), at(b, from));
    }
}

impl<const GROUPS: usize, const N: usize, F: BitForm<A: MultiplyThin, L: Loader>> Filled<GROUPS>
    for ByteTile<GROUPS, N, F>
{
    type L = F::L;
    const ALIGNED: bool = true;

    #[inline(always)]
    fn full_of(ring: Ring) -> (Shared<Mbarrier>, u32) {
        (Self::full(ring.slot), ring.parity)
    }

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
        let word = |j: usize| ((own[j] - own[0]) * unit) | (chunks << 16);
        bring_starts::<GROUPS, F::L>(p, piece, (tile, slot), word);
        let (to, full) = (Self::a(p, slot), Self::full(slot));
        F::L::expect(full, lane, counts + chunks * 12 + Self::B_BYTES as u32, false);
        let team = Team { thread: lane, threads: 32 };
        let first = p.words().row(tile, BYTE_COUNTS as u64);
        F::L::line(team, to, first, counts, full);
        if chunks != 0 {
            let places = p.words().at(p.places as u64 + own[0] as u64);
            F::L::long_line(team, to.bytes(COUNTS), places, chunks * 4, full);
            let values = p.values().row(own[0], 32u32);
            F::L::long_line(team, to.bytes(COUNTS + chunks * 4), values, chunks * 8, full);
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
        F::L::tile(team, to.bytes(half * N as u32 * 2), map, [piece.column, k + half], shape, full);
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
fn addresses(places: u32, bank: Shared<u8>) -> [u32; 4] {
    let (lines, halves) = (places & 0xfefe_fefe, places & 0x0101_0101);
    [0, 8, 16, 24]
        .map(|at| bits::dp4a(lines, 64 << at, bits::dp4a(halves, 2 << at, bank.address())))
}

/// Stores four values, or zeros, at [`addresses`] if `valid`.
#[inline(always)]
fn store(to: [u32; 4], values: [u32; 4], valid: bool) {
    // SAFETY: the addresses are in an expanded tile: the host's positions have 7 bits of a line and 1 bit of a half.
    unsafe { bits::store_halves(to, values, valid) }
}

#[inline(always)]
fn halves([a, b]: [u32; 2]) -> [u32; 4] {
    [a, a >> 16, b, b >> 16]
}

impl<W: WalkInfo, E: ThinElem, const GROUPS: usize, const N: usize, F> Kernel<W, E, BitmapParams>
    for ByteTile<GROUPS, N, F>
where
    F: BitForm<A: MultiplyThin, L: Loader>,
{
    #[inline(always)]
    unsafe fn run(p: &BitmapParams, at: Maps) {
        let threads = [GROUPS as u32 * 128, Self::PRODUCER_THREADS];
        if Self::start(p, at, threads, GROUPS as u32 * WARPS) {
            Self::consume::<E>(p);
        }
    }
}
