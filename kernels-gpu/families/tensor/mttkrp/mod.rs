//! Rows gathered for the entries of a sparse tensor: `out[row] += value * B[j] * C[k] * D[l]`, elementwise along the
//! rows (MTTKRP, TTM). Entries are sorted by output row. A segment of lanes processes several whole rows in one loop,
//! or a piece of a long row, whose sum is completed by a split-K fix-up as in `spmm`.

mod dots;
mod terms;

use crate::device::prelude::*;
use crate::device::split_k::fix_up_row;
use crate::device::walk::Walk;
use crate::families::tensor::abi::*;
use terms::{load, reduced, scaled};

buffers! {
    // `AnyPlan::check` (`host/core/plan/any.rs`) checks the shapes of the factors, and the indices are
    // those of the pattern. `aligned` (`host/core/launch.rs`) checks the addresses and strides of the
    // factors.
    unsafe MttkrpParams {
        places[]: u32, ReadOnly;
        factors[]: u8, ReadWrite;
        rows: u32, ReadOnly;
    }
}

/// Row indices of all entries in each factor.
#[inline(always)]
fn indices(p: &MttkrpParams) -> [Global<u32, ReadOnly>; 3] {
    // SAFETY: the plan owns the indices of the first factor as well, and no kernel writes them.
    let first = unsafe { p.product.columns().with::<ReadOnly>() };
    [first, p.places(0), p.places(1)]
}

type Acc<E, const VEC: usize, const REP: usize> = [[<E as Elem>::Acc; VEC]; REP];

impl<W: Walk, E: Elem, const VEC: usize, const REP: usize, F: GatherForm> Kernel<W, E, MttkrpParams>
    for Rows<VEC, REP, F>
{
    #[inline(always)]
    unsafe fn run(p: &MttkrpParams, _at: Maps) {
        const { assert!(F::UNROLL == 4 || F::UNROLL == 8) };
        grid::launch_dependents();
        let lane = gpu::thread() % F::LANES;
        let index = gpu::block_x() * Self::ITEMS + gpu::thread() / F::LANES;
        if index >= p.product.item_count {
            return;
        }
        let [row, start, len, slot] = p.product.items().at(index).ld_once_if(true);
        let column = gpu::block_y() * Self::COLUMNS + lane * VEC as u32;
        if len == 0 {
            grid::wait_dependency();
            return clear::<E, VEC, REP, F>(p, row, start, column);
        }
        let run = Run {
            lead: W::lead(start),
            base: start as u64 - W::lead(start) as u64,
            end: W::lead(start) + len,
            whole: slot == BUNDLE,
        };
        // The plan owns the indices; values and factors may be written by the preceding kernel.
        let mut next = run.places::<F>(p, 0);
        grid::wait_dependency();
        let mut values = run.values::<E, F>(p, 0);
        let mut acc = [[start_of::<E, F>(); VEC]; REP];
        let (mut at, mut rank) = (0, row);
        while at < run.end {
            let burst = Burst { places: next, values, at };
            at += F::UNROLL as u32;
            next = run.places::<F>(p, at);
            values = run.values::<E, F>(p, at);
            rank = if F::UNROLL == 4 {
                burst.add::<E, VEC, REP, 4, F>(p, run, column, rank, &mut acc)
            } else {
                burst.add::<E, VEC, REP, 8, F>(p, run, column, rank, &mut acc)
            };
        }
        if slot != BUNDLE && fix_up::<E, VEC, REP, F>(p, slot, [lane, column], &mut acc) {
            store::<E, VEC, REP, F>(p, row, column, &acc);
        }
    }
}

/// Bytes of a value of the sparse tensor.
const fn value_bytes<E: Elem, F: GatherForm>() -> u32 {
    if F::REDUCE == REDUCE_MEAN { 4 } else { E::BYTES }
}

/// Initial value of a reduction.
#[inline(always)]
fn start_of<E: Elem, F: GatherForm>() -> E::Acc {
    if F::REDUCE == REDUCE_MAX { E::scalar(f64::NEG_INFINITY) } else { E::ZERO }
}

/// Entries of an item: the aligned start of the loads, and the range of loaded entries that belong to the item.
#[derive(Clone, Copy)]
struct Run {
    /// Aligned index at or before the first entry; the indices below are relative to it.
    base: u64,
    lead: u32,
    end: u32,
    whole: bool,
}

