//! The warp that copies: A's words and values as they lie, B by boxes or element by element.

use super::Ring;
use crate::abi::*;
use crate::device::gpu;
use crate::device::ptx::{barrier, bits, bulk, copy, global, warp};

/// Stages whose starts a warp holds at once: one each lane.
const AHEAD: u32 = 32;

/// Where the values of a stage's tiles start, and where the last one's end, in units of 8 slots.
/// Five at the most.
type Starts = [u32; 8];

impl<const GROUPS: usize, const N: usize, const ALIGNED: bool> BitTile<GROUPS, N, ALIGNED> {
    #[inline(always)]
    pub(super) fn produce(p: &BitmapParams, at: u64) {
        // A ring that starts empty: the first wait for a free stage passes.
        let mut ring = Ring { slot: 0, parity: 1 };
        let mut later = p.piece(0);
        let mut round = 0;
        while later.height != 0 {
            let piece = later;
            round += 1;
            later = p.piece(round);
            let mut next = starts::<GROUPS>(p, piece, 0);
            let mut stage = 0;
            while stage < piece.stages {
                let now = next;
                // On their way while these stages are copied.
                next = starts::<GROUPS>(p, piece, stage + AHEAD);
                let left = piece.stages - stage;
                let count = if left < AHEAD { left } else { AHEAD };
                let mut i = 0;
                while i < count {
                    let mut own = [0; 8];
                    unroll!(j < GROUPS + 1, {
                        own[j] = warp::shuffle::<32>(now[j], i, u32::MAX)
                    });
                    barrier::wait(Self::empty(ring.slot), ring.parity);
                    Self::copy(p, at, piece, stage + i, own, ring.slot);
                    ring.advance(p.stages);
                    i += 1;
                }
                stage += AHEAD;
            }
        }
    }

    /// Starts the copies of one stage.
    #[inline(always)]
    fn copy(p: &BitmapParams, at: u64, piece: BitPiece, stage: u32, own: Starts, slot: u32) {
        let tile = piece.tile + stage * piece.step;
        let k = (piece.place + stage) * BIT_TILE as u32;
        if !ALIGNED {
            Self::copy_b(p, k, piece.column, Self::b(slot));
            bits::fence_async();
            warp::sync_lanes(u32::MAX);
        }
        if gpu::thread() % 32 != 0 {
            return;
        }
        // The last start is that behind the last tile there is.
        let values = (own[GROUPS] - own[0]) * 16;
        let words = piece.height * BIT_BYTES as u32;
        let at_words = Self::a(p, slot);
        let at_values = at_words + (GROUPS * BIT_BYTES) as u32;
        let mut offsets = [0; 8];
        unroll!(j < GROUPS, {
            offsets[j] = at_values + (own[j] - own[0]) * 16
        });
        let [a, b, c, d, ..] = offsets;
        copy::store_shared_v4(Self::offsets(slot), [a, b, c, d]);
        let full = Self::full(slot);
        let b = if ALIGNED { Self::B_BYTES as u32 } else { 0 };
        barrier::arrive_expect(full, words + values + b);
        bulk::load_line(
            at_words,
            p.words + tile as u64 * BIT_BYTES as u64,
            words,
            full,
        );
        if values != 0 {
            bulk::load_line(at_values, p.values + own[0] as u64 * 16, values, full);
        }
        if ALIGNED {
            bulk::load(Self::b(slot), at, piece.column, k, full);
        }
    }

    /// B's 64 rows from `k`, element by element, laid out as the copy engine would: 16-byte chunks swizzled within the
    /// length of a row. What lies past the last row or column is zero.
    #[inline(always)]
    fn copy_b(p: &BitmapParams, k: u32, column: u32, to: u32) {
        let chunks = (N / 8) as u32;
        let mut index = gpu::thread() % 32;
        while index < BIT_TILE as u32 * chunks {
            let (row, chunk) = (index / chunks, index % chunks);
            index += 32;
            let first = column + chunk * 8;
            let there = k + row < p.k && first < p.n;
            let left = if there { p.n - first } else { 0 };
            let from = p.b + (k + row) as u64 * p.ldb_bytes as u64 + first as u64 * 2;
            let four = [0u32, 2, 4, 6].map(|i| {
                let low = global::load_b16(from + i as u64 * 2, i < left);
                low | global::load_b16(from + i as u64 * 2 + 2, i + 1 < left) << 16
            });
            let swizzled = chunk ^ ((row * chunks / 8) % chunks);
            copy::store_shared_v4(to + (row * chunks + swizzled) * 16, four);
        }
    }
}

/// This lane's stage of the next [`AHEAD`] from `stage`: starts of its tiles. Past the last tile row, that of the end.
#[inline(always)]
fn starts<const GROUPS: usize>(p: &BitmapParams, piece: BitPiece, stage: u32) -> Starts {
    let stage = stage + gpu::thread() % 32;
    let tile = piece.tile + stage * piece.step;
    let mut own = [0; 8];
    unroll!(j < GROUPS + 1, {
        let within = if (j as u32) < piece.height {
            j as u32
        } else {
            piece.height
        };
        let at = p.starts + (tile as u64 + within as u64) * 4;
        own[j] = global::load_b32(at, stage < piece.stages);
    });
    own
}
