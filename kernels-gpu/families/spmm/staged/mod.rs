//! SpMM with B in shared memory. A lane owns a row of A and 32 columns of C, so an entry's value and column are in the
//! lane's registers, and nothing is broadcast. Shared memory serves eight lanes at once. In each step these eight read
//! different 16-byte pieces of a row of B, which are in different banks whatever the rows. Tiles of B are loaded by the
//! tensor copy engine, and stay until the slowest lane has passed them.

mod joins;
mod out;
mod resident;

use super::chunk::{Chunk, Slots};
use crate::device::prelude::*;
use crate::device::stages::share_barriers;
use crate::families::spmm::abi::*;

/// 16-byte pieces of a row of B.
const PIECES: usize = STAGED_ROW as usize / 16;

/// Lanes that hold a row of sums, four columns each.
const ACROSS: u32 = STAGED_COLUMNS / 4;
/// Rows of sums that a warp holds at once: a unit.
const UNIT_ROWS: u32 = 32 / ACROSS;

/// Accumulators of a lane: those of step `t` belong to piece `lane ^ t` of the lane's row.
type Acc = [[f32; 4]; PIECES];

buffers! {
    // `host/core/families/spmm/staged.rs` makes the lists from the pattern of A, and checks the alignment and the strides.
    // `ProductPlan` checks the shapes and the pattern.
    unsafe StagedParams {
        offsets: u32, ReadOnly;
        windows: u32, ReadOnly;
        rows: u32, ReadOnly;
        columns: u16, ReadWrite;
        values: u8, ReadWrite;
        c<E: Elem>: E, ReadWrite;
        pieces: [u32; 4], ReadOnly;
        others: [u32; 2], ReadOnly;
        spans: [u32; 4], ReadOnly;
        joins: [u32; 4], ReadOnly;
    }
}

impl StagedParams {
    #[inline(always)]
    fn chunks(&self) -> Slots {
        Slots { windows: self.windows(), columns: self.columns(), values: self.values() }
    }
}

/// The shared memory of the thread block.
#[inline(always)]
fn shared() -> Shared<u8> {
    // SAFETY: the host launches with the `SHARED_BYTES` of the tile, which count all of its areas.
    unsafe { Shared::dynamic(0) }
}

/// Position in the ring of tiles, with the parity of its round.
#[derive(Clone, Copy)]
struct Place {
    tile: u32,
    slot: u32,
    parity: u32,
}

impl Place {
    const START: Place = Place { tile: 0, slot: 0, parity: 0 };

    #[inline(always)]
    fn advance(&mut self) {
        self.tile += 1;
        self.slot += 1;
        if self.slot == RING {
            self.slot = 0;
            self.parity ^= 1;
        }
    }
}

impl<const WARPS: u32, const PARTS: u32> Staged<WARPS, PARTS> {
    #[inline(always)]
    fn full(slot: u32) -> Shared<Mbarrier> {
        shared().bytes(Self::BARRIERS).cast().at(slot)
    }

    #[inline(always)]
    fn empty(slot: u32) -> Shared<Mbarrier> {
        Self::full(slot).at(RING)
    }

    /// Initializes the barriers and the row of zeros, before any load: see [`share_barriers`].
    #[inline(always)]
    fn set_up(at: Maps) {
        share_barriers(WARPS + 1, RING, |slot| {
            Self::full(slot).init(1);
            Self::empty(slot).init(WARPS);
        });
        let thread = gpu::thread();
        if thread == WARPS * 32 {
            at.map(0).prefetch();
        }
        if thread < STAGED_ROW / 16 {
            shared().bytes(Self::ZEROS).cast::<[u32; 4]>().at(thread).st([0; 4]);
        }
    }

