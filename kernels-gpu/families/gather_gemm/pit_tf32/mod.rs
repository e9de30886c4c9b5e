//! Product of f32 as TF32 with an operand whose empty micro-tiles were found at run time, computed transposed. Four
//! producer warps gather the rows of B that match the micro-tiles of a row block of A. Two consumer warpgroups read
//! them as fragments, round them, and multiply them by the row block's packed values (`wgmma`). The grid is persistent:
//! the number of micro-tiles is read on the device.

use super::listed::{Source, producer};
use super::pit_work::{ByList, Fill, Work, produce};
use crate::device::prelude::*;
use crate::device::stages::steps;
use crate::families::gather_gemm::abi::*;

/// Micro-tiles of a stage, and of one `wgmma`.
const DEPTH: u32 = PIT_TF32_DEPTH as u32;
const STEP: u32 = 8;

/// Registers of a lane for 64 columns of a stage's rows of B, for each k-step.
type PerThread = [[u32; 4]; STEPS];

impl<const MT: usize, A: AtomInfo, L: LoaderInfo> Stages for PitWords<MT, A, L> {
    const COUNT: usize = Self::STAGES;
    const STRIDE: usize = Self::STAGE;
    const FIRST_BARRIER: usize = Self::BARRIERS;
}

impl<const MT: usize, A: Multiply, L: Loader> PitWords<MT, A, L> {
    /// Shape of the row block's values in a stage.
    const A_TILE: Shape = Shape { rows: MT, row_bytes: PANEL_BYTES, element: 4 };

    /// Computes a warpgroup's 128 columns as two blocks of 64: while one is multiplied, fragments of the other are read
    /// and rounded.
    #[inline(always)]
    fn consume<const C: usize>(p: &PitParams) {
        let group = gpu::thread() / 128;
        let mut ring = (0, 0);
        let mut index = gpu::block_x();
        while index < p.tiles {
            let work = Work::new(p, index, Self::COLUMNS);
            // Warp-uniform in a form that ptxas recognizes: otherwise it compiles the products as divergent code.
            let count = warp::max(work.count);
            let (mut low, mut high) = (Acc::<C>::zero(), Acc::<C>::zero());
            if count > 0 {
                let mut own = Self::arrived(ring, group);
                let mut from = 0;
                loop {
                    let (slot, used) = (ring.0, steps::<DEPTH, STEP>(count, from));
                    Self::multiply(&mut low, slot, &own, used);
                    let other =
                        if Self::BLOCKS == 1 { own } else { Self::own(slot, 2 * group + 1) };
                    A::wait::<C, 0>(&mut low);
                    keep(&own);
                    if Self::BLOCKS > 1 {
                        Self::multiply(&mut high, slot, &other, used);
                    }
                    if !A::ASYNCHRONOUS {
                        Self::release(slot);
                    }
                    ring = Self::next(ring);
                    from += DEPTH;
                    if from < count {
                        own = Self::arrived(ring, group);
                    }
                    if A::ASYNCHRONOUS {
                        A::wait::<C, 0>(&mut high);
                        keep(&other);
                        Self::release(slot);
                    }
                    if from >= count {
                        break;
                    }
                }
            }
            let first = Self::BLOCKS as u32 * group;
            Self::epilogue(p, work, first, &low);
            if Self::BLOCKS > 1 {
                Self::epilogue(p, work, first + 1, &high);
            }
            index += gpu::grid_x();
        }
    }

    /// Waits for a stage, and returns fragments of the warpgroup's first 64 columns.
    #[inline(always)]
    fn arrived(ring: (u32, u32), group: u32) -> PerThread {
        Self::full(ring.0).wait(ring.1);
        Self::own(ring.0, Self::BLOCKS as u32 * group)
    }

    /// Returns a lane's share of block `block` of 64 columns of B, rounded to TF32; these columns are rows of the
    /// transposed product. Rows of B outside of the k-steps are read too, but not multiplied.
    #[inline(always)]
    fn own(slot: u32, block: u32) -> PerThread {
        let (lane, warp) = gpu::lane_and_warp();
        let piece = 2 * block + warp / 2;
        let piece = Self::stage(slot).bytes(Self::B_AT as u32).bytes(piece * Self::PIECE as u32);
        let mut own = [[0u32; 4]; STEPS];
        unroll!(r < 4, {
            let (g, k) = frag::a_k8(lane, r as u32);
            let column = warp % 2 * 16 + g;
            let at = piece.bytes(pit_tf32_place(k, column / 4)).cast::<u32>().at(column % 4);
            unroll!(step < STEPS, {
                let word = at.bytes(step as u32 * STEP * PANEL_BYTES as u32).ld();
                own[step][r] = matrix::cvt_rna_tf32(word);
            });
        });
        own
    }

    /// Starts the products of 64 columns of B by the row block's rows of A, which are contiguous along k and rounded.
    #[inline(always)]
    fn multiply<const C: usize>(acc: &mut Acc<C>, slot: u32, own: &PerThread, used: u32) {
        let a = Self::stage(slot);
        A::fence(acc);
        // Unconditional code if all steps are used: with a condition each product would be a group of its own.
        if used == STEPS as u32 {
            unroll!(step < STEPS, { Self::step(acc, a, own, step) });
            A::commit();
        } else {
            unroll!(step < 3, {
                if (step as u32) < used {
                    Self::step(acc, a, own, step);
                }
            });
            A::commit();
        }
    }

