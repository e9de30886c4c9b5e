//! Output-stationary gather-GEMM-scatter on Tensor Cores. A thread block computes 128 output rows (blockIdx.x, by the
//! schedule) by a tile of columns (blockIdx.y). Producers and consumers iterate over the kernel offsets at which any of
//! these rows has a neighbour, and for each offset over stages of 128 bytes of channels. Two or four warps are
//! producers; two warpgroups are consumers of 64 rows each.
//!
//! ```text
//! producer   row indices of the offset 6 ahead: global -> shared (cp.async, one group for each offset)
//!            wait for the indices of this offset -> wait empty[s] -> input rows by index: global -> shared (swizzled
//!            cp.async of 16 bytes), the offset's matrix: TMA by one thread, or cp.async -> full[s] completes
//! consumer   wait full[s] -> issue the products of s -> wait for those of s-1 -> release s-1
//!            a warpgroup whose 64 rows have no neighbour at the offset releases s unread
//! end        registers -> output buffer of the warpgroup -> scattered rows of the output
//! ```
//!
//! With `mma.sync`, and with TF32 (A in registers), a warp waits for the products of s and releases s itself. With
//! `mma.sync`, one warpgroup multiplies all 128 rows, both halves if one has a neighbour; indices are 3 offsets ahead, and
//! the output buffers overlap the stages. Each output row is written once, so neither atomics nor zeroing are needed.
//! `parts` and `words` serve the modules `conv_grad`, `conv_pairs` and `conv_simt`.

mod elem;
mod matrices;
pub mod offsets;
mod out;
pub mod parts;
pub mod words;

use crate::device::prelude::*;
use crate::families::gather_gemm::abi::*;
use elem::ConvElem;
use matrices::Matrices;
use offsets::Offsets;

buffers! {
    // `ConvProduct` and `WeightGradient` check the alignment of the operands, their callers the
    // shapes (`host/core/ops/conv.rs`, `host/core/offer/run.rs`). Indices of a `KernelMap` are below its
    // numbers of rows.
    unsafe ConvParams {
        input: u8, Fresh;
        out: u8, ReadWrite;
        bias: u8, ReadWrite;
        neighbours: u32, ReadOnly;
        order: u32, ReadOnly;
        masks: u32, ReadOnly;
        schedule: u32, ReadOnly;
    }
    // As above. `WeightGradient` makes the parts, of existing blocks of 64 positions.
    unsafe ConvWordsParams {
        weights: u8, Fresh;
        parts: [u32; 4], ReadOnly;
    }
}

/// Position of the prefetch of row indices: the remaining kernel offsets, and the number of those already prefetched.
struct Ahead {
    offsets: Offsets,
    entry: u32,
}

impl<const CHUNKS: usize, F: GatheredForm> Stages for Gathered<CHUNKS, F> {
    const COUNT: usize = Self::STAGES;
    const STRIDE: usize = Self::STAGE;
    const FIRST_BARRIER: usize = Self::BARRIERS;
}

impl<const CHUNKS: usize, F: GatheredForm> Gathered<CHUNKS, F> {
    /// Number of this thread block's tile of 128 positions.
    #[inline(always)]
    fn tile(p: &ConvParams) -> u32 {
        p.schedule().at(gpu::block_x()).ld()
    }

    /// Returns 1 if a half is gathered and multiplied. Without `wgmma`, both are if one has neighbours: a fragment of the
    /// matrix serves both, and code for one half costs registers.
    #[inline(always)]
    fn own(halves: u32, half: u32) -> u32 {
        halves >> half & 1 | halves.min(Self::TOGETHER)
    }

    #[inline(always)]
    fn set_up<P: Matrices>(at: Maps) {
        if gpu::thread() == 0 {
            // Arrivals of every producer thread, and of the copy of the matrix.
            Self::make_barriers(Self::PRODUCER_THREADS + P::ARRIVALS, Self::CONSUMER_WARPS);
            P::prefetch(at);
        }
        gpu::sync_threads();
    }

