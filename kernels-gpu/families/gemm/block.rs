//! Block SpMM on Tensor Cores (`mma.sync`): a thread block multiplies a run of blocks of one block
//! row by 128 columns of B. The k ranges of the blocks are concatenated and cut into stages of 128
//! bytes, which `cp.async` copies ahead of the arithmetic.

use crate::device::epilogue::{finish, row_bias, scale};
use crate::device::mma::MmaElem;
use crate::device::prelude::*;
use crate::device::split_k::block_arrives_last;
use crate::device::tile::{ATile, BTile};
use crate::families::gemm::abi::*;

/// Accumulators of one lane: `MA` x `NA` atoms.
type Acc<const MA: usize, const NA: usize> = [[[f32; 4]; NA]; MA];

/// Run of blocks that a thread block multiplies.
#[derive(Clone, Copy)]
struct Run {
    row: u32,
    start: u32,
    len: u32,
    column: u32,
}

/// Bytes of a row of B's tile, for 16-bit and 32-bit elements.
const ROW_16: usize = MmaTile::<16, 1, 4, true>::b_row_bytes(Dtype::F16);
const ROW_32: usize = MmaTile::<16, 1, 4, true>::b_row_bytes(Dtype::Tf32);

/// Threads of a thread block, the same for every tile.
const THREADS: u32 = <MmaTile<16, 1, 4, true> as Tile>::THREADS;

impl<W: WalkInfo, E: MmaElem, const B: usize, const MA: usize, const NA: usize, const ALIGNED: bool>
    Kernel<W, E, SpmmParams> for MmaTile<B, MA, NA, ALIGNED>
{
    #[inline(always)]
    unsafe fn run(p: &SpmmParams, _at: Maps) {
        let [row, start, len, slot] = p.items().at(gpu::block_x()).ld();
        let run = Run { row, start, len, column: gpu::block_y() * Self::COLUMNS };
        const {
            assert!(
                B * OUT_ROW as usize <= STAGES * Self::stage_bytes(Dtype::F16),
                "the tile leaves through the shared memory"
            )
        };
        let mut acc = [[[0f32; 4]; NA]; MA];
        let stages = (len * B as u32).div_ceil(Self::stage_k(E::DTYPE) as u32);
        let mut s = 0;
        while s + 1 < STAGES as u32 {
            if s < stages {
                issue::<E, B, ALIGNED>(p, run, s, s * Self::stage_bytes(E::DTYPE) as u32);
            }
            copy::cp_async_commit();
            s += 1;
        }
        let (mut head, mut tail) = (0, (STAGES as u32 - 1) * Self::stage_bytes(E::DTYPE) as u32);
        let end = STAGES as u32 * Self::stage_bytes(E::DTYPE) as u32;
        s = 0;
        while s < stages {
            copy::cp_async_wait::<{ STAGES as u32 - 2 }>();
            gpu::sync_threads();
            if s + (STAGES as u32 - 1) < stages {
                issue::<E, B, ALIGNED>(p, run, s + STAGES as u32 - 1, tail);
            }
            copy::cp_async_commit();
            multiply::<E, B, MA, NA>(head, &mut acc);
            head = advance(head, Self::stage_bytes(E::DTYPE) as u32, end);
            tail = advance(tail, Self::stage_bytes(E::DTYPE) as u32, end);
            s += 1;
        }
        stage_out::<B, MA, NA>(&acc);
        let mut sources = Sources { first: slot, count: 0 };
        if slot != WHOLE_ROW {
            sources = fix_up::<B>(p, slot, run.column);
            if sources.count == 0 {
                return;
            }
        }
        if p.flags & FLAG_VECTORS == 0 {
            write::<E, B, 1>(p, run, sources);
        } else if E::BYTES == 2 {
            write::<E, B, 8>(p, run, sources);
        } else {
            write::<E, B, 4>(p, run, sources);
        }
    }
}

#[inline(always)]
fn advance(at: u32, by: u32, end: u32) -> u32 {
    if at + by == end { 0 } else { at + by }
}

/// First row of the warp's atoms in the block, and first column in the tile.
#[inline(always)]
fn warp_origin<const B: usize, const NA: usize>() -> (u32, u32) {
    let warp = gpu::thread() / 32;
    let across = (BLOCK_COLUMNS / (NA * 8)) as u32;
    (warp / across * 32, warp % across * (NA * 8) as u32)
}

/// Byte `at` of dynamic shared memory: the stages, and after the last of them the tile of sums from byte 0 on.
#[inline(always)]
fn smem(at: u32) -> Shared<u8> {
    // SAFETY: the host launches with the bytes of all stages, and the tile of sums has no more.
    unsafe { Shared::dynamic(at) }
}

