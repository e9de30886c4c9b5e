//! Producer warpgroup: reads the records of its CTA tiles (`Strip`s) one stage ahead, waits for a free stage, and
//! starts the copies of A's pieces and B's slices. A copy is started by one thread with the copy engine, otherwise by
//! one warp. Four warps share the copies, because the lanes of one warp start theirs one after the other.

use crate::device::prelude::*;
use crate::families::gemm::abi::*;

/// A thread's part of a record: the word of its first copy, and one word of the head. The lanes exchange the head by
/// shuffles when they need it. A value loaded equally by all lanes would be moved by ptxas to a uniform register right
/// after the load, and so be waited for one stage too early.
#[derive(Clone, Copy)]
struct Ahead {
    head: u32,
    word: u32,
}

impl Ahead {
    #[inline(always)]
    fn head(self) -> [u32; 4] {
        [0, 1, 2, 3].map(|lane| warp::shfl(self.head, lane))
    }
}

/// Bytes of an L1 cache line.
const LINE: u32 = 128;
/// Sentinel: practically never equal to the OR of record words. A store that depends on it keeps the loads alive.
const NO_WORD: u32 = u32::MAX;

impl<const CHUNKS: usize, F: PanelForm<A: Multiply, L: Loader>> Panel<CHUNKS, F> {
    const COPIES: usize = Self::A_COPIES + Self::B_COPIES;

    /// Index of the record word that copy `i` needs: the k of a slice for B, the row of a piece for A.
    #[inline(always)]
    fn word_of(i: u32) -> u32 {
        let (b_copies, per_slice) = (Self::B_COPIES as u32, (Self::B_COPIES / Self::SLICES) as u32);
        RECORD_HEAD as u32
            + if i < b_copies { i / per_slice } else { Self::SLICES as u32 + i - b_copies }
    }

    #[inline(always)]
    fn fetch(record: Global<u32, ReadOnly>, i: u32, valid: bool) -> Ahead {
        let own = valid && i < Self::COPIES as u32;
        Ahead {
            head: record.at(gpu::thread() % 4).ld_if(valid),
            word: record.at(Self::word_of(i)).ld_if(own),
        }
    }

    #[inline(always)]
    pub(super) fn produce(p: &WgmmaParams, at: Maps) {
        let thread = gpu::thread() - CONSUMER_WARPS * 32;
        // Neighbouring copies belong to different warps.
        let (warps, warp) = (Self::PRODUCER_THREADS / 32, thread / 32);
        let i = thread % 32 * warps + warp;
        let mut ring = Ring::<Self>::producer();
        let head = p.heads().row(gpu::block_x(), (Self::RECORD * 4) as u64);
        let mut next = Self::fetch(head, i, true);
        let mut later = Self::strip(p, 0);
        let (mut touched, mut touching) = (0, Self::touch(p, later, thread));
        let mut round = 0;
        while later.row != NO_STRIP {
            let strip = later;
            let place = [strip.column, strip.item * p.b_item];
            let mut record = Self::record(p, strip);
            round += 1;
            later = Self::strip(p, round);
            // Used one CTA tile later: the load is complete by then.
            touched |= touching;
            touching = Self::touch(p, later, thread);
            if strip.stages == 0 {
                next = Self::fetch(Self::record(p, later), i, later.stages > 0);
            }
            let mut s = 0;
            while s < strip.stages {
                let now = next;
                let here = record;
                record = record.at(Self::RECORD as u64);
                s += 1;
                if s < strip.stages {
                    next = Self::fetch(record, i, true);
                } else {
                    next = Self::fetch(Self::record(p, later), i, later.stages > 0);
                }
                let slot = ring.wait_empty();
                let head = now.head();
                let full = Self::full(slot);
                F::L::expect(full, thread, Self::announce(slot, thread, head), true);
                let mut first = 0;
                let mut word = now.word;
                loop {
                    let left = (Self::COPIES as u32 - first).min(Self::PRODUCER_THREADS);
                    F::L::each((left + warps - 1 - warp) / warps, word, |lane, word| {
                        Self::start(p, at, slot, first + lane * warps + warp, head, place, word);
                    });
                    first += Self::PRODUCER_THREADS;
                    if first >= Self::COPIES as u32 {
                        break;
                    }
                    let own = first + i < Self::COPIES as u32;
                    word = here.at(Self::word_of(first + i)).ld_if(own);
                }
                F::L::started(full, thread);
                ring.advance();
            }
        }
        // Not an empty `L::wait_own()`: after it, rustc orders the blocks at the end of the loop differently, and two kernels
        // need more registers.
        if !F::L::BY_ONE {
            F::L::wait_own();
        }
        if touched == NO_WORD {
            Self::scratch().at(2).st(touched);
        }
    }

    /// Loads the records of a CTA tile into L1, a line for each thread, long before they are read one by one. The
    /// result must be used somewhere.
    #[inline(always)]
    fn touch(p: &WgmmaParams, strip: Strip, thread: u32) -> u32 {
        let bytes = strip.stages * (Self::RECORD * 4) as u32;
        let valid = strip.row != NO_STRIP && thread * LINE < bytes;
        Self::record(p, strip).bytes(thread * LINE).ld_if(valid)
    }