    /// Copies the tiles of B, each to a slot that all warps have released. Runs in one thread. Returns when the last
    /// tile has arrived, so that shared memory can be reused.
    #[inline(always)]
    fn produce(p: &StagedParams, at: Maps) {
        let column = gpu::block_y() * Self::COLUMNS;
        let mut place = Place::START;
        while place.tile < p.tiles {
            let full = Self::full(place.slot);
            if place.tile >= RING {
                full.wait(place.parity ^ 1);
                Self::empty(place.slot).wait(place.parity ^ 1);
            }
            full.arrive_expect_tx(STAGED_TILE);
            let to = shared().bytes(place.slot * STAGED_TILE);
            at.map(0).load_2d(to, [column, place.tile * K_TILE as u32], full);
            place.advance();
        }
        let mut tile = p.tiles.saturating_sub(RING);
        while tile < p.tiles {
            let round = tile / RING;
            Self::full(tile - round * RING).wait(round & 1);
            tile += 1;
        }
    }

    /// Releases the tiles before `first`, and waits for those before `end`. Every tile is waited for before its
    /// release, needed or not, so that the warp misses no round of its barriers. Tiles from `first` on are waited for
    /// only after these releases, because the producer may need the slots to proceed.
    #[inline(always)]
    fn turn(have: &mut Place, freed: &mut Place, [first, end]: [u32; 2]) {
        if freed.tile < first {
            // One lane arrives for the warp, once all lanes have read.
            warp::sync(u32::MAX);
            while freed.tile < first {
                if have.tile == freed.tile {
                    Self::full(have.slot).wait(have.parity);
                    have.advance();
                }
                if gpu::thread() % 32 == 0 {
                    Self::empty(freed.slot).arrive();
                }
                freed.advance();
            }
        }
        while have.tile < end {
            Self::full(have.slot).wait(have.parity);
            have.advance();
        }
    }

    /// Returns the slice of a warp. Slices are sorted by length and distributed to thread blocks back and forth.
    #[inline(always)]
    fn slice(warp: u32) -> u32 {
        let (turn, blocks) = (warp / PARTS, gpu::grid_x());
        let back = blocks - 1 - gpu::block_x();
        turn * blocks + if turn % 2 == 0 { gpu::block_x() } else { back }
    }

    /// Returns the chunks of this warp's part of its slice: every [`Tile::PARTS`]th from the first number to the
    /// second.
    #[inline(always)]
    fn chunks(p: &StagedParams, slice: u32, warp: u32) -> [u32; 2] {
        let inside = slice < p.slices && warp < WARPS;
        let at = p.offsets().at(slice);
        let first = at.ld_if(inside) + warp % PARTS;
        [first, at.at(1u32).ld_if(inside)]
    }

    /// Returns a warp's sums over its chunks, of which the first two are already loading.
    #[inline(always)]
    fn consume<E: Elem<Acc = f32>>(p: &StagedParams, chunks: [u32; 2], ahead: [Chunk; 2]) -> Acc {
        let (mut have, mut freed) = (Place::START, Place::START);
        let acc = sums::<E>(p, (chunks, PARTS), ahead, Self::ZEROS, |window| {
            Self::turn(&mut have, &mut freed, window);
            freed.slot * K_TILE as u32
        });
        // Releases the tiles that the producer waits for. The last `RING` tiles are not overwritten.
        let last = p.tiles.saturating_sub(RING);
        Self::turn(&mut have, &mut freed, [last, 0]);
        acc
    }
}

/// Returns a lane's sums over every `step`th chunk from `first` to `end`, of which the first two are already loading.
/// `zeros` is the offset of the row of zeros. `wait` waits for the tiles of a window, and returns the row of the ring at
/// which they begin.
#[inline(always)]
fn sums<E: Elem<Acc = f32>>(
    p: &StagedParams,
    ([first, end], step): ([u32; 2], u32),
    [mut next, mut later]: [Chunk; 2],
    zeros: u32,
    mut wait: impl FnMut([u32; 2]) -> u32,
) -> Acc {
    let lane = gpu::thread() % 32;
    let own = shared().cast().at(lane % PIECES as u32);
    let mut acc = [[0.0f32; 4]; PIECES];
    let mut chunk = first;
    while chunk < end {
        let now = next;
        next = later;
        if chunk + 2 * step < end {
            later = Chunk::load::<E>(p.chunks(), chunk + 2 * step, lane, true);
        }
        let base = wait(now.window());
        Step::chunk::<E>(|i| Step::in_ring::<E>(&now, i, own, base, zeros), &mut acc);
        chunk += step;
    }
    acc
}