/// Starts the copies of stage `s` into dynamic shared memory at byte `at`. Elements past the run,
/// past k or past n are zero-filled.
#[inline(always)]
fn issue<E: MmaElem, const B: usize, const ALIGNED: bool>(
    p: &SpmmParams,
    run: Run,
    s: u32,
    at: u32,
) {
    let smem = smem(at);
    let per_chunk = 16 / E::BYTES;
    let stage_k = PANEL_BYTES as u32 / E::BYTES;
    let mut i = 0;
    while i < (B * 8) as u32 / THREADS {
        let index = gpu::thread() + i * THREADS;
        let (r, chunk) = (index / 8, index % 8);
        let k = s * stage_k + chunk * per_chunk;
        let (block, inner) = (k / B as u32, k % B as u32);
        let element =
            (run.start as u64 + block as u64) * (B * B) as u64 + (r * B as u32 + inner) as u64;
        let bytes = if block < run.len { 16 } else { 0 };
        p.values::<E>().at(element).cp_async_16(ATile(smem).chunk(r, chunk), bytes);
        i += 1;
    }
    let smem = smem.bytes((B * PANEL_BYTES) as u32);
    let chunks = BLOCK_COLUMNS as u32 / per_chunk;
    i = 0;
    while i < stage_k * chunks / THREADS {
        let index = gpu::thread() + i * THREADS;
        let (r, chunk) = (index / chunks, index % chunks);
        let k = s * stage_k + r;
        let block = k / B as u32;
        // SAFETY: this launch does not write the block columns, and the preceding one has ended.
        let columns = unsafe { p.columns().with::<ReadOnly>() };
        let column = columns.at(run.start as u64 + block as u64).ld_if(block < run.len);
        let row = column as u64 * B as u64 + (k % B as u32) as u64;
        let first = run.column + chunk * per_chunk;
        let exists = block < run.len && row < p.k as u64 && first < p.n;
        let from = p.b::<E>().bytes(row * p.ldb_bytes as u64).at(first);
        let left = if exists { p.n - first } else { 0 };
        let to = if E::BYTES == 2 {
            BTile::<ROW_16>(smem).chunk(r, chunk)
        } else {
            BTile::<ROW_32>(smem).chunk(r, chunk)
        };
        if ALIGNED {
            let bytes = if left < per_chunk { left * E::BYTES } else { 16 };
            let from = if exists { from } else { p.b() };
            from.cp_async_16(to, bytes);
        } else {
            to.st(chunk_by_element::<E>(from, left));
        }
        i += 1;
    }
}

/// Loads 16 bytes from an address that is only aligned to one element. Elements past `left` are
/// zero.
#[inline(always)]
fn chunk_by_element<E: MmaElem>(from: Global<E, ReadWrite>, left: u32) -> [u32; 4] {
    // SAFETY: this launch does not write B, and the preceding one has ended.
    let from = unsafe { from.with::<ReadOnly>() };
    if E::BYTES == 4 {
        [0u32, 1, 2, 3].map(|i| from.cast::<u32>().at(i).ld_if(i < left))
    } else {
        let from = from.cast::<u16>();
        [0u32, 2, 4, 6].map(|i| {
            let low = from.at(i).ld_if(i < left);
            low | from.at(i).at(1u32).ld_if(i + 1 < left) << 16
        })
    }
}

/// Multiplies the stage at byte `at` of dynamic shared memory: four k-steps.
#[inline(always)]
fn multiply<E: MmaElem, const B: usize, const MA: usize, const NA: usize>(
    at: u32,
    acc: &mut Acc<MA, NA>,
) {
    let lane = gpu::thread() % 32;
    let (row, column) = warp_origin::<B, NA>();
    let a_tile = ATile(smem(at));
    let b_at = smem(at).bytes((B * PANEL_BYTES) as u32);
    let mut step = 0;
    while step < 4 {
        let mut a = [[0u32; 4]; MA];
        unroll!(i < MA, {
            a[i] = E::a(a_tile, row + i as u32 * 16, step, lane);
        });
        unroll!(h < NA / 2, {
            let (j, c) = (h * 2, column + h as u32 * 16);
            let b = if E::BYTES == 2 {
                E::b(BTile::<ROW_16>(b_at), step, c, lane)
            } else {
                E::b(BTile::<ROW_32>(b_at), step, c, lane)
            };
            unroll!(i < MA, {
                E::mma(&mut acc[i][j], a[i], b[0]);
                E::mma(&mut acc[i][j + 1], a[i], b[1]);
            });
        });
        step += 1;
    }
}

/// Bytes of one row of the f32 tile through which the epilogue stores: 128 columns, and padding
/// that puts the pairs of eight rows in different banks.
const OUT_ROW: u32 = (BLOCK_COLUMNS as u32 + 8) * 4;

/// Source of the finished sums of a tile: dynamic shared memory (`count` 0), or slots of partial
/// sums.
#[derive(Clone, Copy)]
struct Sources {
    first: u32,
    count: u32,
}

