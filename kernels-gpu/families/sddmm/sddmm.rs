//! SDDMM at unstructured nonzeros, on CUDA cores. A segment of lanes computes a run of entries of one row of S. It
//! keeps its slice of that row of X in registers, and gathers several rows of Y at once. Sub-warp tiling as in Sputnik
//! (arXiv 2006.10901, section 6). Eight sums are added over the lanes in one transposing reduction and stored together.

mod terms;

use crate::device::lanes::reduce_each;
use crate::device::prelude::*;
use crate::device::walk::Walk;
use crate::families::sddmm::abi::*;
use terms::Terms;

buffers! {
    // `Sddmm` makes the items from the pattern, and checks the alignment and the strides of X and Y.
    // `OnGpu::arrays_of` checks that S and the mask have this pattern.
    unsafe SddmmParams {
        items: [u32; 4], ReadOnly;
        columns: u32, ReadOnly;
        x: u8, ReadOnly;
        y: u8, ReadOnly;
        values: u8, ReadWrite;
        mask: u8, ReadWrite;
    }
}

/// Entries `start..start + len` of the pattern, all in one row.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub(super) start: u32,
    pub(super) len: u32,
}

impl Run {
    /// Loads the column of entry `at + i` in every lane `i` (modulo eight). This takes one register. Vectors of columns
    /// in all lanes would take eight and require an aligned start.
    #[inline(always)]
    fn column(self, p: &SddmmParams, at: u32) -> u32 {
        let own = at + gpu::thread() % SAMPLES as u32;
        p.columns().at(self.start as u64 + own as u64).ld_if(own < self.len)
    }

    /// Computes the entries, eight at a time: `sums` gets the index of the first and this lane's column, and returns
    /// this lane's part of their sums.
    #[inline(always)]
    pub(super) fn entries<E: Terms>(
        self,
        p: &SddmmParams,
        lanes: u32,
        mut sums: impl FnMut(u32, u32) -> [E::Acc; SAMPLES],
    ) {
        let mut next = self.column(p, 0);
        // The segments of a warp iterate as often as the one with the longest run: shuffles require all lanes.
        let last = warp::max(self.len);
        let mut at = 0;
        while at < last {
            let column = next;
            next = self.column(p, at + SAMPLES as u32);
            // Entry `e` belongs to lanes `e * lanes / 8` and on. The sums over the segment take 7 shuffles for 8 sums in
            // the first three steps, where separate sums would take 24.
            let sum = reduce_each(sums(at, column), SAMPLES, lanes, |keep, give, distance| {
                E::add(keep, E::shfl_xor(give, distance))
            });
            let share = lanes / SAMPLES as u32;
            let own = at + lane(lanes) / share;
            if own < self.len && lane(lanes).is_multiple_of(share) {
                E::finish(p, self.start as u64 + own as u64, sum);
            }
            at += SAMPLES as u32;
        }
    }
}

impl<W: Walk, E: Terms, const VEC: usize, const REP: usize, F: SegmentForm>
    Kernel<W, E, SddmmParams> for Dots<VEC, REP, F>
{
    #[inline(always)]
    unsafe fn run(p: &SddmmParams, _at: Maps) {
        const { assert!(F::FLIGHT == 4 || F::FLIGHT == 8) };
        let index = gpu::block_x() * Self::ITEMS + gpu::thread() / F::LANES;
        // Past the last item all values are zero, including the length.
        let [row, start, len, _] = p.items().at(index).ld_once_if(index < p.item_count);
        let run = Run { start, len };
        let mut x = [[0; 4]; REP];
        run.entries::<E>(p, F::LANES, |at, column| {
            let mut sums = [E::ZERO; SAMPLES];
            let mut k = 0;
            while k < p.k {
                // If k is a single step, the row is loaded once for all entries.
                if at == 0 || p.k > Self::COLUMNS {
                    let from = p.x().row(row, p.ldx_bytes).cast();
                    x = slice::<E, VEC, REP>(p, from, k, len > 0, F::LANES);
                }
                if k + Self::COLUMNS <= p.k {
                    add::<E, VEC, REP>(&x, &mut sums, F::FLIGHT, |u| {
                        let from = row_of_y::<E, VEC>(p, column, u, k, F::LANES);
                        let mut raw = [[0u32; 4]; REP];
                        unroll!(r < REP, {
                            let shift = r as u32 * F::LANES * VEC as u32 * E::BYTES;
                            raw[r] = E::load::<VEC>(from.bytes(shift), at + u < len);
                        });
                        raw
                    });
                } else {
                    // One vector of all eight rows at a time, so that the predicates for the ends of k and of the run do
                    // not multiply.
                    unroll!(r < REP, {
                        let k = k + r as u32 * F::LANES * VEC as u32;
                        let inside = k + lane(F::LANES) * (VEC as u32) < p.k;
                        add::<E, VEC, 1>(&[x[r]], &mut sums, SAMPLES, |u| {
                            // Not in a branch: shuffles require all lanes.
                            let from = row_of_y::<E, VEC>(p, column, u, k, F::LANES);
                            [E::load::<VEC>(from, inside && at + u < len)]
                        });
                    });
                }
                k += Self::COLUMNS;
            }
            sums
        });
    }
}

/// Index of this lane in its segment of `lanes` lanes, a constant here and below.
#[inline(always)]
pub(super) fn lane(lanes: u32) -> u32 {
    gpu::thread() % lanes
}

/// Loads this lane's vectors of a row for the step along k that begins at `k`; zeros past the end.
#[inline(always)]
pub(super) fn slice<E: Terms, const VEC: usize, const REP: usize>(
    p: &SddmmParams,
    row: Global<E, ReadOnly>,
    k: u32,
    ok: bool,
    lanes: u32,
) -> [Raw; REP] {
    let mut raw = [[0u32; 4]; REP];
    let first = k + lane(lanes) * VEC as u32;
    let from = row.bytes(first * E::BYTES);
    unroll!(r < REP, {
        let shift = r as u32 * lanes * VEC as u32;
        let inside = first + shift < p.k;
        raw[r] = E::load::<VEC>(from.bytes(shift * E::BYTES), ok && inside);
    });
    raw
}

/// Adds the terms of `REP` vectors to the sums of eight entries, `flight` (4 or 8) rows of Y at a time. `vectors` loads
/// those of the row of an entry.
#[inline(always)]
pub(super) fn add<E: Terms, const VEC: usize, const REP: usize>(
    x: &[Raw; REP],
    sums: &mut [E::Acc; SAMPLES],
    flight: usize,
    vectors: impl Fn(u32) -> [Raw; REP],
) {
    let mut raw = [[[0u32; 4]; REP]; SAMPLES];
    unroll!(step < 2, {
        unroll!(u < SAMPLES, {
            if u / flight == step {
                raw[u] = vectors(u as u32);
            }
        });
        unroll!(u < SAMPLES, {
            if u / flight == step {
                unroll!(r < REP, {
                    sums[u] = E::dot::<VEC>(&x[r], &raw[u][r], sums[u]);
                });
            }
        });
    });
}

/// Address at which this lane reads the row of Y of entry `u` of eight, from `k` on.
#[inline(always)]
fn row_of_y<E: Terms, const VEC: usize>(
    p: &SddmmParams,
    column: u32,
    u: u32,
    k: u32,
    lanes: u32,
) -> Global<E, ReadOnly> {
    let column = warp::shfl_segment(SAMPLES as u32, column, u, u32::MAX);
    let offset = (k + lane(lanes) * VEC as u32) * E::BYTES;
    p.y().row(column, p.ldy_bytes).bytes(offset).cast()
}
