//! SDDMM at unstructured nonzeros, on CUDA cores. A segment of lanes computes a run of entries of one row of S. It
//! keeps its slice of that row of X in registers, and gathers several rows of Y at once. Sub-warp tiling as in Sputnik
//! (arXiv 2006.10901, section 6). Eight sums are added over the lanes in one transposing reduction and stored together.

mod terms;

use crate::device::lanes::reduce_each;
use crate::device::prelude::*;
use crate::device::walk::Walk;
use crate::families::sddmm::abi::*;
pub(super) use terms::Terms;

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
    pub(super) fn column(self, p: &SddmmParams, at: u32) -> u32 {
        let own = at + gpu::thread() % SAMPLES as u32;
        p.columns().at(self.start as u64 + own as u64).ld_if(own < self.len)
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
        let mut next = run.column(p, 0);
        // The segments of a warp iterate as often as the one with the longest run: shuffles require all lanes.
        let last = warp::max(len);
        let mut at = 0;
        while at < last {
            let column = next;
            next = run.column(p, at + SAMPLES as u32);
            let mut sums = [E::ZERO; SAMPLES];
            let mut k = 0;
            while k < p.k {
                // If k is a single step, the row is loaded once for all entries.
                if at == 0 || p.k > Self::COLUMNS {
                    let from = p.x().row(row, p.ldx_bytes).cast();
                    x = slice::<E, VEC, REP>(p, from, k, len > 0, F::LANES);
                }
                let place = (run, at, k);
                if k + Self::COLUMNS <= p.k {
                    if F::FLIGHT == 4 {
                        add::<E, VEC, REP, 4>(p, place, column, &x, &mut sums, F::LANES);
                    } else {
                        add::<E, VEC, REP, 8>(p, place, column, &x, &mut sums, F::LANES);
                    }
                } else {
                    add_ragged::<E, VEC, REP>(p, place, column, &x, &mut sums, F::LANES);
                }
                k += Self::COLUMNS;
            }
            let sum = over_lanes::<E>(sums, F::LANES);
            store::<E>(p, run, at, sum, F::LANES);
            at += SAMPLES as u32;
        }
    }
}

/// Index of this lane in its segment of `lanes` lanes, a constant here and below.
#[inline(always)]
fn lane(lanes: u32) -> u32 {
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

/// Adds the terms of a whole step along k to the sums of eight entries, `FLIGHT` rows of Y at a time.
#[inline(always)]
fn add<E: Terms, const VEC: usize, const REP: usize, const FLIGHT: usize>(
    p: &SddmmParams,
    (run, at, k): (Run, u32, u32),
    column: u32,
    x: &[Raw; REP],
    sums: &mut [E::Acc; SAMPLES],
    lanes: u32,
) {
    unroll!(step < SAMPLES / FLIGHT, {
        let mut raw = [[[0u32; 4]; REP]; FLIGHT];
        unroll!(f < FLIGHT, {
            let u = (step * FLIGHT + f) as u32;
            let from = row_of_y::<E, VEC>(p, column, u, k, lanes);
            unroll!(r < REP, {
                let shift = r as u32 * lanes * VEC as u32 * E::BYTES;
                raw[f][r] = E::load::<VEC>(from.bytes(shift), at + u < run.len);
            });
        });
        unroll!(f < FLIGHT, {
            let u = (step * FLIGHT + f) & (SAMPLES - 1);
            unroll!(r < REP, {
                sums[u] = E::dot::<VEC>(&x[r], &raw[f][r], sums[u]);
            });
        });
    });
}

/// [`add`] for the step that crosses the end of k: one vector of all eight rows at a time, so that the predicates for
/// the ends of k and of the run do not multiply.
#[inline(always)]
fn add_ragged<E: Terms, const VEC: usize, const REP: usize>(
    p: &SddmmParams,
    (run, at, k): (Run, u32, u32),
    column: u32,
    x: &[Raw; REP],
    sums: &mut [E::Acc; SAMPLES],
    lanes: u32,
) {
    unroll!(r < REP, {
        let k = k + r as u32 * lanes * VEC as u32;
        // Not in a branch: shuffles require all lanes.
        let inside = k + lane(lanes) * (VEC as u32) < p.k;
        let mut raw = [[0u32; 4]; SAMPLES];
        unroll!(u < SAMPLES, {
            let from = row_of_y::<E, VEC>(p, column, u as u32, k, lanes);
            raw[u] = E::load::<VEC>(from, inside && at + (u as u32) < run.len);
        });
        unroll!(u < SAMPLES, {
            sums[u] = E::dot::<VEC>(&x[r], &raw[u], sums[u]);
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

/// Sum over a segment for the entry that this lane belongs to: entry `e` belongs to lanes `e * lanes / 8` and on. It
/// takes 7 shuffles for 8 sums in the first three steps, where separate sums would take 24.
#[inline(always)]
pub(super) fn over_lanes<E: Terms>(sums: [E::Acc; SAMPLES], lanes: u32) -> E::Acc {
    reduce_each(sums, SAMPLES, lanes, |keep, give, distance| {
        E::add(keep, E::shfl_xor(give, distance))
    })
}

/// Finishes and stores the entry that this lane keeps, of those at `at..at + 8`: scalar, mask, `=` or `+=`.
#[inline(always)]
pub(super) fn store<E: Terms>(p: &SddmmParams, run: Run, at: u32, sum: E::Acc, lanes: u32) {
    let share = lanes / SAMPLES as u32;
    let own = at + lane(lanes) / share;
    if own >= run.len || !lane(lanes).is_multiple_of(share) {
        return;
    }
    E::finish(p, run.start as u64 + own as u64, sum);
}
