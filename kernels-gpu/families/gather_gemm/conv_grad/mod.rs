//! Gradient of a convolution's weights on Tensor Cores: `dW[t,c,m] = In[i,c] * dOut[o,m]` over the pairs of an offset.
//! A thread block takes some blocks of 64 positions of one offset, gathers both rows of each pair, and stores a partial
//! sum, without atomics. A position without a neighbour is two rows of zeros: an unpaired row is never multiplied.

use super::conv::parts::{Places, corner};
use crate::device::fill::make_ring;
use crate::device::prelude::*;
use crate::families::gather_gemm::abi::*;

impl<const GROUPS: usize, const CHUNKS: usize, A: AtomInfo> Stages
    for GatheredPairs<GROUPS, CHUNKS, A>
{
    const COUNT: usize = Self::STAGES;
    const STRIDE: usize = Self::STAGE;
    const FIRST_BARRIER: usize = Self::BARRIERS;
}

impl<const GROUPS: usize, const CHUNKS: usize, A: Multiply> GatheredPairs<GROUPS, CHUNKS, A> {
    /// Returns the input and output row of each of this thread's positions among 64, from `row` on.
    #[inline(always)]
    fn rows(
        p: &ConvWordsParams,
        line: Global<u32, ReadOnly>,
        half: u32,
        row: u32,
    ) -> [[u32; 2]; 8] {
        let valid = half != CONV_ABSENT;
        let mut rows = [[0; 2]; 8];
        unroll!(j < Self::SHARE, {
            let r = (j * CONV_HALF / Self::SHARE) as u32 + row;
            let position = half as u64 * CONV_HALF as u64 + r as u64;
            rows[j] = [line, p.base.order()].map(|list| list.at(position).ld_if(valid));
        });
        rows
    }

    #[inline(always)]
    fn produce(p: &ConvWordsParams) {
        let thread = gpu::thread() - CONSUMER_WARPS * 32;
        let mut places = Places::of(p);
        let (channel, column) = corner::<Self>(p);
        // The threads gather several rows at a time; this thread copies 16 bytes of each.
        let (row, chunk) = (thread / 8, thread % 8);
        let line = p.base.neighbours().at(places.part.offset as u64 * p.base.stride as u64);
        let firsts = [channel * 2 + chunk * 16, column * 2 + chunk * 16];
        // Larger tiles lack registers for the addresses of both variants.
        let whole = GROUPS + CHUNKS == 2
            && firsts[0] + 16 <= p.base.depth_bytes
            && firsts[1] + 16 <= p.base.n * 2;
        let mut ring = Ring::<Self>::producer();
        let mut half = places.next();
        let mut ahead = Self::rows(p, line, half, row);
        while half != CONV_ABSENT {
            let rows = ahead;
            half = places.next();
            // In flight while this stage is waited for and gathered.
            ahead = Self::rows(p, line, half, row);
            ring.wait_empty();
            if whole {
                Self::gather::<true>(p, Self::stage(ring.slot), firsts, &rows);
            } else {
                Self::gather::<false>(p, Self::stage(ring.slot), firsts, &rows);
            }
            ring.full().arrive_after_copies();
            ring.advance();
        }
        copy::cp_async_wait_all();
    }

    /// Starts the copies of this thread's rows of a stage, from bytes `firsts` on. `WHOLE`: all 16 bytes exist in every
    /// shared-memory tile. A size known only at run time costs a dozen instructions a copy.
    #[inline(always)]
    fn gather<const WHOLE: bool>(
        p: &ConvWordsParams,
        stage: Shared<u8>,
        firsts: [u32; 2],
        rows: &[[u32; 2]; 8],
    ) {
        let thread = gpu::opaque_thread() - CONSUMER_WARPS * 32;
        let (row, chunk) = (thread / 8, thread % 8);
        unroll!(j < Self::SHARE, {
            let r = (j * CONV_HALF / Self::SHARE) as u32 + row;
            let [input, output] = rows[j];
            let valid = input != CONV_ABSENT;
            let [input, output] = [input, output].map(|row| if valid { row } else { 0 });
            let to = stage.bytes(r * 128).bytes((chunk ^ (r & 7)) * 16);
            let from = p.base.input().row(input, p.base.in_bytes);
            let of = (from, p.base.depth_bytes);
            Self::copy::<GROUPS, WHOLE>(to, of, valid, firsts[0]);
            let from = p.weights().row(output, p.weights_bytes);
            let of = (from, p.base.n * 2);
            let to = to.bytes((GROUPS * SMEM_TILE) as u32);
            Self::copy::<CHUNKS, WHOLE>(to, of, valid, firsts[1]);
        });
    }

    /// Starts copies of 16 bytes for each of `COUNT` shared-memory tiles, from byte `first` of a row on. Bytes past the
    /// end of the row are zero.
    #[inline(always)]
    fn copy<const COUNT: usize, const WHOLE: bool>(
        to: Shared<u8>,
        (row, bytes): (Global<u8, Fresh>, u32),
        valid: bool,
        first: u32,
    ) {
        unroll!(c < COUNT, most 4, {
            let first = first + c as u32 * 128;
            let to = to.bytes((c * SMEM_TILE) as u32);
            let from = row.bytes(first);
            if WHOLE {
                from.cp_async_16(to, if valid { 16 } else { 0 });
            } else {
                let inside = bytes.saturating_sub(first).min(16);
                let inside = if valid { inside } else { 0 };
                let from = if inside > 0 { from } else { row };
                from.cp_async_16(to, inside);
            }
        });
    }

