//! Convolution of listed channels or filters only, as a product with one row for each position of C. TMA copies boxes
//! of positions, shifted by the tap, with zeros for those outside of the image. Four producer warps gather the rows of
//! B on the image's list, or one thread starts the copies of packed filters; two consumer warpgroups multiply. The grid
//! is persistent: the lengths of the lists are read on the device.

mod out;
mod producer;

use crate::device::prelude::*;
use crate::device::stages::steps;
use crate::families::gather_gemm::abi::*;

buffers! {
    // `PitConvLaunch::check` checks the alignment of the operands, its callers their shapes
    // (`host/core/dynamic/convolution.rs`, `host/core/offer/run.rs`). The detection on the same stream writes
    // lists of at most `list_stride` channels or filters.
    unsafe PitConvParams {
        lists: u32, Fresh;
        counts: u32, Fresh;
        b: u16, ReadWrite;
        c: u16, ReadWrite;
    }
}

/// Channels of a stage, and of one `wgmma`.
const DEPTH: u32 = PIT_CONV_DEPTH as u32;
const STEP: u32 = 16;

/// Work item: a box of positions of C, and the filters from `column` on.
#[derive(Clone, Copy)]
struct Work {
    image: u32,
    corner: [u32; 2],
    column: u32,
    /// Number of channels.
    count: u32,
}

impl<F: PitConvForm> Stages for PitConv<F> {
    const COUNT: usize = Self::STAGES;
    const STRIDE: usize = Self::STAGE;
    const FIRST_BARRIER: usize = Self::BARRIERS;
}

impl<F: PitConvForm<A: Multiply, L: Loader>> PitConv<F> {
    /// Warpgroups that share the columns of a tile. They split 128 positions; with fewer positions both have all of
    /// them and half of the columns.
    const GROUPS: u32 = if F::MT == 128 { 1 } else { 2 };
    /// Max number of chunks of 64 columns of a warpgroup.
    const CONSUMED: usize = F::CHUNKS / Self::GROUPS as usize;

    /// Returns whether TMA copies `count` channels as half lines.
    #[inline(always)]
    fn is_narrow(count: u32) -> bool {
        F::L::BY_ONE && !F::FILTERS && count <= DEPTH / 2
    }

    /// Returns the number of columns of B: all filters, or the listed ones.
    #[inline(always)]
    fn columns(p: &PitConvParams) -> u32 {
        if F::FILTERS { p.counts().ld() } else { p.filters }
    }

    /// Returns work item `index`. Neighbouring items share columns of B.
    #[inline(always)]
    fn work(p: &PitConvParams, index: u32) -> Work {
        let across = index.checked_div(p.positions).unwrap_or(0);
        let (image, tile) = p.image.of(index - across * p.positions);
        let (down, right) = p.row.of(tile);
        let tall = Self::BLOCK.0.checked_div(p.wide.value).unwrap_or(0);
        let listed = p.counts().at(image).ld_if(!F::FILTERS);
        Work {
            image,
            corner: [down * tall, right * p.wide.value],
            column: across * Self::COLUMNS,
            count: if F::FILTERS { p.channels } else { listed },
        }
    }

    /// Computes every tile, with only as many chunks of 64 columns as needed.
    #[inline(always)]
    fn consume<E: WgmmaElem>(p: &PitConvParams) {
        let group = warp::uniform(gpu::thread() / 128);
        let columns = warp::uniform(Self::columns(p));
        let tiles = p.positions * columns.div_ceil(Self::COLUMNS);
        let mut ring = Ring::<Self>::consumer();
        let mut index = gpu::block_x();
        while index < tiles {
            let work = Self::work(p, index);
            let count = warp::uniform(work.count);
            let left = warp::uniform(columns - work.column);
            let own = (group, columns, count);
            if left <= 64 * Self::GROUPS {
                Self::tile::<E, 1>(p, work, own, &mut ring);
            } else if Self::CONSUMED == 2 || left <= 128 * Self::GROUPS {
                Self::tile::<E, 2>(p, work, own, &mut ring);
            } else {
                Self::tile::<E, 4>(p, work, own, &mut ring);
            }
            index += gpu::grid_x();
        }
    }

    /// Computes a tile of `C` chunks for each warpgroup.
    #[inline(always)]
    fn tile<E: WgmmaElem, const C: usize>(
        p: &PitConvParams,
        work: Work,
        (group, columns, count): (u32, u32, u32),
        ring: &mut Ring<Self>,
    ) {
        let mut acc = Acc::<C>::zero();
        Self::products::<E, C>((count, p.taps), group, ring, &mut acc);
        F::A::exchange_quarters(&mut acc, Self::out(group), 1 + group);
        Self::epilogue::<E, C>(p, work, (group, columns), &acc);
    }

    #[inline(always)]
    fn products<E: WgmmaElem, const C: usize>(
        (count, taps): (u32, u32),
        group: u32,
        ring: &mut Ring<Self>,
        acc: &mut Acc<C>,
    ) {
        // With few channels a position has half a line.
        let row = if Self::is_narrow(count) { PANEL_BYTES as u32 / 2 } else { PANEL_BYTES as u32 };
        let mut tap = 0;
        while tap < taps {
            let mut from = 0;
            while from < count {
                let slot = ring.wait_full();
                if !F::FILTERS {
                    // `cp.async` wrote the gathered rows through the generic proxy.
                    F::A::fence_proxy_async();
                }
                F::A::fence(acc);
                Self::multiply::<E, C>(acc, slot, (group, row), steps::<DEPTH, STEP>(count, from));
                ring.issued::<F::A, _>(acc);
                ring.advance();
                from += DEPTH;
            }
            tap += 1;
        }
        ring.drain::<F::A, _>(acc);
    }

    #[inline(always)]
    fn multiply<E: WgmmaElem, const C: usize>(
        acc: &mut Acc<C>,
        slot: u32,
        (group, row): (u32, u32),
        used: u32,
    ) {
        let stage = Self::stage(slot);
        let b_tile = stage.bytes(Self::A_BYTES as u32);
        let (a, b) = if F::MT == 128 {
            (stage.bytes(group * 64 * row), b_tile)
        } else {
            (stage, b_tile.bytes(group * (C * SMEM_TILE) as u32))
        };
        let line = PANEL_BYTES as u32;
        unroll!(step < 4, {
            if (step as u32) < used {
                let a = a.bytes(step as u32 * 32).descriptor(row, 16);
                let b = b.bytes(step as u32 * STEP * line).descriptor(line, SMEM_TILE as u32);
                F::A::mma::<E, C, 0, 1>(acc, a, b);
            }
        });
    }
}

impl<W: WalkInfo, E: WgmmaElem, F: PitConvForm<A: Multiply, L: Loader>> Kernel<W, E, PitConvParams>
    for PitConv<F>
{
    #[inline(always)]
    unsafe fn run(p: &PitConvParams, at: Maps) {
        grid::launch_dependents();
        if gpu::thread() == 0 {
            // Arrivals of TMA, and of every producer thread.
            let arrivals = if F::FILTERS {
                F::L::fills(PIT_CONV_PRODUCER_THREADS)
            } else {
                PIT_CONV_PRODUCER_THREADS + F::L::BY_ONE as u32
            };
            Self::make_barriers(arrivals, CONSUMER_WARPS);
            F::L::prefetch_maps::<2>(at);
        }
        gpu::sync_threads();
        grid::wait_dependency();
        roles!(
            F::A: if !F::FILTERS || !F::L::BY_ONE || gpu::thread() == CONSUMER_WARPS * 32 {
                Self::produce(p, at);
            },
            Self::consume::<E>(p)
        );
    }
}
