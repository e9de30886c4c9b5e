//! The product without a warp that only copies: more than eight warps on a multiprocessor leave a thread 168 registers,
//! too few for the sums of 64 x 64 and what they are made of. All eight warps start the copies of a stage, then multiply
//! one that has arrived. A thread copies the same places of every stage.

use super::consumer::Epilogue;
use crate::device::mma::MmaElem;
use crate::device::prelude::*;
use crate::families::gemm::abi::*;

/// Threads of a thread block.
const THREADS: u32 = CONSUMERS * 32;
/// Bytes that they copy at once.
const SWEEP: usize = THREADS as usize * 16;
/// Sweeps of a stage's A.
const A_SWEEPS: usize = 2 * SMEM_TILE / SWEEP;

/// The stage that is started next.
struct Feed {
    strip: Strip,
    round: u32,
    /// Stages of the strip that have been started.
    started: u32,
    slot: u32,
    /// Words of its record, and those of this thread's rows of A and B.
    head: [u32; 4],
    a: [u32; 4],
    b: [u32; 4],
}

impl<
    const PM: usize,
    const PK: usize,
    const CHUNKS: usize,
    const ORDER: u32,
    const BYTES: usize,
    A: AtomInfo,
    L: Loader,
> Panel<PM, PK, CHUNKS, ORDER, BYTES, A, L>
{
    const B_SWEEPS: usize = CHUNKS * SMEM_TILE / SWEEP;

    /// Of a byte of A's part of a stage: half, slice, piece, row of the piece and byte of the row. Rows lie along k
    /// where A's pieces do not.
    #[inline(always)]
    fn a_source(byte: usize) -> [usize; 5] {
        let (half, byte) = (byte / SMEM_TILE, byte % SMEM_TILE);
        let row_bytes = Self::A_ROW;
        if ORDER & A_COLUMNS == 0 {
            let (slice, byte) = (byte / (HALF * row_bytes), byte % (HALF * row_bytes));
            let (row, byte) = (byte / row_bytes, byte % row_bytes);
            [half, slice, row / PM, row % PM, byte]
        } else {
            let piece_bytes = Self::DEPTH * row_bytes;
            let (piece, byte) = (byte / piece_bytes, byte % piece_bytes);
            let (row, byte) = (byte / row_bytes, byte % row_bytes);
            [half, row / PK, piece, row % PK, byte]
        }
    }

    /// Of a byte of B's part of a stage: slice, row of it and column in bytes; rows lie along k or, by columns, along n.
    #[inline(always)]
    fn b_source(byte: usize) -> [usize; 3] {
        if ORDER & B_COLUMNS == 0 {
            let (chunk, byte) = (byte / SMEM_TILE, byte % SMEM_TILE);
            let (row, byte) = (byte / PANEL_BYTES, byte % PANEL_BYTES);
            [row / PK, row % PK, chunk * PANEL_BYTES + byte]
        } else {
            let row_bytes = PK * BYTES;
            let slice_bytes = CHUNKS * 64 * row_bytes;
            let (slice, byte) = (byte / slice_bytes, byte % slice_bytes);
            [slice, byte / row_bytes, byte % row_bytes]
        }
    }

    /// This thread's place of a sweep in a part of a stage, and that of what is copied there, before rows of
    /// `row_bytes` are swizzled.
    #[inline(always)]
    fn own(sweep: usize, row_bytes: usize) -> [usize; 2] {
        let to = sweep * SWEEP + gpu::rematerialize_thread() as usize * 16;
        let from =
            if row_bytes == 0 { to } else { frag::swizzled(to as u32, row_bytes as u32) as usize };
        [to, from]
    }

    const A_SWIZZLED: usize = if ORDER & IN_REGISTERS == 0 { Self::A_ROW } else { 0 };
    const B_SWIZZLED: usize = if ORDER & B_COLUMNS == 0 { PANEL_BYTES } else { PK * BYTES };

    /// Reads the words of the next stage ahead of its start.
    #[inline(always)]
    fn look(p: &WgmmaParams, feed: &mut Feed) {
        let valid = feed.strip.row != NO_STRIP;
        let at = (feed.strip.record + feed.started) as u64 * (Self::RECORD * 4) as u64;
        let record = p.records + at;
        feed.head = global::load_v4(record, valid);
        let word =
            |index: usize| global::load_b32(record + (RECORD_HEAD + index) as u64 * 4, valid);
        unroll!(i < A_SWEEPS, most 4, {
            let [half, slice, piece, _, _] = Self::a_source(Self::own(i, Self::A_SWIZZLED)[1]);
            let own = (slice * 2 + half) * Self::PIECES + piece;
            feed.a[i] = word(Self::SLICES + own);
        });
        unroll!(i < 4, {
            if i < Self::B_WORDS {
                let [slice, _, _] = Self::b_source(Self::own(i, Self::B_SWIZZLED)[1]);
                feed.b[i] = word(slice);
            }
        });
    }

    /// Sweeps after which the slices of B repeat: those of a chunk of 64 columns, or of all.
    const B_WORDS: usize = if Self::SLICES == 1 {
        1
    } else if ORDER & B_COLUMNS == 0 {
        SMEM_TILE / SWEEP
    } else if Self::B_SWEEPS < 4 {
        Self::B_SWEEPS
    } else {
        4
    };

    /// The next strip with stages.
    #[inline(always)]
    fn seek(p: &WgmmaParams, feed: &mut Feed) {
        while feed.strip.row != NO_STRIP && feed.started >= feed.strip.stages {
            feed.strip = Self::strip(p, feed.round);
            feed.round += 1;
            feed.started = 0;
        }
    }

    /// Starts the copies of a stage, if there is one left.
    #[inline(always)]
    fn feed(p: &WgmmaParams, feed: &mut Feed) {
        if feed.strip.row != NO_STRIP {
            Self::start_stage(p, feed);
            feed.started += 1;
            Self::seek(p, feed);
            Self::look(p, feed);
            feed.slot = if feed.slot + 1 == Self::STAGES as u32 { 0 } else { feed.slot + 1 };
        }
        copy::copy_commit();
    }

    #[inline(always)]
    fn start_stage(p: &WgmmaParams, feed: &Feed) {
        let stage = Self::stage(feed.slot);
        let [mask, _, _, sixteenths] = feed.head;
        if gpu::thread() == 0 {
            copy::store_shared_v2(Self::mask(feed.slot), [mask, sixteenths]);
        }
        let step_of = |slice: usize| slice * PK / Self::STEP_DEPTH;
        unroll!(i < A_SWEEPS, most 4, {
            let [to, from] = Self::own(i, Self::A_SWIZZLED);
            let [half, slice, _, row, byte] = Self::a_source(from);
            let x = if half == 0 { feed.head[1] } else { feed.head[2] };
            let wanted = mask >> (2 * step_of(slice) + half) & 1 != 0;
            let byte = x * BYTES as u32 + byte as u32;
            Self::start_chunk(&p.a_map, stage + to as u32, [feed.a[i] + row as u32, byte], wanted);
        });
        unroll!(i < Self::B_SWEEPS, {
            let [to, from] = Self::own(i, Self::B_SWIZZLED);
            let [slice, row, byte] = Self::b_source(from);
            let wanted = mask >> (2 * step_of(slice)) & 3 != 0;
            let word = feed.b[i % Self::B_WORDS];
            let first = feed.strip.item * p.b_item;
            let to = stage + (2 * SMEM_TILE + to) as u32;
            let place = if ORDER & B_COLUMNS == 0 {
                let byte = feed.strip.column * BYTES as u32 + byte as u32;
                [first + word + row as u32, byte]
            } else {
                let byte = word * BYTES as u32 + byte as u32;
                [first + feed.strip.column + row as u32, byte]
            };
            Self::start_chunk(&p.b_map, to, place, wanted);
        });
    }

    /// Copies 16 bytes of a row, or zeros where there are none; nothing unless it is `wanted`.
    #[inline(always)]
    fn start_chunk(map: &MapWords, to: u32, [row, byte]: [u32; 2], wanted: bool) {
        let [width, height] = [map[MAP_EXTENTS] as u32, (map[MAP_EXTENTS] >> 32) as u32];
        let inside = row < height && byte < width;
        let row = if inside { row } else { 0 };
        let byte = if inside { byte } else { 0 };
        let from = map[MAP_ADDRESS] + row as u64 * map[MAP_STRIDES] + byte as u64;
        if wanted {
            if inside && width - byte < 16 {
                // A size that is not known costs a dozen instructions: only where a row ends.
                copy::copy_async_16(to, from, width - byte);
            } else {
                gather::copy_or_zero(to, from, inside);
            }
        }
    }

    /// All strips of this thread block.
    #[inline(always)]
    pub(super) fn run_fed<E: MmaElem, P>(p: &P)
    where
        Self: Epilogue<E, P, CHUNKS>,
    {
        let (params, p) = (p, Self::product(p));
        let group = gpu::thread() / 128;
        let mut feed = Feed {
            strip: Self::strip(p, 0),
            round: 1,
            started: 0,
            slot: 0,
            head: [0; 4],
            a: [0; 4],
            b: [0; 4],
        };
        Self::seek(p, &mut feed);
        Self::look(p, &mut feed);
        unroll!(_s < Self::STAGES - 1, { Self::feed(p, &mut feed) });
        let (mut round, mut slot) = (0, 0);
        loop {
            let [row, stages] = Self::rows_and_stages(p, round);
            if row == NO_STRIP {
                break;
            }
            let mut acc = Acc::<CHUNKS>::zero();
            let mut s = 0;
            while s < stages {
                match Self::STAGES {
                    2 => copy::copy_wait::<0>(),
                    _ => copy::copy_wait::<1>(),
                }
                // Everybody's copies of this stage have ended, and everybody has multiplied the one before.
                gpu::sync_threads();
                Self::feed(p, &mut feed);
                let mask = Self::mask_of(slot, group);
                if mask & 0x55 != 0 {
                    Self::multiply_fragments::<E>(&mut acc, slot, group, mask);
                }
                slot = if slot + 1 == Self::STAGES as u32 { 0 } else { slot + 1 };
                s += 1;
            }
            let strip = Self::strip(p, warp::rematerialize(round));
            Self::epilogue_for(params, strip, group, &mut acc);
            round += 1;
        }
        copy::copy_wait_all();
    }

    /// First row and stages of the strip of a round.
    #[inline(always)]
    fn rows_and_stages(p: &WgmmaParams, round: u32) -> [u32; 2] {
        let strip = Self::strip(p, round);
        [strip.row, strip.stages]
    }
}
