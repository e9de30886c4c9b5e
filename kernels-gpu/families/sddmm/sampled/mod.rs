//! SDDMM at the blocks of a pattern, on Tensor Cores: a persistent thread block for each multiprocessor computes
//! windows of 128 rows by 256 or 128 gathered columns, and stores the blocks of the pattern. The ring of stages, the
//! producer and consumer warps and the split-K fix-up are those of the module `wgmma`.

mod out;

use super::stages::{self, index};
use crate::device::fill::make_ring;
use crate::device::prelude::*;
use crate::families::sddmm::abi::*;

buffers! {
    // `Sampler::new` makes the lists from the pattern and allocates the workspaces for all slots and counters.
    // `OnGpu::arrays_of` checks that S and the mask have this pattern.
    unsafe SampledParams {
        windows: [u32; 4], ReadOnly;
        columns: u32, ReadOnly;
        places: u32, ReadOnly;
        values<E: Elem>: E, ReadWrite;
        mask<E: Elem>: E, ReadOnly;
        partial: [u32; 4], Fresh;
        counters: u32, Fresh;
    }
}

/// Window of this thread block in a round; its row is `NO_STRIP` past the last round.
#[inline(always)]
fn window(p: &SampledParams, round: u32) -> Window {
    let valid = round < p.rounds;
    let at = p.windows().bytes(index(round) * size_of::<Window>() as u64);
    let [row, window, live, stage] = at.ld_if(valid);
    let [stages, first, parts, counter] = at.at(1u32).ld_if(valid);
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

impl<const CHUNKS: usize, F: WindowForm> Stages for Sampled<CHUNKS, F> {
    /// A stage holds X's two halves, then Y's chunks of 64 columns.
    const COUNT: usize = Self::STAGES;
    const STRIDE: usize = Self::STAGE;
    const FIRST_BARRIER: usize = Self::BARRIERS;
}

impl<const CHUNKS: usize, F: WindowForm<A: Multiply, L: Loader>> Sampled<CHUNKS, F> {
    /// Whether X and Y are contiguous along k.
    const X_ALONG: bool = F::ORDER & A_COLUMNS == 0;
    const Y_ALONG: bool = F::ORDER & B_COLUMNS != 0;

    /// Address of two words for the split-K fix-up of the warpgroups.
    #[inline(always)]
    fn scratch() -> Shared<u32> {
        // SAFETY: the host launches with `SHARED_BYTES`, which include these words.
        unsafe { Shared::dynamic((Self::BARRIERS + Self::STAGES * 16) as u32) }
    }

    /// Descriptor of a warpgroup's X for a step of 16 along k.
    #[inline(always)]
    fn x(smem: Shared<u8>, step: usize) -> u64 {
        stages::operand(smem, step, Self::X_ALONG, PANEL_BYTES as u32)
    }

    /// Descriptor of Y for a step of 16 along k, from a chunk on.
    #[inline(always)]
    fn y(chunk: Shared<u8>, step: usize) -> u64 {
        stages::operand(chunk, step, Self::Y_ALONG, F::P as u32 * 2)
    }

    /// Starts all copies. A copy of a stage is a half of X or a piece of Y. It writes to the same offset of every
    /// stage, 64 further along k each time. A thread holds the position across k of one copy.
    #[inline(always)]
    fn produce(p: &SampledParams, at: Maps) {
        let own = stages::own_copy::<F::L>();
        let piece = own.wrapping_sub(2);
        let column = |round: u32, valid: bool| {
            let at = p.columns().at(index(round) * Self::PIECES as u64 + piece as u64);
            at.ld_if(valid && piece < Self::PIECES as u32)
        };
        let mut ring = Ring::<Self>::producer();
        let mut round = 0;
        let mut later = window(p, 0);
        let mut place = column(0, later.row != NO_STRIP);
        while later.row != NO_STRIP {
            let now = later;
            let pieces = now.live >> 8;
            let across = if own < 2 { now.row + own * HALF as u32 } else { place };
            let halves = u32::from(now.live & 15 != 0) + u32::from(now.live >> 4 & 15 != 0);
            let bytes = halves * SMEM_TILE as u32 + pieces * Self::PIECE as u32;
            round += 1;
            later = window(p, round);
            place = column(round, round < p.rounds);
            let mut k = now.stage * 64;
            let end = k + now.stages * 64;
            while k < end {
                let own = [own, across];
                stages::fill::<_, F::L>(&mut ring, bytes, 2 + pieces, own, |slot, i, across| {
                    let wanted = match i {
                        0 | 1 => now.live >> (4 * i) & 15 != 0,
                        _ => i - 2 < pieces,
                    };
                    if wanted {
                        Self::start(p, at, (slot, i), [k, across]);
                    }
                });
                k += 64;
            }
        }
        F::L::wait_own();
    }

    /// Starts copy `i` of a stage, from these positions along and across k.
    #[inline(always)]
    fn start(p: &SampledParams, at: Maps, (slot, i): (u32, u32), [k, across]: [u32; 2]) {
        let team = stages::team();
        let place = |along: bool| if along { [k, across] } else { [across, k] };
        // 64 deep, `width` across.
        let shape = |along: bool, width: usize| match along {
            true => Shape { rows: width, row_bytes: PANEL_BYTES, element: 2 },
            false => Shape { rows: PANEL_BYTES / 2, row_bytes: 2 * width, element: 2 },
        };
        let (stage, full) = (Self::stage(slot), Self::full(slot));
        if F::L::BY_ONE {
            // One instruction for both operands: two in divergent lanes would be issued one after the other.
            let (to, at, along) = match i {
                0 | 1 => (i * SMEM_TILE as u32, at.map(0), Self::X_ALONG),
                _ => {
                    (2 * SMEM_TILE as u32 + (i - 2) * Self::PIECE as u32, at.map(1), Self::Y_ALONG)
                }
            };
            let shape = shape(along, F::P);
            F::L::tile(team, stage.bytes(to), (at, &p.x_map), place(along), shape, full);
        } else if i < 2 {
            let to = stage.bytes(i * SMEM_TILE as u32);
            let shape = shape(Self::X_ALONG, HALF);
            F::L::tile(team, to, (at.map(0), &p.x_map), place(Self::X_ALONG), shape, full);
        } else {
            let to = stage.bytes(2 * SMEM_TILE as u32 + (i - 2) * Self::PIECE as u32);
            let shape = shape(Self::Y_ALONG, F::P);
            F::L::tile(team, to, (at.map(1), &p.y_map), place(Self::Y_ALONG), shape, full);
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
            // `uniform` tells ptxas that the value is the same in all lanes (C7519).
            let live = warp::uniform(now.live >> (4 * warpgroup) & 15);
            let mut acc = Acc::<CHUNKS>::zero();
            let mut s = 0;
            while s < now.stages {
                let slot = ring.wait_full();
                if live == 0 {
                    Self::release(slot);
                } else {
                    F::A::fence(&mut acc);
                    Self::multiply::<E>(&mut acc, slot, warpgroup, live);
                    ring.issued::<F::A, _>(&mut acc);
                }
                ring.advance();
                s += 1;
            }
            ring.drain::<F::A, _>(&mut acc);
            if live != 0 {
                Self::epilogue::<E>(p, now, warpgroup, live, &mut acc);
            }
        }
    }

    /// Issues the products of one stage, two chunks at a time. Single chunks would read X from shared memory as often
    /// as Y. A choice between all chunks and some takes more registers than are available (C7511).
    #[inline(always)]
    fn multiply<E: WgmmaElem>(acc: &mut Acc<CHUNKS>, slot: u32, warpgroup: u32, live: u32) {
        const { assert!(!F::A::QUARTERS || CHUNKS <= 2, "quarters: at most two chunks") };
        let (smem, b_tile) = Self::operands(slot, warpgroup);
        unroll!(pair < CHUNKS / 2, most 4, {
            if live >> (2 * pair) & 3 != 0 {
                let mut two = Acc([acc.0[2 * pair], acc.0[2 * pair + 1]]);
                let chunk = b_tile.bytes(2 * pair as u32 * SMEM_TILE as u32);
                unroll!(step < STEPS, {
                    let (x, y) = (Self::x(smem, step), Self::y(chunk, step));
                    F::A::mma_ordered::<E, 2>(&mut two, x, y, F::ORDER);
                });
                [acc.0[2 * pair], acc.0[2 * pair + 1]] = two.0;
            }
        });
    }
}

impl<W: WalkInfo, E: WgmmaElem, const CHUNKS: usize, F: WindowForm<A: Multiply, L: Loader>>
    Kernel<W, E, SampledParams> for Sampled<CHUNKS, F>
{
    #[inline(always)]
    unsafe fn run(p: &SampledParams, at: Maps) {
        make_ring::<Self, F::L, 2>(at, F::L::arrivals(PRODUCER_THREADS, false));
        roles!(F::A: Self::produce(p, at), Self::consume::<E>(p));
    }
}