impl Run {
    /// Loads the row indices of the burst at `at`; no loads past the end. The next burst reads the same sectors, so
    /// they may stay in L1.
    #[inline(always)]
    fn places<F: GatherForm>(&self, p: &MttkrpParams, at: u32) -> [[Raw; 2]; 3] {
        let mut places = [[[0; 4]; 2]; 3];
        let arrays = indices(p);
        unroll!(f < 3, {
            if f < F::FACTORS {
                unroll!(h < 2, {
                    let first = at + h as u32 * 4;
                    if h * 4 < F::UNROLL {
                        let from = arrays[f].at(self.base + first as u64);
                        places[f][h] = from.cast::<[u32; 4]>().ld_if(first < self.end);
                    }
                });
            }
        });
        places
    }

    /// Returns a bit for each entry of the burst at `at` that belongs to this item.
    #[inline(always)]
    fn valid<F: GatherForm>(&self, at: u32) -> u32 {
        let below = u32::MAX << (self.lead.saturating_sub(at) & 31);
        // The loop of an item ends at its end, so `self.end > at`.
        let left = self.end - at;
        below & ((1 << left.min(F::UNROLL as u32)) - 1)
    }

    #[inline(always)]
    fn values<E: Elem, F: GatherForm>(&self, p: &MttkrpParams, at: u32) -> [Raw; 4] {
        let bytes = value_bytes::<E, F>();
        let mut values = [[0; 4]; 4];
        unroll!(h < 2, {
            let first = at + h as u32 * 4;
            if h * 4 < F::UNROLL {
                let from = p.product.values::<E>().bytes((self.base + first as u64) * bytes as u64);
                let from = from.cast::<[u32; 4]>();
                let ok = first < self.end;
                match bytes {
                    8 => {
                        values[h * 2] = from.ld_if(ok);
                        values[h * 2 + 1] = from.at(1u32).ld_if(ok);
                    }
                    4 => values[h * 2] = from.ld_if(ok),
                    _ => {
                        let [a, b] = from.cast::<[u32; 2]>().ld_if(ok);
                        values[h * 2] = [a, b, 0, 0];
                    }
                }
            }
        });
        values
    }
}

struct Burst {
    places: [[Raw; 2]; 3],
    values: [Raw; 4],
    at: u32,
}

impl Burst {
    /// Value of entry `u`, which is a constant after unrolling.
    #[inline(always)]
    fn value<E: Elem, F: GatherForm>(&self, u: usize) -> E::Acc {
        let (half, j) = ((u / 4) & 1, u & 3);
        if F::REDUCE == REDUCE_MEAN {
            return E::scalar(f32::from_bits(self.values[half * 2][j]) as f64);
        }
        match E::BYTES {
            8 => E::get(&self.values[(half * 2 + j / 2) & 3], j % 2),
            _ => E::get(&self.values[half * 2], j),
        }
    }

    /// Row of factor `f` for entry `u`.
    #[inline(always)]
    fn place(&self, f: usize, u: usize) -> u32 {
        let place = self.places[f][(u / 4) & 1][u & 3];
        if f == 0 { place & (LAST_OF_ROW - 1) } else { place }
    }