type Pieces = [Raw; PIECES];

/// One step: the lane's value, and the shared address of its row of B.
#[derive(Clone, Copy)]
struct Step {
    value: f32,
    from: Shared<[u32; 4]>,
}

impl Step {
    /// Returns step `i` of a chunk whose window begins at row `base` of the ring. `own` is the lane's first piece of a
    /// row, `zeros` the offset of the row of zeros.
    #[inline(always)]
    fn in_ring<E: Elem<Acc = f32>>(
        chunk: &Chunk,
        i: usize,
        own: Shared<[u32; 4]>,
        base: u32,
        zeros: u32,
    ) -> Step {
        let (local, value) = chunk.entry::<E>(i);
        let row = base + local;
        // Wraps around the ring: the smaller of the two is inside it. Without an entry both are past the end.
        let row = row.min(row.wrapping_sub(RING_ROWS));
        Step { value, from: own.bytes((row * STAGED_ROW).min(zeros)) }
    }

    /// Multiplies the steps of a chunk, with the next step's row loaded ahead.
    #[inline(always)]
    fn chunk<E: Elem<Acc = f32>>(at: impl Fn(usize) -> Step, acc: &mut Acc) {
        let mut step = at(0);
        let mut ahead = step.load();
        unroll!(i < CHUNK_STEPS, {
            let this = step;
            if i + 1 < CHUNK_STEPS {
                step = at(i + 1);
            }
            let held = ahead;
            if i + 1 < CHUNK_STEPS {
                ahead = step.load();
            }
            this.multiply::<E>(&held, acc);
        });
    }

    #[inline(always)]
    fn load(&self) -> Pieces {
        let mut raw = [[0u32; 4]; PIECES];
        unroll!(t < PIECES, {
            raw[t] = self.from.flipped(t as u32 * 16).ld();
        });
        raw
    }

    #[inline(always)]
    fn multiply<E: Elem<Acc = f32>>(&self, raw: &Pieces, acc: &mut Acc) {
        unroll!(t < PIECES, {
            unroll!(i < 4, {
                acc[t][i] = E::fma(self.value, E::get(&raw[t], i), acc[t][i]);
            });
        });
    }
}

impl<W: WalkInfo, E: Elem<Acc = f32>, const WARPS: u32, const PARTS: u32> Kernel<W, E, StagedParams>
    for Staged<WARPS, PARTS>
{
    #[inline(always)]
    unsafe fn run(p: &StagedParams, at: Maps) {
        // Two instances of the body, so that the executed instructions are contiguous: a jump over others stalls on
        // instruction fetch. With one warp a slice, registers do not suffice for two.
        if PARTS > 1 && out::is_plain(p) {
            Self::run_as::<E, true>(p, at);
        } else {
            Self::run_as::<E, false>(p, at);
        }
    }
}

impl<const WARPS: u32, const PARTS: u32> Staged<WARPS, PARTS> {
    #[inline(always)]
    fn run_as<E: Elem<Acc = f32>, const PLAIN: bool>(p: &StagedParams, at: Maps) {
        let warp = gpu::thread() / 32;
        Self::set_up(at);
        // The plan's lists are read while the previous kernel ends (PDL).
        let slice = Self::slice(warp);
        let chunks = Self::chunks(p, slice, warp);
        Self::fetch_rows(p, slice, warp);
        grid::launch_dependents();
        grid::wait_dependency();
        gpu::sync_threads();
        let ahead = Chunk::two::<E>(p.chunks(), chunks, PARTS);
        let mut acc = [[0.0f32; 4]; PIECES];
        if warp < WARPS {
            acc = Self::consume::<E>(p, chunks, ahead);
        } else if gpu::thread() % 32 == 0 {
            Self::produce(p, at);
        }
        gpu::sync_threads();
        if warp < WARPS {
            out::stage_sums(&acc, Self::sums(warp));
        }
        copy::cp_async_wait_all();
        if PARTS > 1 {
            gpu::sync_threads();
        } else {
            warp::sync(u32::MAX);
        }
        if warp < WARPS {
            Self::write::<E, PLAIN>(p, warp);
        }
    }
}
