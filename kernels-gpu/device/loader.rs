//! Loaders: they copy tiles of tensors from global to shared memory and complete the mbarrier of the stage.

use super::gpu;
use super::maps::{Maps, TensorMap};
use super::memory::{Global, ReadWrite};
use super::ptx::{copy, warp};
use super::shared::{Mbarrier, Shared};
use crate::abi::*;

/// Box of a tensor: rows along axis 1, bytes per row, and bytes per element. All are constants after inlining.
#[derive(Clone, Copy)]
pub struct Shape {
    pub rows: usize,
    pub row_bytes: usize,
    pub element: usize,
}

/// Threads that copy a tile together: the number of this thread, and the number of threads, a multiple of 32.
#[derive(Clone, Copy)]
pub struct Team {
    pub thread: u32,
    pub threads: u32,
}

impl Team {
    /// The 32 lanes of this warp.
    #[inline(always)]
    pub fn warp() -> Self {
        Team { thread: gpu::opaque_thread() % 32, threads: 32 }
    }
}

/// Copies stages: the tensor copy engine ([`Tma`]) or threads with `cp.async` ([`Copies`]). With `cp.async`, all
/// threads of a team call each function together. With the copy engine, each call of `tile`, `pixels` or `line` starts
/// a whole copy, so one thread makes it: the body, [`Loader::fill`] or [`Loader::each`] selects that thread.
pub trait Loader: LoaderInfo {
    /// Arrival count of a stage's mbarrier if a team of `threads` fills it with [`Loader::fill`].
    fn fills(threads: u32) -> u32;
    /// Arrival count of a stage's mbarrier if `threads` threads call [`Loader::expect`] and [`Loader::started`].
    /// `stores`: thread 0 also writes part of the stage with ordinary stores, before `expect`.
    fn arrivals(threads: u32, stores: bool) -> u32;
    /// Prefetches `MAPS` tensor maps, the first at address `at`. One thread calls it.
    fn prefetch_maps<const MAPS: usize>(at: Maps);
    /// Starts the copies of a stage of `bytes` bytes, which complete mbarrier `full`: with one arrival if the copy
    /// engine copies, otherwise with one per thread of the team. Ordinary stores before this call are not ordered
    /// before the arrival.
    fn fill(team: Team, full: Shared<Mbarrier>, bytes: u32, start: impl FnOnce());
    /// Calls `start` for each of the warp's copies, with the number of the copy and the `word` of the lane of that
    /// number.
    fn each(copies: u32, word: u32, start: impl Fn(u32, u32));
    /// Announces the copies of a stage, `bytes` bytes, before thread `thread` starts them. Without the copy engine only
    /// ordinary stores need this arrival. On compute capability 8.x it compiles to a fence.
    fn expect(full: Shared<Mbarrier>, thread: u32, bytes: u32, stores: bool);
    /// Announces that thread `thread` has started all its copies of the stage.
    fn started(full: Shared<Mbarrier>, thread: u32);
    /// Copies a box of a tensor of `D` axes (2 to 4) to shared address `to`, swizzled over a row of the box. The box
    /// begins at index `place`, innermost axis first, and has extent 1 along axes 2 and 3. Elements outside of the
    /// tensor are zero. `map` is the tensor map and its words.
    fn tile<const D: usize>(
        team: Team,
        to: Shared<u8>,
        map: (TensorMap, &MapWords),
        place: [u32; D],
        shape: Shape,
        full: Shared<Mbarrier>,
    );
    /// Copies adjacent pixels of images, one per row of the box. The first pixel is `[channel, y, x, image]`; each is
    /// moved by an offset along x and y. The im2col map holds the distance of pixels; without the copy engine, `pixel`
    /// returns `[y, x, image]` of each. Elements outside of the images are zero.
    fn pixels(
        team: Team,
        to: Shared<u8>,
        map: (TensorMap, &MapWords),
        place: ([u32; 4], [u32; 2]),
        shape: Shape,
        full: Shared<Mbarrier>,
        pixel: impl Fn(u32) -> [u32; 3],
    );
    /// Copies `bytes` contiguous bytes, a multiple of 16, to shared address `to`.
    fn line<T, A>(
        team: Team,
        to: Shared<u8>,
        from: Global<T, A>,
        bytes: u32,
        full: Shared<Mbarrier>,
    );
    /// [`Self::line`] for long lines: all threads of the team take part.
    fn long_line<T, A>(
        team: Team,
        to: Shared<u8>,
        from: Global<T, A>,
        bytes: u32,
        full: Shared<Mbarrier>,
    );
    /// Prefetches `bytes` contiguous bytes, a multiple of 16, to L2, if the GPU has an asynchronous prefetch.
    fn prefetch_line<T, A>(from: Global<T, A>, bytes: u32);
    /// Waits for the copies that this thread started, if threads copy: a thread must not exit before its copies are
    /// done. The tensor copy engine completes its copies without the thread that started them.
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
    fn prefetch_maps<const MAPS: usize>(at: Maps) {
        unroll!(map < MAPS, most 4, {
            at.map(map as u32).prefetch();
        });
    }