    #[inline(always)]
    fn consume<E: WgmmaElem>(p: &ConvWordsParams) {
        let group = gpu::thread() / 128;
        let count = Places::of(p).part.count;
        let mut acc = Acc::<CHUNKS>::zero();
        let mut ring = Ring::<Self>::consumer();
        let mut done = 0;
        while done < count {
            let slot = ring.wait_full();
            if GROUPS > 1 || done % 2 == group {
                A::fence_proxy_async();
                let own = if GROUPS > 1 { group * SMEM_TILE as u32 } else { 0 };
                let smem = Self::stage(slot).bytes(own);
                let b_tile = Self::stage(slot).bytes((GROUPS * SMEM_TILE) as u32);
                A::fence(&mut acc);
                unroll!(step < 4, {
                    let deep = step as u32 * 16 * 128;
                    let a = smem.bytes(deep).descriptor(128, SMEM_TILE as u32);
                    let b = b_tile.bytes(deep).descriptor(128, SMEM_TILE as u32);
                    A::mma::<E, CHUNKS, 1, 1>(&mut acc, a, b);
                });
                ring.issued::<A, _>(&mut acc);
            } else {
                ring.drain::<A, _>(&mut acc);
                Self::release(slot);
            }
            done += 1;
            ring.advance();
        }
        A::wait::<CHUNKS, 0>(&mut acc);
        // SAFETY: the accumulators of a warpgroup fit into the ring of a tile with one group. They are stored after its
        // last stage is read, between two barriers.
        let lent = unsafe { Shared::<[u32; 2]>::dynamic(0) };
        let beside = lent.at(gpu::opaque_thread() % 128);
        if GROUPS == 1 {
            Self::lend(group, beside, &acc);
        }
        if GROUPS > 1 || group == 0 {
            Self::epilogue(p, group, beside, &acc);
        }
    }

    /// Stores the second warpgroup's accumulators for the first one, in stages that are no longer read.
    #[inline(always)]
    fn lend(group: u32, to: Shared<[u32; 2]>, acc: &Acc<CHUNKS>) {
        barrier::sync_named(1, CONSUMER_WARPS * 32);
        if group == 1 {
            unroll!(c < CHUNKS, most 4, {
                unroll!(j < 8, {
                    unroll!(r < 2, {
                        let two = [0, 1].map(|i| acc.0[c][4 * j + 2 * r + i].to_bits());
                        to.bytes(Self::lent(c, j, r)).st(two);
                    });
                });
            });
        }
        barrier::sync_named(1, CONSUMER_WARPS * 32);
    }

    /// Returns the offset of two accumulators of all threads.
    const fn lent(c: usize, j: usize, r: usize) -> u32 {
        (((c * 8 + j) * 2 + r) * 128 * 8) as u32
    }

    /// Stores the accumulators as `[part, c, m]`.
    #[inline(always)]
    fn epilogue(p: &ConvWordsParams, group: u32, beside: Shared<[u32; 2]>, acc: &Acc<CHUNKS>) {
        let lane = gpu::opaque_thread() % 32;
        let (channel, column) = corner::<Self>(p);
        let top = channel + group * 64 + gpu::opaque_thread() / 32 % 4 * 16 + lane / 4;
        let left = column + lane % 4 * 2;
        let n = p.base.n;
        unroll!(r < 2, {
            let row = top + r as u32 * 8;
            let line = (gpu::block_x() as u64 * p.channels as u64 + row as u64) * n as u64;
            if row < p.channels {
                unroll!(c < CHUNKS, most 4, {
                    unroll!(j < 8, {
                        let column = left + (c * 64 + j * 8) as u32;
                        let at = p.base.out().cast::<u32>().at(line + column as u64);
                        let mut two = [0, 1].map(|i| acc.0[c][4 * j + 2 * r + i]);
                        if GROUPS == 1 {
                            let lent = beside.bytes(Self::lent(c, j, r)).ld();
                            two = [0, 1].map(|i| two[i] + f32::from_bits(lent[i]));
                        }
                        let two = two.map(f32::to_bits);
                        if n % 2 == 0 {
                            if column < n {
                                at.cast::<[u32; 2]>().st(two);
                            }
                        } else {
                            at.st_if(two[0], column < n);
                            at.at(1u32).st_if(two[1], column + 1 < n);
                        }
                    });
                });
            }
        });
    }
}

impl<W: WalkInfo, E: WgmmaElem, const GROUPS: usize, const CHUNKS: usize, A: Multiply>
    Kernel<W, E, ConvWordsParams> for GatheredPairs<GROUPS, CHUNKS, A>
{
    #[inline(always)]
    unsafe fn run(p: &ConvWordsParams, maps: Maps) {
        make_ring::<Self, CpAsync, 0>(maps, Self::PRODUCER_THREADS);
        if gpu::thread() >= CONSUMER_WARPS * 32 {
            Self::produce(p);
        } else {
            Self::consume::<E>(p);
        }
    }
}
