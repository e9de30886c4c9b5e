//! Copies of an offset's matrix into a stage: by TMA, or by the producer threads.

use super::Gathered;
use crate::device::prelude::*;
use crate::families::gather_gemm::abi::*;

/// Properties of a tile that the copies of its matrices depend on.
pub trait BTile {
    /// Bytes of an element.
    const ELEMENT: u32;
    const CHUNKS: usize;
    /// Whether the matrices are stored as `[t, m, c]`.
    const BY_COLUMNS: bool;
    /// Bytes of the matrix in a stage.
    const BYTES: u32;
    const PRODUCER_THREADS: u32;
}

impl<const CHUNKS: usize, F: GatheredForm> BTile for Gathered<CHUNKS, F> {
    const ELEMENT: u32 = F::BYTES as u32;
    const CHUNKS: usize = CHUNKS;
    const BY_COLUMNS: bool = F::ORDER & B_COLUMNS != 0;
    const BYTES: u32 = Self::B_BYTES as u32;
    const PRODUCER_THREADS: u32 = Self::PRODUCER_THREADS;
}

/// Parameters with the tensor map of the matrices ([`ConvParams`], with `wgmma`) or their address
/// ([`ConvWordsParams`], with `mma.sync`).
pub trait Matrices {
    /// Arrivals that fill a stage in addition to those of the producer threads.
    const ARRIVALS: u32;
    /// Returns the parameters that all kernels share.
    fn base(&self) -> &ConvParams;
    /// Prefetches the tensor map; called once, by one thread.
    fn prefetch(at: Maps);
    /// Starts the copies of the part that begins at a column, a channel and an offset. `to`: shared address, and the
    /// barrier that the copies complete. `by`: number of the producer thread, and the tensor maps.
    fn start<T: BTile>(&self, to: (Shared<u8>, Shared<Mbarrier>), place: [u32; 3], by: (u32, Maps));
}

impl Matrices for ConvParams {
    const ARRIVALS: u32 = 1;

    #[inline(always)]
    fn base(&self) -> &ConvParams {
        self
    }

    #[inline(always)]
    fn prefetch(at: Maps) {
        at.map(0).prefetch();
    }

    #[inline(always)]
    fn start<T: BTile>(
        &self,
        (b_tile, full): (Shared<u8>, Shared<Mbarrier>),
        [column, channel, offset]: [u32; 3],
        (thread, at): (u32, Maps),
    ) {
        if thread != 0 {
            return;
        }
        full.arrive_expect_tx(T::BYTES);
        if T::BY_COLUMNS {
            at.map(0).load_3d(b_tile, [channel, column, offset], full);
        } else {
            unroll!(c < T::CHUNKS, most 4, {
                let place = [column + c as u32 * 64, channel, offset];
                at.map(0).load_3d(b_tile.bytes((c * SMEM_TILE) as u32), place, full);
            });
        }
    }
}

/// Matrices copied by address, for every GPU with `mma.sync`.
impl Matrices for ConvWordsParams {
    const ARRIVALS: u32 = 0;

    #[inline(always)]
    fn base(&self) -> &ConvParams {
        &self.base
    }

    #[inline(always)]
    fn prefetch(_: Maps) {}

    /// Copies 16 bytes at a time. Elements outside the matrix are zero: zeros of the input times a NaN would be NaN.
    #[inline(always)]
    fn start<T: BTile>(
        &self,
        (b_tile, _): (Shared<u8>, Shared<Mbarrier>),
        [column, channel, offset]: [u32; 3],
        (thread, _): (u32, Maps),
    ) {
        let (rows, columns, first) = if T::BY_COLUMNS {
            (self.base.n, self.channels, [column, channel])
        } else {
            (self.channels, self.base.n, [channel, column])
        };
        let (line, chunk) = (thread / 8, thread % 8);
        let across = chunk * (16 / T::ELEMENT);
        unroll!(c < T::CHUNKS, most 4, {
            let beyond = c as u32 * 64;
            let (row, left) = if T::BY_COLUMNS {
                (first[0] + beyond + line, first[1] + across)
            } else {
                (first[0] + line, first[1] + beyond + across)
            };
            let inside = columns.saturating_sub(left);
            let bytes = (inside * T::ELEMENT).min(16);
            let at = (offset as u64 * rows as u64 + row as u64) * self.weights_bytes as u64;
            let from = self.weights().bytes(at).bytes(left as u64 * T::ELEMENT as u64);
            let to = b_tile.bytes(frag::swizzle(beyond + line, chunk, 128));
            let valid = |down: u32| bytes > 0 && row + down < rows;
            // A size known only at run time costs a dozen instructions a copy.
            if bytes % 16 == 0 {
                self.copy_lines::<T>(to, from, |to, from, down| {
                    from.cp_async_16_or_zero(to, valid(down));
                });
            } else {
                self.copy_lines::<T>(to, from, |to, from, down| {
                    let (from, bytes) =
                        if valid(down) { (from, bytes) } else { (self.weights(), 0) };
                    from.cp_async_16(to, bytes);
                });
            }
        });
    }
}

impl ConvWordsParams {
    /// Calls `copy` for the lines of 64 that a producer thread copies: shared and global address, and lines from the
    /// first. Lines between them are a multiple of the eight of a swizzle.
    #[inline(always)]
    fn copy_lines<T: BTile>(
        &self,
        to: Shared<u8>,
        from: Global<u8, Fresh>,
        copy: impl Fn(Shared<u8>, Global<u8, Fresh>, u32),
    ) {
        unroll!(i < 512 / T::PRODUCER_THREADS as usize, {
            let down = i as u32 * (T::PRODUCER_THREADS / 8);
            copy(to.bytes(down * 128), from.row(down, self.weights_bytes), down);
        });
    }
}