    /// Address of the first record of a CTA tile.
    #[inline(always)]
    fn record(p: &WgmmaParams, strip: Strip) -> Global<u32, ReadOnly> {
        p.records().row(strip.record, (Self::RECORD * 4) as u64)
    }

    /// Stores the stage's mask for the consumers and returns the bytes to expect. Only the first thread does so; the
    /// others return 0.
    #[inline(always)]
    fn announce(slot: u32, thread: u32, [mask, _, _, sixteenths]: [u32; 4]) -> u32 {
        if thread != 0 {
            return 0;
        }
        let slices = (mask | mask >> 1) & 0x55;
        let a = if F::ORDER & IN_REGISTERS != 0 && F::PK > 1 {
            sixteenths.count_ones() * (SMEM_TILE / STEPS / 4) as u32
        } else {
            mask.count_ones() * (SMEM_TILE / STEPS) as u32
        };
        let b = slices.count_ones() * (CHUNKS * SMEM_TILE / STEPS) as u32;
        Self::mask(slot).st([mask, sixteenths]);
        a + b
    }

    /// Starts copy `i` of a stage, unless the mask shows that its data is not multiplied.
    #[inline(always)]
    fn start(
        p: &WgmmaParams,
        at: Maps,
        slot: u32,
        i: u32,
        head: [u32; 4],
        [column, first]: [u32; 2],
        word: u32,
    ) {
        let mask = head[0];
        let (stage, full) = (Self::stage(slot), Self::full(slot));
        let b_copies = Self::B_COPIES as u32;
        let step_of = |slice: u32| slice * F::PK as u32 / Self::STEP_DEPTH as u32;
        if i < b_copies {
            let chunks = (Self::B_COPIES / Self::SLICES) as u32;
            let (slice, chunk) = (i / chunks, i % chunks);
            if mask >> (2 * step_of(slice)) & 3 == 0 {
                return;
            }
            let b_tile = stage.bytes(2 * SMEM_TILE as u32);
            if F::ORDER & B_COLUMNS == 0 {
                let to = b_tile
                    .bytes(chunk * SMEM_TILE as u32)
                    .bytes(slice * (F::PK * PANEL_BYTES) as u32);
                let place = [column + chunk * 64, first + word];
                F::L::tile(
                    Team::warp(),
                    to,
                    (at.map(1), &p.b_map),
                    place,
                    Self::shape(F::PK, HALF),
                    full,
                );
            } else {
                let to = b_tile.bytes(slice * (CHUNKS * 64 * F::PK * F::BYTES) as u32);
                let place = [word, first + column];
                let shape = Self::shape(CHUNKS * 64, F::PK);
                F::L::tile(Team::warp(), to, (at.map(1), &p.b_map), place, shape, full);
            }
        } else if i < Self::COPIES as u32 {
            let i = i - b_copies;
            let pieces = Self::PIECES as u32;
            let (slice, group, piece) = (i / (2 * pieces), i / pieces % 2, i % pieces);
            if mask >> (2 * step_of(slice) + group) & 1 != 0 {
                let place = Self::a_place(slice as usize, piece as usize);
                let to = stage.bytes(group * SMEM_TILE as u32).bytes(place as u32);
                Self::start_a(p, at, to, group, head, word, full);
            }
        }
    }

    /// Starts the copy of a piece of A to shared memory at `to`.
    #[inline(always)]
    fn start_a(
        p: &WgmmaParams,
        at: Maps,
        to: Shared<u8>,
        group: u32,
        [_, column_0, column_1, _]: [u32; 4],
        word: u32,
        full: Shared<Mbarrier>,
    ) {
        let x = if group == 0 { column_0 } else { column_1 };
        if F::ORDER & IN_REGISTERS != 0 {
            let from = if F::ORDER & A_COLUMNS == 0 {
                p.a().row(word, (F::PK * F::BYTES) as u64)
            } else {
                p.a().bytes((word as u64 * p.a_row as u64 + x as u64) * F::BYTES as u64)
            };
            if word != ABSENT {
                F::L::line(Team::warp(), to, from, (F::PM * F::PK * F::BYTES) as u32, full);
            } else if F::PK == 1 {
                // Columns of a step are stored side by side, so an absent column is still multiplied.
                F::L::line(Team::warp(), to, p.zeros(), (F::PM * F::PK * F::BYTES) as u32, full);
            }
        } else {
            let shape = if F::ORDER & A_COLUMNS == 0 {
                Self::shape(F::PM, F::PK)
            } else {
                Self::shape(F::PK, F::PM)
            };
            F::L::tile(Team::warp(), to, (at.map(0), &p.a_map), [x, word], shape, full);
        }
    }

    /// Shape of `rows` rows of `columns` elements.
    #[inline(always)]
    fn shape(rows: usize, columns: usize) -> Shape {
        Shape { rows, row_bytes: columns * F::BYTES, element: F::BYTES }
    }
}
