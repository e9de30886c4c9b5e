//! How a tile of a tensor gets into shared memory, and how a stage's barrier learns of it.

use super::gpu;
use super::ptx::{barrier, bulk, copy, gather, warp};
use crate::abi::*;
use crate::frag;

/// Rows of a box, bytes of one, and bytes of an element. Constants, where this is inlined.
#[derive(Clone, Copy)]
pub struct Shape {
    pub rows: usize,
    pub row_bytes: usize,
    pub element: usize,
}

/// What copies a stage. The threads that copy call it together; each warp has a share of the copies.
pub trait Loader: LoaderInfo {
    /// Arrivals at a stage's barrier for `threads` threads that copy.
    fn arrivals(threads: u32) -> u32;
    /// Fetches `MAPS` tensor maps from the parameters' address on. One thread.
    fn prefetch_maps<const MAPS: usize>(at: u64);
    /// Calls `start` with each copy of a warp's share, and the word that the lane of that copy has.
    fn each(copies: u32, word: u32, start: impl Fn(u32, u32));
    /// Thread `thread` of those that copy arrives before its copies: `bytes` are on their way.
    fn expect(full: u32, thread: u32, bytes: u32);
    /// Thread `thread` of those that copy has started its copies.
    fn started(full: u32, thread: u32);
    /// Copies a box, from element `x` of row `y` on, to shared `to`, swizzled over a row of the box. Zeros outside the
    /// tensor, whose map lies at an address and has these words.
    fn tile(to: u32, map: (u64, &MapWords), place: [u32; 2], shape: Shape, full: u32);
    /// Copies `bytes` neighbouring bytes, a multiple of 16, to shared `to`.
    fn line(to: u32, from: u64, bytes: u32, full: u32);
}

impl Loader for Tma {
    #[inline(always)]
    fn arrivals(threads: u32) -> u32 {
        threads / 32
    }

    #[inline(always)]
    fn prefetch_maps<const MAPS: usize>(at: u64) {
        unroll!(map < MAPS, most 4, {
            bulk::prefetch_map(at + map as u64 * 128);
        });
    }

    /// A lane has a copy.
    #[inline(always)]
    fn each(_: u32, word: u32, start: impl Fn(u32, u32)) {
        start(gpu::rematerialize_thread() % 32, word);
    }

    #[inline(always)]
    fn expect(full: u32, thread: u32, bytes: u32) {
        if thread == 0 {
            barrier::arrive_expect(full, bytes);
        } else if thread % 32 == 0 {
            barrier::arrive(full);
        }
    }

    #[inline(always)]
    fn started(_: u32, _: u32) {}

    #[inline(always)]
    fn tile(to: u32, (at, _): (u64, &MapWords), [x, y]: [u32; 2], _: Shape, full: u32) {
        bulk::tma_load_2d(to, at, x, y, full);
    }

    #[inline(always)]
    fn line(to: u32, from: u64, bytes: u32, full: u32) {
        bulk::load_line(to, from, bytes, full);
    }
}

impl Loader for CpAsync {
    /// Every thread, once its copies have ended, and the first one for what it stored.
    #[inline(always)]
    fn arrivals(threads: u32) -> u32 {
        threads + 1
    }

    #[inline(always)]
    fn prefetch_maps<const MAPS: usize>(_: u64) {}

    /// The lanes share each copy.
    #[inline(always)]
    fn each(copies: u32, word: u32, start: impl Fn(u32, u32)) {
        let mut lane = 0;
        while lane < copies {
            warp::stay_rolled();
            start(lane, warp::shuffle::<32>(word, lane, u32::MAX));
            lane += 1;
        }
    }

    #[inline(always)]
    fn expect(full: u32, thread: u32, _: u32) {
        if thread == 0 {
            barrier::arrive(full);
        }
    }

    #[inline(always)]
    fn started(full: u32, _: u32) {
        gather::arrive_with_copies(full);
    }

    #[inline(always)]
    fn tile(to: u32, (_, map): (u64, &MapWords), [x, y]: [u32; 2], shape: Shape, _: u32) {
        let (rows, row_bytes) = (shape.rows as u32, shape.row_bytes as u32);
        let chunks = row_bytes / 16;
        let at_once = 32 / chunks;
        let lane = gpu::rematerialize_thread() % 32;
        let (own, column) = (lane / chunks, lane % chunks * 16);
        let first = x * shape.element as u32;
        let [width, height] = [map[MAP_EXTENTS] as u32, (map[MAP_EXTENTS] >> 32) as u32];
        let stride = map[MAP_STRIDES];
        let row = y + own;
        let from = map[MAP_ADDRESS] + row as u64 * stride + (first + column) as u64;
        // A size that is not known costs a dozen instructions a copy.
        if y < height && height - y >= rows && width >= first + row_bytes {
            let mut from = from;
            let mut r = 0;
            while r < rows {
                // Eight copies in flight between two tests.
                unroll!(i < 8, {
                    let next = r + i as u32 * at_once;
                    if next < rows {
                        let byte = (next + own) * row_bytes + column;
                        copy::copy_async_whole(to + frag::swizzled(byte, row_bytes), from, 1);
                        from += at_once as u64 * stride;
                    }
                });
                r += 8 * at_once;
            }
        } else {
            let bytes = width.saturating_sub(first + column).min(16);
            let mut r = 0;
            while r < rows {
                warp::stay_rolled();
                let byte = (r + own) * row_bytes + column;
                // The address of what is outside is not read, and has to be one all the same.
                let there = row < height && r < height - row && bytes > 0;
                let at = if there { from + r as u64 * stride } else { map[MAP_ADDRESS] };
                let to = to + frag::swizzled(byte, row_bytes);
                copy::copy_async_16(to, at, if there { bytes } else { 0 });
                r += at_once;
            }
        }
    }

    #[inline(always)]
    fn line(to: u32, from: u64, bytes: u32, _: u32) {
        let mut byte = gpu::rematerialize_thread() % 32 * 16;
        while byte < bytes {
            copy::copy_async_whole(to + byte, from + byte as u64, 1);
            byte += 512;
        }
    }
}