/// Stores the accumulators as rows in dynamic shared memory.
#[inline(always)]
fn stage_out<const B: usize, const MA: usize, const NA: usize>(acc: &Acc<MA, NA>) {
    let lane = gpu::thread() % 32;
    let (row, column) = warp_origin::<B, NA>();
    let (r0, c0) = frag::accumulator(lane, 0);
    let (r2, _) = frag::accumulator(lane, 2);
    // Copies and fragment loads of all warps have finished with dynamic shared memory.
    copy::cp_async_wait::<0>();
    gpu::sync_threads();
    unroll!(i < MA, {
        unroll!(j < NA, {
            let [a, b, c, d] = acc[i][j];
            let at = smem(0)
                .bytes((row + i as u32 * 16) * OUT_ROW)
                .bytes((column + j as u32 * 8 + c0) * 4)
                .cast::<[u32; 2]>();
            at.bytes(r0 * OUT_ROW).st([a.to_bits(), b.to_bits()]);
            at.bytes(r2 * OUT_ROW).st([c.to_bits(), d.to_bits()]);
        });
    });
    gpu::sync_threads();
}

/// Loads four columns of a row of the tile of sums.
#[inline(always)]
fn staged(row: u32, column: u32) -> [u32; 4] {
    smem(0).bytes(row * OUT_ROW).bytes(column * 4).cast::<[u32; 4]>().ld()
}

/// Address of four columns in a row of a partial sum.
#[inline(always)]
fn partial_at<const B: usize>(
    p: &SpmmParams,
    slot: u32,
    row: u32,
    column: u32,
) -> Global<[u32; 4], Fresh> {
    let row = slot as u64 * B as u64 + row as u64;
    p.partial::<F32>().at(row * p.partial_columns as u64 + column as u64).cast()
}

/// Stores the partial sum of a cut block row. The thread block that arrives last gets the row's
/// slots, the others an empty range.
#[inline(always)]
fn fix_up<const B: usize>(p: &SpmmParams, slot: u32, column: u32) -> Sources {
    let [counter, first, count, _] = p.slots().at(slot).ld();
    let mut index = gpu::thread();
    while index < (B * BLOCK_COLUMNS / 4) as u32 {
        let (r, c) = (index / (BLOCK_COLUMNS as u32 / 4), index % (BLOCK_COLUMNS as u32 / 4) * 4);
        partial_at::<B>(p, slot, r, column + c).st(staged(r, c));
        index += THREADS;
    }
    let counter = counter as u64 * gpu::grid_y() as u64 + gpu::block_y() as u64;
    let last = block_arrives_last(p.counters().at(counter), count, smem(0).cast());
    Sources { first, count: if last { count } else { 0 } }
}

/// Returns four finished sums: from dynamic shared memory, or added over the row's slots in slot
/// order.
#[inline(always)]
fn four<const B: usize>(p: &SpmmParams, from: Sources, tile: u32, r: u32, c: u32) -> [f32; 4] {
    if from.count == 0 {
        return staged(r, c).map(f32::from_bits);
    }
    let mut sum = [0f32; 4];
    let mut s = from.first;
    while s < from.first + from.count {
        let more = partial_at::<B>(p, s, r, tile + c).ld();
        unroll!(i < 4, { sum[i] += f32::from_bits(more[i]) });
        s += 1;
    }
    sum
}

/// Finishes the tile and stores it, `V` columns (1, 4 or 8) at a time.
#[inline(always)]
fn write<E: MmaElem, const B: usize, const V: usize>(p: &SpmmParams, run: Run, from: Sources) {
    let mut index = gpu::thread();
    let across = (BLOCK_COLUMNS / V) as u32;
    while index < B as u32 * across {
        let (r, c) = (index / across, index % across * V as u32);
        let row = run.row * B as u32 + r;
        index += THREADS;
        if row >= p.m || run.column + c >= p.n {
            continue;
        }
        let aligned = c & !3;
        let low = four::<B>(p, from, run.column, r, aligned);
        let high = if V > 4 { four::<B>(p, from, run.column, r, aligned + 4) } else { low };
        let mut out = [0f32; V];
        unroll!(i < V, {
            let k = (c - aligned) as usize + i;
            out[i] = if V == 1 {
                pick(low, k)
            } else if i < 4 {
                low[i & 3]
            } else {
                high[i & 3]
            };
        });
        let factors = (scale::<E>(p.output(), run.len), row_bias::<E>(p.output(), row));
        finish::<E, V>(p.output(), row, run.column + c, factors, out);
    }
}

/// Returns `v[k]` without an array in local memory.
#[inline(always)]
fn pick(v: [f32; 4], k: usize) -> f32 {
    match k {
        0 => v[0],
        1 => v[1],
        2 => v[2],
        _ => v[3],
    }
}
