//! SpMM of one to a few columns. A lane owns a row of A, so an entry's value and column are in that lane's registers.
//! It reads rows of B from shared memory, which holds all of B. Chunks are distributed equally over the warps of the
//! grid. The parts of a slice that several warps share are added in order by the warp that arrives last.

use super::chunk::{Chunk, Slots, put_row};
use super::parts;
use crate::device::epilogue::{Output, output};
use crate::device::prelude::*;
use crate::families::spmm::abi::*;

/// Chunks that a warp multiplies while it loads the next `AHEAD` chunks.
const AHEAD: usize = 2;

buffers! {
    // `host/core/families/spmm/sell.rs` makes the lists from the pattern of A, allocates the workspaces for all slots and
    // slices, and checks the alignment and the strides. `ProductPlan` checks the shapes and the pattern.
    unsafe SellParams {
        windows: u32, ReadOnly;
        columns: u16, ReadWrite;
        values: u8, ReadWrite;
        rows: u32, ReadOnly;
        pieces: [u32; 4], ReadOnly;
        spans: u32, ReadOnly;
        slots: u32, ReadOnly;
        partial: u32, Fresh;
        counters: u32, Fresh;
        b<E: Elem>: E, ReadWrite;
    }
}

impl SellParams {
    #[inline(always)]
    fn output(&self) -> Output {
        Output {
            // Read here and not carried in a register through the loop over chunks.
            flags: warp::opaque(self.flags),
            ..output!(self)
        }
    }

    #[inline(always)]
    fn chunks(&self) -> Slots {
        Slots { windows: self.windows(), columns: self.columns(), values: self.values() }
    }

    #[inline(always)]
    fn piece(&self, at: u32) -> SellPiece {
        let [first, end, slice, parts] = self.pieces().at(at).ld();
        SellPiece { first, end, slice, parts }
    }
}

/// Next chunks of a warp.
type Next = [Chunk; AHEAD];

impl<const WARPS: u32, const N: usize, const KIB: u32> Sell<WARPS, N, KIB> {
    /// Returns the first column of C.
    #[inline(always)]
    fn left() -> u32 {
        gpu::block_y() * N as u32
    }

    #[inline(always)]
    fn fetch<E: Elem>(p: &SellParams, chunk: u32, end: u32) -> Next {
        Chunk::two::<E>(p.chunks(), [chunk, end], 1)
    }

    /// Returns row `row` of B in shared memory.
    #[inline(always)]
    fn row(row: u32) -> Shared<[u32; 4]> {
        // SAFETY: the host launches with `SHARED_BYTES` and has checked that all rows and one more fit.
        unsafe { Shared::dynamic(0) }.bytes(row * Self::ROW)
    }

    /// Copies all rows of B to shared memory, followed by a row of zeros. All threads take part.
    #[inline(always)]
    fn stage_b<E: Elem<Acc = f32>>(p: &SellParams) {
        let mut row = gpu::thread();
        while row <= p.k {
            let to = Self::row(row);
            let from = p.b::<E>().row(row, p.ldb_bytes).bytes(Self::left() * E::BYTES);
            let there = row < p.k;
            if N == 1 {
                to.cast::<f32>().st(E::get(&from.ld_raw::<1>(there), 0));
            } else if p.flags & FLAG_VECTORS != 0 {
                to.st(from.cast::<[u32; 4]>().ld_if(there));
            } else {
                let mut eight = [0; 4];
                unroll!(j < 8, {
                    let inside = there && Self::left() + (j as u32) < p.n;
                    let one = from.cast::<u16>().at(j as u64).ld_if(inside);
                    eight[j / 2] |= one << (j % 2 * 16);
                });
                to.st(eight);
            }
            row += Self::THREADS;
        }
    }

