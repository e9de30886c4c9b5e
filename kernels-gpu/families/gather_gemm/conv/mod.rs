//! Gather-GEMM-scatter on Hopper's Tensor Cores, stationary in the output: two or four warps gather rows of the input by index
//! (16 bytes a copy, swizzled on the way) and start the tensor copy of the offset's matrix, two warpgroups multiply, 64 rows
//! of the output each. Every row of the output is written once: no atomics, nothing to set to zero before.

pub mod offsets;
mod out;
pub mod parts;
pub mod words;

use crate::abi::*;
use crate::device::elem::Elem;
use crate::device::gpu;
use crate::device::kernel::Kernel;
use crate::device::ptx::wgmma::{self, Acc};
use crate::device::ptx::{barrier, bulk, copy, gather, global, matrix, warp};
use crate::device::stages::{NONE, Stages};
use crate::device::warpgroup::WgmmaElem;
use crate::families::gather_gemm::abi::*;
use crate::frag;
use offsets::Offsets;

/// Warps that multiply.
const CONSUMERS: u32 = 8;
/// The offsets whose rows are looked up, and how many have been.
struct Ahead {
    offsets: Offsets,
    entry: u32,
}

/// An element with a product of a stage, 64 rows by 128 bytes at `slab` with the matrix at `panel`.
pub trait ConvElem: Elem<Acc = f32> {
    /// Whether the stage may be read after `multiply` has returned.
    const LATER: bool;
    /// Issues the `wgmma`s of a stage. `TB` 1: the matrix is contiguous along the columns.
    fn multiply<const C: usize, const TB: i32>(acc: &mut Acc<C>, slab: u32, panel: u32);
}

/// The matrix of a step of 32 bytes of channels.
#[inline(always)]
fn matrix_of<const TB: i32>(panel: u32, step: usize) -> u64 {
    if TB == 1 {
        frag::descriptor(panel + step as u32 * 16 * 128, 128, SLAB as u32)
    } else {
        frag::descriptor(panel + step as u32 * 32, 128, 16)
    }
}

macro_rules! halves {
    ($($elem:ident)*) => {$(
        impl ConvElem for $elem {
            const LATER: bool = true;
            #[inline(always)]
            fn multiply<const C: usize, const TB: i32>(acc: &mut Acc<C>, slab: u32, panel: u32) {
                acc.fence();
                unroll!(step < 4, {
                    let a = frag::descriptor(slab + step as u32 * 32, 128, 16);
                    <$elem as WgmmaElem>::mma::<C, 0, TB>(acc, a, matrix_of::<TB>(panel, step));
                });
                wgmma::commit();
            }
        }
    )*};
}

halves!(F16 Bf16);

impl ConvElem for Tf32 {
    const LATER: bool = false;
    /// A through registers, where it is rounded; the copy engine has rounded the matrix.
    #[inline(always)]
    fn multiply<const C: usize, const TB: i32>(acc: &mut Acc<C>, slab: u32, panel: u32) {
        let (warp, lane) = (gpu::thread_again() / 32 % 4, gpu::thread_again() % 32);
        let (row, chunk) = frag::ldmatrix_x4(lane);
        let row = warp * 16 + row;
        let mut a = [[0u32; 4]; 4];
        unroll!(step < 4, {
            let from = slab + frag::swizzle(row, 2 * step as u32 + chunk, 128);
            a[step] = matrix::ldmatrix_x4(from).map(matrix::round_tf32);
        });
        acc.fence();
        unroll!(step < 4, {
            acc.mma_tf32_registers(a[step], matrix_of::<0>(panel, step));
        });
        wgmma::commit();
    }
}

impl<const CHUNKS: usize, const ORDER: u32, const BYTES: usize> Stages
    for Gathered<CHUNKS, ORDER, BYTES>
{
    const COUNT: usize = Self::STAGES;
    const STRIDE: usize = Self::STAGE;
    const FIRST_BARRIER: usize = Self::BARRIERS;
}