    #[inline(always)]
    fn step<const C: usize>(acc: &mut Acc<C>, a: Shared<u8>, own: &PerThread, step: usize) {
        let a = a.bytes(step as u32 * 32).descriptor(PANEL_BYTES as u32, 16);
        A::mma_tf32_registers(acc, own[step], a);
    }

    /// Stores 64 columns of C from the accumulator layout: eight lanes fill a sector of 32 bytes.
    #[inline(always)]
    fn epilogue<const C: usize>(p: &PitParams, work: Work, block: u32, acc: &Acc<C>) {
        let (lane, warp) = gpu::lane_and_warp();
        // Rows of the transposed product are columns of C.
        let (across, down) = frag::accumulator(lane, 0);
        let column = work.column + block * 64 + warp * 16 + across;
        let top = work.row_block * MT as u32;
        let (row, end) = (top + down, p.m.min(top + MT as u32));
        let inside = [column, column + 8].map(|column| column < p.n);
        let line = p.c().row(row, p.ldc_bytes).cast::<u32>().at(column);
        unroll!(c < C, most 4, {
            unroll!(j < 8, {
                unroll!(i < 2, {
                    let beyond = (c * 64 + j * 8 + i) as u32;
                    let line = line.row(beyond, p.ldc_bytes);
                    let valid = beyond < MT as u32 && row + beyond < end;
                    unroll!(h < 2, {
                        let x = acc.0[c][4 * j + 2 * h + i].to_bits();
                        line.at(h as u64 * 8).st_if(x, valid && inside[h]);
                    });
                });
            });
        });
    }
}

/// A lane copies 16 bytes of each row of B, and 16 from 128 columns later.
impl<const MT: usize, A: Multiply, L: Loader> ByList for PitWords<MT, A, L> {
    const ROWS: u32 = DEPTH / 4;
    const K_STEP: u32 = STEP;
    type Sources = [Source; 2];

    #[inline(always)]
    fn sources(p: &PitParams, work: Work, lane: u32) -> [Source; 2] {
        let column = work.column + lane * 4;
        let (item, _) = p.item.of(work.row_block);
        let b = p.b().row(item, p.item_bytes).cast::<f32>();
        let first = Source::new(b, [column, p.n], p.ldb_bytes);
        [first, Source { inside: u32::from(column + 128 < p.n), ..first }]
    }

    #[inline(always)]
    fn start_a(p: &PitParams, at: Maps, _: [Source; 2], fill: Fill) {
        let (thread, to, full) = (producer(), Self::stage(fill.slot), Self::full(fill.slot));
        if L::BY_ONE && thread != 0 {
            return;
        }
        if L::BY_ONE {
            full.arrive_expect_tx(Self::A_BYTES as u32);
        }
        let place = [fill.from, fill.work.row_block * MT as u32];
        let team = Team { thread, threads: PIT_PRODUCER_THREADS };
        L::tile(team, to, (at.map(0), &p.a_map), place, Self::A_TILE, full);
    }

    #[inline(always)]
    fn gather<const WHOLE: bool>(b: [Source; 2], fill: Fill) {
        let (warp, lane) = (producer() / 32, producer() % 32);
        let to =
            Self::stage(fill.slot).bytes(Self::B_AT as u32).bytes(lane / 8 * Self::PIECE as u32);
        let to = to.bytes(warp * STEP * PANEL_BYTES as u32);
        unroll!(i < 8, {
            let row = warp::shfl(fill.row, i as u32);
            let to = to.bytes(pit_tf32_place(i as u32, lane % 8));
            unroll!(half < 2, {
                if half < Self::BLOCKS {
                    let to = to.bytes((half * 4 * Self::PIECE) as u32);
                    b[half].copy::<WHOLE>(row, half as u32 * 512, to);
                }
            });
        });
    }
}

/// Emits no instruction: the registers stay in use up to this point, so data that is read meanwhile is in others.
#[inline(always)]
fn keep(own: &PerThread) {
    unroll!(step < STEPS, { matrix::keep_alive(own[step]) });
}

impl<W: WalkInfo, E: Elem<Acc = f32>, const MT: usize, A: Multiply, L: Loader>
    Kernel<W, E, PitParams> for PitWords<MT, A, L>
{
    #[inline(always)]
    unsafe fn run(p: &PitParams, at: Maps) {
        grid::launch_dependents();
        if gpu::thread() == 0 {
            Self::make_barriers(Self::ARRIVALS, CONSUMER_WARPS);
            L::prefetch_maps::<1>(at);
        }
        gpu::sync_threads();
        grid::wait_dependency();
        roles!(
            A: produce::<Self>(p, at),
            if MT == 128 {
                Self::consume::<2>(p);
            } else {
                Self::consume::<1>(p);
            }
        );
    }
}