    #[inline(always)]
    fn fill(_: Team, full: Shared<Mbarrier>, bytes: u32, start: impl FnOnce()) {
        if warp::elect_one() {
            full.arrive_expect_tx(bytes);
            start();
        }
    }

    /// Each lane starts the copy of its own number.
    #[inline(always)]
    fn each(_: u32, word: u32, start: impl Fn(u32, u32)) {
        start(gpu::opaque_thread() % 32, word);
    }

    #[inline(always)]
    fn expect(full: Shared<Mbarrier>, thread: u32, bytes: u32, _: bool) {
        if thread == 0 {
            full.arrive_expect_tx(bytes);
        } else if thread % 32 == 0 {
            full.arrive();
        }
    }

    #[inline(always)]
    fn started(_: Shared<Mbarrier>, _: u32) {}

    #[inline(always)]
    fn tile<const D: usize>(
        _: Team,
        to: Shared<u8>,
        (map, _): (TensorMap, &MapWords),
        place: [u32; D],
        _: Shape,
        full: Shared<Mbarrier>,
    ) {
        const { assert!(D >= 2 && D <= 4) };
        match D {
            2 => map.load_2d(to, [place[0], place[1]], full),
            3 => map.load_3d(to, [place[0], place[1], place[2]], full),
            _ => map.load_4d(to, [place[0], place[1], place[2], place[3]], full),
        }
    }

    #[inline(always)]
    fn pixels(
        _: Team,
        to: Shared<u8>,
        (map, _): (TensorMap, &MapWords),
        (place, offset): ([u32; 4], [u32; 2]),
        _: Shape,
        full: Shared<Mbarrier>,
        _: impl Fn(u32) -> [u32; 3],
    ) {
        map.load_im2col(to, place, offset, full);
    }

    #[inline(always)]
    fn line<T, A>(_: Team, to: Shared<u8>, from: Global<T, A>, bytes: u32, full: Shared<Mbarrier>) {
        from.bulk_load(to, bytes, full);
    }

    #[inline(always)]
    fn long_line<T, A>(
        team: Team,
        to: Shared<u8>,
        from: Global<T, A>,
        bytes: u32,
        full: Shared<Mbarrier>,
    ) {
        Self::line(team, to, from, bytes, full);
    }

    #[inline(always)]
    fn prefetch_line<T, A>(from: Global<T, A>, bytes: u32) {
        from.bulk_prefetch(bytes);
    }

    #[inline(always)]
    fn wait_own() {}
}

/// Address of the tensor of a map. The accesses below are inside of its extents.
#[inline(always)]
fn tensor(map: &MapWords) -> Global<u8, ReadWrite> {
    // SAFETY: the host made the map from a tensor that it has checked.
    unsafe { Global::new(map[MAP_ADDRESS]) }
}