    /// Producer: fills the ring. Eight adjacent threads, a *group*, copy 128 bytes of each of [`Self::SHARE`] rows. All
    /// rows of a warp belong to one half of the tile.
    #[inline(always)]
    fn produce<P: Matrices>(params: &P, at: Maps) {
        let p = params.base();
        let thread = gpu::thread() - Self::CONSUMER_WARPS * 32;
        let tile = Self::tile(p);
        let (group, chunk) = (thread / 8, thread % 8);
        let warpgroup = thread / (Self::PRODUCER_THREADS / 2);
        let mut offsets = Offsets::of(p, tile);
        let mut ahead = Ahead { offsets: Offsets::of(p, tile), entry: 0 };
        while ahead.entry < Self::AHEAD {
            warp::nounroll();
            Self::look_up(p, &mut ahead, tile, warpgroup);
        }
        let mut ring = Ring::<Self>::producer();
        let mut entry = 0;
        loop {
            let (offset, halves) = offsets.next::<false>();
            if offset == CONV_ABSENT {
                break;
            }
            Self::look_up(p, &mut ahead, tile, warpgroup);
            // Waits for the row indices of this offset. Lanes of this warp copied them, so a warp barrier suffices.
            // Copies of stages belong to the same groups. Those waited for here are so old that their stages were
            // refilled.
            if F::A::ASYNCHRONOUS {
                copy::cp_async_wait::<CONV_AHEAD>();
            } else {
                copy::cp_async_wait::<CONV_AHEAD_SYNC>();
            }
            warp::sync(u32::MAX);
            let own = Self::own(halves, warpgroup) != 0;
            let rows = Self::index(entry).at(group * Self::SHARE as u32);
            entry += 1;
            let mut k = 0;
            while k < p.depth_bytes {
                ring.wait_empty();
                let full = ring.full();
                let b_tile = Self::stage(ring.slot).bytes(2 * SMEM_TILE as u32);
                let place = [gpu::block_y() * Self::COLUMNS, k / F::BYTES as u32, offset];
                params.start::<Self>((b_tile, full), place, (thread, at));
                if own {
                    let to = Self::stage(ring.slot).bytes(group * Self::SHARE as u32 * 128);
                    Self::gather(p, to, k + chunk * 16, chunk, rows);
                }
                full.arrive_after_copies();
                ring.advance();
                k += 128;
            }
        }
        copy::cp_async_wait_all();
    }

    /// Returns the shared address of the row indices of kernel offset number `entry`.
    #[inline(always)]
    fn index(entry: u32) -> Shared<u32> {
        // SAFETY: `SHARED_BYTES` of the tile includes all entries.
        let first = unsafe { Shared::<u32>::dynamic(Self::INDEX as u32) };
        first.at(entry % Self::ENTRIES * CONV_ROWS as u32)
    }

    /// Starts the copy of the row indices that this warp reads at the next offset, if there is one. Each call commits
    /// one group of copies, also without an offset, so that the number of pending groups identifies an offset.
    #[inline(always)]
    fn look_up(p: &ConvParams, ahead: &mut Ahead, tile: u32, warpgroup: u32) {
        let thread = gpu::thread() - Self::CONSUMER_WARPS * 32;
        let (warp, lane) = (thread / 32, thread % 32);
        let (offset, halves) = ahead.offsets.next::<false>();
        let row = warp * (4 * Self::SHARE as u32) + lane * 4;
        let place = offset as u64 * p.stride as u64 + (tile * CONV_ROWS as u32 + row) as u64;
        let yes = Self::own(halves, warpgroup) != 0 && lane < Self::SHARE as u32;
        let to = Self::index(ahead.entry).at(row);
        p.neighbours().at(place).cp_async_16_if(to, yes as u32);
        copy::cp_async_commit();
        ahead.entry += 1;
    }

    /// Starts copies of 16 bytes from byte `column` of [`Self::SHARE`] rows, whose indices are stored at `rows`.
    /// Missing rows are filled with zeros.
    #[inline(always)]
    fn gather(p: &ConvParams, to: Shared<u8>, column: u32, chunk: u32, rows: Shared<u32>) {
        let bytes = p.depth_bytes.saturating_sub(column).min(16);
        // A size known only at run time costs a dozen instructions a copy.
        if bytes == 16 {
            Self::copy_rows(p, (p.input().bytes(column), 16), to, chunk, rows);
        } else {
            // The address past the last channel may be out of bounds: column 0 replaces it, and no byte is read.
            let column = if bytes > 0 { column } else { 0 };
            Self::copy_rows(p, (p.input().bytes(column), bytes), to, chunk, rows);
        }
    }

