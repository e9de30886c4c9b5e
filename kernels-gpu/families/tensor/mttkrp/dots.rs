//! Products at the entries of a sparse tensor: `out[e] = P[e] * sum over r of X[i,r] * Y[j,r] * Z[k,r]` (SDDMM of any
//! order). A segment of lanes has neighboring entries, and its lanes are columns. Sums over lanes have a fixed order.

use super::indices;
use crate::device::epilogue::store_or_add;
use crate::device::lanes::{self, DOWN};
use crate::device::prelude::*;
use crate::device::walk::Walk;
use crate::families::tensor::abi::*;

const BURST: usize = 4;

impl<W: Walk, E: Elem, const FACTORS: usize, const LANES: u32, const VEC: usize>
    Kernel<W, E, MttkrpParams> for RowDots<FACTORS, LANES, VEC>
{
    #[inline(always)]
    unsafe fn run(p: &MttkrpParams, _at: Maps) {
        grid::launch_dependents();
        let segment = gpu::block_x() * Self::ITEMS + gpu::thread() / LANES;
        let first = segment as u64 * DOT_ENTRIES as u64;
        let count = p.product.item_count as u64;
        grid::wait_dependency();
        let mut at = first;
        // Shuffles need all lanes of a warp, so segments past the last entry also run.
        while at < first + DOT_ENTRIES as u64 {
            let places = places::<FACTORS>(p, at, at < count);
            let sums = sums::<E, FACTORS, LANES, VEC>(p, &places, count.saturating_sub(at));
            let lane = gpu::thread() % LANES;
            let mut own = sums[0];
            unroll!(u < 4, { own = if lane == u as u32 { sums[u] } else { own } });
            let mut place = places[0][0];
            unroll!(u < 4, { place = if lane == u as u32 { places[0][u] } else { place } });
            if lane < BURST as u32 && at + (lane as u64) < count && place != u32::MAX {
                store::<E>(p, at + lane as u64, own);
            }
            at += BURST as u64;
        }
    }
}

/// Loads the row indices of the burst at `at` in each factor.
#[inline(always)]
fn places<const FACTORS: usize>(p: &MttkrpParams, at: u64, ok: bool) -> [Raw; 3] {
    let arrays = indices(p);
    let mut places = [[0; 4]; 3];
    unroll!(f < 3, {
        if f < FACTORS {
            places[f] = arrays[f].at(at).cast::<[u32; 4]>().ld_if(ok);
        }
    });
    places
}

/// Sums over all columns, in every lane of the segment, for up to `left` entries.
#[inline(always)]
fn sums<E: Elem, const FACTORS: usize, const LANES: u32, const VEC: usize>(
    p: &MttkrpParams,
    places: &[Raw; 3],
    left: u64,
) -> [E::Acc; BURST] {
    let factors = [p.product.b::<E>(), p.factors(0).cast(), p.factors(1).cast()];
    let leading = [p.product.ldb_bytes, p.leading[0], p.leading[1]];
    let mut sums = [E::ZERO; BURST];
    let mut column = gpu::thread() % LANES * VEC as u32;
    let mut done = 0;
    while done < p.product.n {
        let mut raw = [[[0u32; 4]; BURST]; 3];
        unroll!(u < 4, {
            // Padding slots have index `u32::MAX`.
            let ok = (u as u64) < left && places[0][u] != u32::MAX && column < p.product.n;
            unroll!(f < 3, {
                if f < FACTORS {
                    let from = factors[f].row(places[f][u], leading[f]).at(column);
                    raw[f][u] = from.ld_raw::<VEC>(ok);
                }
            });
        });
        unroll!(u < 4, {
            unroll!(i < VEC, {
                let mut x = E::get(&raw[0][u], i);
                if FACTORS > 2 {
                    x = E::mul(x, E::get(&raw[2][u], i));
                }
                let y = if FACTORS > 1 { E::get(&raw[1][u], i) } else { E::scalar(1.0) };
                sums[u] = E::fma(x, y, sums[u]);
            });
        });
        column += LANES * VEC as u32;
        done += LANES * VEC as u32;
    }
    unroll!(u < 4, { sums[u] = lanes::sum_of::<E>(sums[u], DOWN, 1..LANES) });
    sums
}

/// Finishes an entry: scalar factor, value of the sparse tensor, `=` or `+=`.
#[inline(always)]
fn store<E: Elem>(p: &MttkrpParams, entry: u64, sum: E::Acc) {
    let mut x = E::mul(sum, E::scalar(p.product.alpha));
    if p.product.values != 0 {
        x = E::mul(x, E::get(&p.product.values::<E>().at(entry).ld_raw::<1>(true), 0));
    }
    store_or_add::<E>(p.product.c().at(entry), x, p.product.flags & FLAG_ACCUMULATE != 0, true);
}
