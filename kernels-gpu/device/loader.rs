//! How a tile of a tensor gets into shared memory, and how a stage's barrier learns of it.

use super::gpu;
use super::ptx::{barrier, bulk, copy, gather, warp};
use crate::abi::*;
use crate::frag;

/// A box of a tensor: rows along axis 1, bytes of a row, and bytes of an element. Constants, where this is inlined.
#[derive(Clone, Copy)]
pub struct Shape {
    pub rows: usize,
    pub row_bytes: usize,
    pub element: usize,
}

/// The threads that copy a tile together: this one's number, and how many there are. A multiple of 32.
#[derive(Clone, Copy)]
pub struct Team {
    pub thread: u32,
    pub threads: u32,
}

impl Team {
    /// The lanes of this warp.
    #[inline(always)]
    pub fn warp() -> Self {
        Team { thread: gpu::opaque_thread() % 32, threads: 32 }
    }
}

/// What copies a stage. All threads of a team call these functions together.
pub trait Loader: LoaderInfo {
    /// Arrivals at a stage's barrier that a team of so many threads fills by [`Loader::fill`].
    fn fills(threads: u32) -> u32;
    /// Arrivals at a stage's barrier for `threads` threads that call [`Loader::expect`] and [`Loader::started`]. `stores`:
    /// thread 0 also writes part of the stage, with plain stores before `expect`.
    fn arrivals(threads: u32, stores: bool) -> u32;
    /// Fetches `MAPS` tensor maps from the parameters' address on. One thread.
    fn prefetch_maps<const MAPS: usize>(at: u64);
    /// Starts the copies of a stage, `bytes` in all, which complete barrier `full`: one arrival where the copy engine
    /// copies, else one for each thread of the team. Plain stores before this call are not ordered before the arrival.
    fn fill(team: Team, full: u32, bytes: u32, start: impl FnOnce());
    /// Calls `start` with each copy of a warp's share, and the word that the lane of that copy has.
    fn each(copies: u32, word: u32, start: impl Fn(u32, u32));
    /// Thread `thread` of those that copy arrives before its copies: `bytes` are on their way. Without the copy engine only
    /// an arrival for stores is needed. It is compiled as a fence on compute capability 8.x.
    fn expect(full: u32, thread: u32, bytes: u32, stores: bool);
    /// Thread `thread` of those that copy has started its copies.
    fn started(full: u32, thread: u32);
    /// Copies the box of a tensor of `D` axes (2 to 4) that begins at `place`, the innermost axis first, to shared `to`,
    /// swizzled over a row of the box. The box has one place along axes 2 and 3. Zeros outside the tensor, whose map
    /// lies at an address and has these words.
    fn tile<const D: usize>(
        team: Team,
        to: u32,
        map: (u64, &MapWords),
        place: [u32; D],
        shape: Shape,
        full: u32,
    );
    /// Copies neighbouring pixels of images, a row of the box each, from the one at `[channel, y, x, image]` on, each
    /// moved by an offset along x and y. A map of pixels says how far apart they are; or `pixel` says where each is,
    /// as `[y, x, image]`. Zeros outside the images.
    fn pixels(
        team: Team,
        to: u32,
        map: (u64, &MapWords),
        place: ([u32; 4], [u32; 2]),
        shape: Shape,
        full: u32,
        pixel: impl Fn(u32) -> [u32; 3],
    );
    /// Copies `bytes` neighbouring bytes, a multiple of 16, to shared `to`.
    fn line(team: Team, to: u32, from: u64, bytes: u32, full: u32);
    /// [`Self::line`] of many bytes.
    fn long_line(team: Team, to: u32, from: u64, bytes: u32, full: u32);
    /// Brings `bytes` neighbouring bytes, a multiple of 16, to L2, if the GPU can do that without waiting.
    fn prefetch_line(from: u64, bytes: u32);
    /// Waits for the copies that this thread started, if threads copy: a thread must not exit before its copies are done.
    /// The tensor copy engine completes its copies without the thread that started them.
    fn wait_own();
}

impl Loader for Tma {
    #[inline(always)]
    fn fills(_: u32) -> u32 {
        1
    }

    #[inline(always)]
    fn arrivals(threads: u32, _: bool) -> u32 {
        threads / 32
    }

    #[inline(always)]
    fn prefetch_maps<const MAPS: usize>(at: u64) {
        unroll!(map < MAPS, most 4, {
            bulk::prefetch_tensormap(at + map as u64 * 128);
        });
    }

    #[inline(always)]
    fn fill(_: Team, full: u32, bytes: u32, start: impl FnOnce()) {
        if warp::elect_one() {
            barrier::arrive_expect_tx(full, bytes);
            start();
        }
    }

