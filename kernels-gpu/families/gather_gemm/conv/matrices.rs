//! How a stage's part of an offset's matrix comes into shared memory: by the tensor copy engine, or by the threads that
//! gather.

use super::Gathered;
use crate::device::prelude::*;
use crate::families::gather_gemm::abi::*;

/// A tile, as far as its matrices go.
pub trait BTile {
    /// Bytes of an element.
    const ELEMENT: u32;
    const CHUNKS: usize;
    /// Matrices lie as `[t, m, c]`.
    const BY_COLUMNS: bool;
    /// Bytes of a stage's part.
    const BYTES: u32;
    const COPIERS: u32;
}

impl<const CHUNKS: usize, const ORDER: u32, const BYTES: usize, A: AtomInfo> BTile
    for Gathered<CHUNKS, ORDER, BYTES, A>
{
    const ELEMENT: u32 = BYTES as u32;
    const CHUNKS: usize = CHUNKS;
    const BY_COLUMNS: bool = ORDER & B_COLUMNS != 0;
    const BYTES: u32 = Self::B_BYTES as u32;
    const COPIERS: u32 = Self::COPIERS;
}

/// Parameters that say where the matrices are.
pub trait Matrices {
    /// Arrivals at a stage beside those of the threads that gather.
    const ARRIVALS: u32;
    /// What all kernels walk.
    fn base(&self) -> &ConvParams;
    /// Once, by one thread.
    fn prefetch(at: u64);
    /// Starts the copies of the part that begins at a column, a channel and an offset, and counts them at the barrier
    /// `full`. `thread` of those that gather; `at`: where the parameters lie.
    fn start<T: BTile>(&self, to: (u32, u32), place: [u32; 3], by: (u32, u64));
}

impl Matrices for ConvParams {
    const ARRIVALS: u32 = 1;

    #[inline(always)]
    fn base(&self) -> &ConvParams {
        self
    }

    #[inline(always)]
    fn prefetch(at: u64) {
        bulk::prefetch_tensormap(at);
    }

    #[inline(always)]
    fn start<T: BTile>(
        &self,
        (b_tile, full): (u32, u32),
        [column, channel, offset]: [u32; 3],
        (thread, at): (u32, u64),
    ) {
        if thread != 0 {
            return;
        }
        barrier::arrive_expect_tx(full, T::BYTES);
        if T::BY_COLUMNS {
            bulk::tma_load_3d(b_tile, at, [channel, column, offset], full);
        } else {
            unroll!(c < T::CHUNKS, most 4, {
                let place = [column + c as u32 * 64, channel, offset];
                bulk::tma_load_3d(b_tile + (c * SMEM_TILE) as u32, at, place, full);
            });
        }
    }
}

/// By address: for every GPU with `mma.sync`.
impl Matrices for ConvWordsParams {
    const ARRIVALS: u32 = 0;

    #[inline(always)]
    fn base(&self) -> &ConvParams {
        &self.base
    }

    #[inline(always)]
    fn prefetch(_: u64) {}

    /// 16 bytes a copy; zeros outside the matrix, since zeros of the input times whatever is
    /// no number would be none.
    #[inline(always)]
    fn start<T: BTile>(
        &self,
        (b_tile, _): (u32, u32),
        [column, channel, offset]: [u32; 3],
        (thread, _): (u32, u64),
    ) {
        let (rows, columns, first) = if T::BY_COLUMNS {
            (self.base.n, self.channels, [column, channel])
        } else {
            (self.channels, self.base.n, [channel, column])
        };
        let mut piece = thread;
        while piece < T::BYTES / 16 {
            let (line, chunk) = (piece / 8, piece % 8);
            let across = chunk * (16 / T::ELEMENT);
            let (row, left) = if T::BY_COLUMNS {
                (first[0] + line, first[1] + across)
            } else {
                (first[0] + line % 64, first[1] + line / 64 * 64 + across)
            };
            let inside = if row < rows { columns.saturating_sub(left) } else { 0 };
            let at = (offset as u64 * rows as u64 + row as u64) * self.weights_bytes as u64;
            let along = left as u64 * T::ELEMENT as u64;
            let from = if inside > 0 { self.weights + at + along } else { self.weights };
            let bytes = (inside * T::ELEMENT).min(16);
            copy::cp_async_16(b_tile + frag::swizzle(line, chunk, 128), from, bytes);
            piece += T::COPIERS;
        }
    }
}