    /// Starts copies of `bytes` bytes of each row; `input` is the address in row 0.
    #[inline(always)]
    fn copy_rows(
        p: &ConvParams,
        (input, bytes): (Global<u8, Fresh>, u32),
        to: Shared<u8>,
        chunk: u32,
        rows: Shared<u32>,
    ) {
        // Hidden from the optimizer: eight offsets kept in registers through the loop would be too many.
        let chunk = warp::opaque(chunk);
        unroll!(i < Self::SHARE / 4, most 4, {
            let four = rows.cast::<[u32; 4]>().at(i as u32).ld();
            unroll!(j < 4, {
                let valid = four[j] != CONV_ABSENT;
                let row = if valid { four[j] } else { 0 };
                let from = input.row(row, p.in_bytes);
                let r = (i * 4 + j) as u32;
                let to = to.bytes(r * 128).bytes((chunk ^ (r & 7)) * 16);
                from.cp_async_16(to, if valid { bytes } else { 0 });
            });
        });
    }

    /// Consumer: multiplies the rows of this warpgroup, one half of the tile or both, and stores them. It waits for every
    /// stage, because all warps share the ring.
    #[inline(always)]
    fn consume<E: ConvElem>(p: &ConvParams)
    where
        F::A: Multiply,
    {
        let warpgroup = gpu::thread() / 128;
        let tile = Self::tile(p);
        let mut offsets = Offsets::of(p, tile);
        // Without `wgmma`: of each half. Otherwise the second is unused.
        let mut acc = [Acc::<CHUNKS>::zero(), Acc::zero()];
        let mut ring = Ring::<Self>::consumer();
        let mut any = 0;
        let (mut offset, mut halves) = offsets.next::<true>();
        while offset != CONV_ABSENT {
            // A constant without `wgmma`, which leaves registers.
            let own = Self::own(halves, warpgroup) | Self::TOGETHER;
            any |= own;
            let mut k = 0;
            while k < p.depth_bytes {
                let slot = ring.wait_full();
                if own != 0 {
                    // `cp.async` wrote the gathered rows through the generic proxy; `wgmma` reads by the async proxy.
                    F::A::fence_proxy_async();
                    let (smem, b_tile) = Self::operands(slot, warpgroup);
                    match (F::A::ASYNCHRONOUS, F::ORDER & B_COLUMNS != 0) {
                        (true, true) => E::multiply::<F::A, CHUNKS, 0>(&mut acc[0], smem, b_tile),
                        (true, false) => E::multiply::<F::A, CHUNKS, 1>(&mut acc[0], smem, b_tile),
                        (false, true) => E::multiply_two::<CHUNKS, 0>(&mut acc, smem, b_tile),
                        (false, false) => E::multiply_two::<CHUNKS, 1>(&mut acc, smem, b_tile),
                    }
                    if F::A::ASYNCHRONOUS && !E::IN_REGISTERS {
                        F::A::wait::<CHUNKS, 1>(&mut acc[0]);
                        ring.retire();
                    } else {
                        F::A::wait::<CHUNKS, 0>(&mut acc[0]);
                        Self::release(slot);
                    }
                } else {
                    F::A::wait::<CHUNKS, 0>(&mut acc[0]);
                    ring.flush();
                    Self::release(slot);
                }
                ring.advance();
                k += 128;
            }
            (offset, halves) = offsets.next::<true>();
        }
        F::A::wait::<CHUNKS, 0>(&mut acc[0]);
        if !F::A::ASYNCHRONOUS {
            // The output buffers overlap stages that other warps may still read.
            barrier::sync_named(1, Self::CONSUMER_WARPS * 32);
        }
        unroll!(i < 2, {
            if i < Self::HALVES {
                Self::epilogue::<E>(p, tile, warpgroup + i as u32, any, &mut acc[i]);
            }
        });
    }
}

impl<W: WalkInfo, E: ConvElem, P: Matrices, const CHUNKS: usize, F: GatheredForm<A: Multiply>>
    Kernel<W, E, P> for Gathered<CHUNKS, F>
{
    #[inline(always)]
    unsafe fn run(p: &P, at: Maps) {
        Self::set_up::<P>(at);
        if gpu::thread() >= Self::CONSUMER_WARPS * 32 {
            Self::produce(p, at);
        } else {
            Self::consume::<E>(p.base());
        }
    }
}