    /// A lane has a copy.
    #[inline(always)]
    fn each(_: u32, word: u32, start: impl Fn(u32, u32)) {
        start(gpu::opaque_thread() % 32, word);
    }

    #[inline(always)]
    fn expect(full: u32, thread: u32, bytes: u32, _: bool) {
        if thread == 0 {
            barrier::arrive_expect_tx(full, bytes);
        } else if thread % 32 == 0 {
            barrier::arrive(full);
        }
    }

    #[inline(always)]
    fn started(_: u32, _: u32) {}

    #[inline(always)]
    fn tile<const D: usize>(
        _: Team,
        to: u32,
        (at, _): (u64, &MapWords),
        place: [u32; D],
        _: Shape,
        full: u32,
    ) {
        const { assert!(D >= 2 && D <= 4) };
        match D {
            2 => bulk::tma_load_2d(to, at, place[0], place[1], full),
            3 => bulk::tma_load_3d(to, at, [place[0], place[1], place[2]], full),
            _ => bulk::tma_load_4d(to, at, [place[0], place[1], place[2], place[3]], full),
        }
    }

    #[inline(always)]
    fn pixels(
        _: Team,
        to: u32,
        (at, _): (u64, &MapWords),
        (place, offset): ([u32; 4], [u32; 2]),
        _: Shape,
        full: u32,
        _: impl Fn(u32) -> [u32; 3],
    ) {
        bulk::tma_load_im2col(to, at, place, offset, full);
    }

    #[inline(always)]
    fn line(_: Team, to: u32, from: u64, bytes: u32, full: u32) {
        bulk::bulk_load(to, from, bytes, full);
    }

    #[inline(always)]
    fn long_line(team: Team, to: u32, from: u64, bytes: u32, full: u32) {
        Self::line(team, to, from, bytes, full);
    }

    #[inline(always)]
    fn prefetch_line(from: u64, bytes: u32) {
        bulk::bulk_prefetch(from, bytes);
    }

    #[inline(always)]
    fn wait_own() {}
}

/// Extent `axis` of a tensor whose words these are, that of axis 0 in bytes.
#[inline(always)]
fn extent(map: &MapWords, axis: usize) -> u32 {
    let two = map[MAP_EXTENTS + axis / 2];
    if axis % 2 == 0 { two as u32 } else { (two >> 32) as u32 }
}

impl<const KIB: usize> Loader for Copies<KIB> {
    #[inline(always)]
    fn fills(threads: u32) -> u32 {
        threads
    }

    /// Every thread, once its copies have ended, and the first one for what it stored.
    #[inline(always)]
    fn arrivals(threads: u32, stores: bool) -> u32 {
        threads + u32::from(stores)
    }

    #[inline(always)]
    fn prefetch_maps<const MAPS: usize>(_: u64) {}

    #[inline(always)]
    fn fill(_: Team, full: u32, _: u32, start: impl FnOnce()) {
        start();
        gather::cp_async_arrive(full);
    }

    /// The lanes share each copy.
    #[inline(always)]
    fn each(copies: u32, word: u32, start: impl Fn(u32, u32)) {
        let mut lane = 0;
        while lane < copies {
            warp::nounroll();
            start(lane, warp::shfl(word, lane));
            lane += 1;
        }
    }

    #[inline(always)]
    fn expect(full: u32, thread: u32, _: u32, stores: bool) {
        if stores && thread == 0 {
            barrier::arrive(full);
        }
    }

    #[inline(always)]
    fn started(full: u32, _: u32) {
        gather::cp_async_arrive(full);
    }