impl<const CHUNKS: usize, const ORDER: u32, const BYTES: usize> Gathered<CHUNKS, ORDER, BYTES> {
    /// The tile of this thread block.
    #[inline(always)]
    fn tile(p: &ConvParams) -> u32 {
        global::load_b32(p.schedule + gpu::block_x() as u64 * 4, true)
    }

    #[inline(always)]
    fn set_up(at: u64) {
        if gpu::thread() == 0 {
            // Every thread that gathers, and the copy of the matrix.
            Self::make_barriers(Self::COPIERS + 1, CONSUMERS);
            bulk::prefetch_map(at);
        }
        gpu::sync_threads();
    }

    #[inline(always)]
    fn produce(p: &ConvParams, at: u64) {
        let thread = gpu::thread() - CONSUMERS * 32;
        let tile = Self::tile(p);
        let (group, chunk) = (thread / 8, thread % 8);
        let half = thread / (Self::COPIERS / 2);
        let mut offsets = Offsets::of(p, tile);
        let mut ahead = Ahead {
            offsets: Offsets::of(p, tile),
            entry: 0,
        };
        while ahead.entry < CONV_AHEAD {
            warp::stay_rolled();
            Self::look_up(p, &mut ahead, tile, half);
        }
        // A ring that starts empty: the first wait for a free stage passes.
        let mut ring = (0, 1);
        let mut entry = 0;
        loop {
            let (offset, halves) = offsets.next::<false>();
            if offset == NONE {
                break;
            }
            Self::look_up(p, &mut ahead, tile, half);
            // Copies of stages end by the way, older ones than may still be under way.
            copy::copy_wait::<CONV_AHEAD>();
            warp::sync_lanes(u32::MAX);
            let own = halves >> half & 1 != 0;
            let rows = Self::index(entry) + group * Self::SHARE as u32 * 4;
            entry += 1;
            let mut k = 0;
            while k < p.depth_bytes {
                barrier::wait(Self::empty(ring.0), ring.1);
                let full = Self::full(ring.0);
                if thread == 0 {
                    Self::start_matrix(at, offset, k / BYTES as u32, ring.0);
                }
                if own {
                    let to = Self::stage(ring.0) + group * Self::SHARE as u32 * 128;
                    Self::gather(p, to, k + chunk * 16, chunk, rows);
                }
                gather::arrive_with_copies(full);
                ring = Self::next(ring);
                k += 128;
            }
        }
        copy::copy_wait_all();
    }

    /// Where the rows of an offset, counted from the first, stand.
    #[inline(always)]
    fn index(entry: u32) -> u32 {
        copy::arena() + Self::INDEX as u32 + entry % CONV_ENTRIES * (CONV_ROWS * 4) as u32
    }

    /// Starts the copy of the rows that this warp gathers at the next offset, if there is one: a group of copies for each.
    #[inline(always)]
    fn look_up(p: &ConvParams, ahead: &mut Ahead, tile: u32, half: u32) {
        let thread = gpu::thread() - CONSUMERS * 32;
        let (warp, lane) = (thread / 32, thread % 32);
        let (offset, halves) = ahead.offsets.next::<false>();
        let row = warp * (4 * Self::SHARE as u32) + lane * 4;
        let place = offset as u64 * p.stride as u64 + (tile * CONV_ROWS as u32 + row) as u64;
        let yes = halves >> half & 1 != 0 && lane < Self::SHARE as u32;
        let to = Self::index(ahead.entry) + row * 4;
        copy::copy_async_whole(to, p.neighbours + place * 4, yes as u32);
        copy::copy_commit();
        ahead.entry += 1;
    }

    /// Starts the copies of 16 bytes from byte `column` on of [`Self::SHARE`] rows, whose numbers lie at `rows`; zeros where there is
    /// none.
    #[inline(always)]
    fn gather(p: &ConvParams, to: u32, column: u32, chunk: u32, rows: u32) {
        let bytes = p.depth_bytes.saturating_sub(column).min(16);
        // A size that is not known costs a dozen instructions a copy.
        if bytes == 16 {
            Self::copy_rows(p, (p.input + column as u64, 16), to, chunk, rows);
        } else {
            // What lies behind the last channel is not read: its address may be past the end.
            let column = if bytes > 0 { column } else { 0 };
            Self::copy_rows(p, (p.input + column as u64, bytes), to, chunk, rows);
        }
    }

