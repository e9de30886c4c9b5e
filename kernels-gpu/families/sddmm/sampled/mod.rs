//! SDDMM onto a block pattern on Hopper's Tensor Cores: a persistent thread block per multiprocessor computes windows
//! of 128 rows against 256 gathered columns, and stores the blocks that the pattern holds. The ring of stages, the
//! split into copying and multiplying warps and the split-K fix-up are those of the module `wgmma`.

mod out;

use crate::device::prelude::*;
use crate::families::sddmm::abi::*;

#[inline(always)]
fn index(round: u32) -> u64 {
    (round * gpu::grid_x() + gpu::block_x()) as u64
}

/// This thread block's window of a round; none past the last round.
#[inline(always)]
fn window(p: &SampledParams, round: u32) -> Window {
    let valid = round < p.rounds;
    let at = p.windows + index(round) * size_of::<Window>() as u64;
    let [row, window, live, stage] = global::load_v4(at, valid);
    let [stages, first, parts, counter] = global::load_v4(at + 16, valid);
    Window {
        row: if valid { row } else { NO_STRIP },
        window,
        live,
        stage,
        stages,
        first,
        parts,
        counter,
    }
}

impl<const P: usize, const ORDER: u32> Stages for Sampled<P, ORDER> {
    /// A stage is X's halves, then Y's chunks of 64 columns.
    const COUNT: usize = Self::STAGES;
    const STRIDE: usize = Self::STAGE;
    const FIRST_BARRIER: usize = Self::BARRIERS;
}

impl<const P: usize, const ORDER: u32> Sampled<P, ORDER> {
    /// Two words for the warpgroups that fix up.
    #[inline(always)]
    fn scratch() -> u32 {
        copy::arena() + (Self::BARRIERS + Self::STAGES * 16) as u32
    }

    /// X of one warpgroup for a step of 16 along k.
    #[inline(always)]
    fn x(smem: u32, step: usize) -> u64 {
        let row = PANEL_BYTES as u32;
        if ORDER & A_COLUMNS == 0 {
            frag::descriptor(smem + step as u32 * 32, row, 16)
        } else {
            frag::descriptor(smem + step as u32 * 16 * row, row, SMEM_TILE as u32)
        }
    }

    /// Y for a step of 16 along k, from a chunk on.
    #[inline(always)]
    fn y(chunk: u32, step: usize) -> u64 {
        if ORDER & B_COLUMNS != 0 {
            frag::descriptor(chunk + step as u32 * 32, PANEL_BYTES as u32, 16)
        } else {
            let row = P as u32 * 2;
            frag::descriptor(chunk + step as u32 * 16 * row, row, Self::PIECE as u32)
        }
    }

    /// One copy a thread and stage: a half of X or a piece of Y, always to the same place, 64 further along k each
    /// time.
    #[inline(always)]
    fn produce(p: &SampledParams, at: u64) {
        let thread = gpu::thread() % COPIERS;
        // Neighbouring copies in different warps: those that the lanes of a warp start go out one after the other.
        let i = thread % 32 * 4 + thread / 32;
        let piece = i.wrapping_sub(2);
        let column = |round: u32, valid: bool| {
            let at = p.columns + (index(round) * Self::PIECES as u64 + piece as u64) * 4;
            global::load_b32(at, valid && piece < Self::PIECES as u32)
        };
        let (to, map, along_x) = if i < 2 {
            (i * SMEM_TILE as u32, at, ORDER & A_COLUMNS == 0)
        } else {
            let to = 2 * SMEM_TILE as u32 + piece * Self::PIECE as u32;
            (to, at + 128, ORDER & B_COLUMNS != 0)
        };
        let mut ring = Ring::<Self>::producer();
        let mut round = 0;
        let mut later = window(p, 0);
        let mut place = column(0, later.row != NO_STRIP);
        while later.row != NO_STRIP {
            let now = later;
            let valid = if i < 2 { now.live >> (4 * i) & 15 != 0 } else { piece < now.live >> 8 };
            let start = if i < 2 { now.row + i * HALF as u32 } else { place };
            let halves = u32::from(now.live & 15 != 0) + u32::from(now.live >> 4 & 15 != 0);
            let bytes = halves * SMEM_TILE as u32 + (now.live >> 8) * Self::PIECE as u32;
            round += 1;
            later = window(p, round);
            place = column(round, round < p.rounds);
            let mut k = now.stage * 64;
            let end = k + now.stages * 64;
            while k < end {
                let slot = ring.wait_empty();
                let full = Self::arrive_copying(slot, thread, bytes);
                if valid {
                    let (x, y) = if along_x { (k, start) } else { (start, k) };
                    bulk::tma_load_2d(Self::stage(slot) + to, map, x, y, full);
                }
                k += 64;
                ring.advance();
            }
        }
    }

    #[inline(always)]
    fn consume<E: WgmmaElem>(p: &SampledParams) {
        let warpgroup = gpu::thread() / 128;
        let mut later = window(p, 0);
        let mut round = 0;
        let mut ring = Ring::<Self>::consumer();
        while later.row != NO_STRIP {
            let now = later;
            round += 1;
            later = window(p, round);
            // The same for all lanes, and the shuffle tells ptxas so (C7519).
            let live = warp::shuffle::<32>(now.live >> (4 * warpgroup) & 15, 0, u32::MAX);
            let mut acc = Acc::<WINDOW_CHUNKS>::zero();
            let mut s = 0;
            while s < now.stages {
                let slot = ring.wait_full();
                if live == 0 {
                    Self::release_pending(slot);
                } else {
                    acc.fence();
                    Self::multiply::<E>(&mut acc, slot, warpgroup, live);
                    ring.issued::<Wgmma, _>(&mut acc);
                }
                ring.advance();
                s += 1;
            }
            ring.drain::<Wgmma, _>(&mut acc);
            if live != 0 {
                Self::epilogue::<E>(p, now, warpgroup, live, &mut acc);
            }
        }
    }

    /// The `wgmma`s of one stage, two chunks at a time: chunks one by one would read X from shared memory as often as
    /// Y, and a choice between all at once and some takes more registers than there are (C7511).
    #[inline(always)]
    fn multiply<E: WgmmaElem>(acc: &mut Acc<WINDOW_CHUNKS>, slot: u32, warpgroup: u32, live: u32) {
        let (smem, b_tile) = Self::operands(slot, warpgroup);
        unroll!(pair < WINDOW_CHUNKS / 2, {
            if live >> (2 * pair) & 3 != 0 {
                let mut two = Acc([acc.0[2 * pair], acc.0[2 * pair + 1]]);
                let chunk = b_tile + 2 * pair as u32 * SMEM_TILE as u32;
                unroll!(step < STEPS, {
                    E::mma_ordered::<2, ORDER>(&mut two, Self::x(smem, step), Self::y(chunk, step));
                });
                [acc.0[2 * pair], acc.0[2 * pair + 1]] = two.0;
            }
        });
    }
}

impl<W: WalkInfo, E: WgmmaElem, const P: usize, const ORDER: u32> Kernel<W, E, SampledParams>
    for Sampled<P, ORDER>
{
    #[inline(always)]
    unsafe fn run(p: &SampledParams, at: u64) {
        Self::make_ring::<2>(at, COPIERS / 32, CONSUMERS);
        roles!(Self::produce(p, at), Self::consume::<E>(p));
    }
}