/// Extent of an axis from the words of a map; that of axis 0 is in bytes.
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

    /// One arrival per thread when its copies are complete, and one of thread 0 for its stores.
    #[inline(always)]
    fn arrivals(threads: u32, stores: bool) -> u32 {
        threads + u32::from(stores)
    }

    #[inline(always)]
    fn prefetch_maps<const MAPS: usize>(_: Maps) {}

    #[inline(always)]
    fn fill(_: Team, full: Shared<Mbarrier>, _: u32, start: impl FnOnce()) {
        start();
        full.arrive_after_copies();
    }

    /// All lanes take part in each copy.
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
    fn expect(full: Shared<Mbarrier>, thread: u32, _: u32, stores: bool) {
        if stores && thread == 0 {
            full.arrive();
        }
    }

    #[inline(always)]
    fn started(full: Shared<Mbarrier>, _: u32) {
        full.arrive_after_copies();
    }

    #[inline(always)]
    fn tile<const D: usize>(
        team: Team,
        to: Shared<u8>,
        (_, map): (TensorMap, &MapWords),
        place: [u32; D],
        shape: Shape,
        _: Shared<Mbarrier>,
    ) {
        const { assert!(D >= 2 && D <= 4) };
        let (rows, row_bytes) = (shape.rows as u32, shape.row_bytes as u32);
        let chunks = row_bytes / 16;
        let at_once = team.threads / chunks;
        let (own, column) = (team.thread / chunks, team.thread % chunks * 16);
        let first = place[0] * shape.element as u32;
        let (width, height) = (extent(map, 0), extent(map, 1));
        let stride = map[MAP_STRIDES];
        let mut base = tensor(map);
        let mut inside = true;
        if D > 2 {
            inside &= place[2] < extent(map, 2);
            base = base.row(place[2], map[MAP_STRIDES + 1]);
        }
        if D > 3 {
            inside &= place[3] < extent(map, 3);
            base = base.row(place[3], map[MAP_STRIDES + 2]);
        }
        let (y, row) = (place[1], place[1].wrapping_add(own));
        // A byte count that is not a constant costs a dozen instructions per copy.
        if inside && y < height && height - y >= rows && width >= first.wrapping_add(row_bytes) {
            let mut from = base.row(row, stride).bytes(first + column);
            let mut r = 0;
            while r < rows {
                // Eight copies between two tests of the loop.
                unroll!(i < 8, {
                    let next = r + i as u32 * at_once;
                    if next < rows {
                        let byte = (next + own) * row_bytes + column;
                        if rows % at_once == 0 || next + own < rows {
                            from.cp_async_16_if(to.bytes(byte).swizzled(row_bytes), 1);
                        }
                        from = from.row(at_once, stride);
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
                // Outside of the tensor nothing is read, but the address must still be valid.
                let there = inside && now < height && bytes > 0;
                let from = if there { base.row(now, stride).bytes(begin) } else { tensor(map) };
                if rows % at_once == 0 || r + own < rows {
                    let to = to.bytes(byte).swizzled(row_bytes);
                    from.cp_async_16(to, if there { bytes } else { 0 });
                }
                r += at_once;
            }
        }
    }

    #[inline(always)]
    fn pixels(
        team: Team,
        to: Shared<u8>,
        (_, map): (TensorMap, &MapWords),
        ([channel, ..], [down, right]): ([u32; 4], [u32; 2]),
        shape: Shape,
        _: Shared<Mbarrier>,
        pixel: impl Fn(u32) -> [u32; 3],
    ) {
        let (rows, row_bytes) = (shape.rows as u32, shape.row_bytes as u32);
        let chunks = row_bytes / 16;
        let at_once = team.threads / chunks;
        let (own, column) = (team.thread / chunks, team.thread % chunks * 16);
        let begin = channel * shape.element as u32 + column;
        let bytes = extent(map, 0).saturating_sub(begin).min(16);
        // The address of each row; for a row outside of the images, the address of the tensor.
        let source = |row: u32| {
            let [y, x, image] = pixel(row);
            let (y, x) = (y.wrapping_add(right), x.wrapping_add(down));
            let inside = y < extent(map, 1) && x < extent(map, 2) && image < extent(map, 3);
            let from = tensor(map)
                .bytes(begin)
                .row(y, map[MAP_STRIDES])
                .row(x, map[MAP_STRIDES + 1])
                .row(image, map[MAP_STRIDES + 2]);
            if inside && bytes > 0 { (from, true) } else { (tensor(map), false) }
        };
        let to_row = |row: u32| to.bytes(row * row_bytes + column).swizzled(row_bytes);
        let whole = extent(map, 0).is_multiple_of(16);
        let mut r = own;
        while r < rows {
            warp::nounroll();
            // Four independent searches hide the latency.
            unroll!(i < 4, {
                let row = r + i as u32 * at_once;
                if row < rows {
                    let (from, inside) = source(row);
                    if whole {
                        from.cp_async_16_or_zero(to_row(row), inside);
                    } else {
                        from.cp_async_16(to_row(row), if inside { bytes } else { 0 });
                    }
                }
            });
            r += 4 * at_once;
        }
    }

    #[inline(always)]
    fn line<T, A>(team: Team, to: Shared<u8>, from: Global<T, A>, bytes: u32, _: Shared<Mbarrier>) {
        let mut byte = team.thread * 16;
        while byte < bytes {
            from.bytes(byte).cp_async_16_if(to.bytes(byte), 1);
            byte += team.threads * 16;
        }
    }

    #[inline(always)]
    fn long_line<T, A>(
        team: Team,
        to: Shared<u8>,
        from: Global<T, A>,
        bytes: u32,
        full: Shared<Mbarrier>,
    ) {
        let step = team.threads * 16;
        let own = team.thread * 16;
        let (mut to_own, mut from_own) = (to.bytes(own), from.bytes(own));
        let mut left = bytes;
        while left >= 8 * step {
            warp::nounroll();
            unroll!(i < 8, {
                let on = i as u32 * step;
                from_own.bytes(on).cp_async_16_if(to_own.bytes(on), 1);
            });
            to_own = to_own.bytes(8 * step);
            from_own = from_own.bytes(8 * step);
            left -= 8 * step;
        }
        Self::line(
            team,
            to_own.bytes(own.wrapping_neg()),
            from_own.wrapping_bytes(-i64::from(own) as u64),
            left,
            full,
        );
    }

    #[inline(always)]
    fn prefetch_line<T, A>(_: Global<T, A>, _: u32) {}

    #[inline(always)]
    fn wait_own() {
        copy::cp_async_wait_all();
    }
}