    /// Starts the copies of so many bytes of each row from an address in the first row on.
    #[inline(always)]
    fn copy_rows(p: &ConvParams, (input, bytes): (u64, u32), to: u32, chunk: u32, rows: u32) {
        // Here and now: eight places kept through the loop would be too many.
        let chunk = warp::again(chunk);
        unroll!(i < Self::SHARE / 4, most 4, {
            let four = copy::load_shared_v4(rows + i as u32 * 16);
            unroll!(j < 4, {
                let there = four[j] != CONV_ABSENT;
                let row = if there { four[j] } else { 0 };
                let from = input + row as u64 * p.in_bytes as u64;
                let r = (i * 4 + j) as u32;
                let to = to + r * 128 + (chunk ^ (r & 7)) * 16;
                copy::copy_async_16(to, from, if there { bytes } else { 0 });
            });
        });
    }

    /// Starts the copy of a stage's part of the matrix; one thread.
    #[inline(always)]
    fn start_matrix(at: u64, offset: u32, channel: u32, slot: u32) {
        let (full, panel) = (Self::full(slot), Self::stage(slot) + 2 * SLAB as u32);
        let column = gpu::block_y() * Self::COLUMNS;
        barrier::arrive_expect(full, Self::PANEL as u32);
        if ORDER & B_COLUMNS != 0 {
            bulk::load_3d(panel, at, [channel, column, offset], full);
        } else {
            unroll!(c < CHUNKS, most 4, {
                let place = [column + c as u32 * 64, channel, offset];
                bulk::load_3d(panel + (c * SLAB) as u32, at, place, full);
            });
        }
    }

    #[inline(always)]
    fn consume<E: ConvElem>(p: &ConvParams) {
        let half = gpu::thread() / 128;
        let tile = Self::tile(p);
        let mut offsets = Offsets::of(p, tile);
        let mut acc = Acc::<CHUNKS>::zero();
        let mut ring = (0, 0);
        let mut held = NONE;
        let mut any = 0;
        let (mut offset, mut halves) = offsets.next::<true>();
        while offset != NONE {
            let own = halves >> half & 1;
            any |= own;
            let mut k = 0;
            while k < p.depth_bytes {
                let slot = ring.0;
                barrier::wait(Self::full(slot), ring.1);
                if own != 0 {
                    // The gathered rows were written by ordinary copies.
                    barrier::fence_copies();
                    let slab = Self::stage(slot) + half * SLAB as u32;
                    let panel = Self::stage(slot) + 2 * SLAB as u32;
                    if ORDER & B_COLUMNS != 0 {
                        E::multiply::<CHUNKS, 0>(&mut acc, slab, panel);
                    } else {
                        E::multiply::<CHUNKS, 1>(&mut acc, slab, panel);
                    }
                    if E::LATER {
                        acc.wait::<1>();
                        Self::free(held);
                        held = slot;
                    } else {
                        acc.wait::<0>();
                        Self::free(slot);
                    }
                } else {
                    acc.wait::<0>();
                    Self::free(held);
                    Self::free(slot);
                    held = NONE;
                }
                ring = Self::next(ring);
                k += 128;
            }
            (offset, halves) = offsets.next::<true>();
        }
        acc.wait::<0>();
        Self::leave::<E>(p, tile, half, any, &mut acc);
    }
}

impl<W: WalkInfo, E: ConvElem, const CHUNKS: usize, const ORDER: u32, const BYTES: usize>
    Kernel<W, E, ConvParams> for Gathered<CHUNKS, ORDER, BYTES>
{
    #[inline(always)]
    unsafe fn run(p: &ConvParams, at: u64) {
        Self::set_up(at);
        if gpu::thread() >= CONSUMERS * 32 {
            Self::produce(p, at);
        } else {
            Self::consume::<E>(p);
        }
    }
}