    /// Returns the sums of a lane's row over a piece, whose first chunks are already loading.
    #[inline(always)]
    fn sums<E: Elem<Acc = f32>>(p: &SellParams, piece: SellPiece, first: Next) -> [f32; N] {
        let zeros = Self::row(p.k);
        let mut acc = [0.0; N];
        let (mut chunk, mut next) = (piece.first, first);
        while chunk < piece.end {
            let now = next;
            let behind = chunk + AHEAD as u32;
            next = Self::fetch::<E>(p, behind, piece.end);
            unroll!(i < AHEAD, {
                if chunk + (i as u32) < piece.end {
                    Self::multiply::<E>(&now[i], zeros, &mut acc);
                }
            });
            chunk = behind;
        }
        acc
    }

    #[inline(always)]
    fn multiply<E: Elem<Acc = f32>>(chunk: &Chunk, zeros: Shared<[u32; 4]>, acc: &mut [f32; N]) {
        let base = Self::row(chunk.window()[0] * K_TILE as u32);
        unroll!(i < CHUNK_STEPS, {
            let (local, value) = chunk.entry::<E>(i);
            let at = base.bytes(local * Self::ROW);
            // Without an entry the address is past the row of zeros.
            let at = if at.address() < zeros.address() { at } else { zeros };
            if N == 1 {
                acc[0] = E::fma(value, at.cast::<f32>().ld(), acc[0]);
            } else {
                let row = at.ld();
                unroll!(j < 8, {
                    if j < N {
                        acc[j] = E::fma(value, E::get(&row, j), acc[j]);
                    }
                });
            }
        });
    }

    /// Applies the epilogue to a slice and stores it.
    #[inline(always)]
    fn write<E: Elem<Acc = f32>>(p: &SellParams, slice: u32, acc: &[f32; N]) {
        let lane = gpu::opaque_thread() % 32;
        let row = p.rows().at(slice * SLICE as u32 + lane).ld();
        put_row::<E, N>(|| p.output(), row, Self::left(), *acc);
    }

    /// Adds all parts of the piece's slice. Returns true for the warp that arrives last, which then has the sum.
    #[inline(always)]
    fn joined(p: &SellParams, piece: SellPiece, acc: &mut [f32; N]) -> bool {
        let count = piece.parts >> 16;
        if count == 1 {
            return true;
        }
        let first = p.slots().at(piece.slice).ld();
        let tile = gpu::block_y();
        let lane = gpu::opaque_thread() % 32;
        let place = |part: u32| {
            let slot = (tile * p.slot_count + first + part) as u64;
            p.partial().bytes(slot * Self::PARTIAL as u64).bytes(lane * if N == 1 { 4 } else { 16 })
        };
        let counter = p.counters().at(tile * p.slices + piece.slice);
        let of = [piece.parts & 0xffff, count];
        if N == 1 {
            parts::join::<N, N, 8>(place, counter, of, acc)
        } else {
            parts::join::<N, N, 4>(place, counter, of, acc)
        }
    }
}

impl<W: WalkInfo, E: Elem<Acc = f32>, const WARPS: u32, const N: usize, const KIB: u32>
    Kernel<W, E, SellParams> for Sell<WARPS, N, KIB>
{
    #[inline(always)]
    unsafe fn run(p: &SellParams, _: Maps) {
        // The plan's lists are read while the previous kernel ends (PDL).
        let warp = gpu::block_x() * WARPS + gpu::thread() / 32;
        let from = p.spans().at(warp);
        let (mut at, end) = (from.ld(), from.at(1u32).ld());
        let none = SellPiece::default();
        let mut piece = if at < end { p.piece(at) } else { none };
        grid::launch_dependents();
        grid::wait_dependency();
        let mut next = Self::fetch::<E>(p, piece.first, piece.end);
        Self::stage_b::<E>(p);
        gpu::sync_threads();
        while at < end {
            at += 1;
            let behind = if at < end { p.piece(at) } else { none };
            let mut acc = Self::sums::<E>(p, piece, next);
            next = Self::fetch::<E>(p, behind.first, behind.end);
            if Self::joined(p, piece, &mut acc) {
                Self::write::<E>(p, piece.slice, &acc);
            }
            piece = behind;
        }
    }
}