    #[inline(always)]
    fn tile<const D: usize>(
        team: Team,
        to: u32,
        (_, map): (u64, &MapWords),
        place: [u32; D],
        shape: Shape,
        _: u32,
    ) {
        const { assert!(D >= 2 && D <= 4) };
        let (rows, row_bytes) = (shape.rows as u32, shape.row_bytes as u32);
        let chunks = row_bytes / 16;
        let at_once = team.threads / chunks;
        let (own, column) = (team.thread / chunks, team.thread % chunks * 16);
        let first = place[0] * shape.element as u32;
        let (width, height) = (extent(map, 0), extent(map, 1));
        let stride = map[MAP_STRIDES];
        let mut base = map[MAP_ADDRESS];
        let mut inside = true;
        if D > 2 {
            inside &= place[2] < extent(map, 2);
            base += place[2] as u64 * map[MAP_STRIDES + 1];
        }
        if D > 3 {
            inside &= place[3] < extent(map, 3);
            base += place[3] as u64 * map[MAP_STRIDES + 2];
        }
        let (y, row) = (place[1], place[1].wrapping_add(own));
        // A size that is not known costs a dozen instructions a copy.
        if inside && y < height && height - y >= rows && width >= first.wrapping_add(row_bytes) {
            let mut from = base + row as u64 * stride + (first + column) as u64;
            let mut r = 0;
            while r < rows {
                // Eight copies in flight between two tests.
                unroll!(i < 8, {
                    let next = r + i as u32 * at_once;
                    if next < rows {
                        let byte = (next + own) * row_bytes + column;
                        if rows % at_once == 0 || next + own < rows {
                            copy::cp_async_16_if(frag::swizzled(to + byte, row_bytes), from, 1);
                        }
                        from += at_once as u64 * stride;
                    }
                });
                r += 8 * at_once;
            }
        } else {
            let begin = first.wrapping_add(column);
            let bytes = width.saturating_sub(begin).min(16);
            let mut r = 0;
            while r < rows {
                warp::nounroll();
                let byte = (r + own) * row_bytes + column;
                let now = row.wrapping_add(r);
                // The address of what is outside is not read, and has to be one all the same.
                let there = inside && now < height && bytes > 0;
                let at = if there {
                    base + now as u64 * stride + begin as u64
                } else {
                    map[MAP_ADDRESS]
                };
                if rows % at_once == 0 || r + own < rows {
                    let to = frag::swizzled(to + byte, row_bytes);
                    copy::cp_async_16(to, at, if there { bytes } else { 0 });
                }
                r += at_once;
            }
        }
    }

    #[inline(always)]
    fn pixels(
        team: Team,
        to: u32,
        (_, map): (u64, &MapWords),
        ([channel, ..], [down, right]): ([u32; 4], [u32; 2]),
        shape: Shape,
        _: u32,
        pixel: impl Fn(u32) -> [u32; 3],
    ) {
        let (rows, row_bytes) = (shape.rows as u32, shape.row_bytes as u32);
        let chunks = row_bytes / 16;
        let at_once = team.threads / chunks;
        let (own, column) = (team.thread / chunks, team.thread % chunks * 16);
        let begin = channel * shape.element as u32 + column;
        let bytes = extent(map, 0).saturating_sub(begin).min(16);
        // An address for each row, or that of the tensor for one outside.
        let source = |row: u32| {
            let [y, x, image] = pixel(row);
            let (y, x) = (y.wrapping_add(right), x.wrapping_add(down));
            let inside = y < extent(map, 1) && x < extent(map, 2) && image < extent(map, 3);
            let from = map[MAP_ADDRESS]
                + begin as u64
                + y as u64 * map[MAP_STRIDES]
                + x as u64 * map[MAP_STRIDES + 1]
                + image as u64 * map[MAP_STRIDES + 2];
            if inside && bytes > 0 { (from, true) } else { (map[MAP_ADDRESS], false) }
        };
        let to_row = |row: u32| frag::swizzled(to + row * row_bytes + column, row_bytes);
        let whole = extent(map, 0).is_multiple_of(16);
        let mut r = own;
        while r < rows {
            warp::nounroll();
            // Four pixels are sought at the same time.
            unroll!(i < 4, {
                let row = r + i as u32 * at_once;
                if row < rows {
                    let (from, inside) = source(row);
                    if whole {
                        gather::cp_async_4_or_zero(to_row(row), from, inside);
                    } else {
                        copy::cp_async_16(to_row(row), from, if inside { bytes } else { 0 });
                    }
                }
            });
            r += 4 * at_once;
        }
    }

    #[inline(always)]
    fn line(team: Team, to: u32, from: u64, bytes: u32, _: u32) {
        let mut byte = team.thread * 16;
        while byte < bytes {
            copy::cp_async_16_if(to + byte, from + byte as u64, 1);
            byte += team.threads * 16;
        }
    }

    #[inline(always)]
    fn long_line(team: Team, to: u32, from: u64, bytes: u32, full: u32) {
        let step = team.threads * 16;
        let own = team.thread * 16;
        let (mut to_own, mut from_own) = (to + own, from + own as u64);
        let mut left = bytes;
        while left >= 8 * step {
            warp::nounroll();
            unroll!(i < 8, {
                let on = i as u32 * step;
                copy::cp_async_16_if(to_own + on, from_own + on as u64, 1);
            });
            to_own += 8 * step;
            from_own += 8 * step as u64;
            left -= 8 * step;
        }
        Self::line(team, to_own - own, from_own - own as u64, left, full);
    }

    #[inline(always)]
    fn prefetch_line(_: u64, _: u32) {}

    #[inline(always)]
    fn wait_own() {
        copy::cp_async_wait_all();
    }
}