    /// Adds the products of the burst to their rows, in entry order, and stores rows that end. All rows of the factors
    /// are loaded before the first multiplication. Returns the number of the next row.
    #[inline(always)]
    fn add<E: Elem, const VEC: usize, const REP: usize, const UNROLL: usize, F: GatherForm>(
        &self,
        p: &MttkrpParams,
        run: Run,
        column: u32,
        mut rank: u32,
        acc: &mut Acc<E, VEC, REP>,
    ) -> u32 {
        let own = |factor: Global<E, ReadWrite>| factor.at(column);
        let factors = [own(p.product.b()), own(p.factors(0).cast()), own(p.factors(1).cast())];
        let leading = [p.product.ldb_bytes, p.leading[0], p.leading[1]];
        let policy = global::l2_evict_last(p.product.flags & FLAG_STREAMED != 0);
        let mut raw = [[[[0u32; 4]; REP]; UNROLL]; 3];
        let mut valid = run.valid::<F>(self.at);
        if REP == 1 && column >= p.product.n {
            valid = 0;
        }
        unroll!(u < UNROLL, {
            let exists = valid >> u & 1 != 0;
            unroll!(f < 3, {
                if f < F::FACTORS {
                    let from = factors[f].row_by_mad(self.place(f, u), leading[f]);
                    unroll!(r < REP, {
                        let shift = r as u32 * F::LANES * VEC as u32;
                        let ok = exists && (REP == 1 || column + shift < p.product.n);
                        raw[f][u][r] = load::<E, VEC, F>(from.at(shift), ok, policy);
                    });
                }
            });
        });
        unroll!(u < UNROLL, {
            let exists = valid >> u & 1 != 0;
            let value = if exists { self.value::<E, F>(u) } else { E::ZERO };
            unroll!(r < REP, {
                unroll!(i < VEC, {
                    let others = [&raw[1][u][r], &raw[2][u][r]];
                    let x = scaled::<E, F>(value, others, i);
                    let b = E::get(&raw[0][u][r], i);
                    acc[r][i] = reduced::<E, F>(acc[r][i], (x, b), exists);
                });
            });
            let last = self.places[0][(u / 4) & 1][u & 3] & LAST_OF_ROW != 0;
            if exists && run.whole && last {
                store::<E, VEC, REP, F>(p, rank, column, acc);
                *acc = [[start_of::<E, F>(); VEC]; REP];
                rank += 1;
            }
        });
        rank
    }
}

/// Stores a finished row; `rank` counts the rows that have entries.
#[inline(always)]
fn store<E: Elem, const VEC: usize, const REP: usize, F: GatherForm>(
    p: &MttkrpParams,
    rank: u32,
    column: u32,
    acc: &Acc<E, VEC, REP>,
) {
    let mut row = rank;
    if p.rows != 0 {
        row = p.rows().at(rank).ld();
    }
    let alpha = E::scalar(p.product.alpha);
    let c = p.product.c::<E>().row(row, p.product.ldc_bytes);
    unroll!(r < REP, {
        let column = column + r as u32 * F::LANES * VEC as u32;
        let (to, inside) = (c.at(column), column < p.product.n);
        let mut out = acc[r];
        unroll!(i < VEC, { out[i] = E::fma(alpha, acc[r][i], E::ZERO) });
        if p.product.flags & FLAG_ACCUMULATE != 0 {
            let old = to.ld_raw::<VEC>(inside);
            unroll!(i < VEC, { out[i] = E::add(out[i], E::get(&old, i)) });
        }
        let streamed = p.product.flags & FLAG_STREAMED != 0;
        if inside && streamed && VEC as u32 * E::BYTES == 16 {
            let mut wide = [E::ZERO; 8];
            unroll!(i < VEC, { wide[i] = out[i] });
            to.cast::<[u32; 4]>().st_streaming(E::put(&wide));
        } else if inside {
            to.st_rounded(&out);
        }
    });
}

/// Stores zeros to neighboring rows without entries.
#[inline(always)]
fn clear<E: Elem, const VEC: usize, const REP: usize, F: GatherForm>(
    p: &MttkrpParams,
    row: u32,
    count: u32,
    column: u32,
) {
    let mut c = p.product.c::<E>().row(row, p.product.ldc_bytes).at(column);
    let mut left = count;
    while left > 0 {
        unroll!(r < REP, {
            let shift = r as u32 * F::LANES * VEC as u32;
            if column + shift < p.product.n {
                c.at(shift).st_rounded(&[E::ZERO; VEC]);
            }
        });
        c = c.bytes(p.product.ldc_bytes);
        left -= 1;
    }
}

/// Split-K fix-up of a piece of a row.
#[inline(always)]
fn fix_up<E: Elem, const VEC: usize, const REP: usize, F: GatherForm>(
    p: &MttkrpParams,
    slot: u32,
    [lane, column]: [u32; 2],
    acc: &mut Acc<E, VEC, REP>,
) -> bool {
    const { assert!(matches!(F::LANES, 4 | 8 | 16 | 32)) };
    let join = |a, b| if F::REDUCE == REDUCE_MAX { E::max(a, b) } else { E::add(a, b) };
    fix_up_row::<E, VEC, REP>(
        &p.product,
        (slot, column),
        [lane, F::LANES],
        acc,
        1,
        start_of::<E, F>(),
        join,
    )
}
