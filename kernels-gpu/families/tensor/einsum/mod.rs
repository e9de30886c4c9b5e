//! Any indirect Einsum from its description. The lanes of a unit add up the terms of one item in registers. They then
//! finish and store the sum, or store it as one part of a cut sum. Each element of the output belongs to one unit: no
//! atomics.

mod out;

use core::marker::PhantomData;

use crate::device::prelude::*;
use crate::families::tensor::abi::*;

buffers! {
    // `EinsumLaunch` (`host/core/families/tensor/einsum.rs`) allocates both for all items, units and
    // parts of the listing.
    unsafe EinsumParams {
        items: [u32; 4], ReadOnly;
        partial<E: Elem>: E::Acc, Fresh;
    }
}

/// Index arrays in device memory, which are constant while a plan lives.
struct Device;

impl Arrays for Device {
    #[inline(always)]
    fn slot(&self, address: u64, ok: bool) -> u32 {
        // SAFETY: the listing (`host/core/cpu/listed`) has a slot for each step and each term that is
        // read.
        unsafe { Global::<u32, ReadOnly>::new(address) }.ld_if(ok)
    }
    #[inline(always)]
    fn word(&self, address: u64) -> u64 {
        // SAFETY: the listing counts its loops, whose descriptions this reads.
        unsafe { Global::<u64, ReadOnly>::new(address) }.ld()
    }
}

/// The sum of a unit.
struct Sum<E: Elem, const VEC: usize> {
    acc: [E::Acc; VEC],
    /// Whether the sum has a term.
    seen: bool,
}

impl<W: WalkInfo, E: Elem, const N: usize, const FIXED: usize, const VEC: usize>
    Kernel<W, E, EinsumParams> for Wide<N, FIXED, VEC>
{
    #[inline(always)]
    unsafe fn run(p: &EinsumParams, _: Maps) {
        Unit::<N, VEC, UnitOf<E, FIXED, false>>::run(p);
    }
}

impl<W: WalkInfo, E: Elem, const N: usize> Kernel<W, E, EinsumParams> for Thin<N> {
    #[inline(always)]
    unsafe fn run(p: &EinsumParams, _: Maps) {
        Unit::<N, 1, UnitOf<E, 0, false>>::run(p);
    }
}

impl<W: WalkInfo, E: Elem, const N: usize> Kernel<W, E, EinsumParams> for Across<N> {
    #[inline(always)]
    unsafe fn run(p: &EinsumParams, _: Maps) {
        Unit::<N, 1, UnitOf<E, 0, true>>::run(p);
    }
}

/// Returns the item of this thread, and the number of its unit in the item.
#[inline(always)]
fn own_item(p: &EinsumParams) -> (u32, u32) {
    let own = gpu::block_x() * (256 >> p.lane_bits) + (gpu::thread() >> p.lane_bits);
    // The host guarantees a nonzero divisor. `checked_div` avoids a panic, which device code must not have.
    let item = own.checked_div(p.per_item).unwrap_or(0);
    (item, own - item * p.per_item)
}

/// Location of a unit's parts of cut sums.
#[derive(Clone, Copy)]
struct Kept {
    /// Elements of a part.
    width: u64,
    /// First element of this lane.
    first: u64,
}

impl Kept {
    #[inline(always)]
    fn new<const VEC: usize, F: UnitForm>(p: &EinsumParams, rest: u32, lane: u32) -> Kept {
        let (lanes, lane) = if F::ACROSS { (0, 0) } else { (p.lane_bits, lane) };
        let run = if F::ACROSS { 1 } else { VEC as u64 } << lanes;
        Kept {
            width: p.per_item as u64 * run,
            first: rest as u64 * run + (lane * VEC as u32) as u64,
        }
    }

    #[inline(always)]
    fn at(&self, slot: u32) -> u64 {
        slot as u64 * self.width + self.first
    }
}

/// Table slots of a burst of terms.
type Slots<const N: usize, const UNROLL: usize> = [[u32; UNROLL]; N];

/// A line as its tables are loaded.
struct Run<const N: usize> {
    /// Starts at the aligned index at or before its first term, as tables are read in vectors.
    line: Line<N>,
    lead: u32,
    /// Distance between consecutive terms of a lane.
    step: u32,
}

impl<const N: usize> Run<N> {
    #[inline(always)]
    fn new<const UNROLL: usize, F: UnitForm>(mut line: Line<N>, step: u32) -> Self {
        let lead = if F::ACROSS { 0 } else { line.first % vector(UNROLL) };
        line.first -= lead;
        line.len += lead;
        Run { line, lead, step }
    }

    /// Loads the table slots of the burst at `at` for the factors with the lanes' index; 0 past the end. The loads are
    /// issued before the previous burst waits for its factors.
    #[inline(always)]
    fn fetch<const UNROLL: usize, F: UnitForm>(&self, at: u32) -> Slots<N, UNROLL> {
        let mut slots = [[0; UNROLL]; N];
        unroll!(f < N, {
            let table = self.line.tables[f];
            // SAFETY: tables have a slot for each term, padded to whole vectors.
            let from = unsafe { Global::<u32, ReadOnly>::new(table) }.at(self.line.first + at);
            if f >= F::FIXED && F::ACROSS {
                unroll!(u < UNROLL, {
                    let behind = u as u32 * self.step;
                    let ok = table != 0 && at + behind < self.line.len;
                    slots[f][u] = from.at(behind).ld_if(ok);
                });
            } else if f >= F::FIXED {
                unroll!(u < UNROLL, {
                    let ok = table != 0 && at + (u as u32) < self.line.len;
                    if UNROLL < 4 && u.is_multiple_of(2) {
                        let [a, b] = from.at(u as u64).cast::<[u32; 2]>().ld_if(ok);
                        (slots[f][u], slots[f][(u + 1) % UNROLL]) = (a, b);
                    } else if UNROLL >= 4 && u.is_multiple_of(4) {
                        let four = from.at(u as u64).cast::<[u32; 4]>().ld_if(ok);
                        unroll!(i < 4, { slots[f][(u + i) % UNROLL] = four[i] });
                    }
                });
            }
        });
        slots
    }
}

/// Bits of the first element without its sign, 0 only for a zero.
#[inline(always)]
fn magnitude<E: Elem>(raw: &Raw) -> u32 {
    let low = raw[0] & E::MAGNITUDE[0];
    match E::BYTES {
        2 => low & 0xffff,
        4 => low,
        _ => low | raw[1] & E::MAGNITUDE[1],
    }
}

/// Table slots per load.
const fn vector(unroll: usize) -> u32 {
    if unroll < 4 { 2 } else { 4 }
}

/// Parameters of a [`Unit`]: constants and the element type.
trait UnitForm {
    /// Leading factors that do not have the lanes' index.
    const FIXED: usize;
    /// Lanes run along terms.
    const ACROSS: bool;
    /// Element type.
    type E: Elem;
}

/// [`UnitForm`] as a type.
struct UnitOf<E, const FIXED: usize, const ACROSS: bool>(PhantomData<E>);

impl<E: Elem, const FIXED: usize, const ACROSS: bool> UnitForm for UnitOf<E, FIXED, ACROSS> {
    const FIXED: usize = FIXED;
    const ACROSS: bool = ACROSS;
    type E = E;
}

/// Processes several terms of `N` factors at once. A lane has `VEC` elements along the lanes' index.
struct Unit<const N: usize, const VEC: usize, F>(PhantomData<F>);

impl<const N: usize, const VEC: usize, F: UnitForm> Unit<N, VEC, F> {
    #[inline(always)]
    fn run(p: &EinsumParams) {
        let lanes = 1 << p.lane_bits;
        let lane = gpu::thread() & (lanes - 1);
        let (item, rest) = own_item(p);
        let live = item < p.count;
        let [place, start, len, slot] = p.items().at(item).ld_if(live);
        let mut spot = p.spot::<N>(&Device, place, rest);
        let column = (spot.chunk * lanes + lane) * VEC as u32;
        // Sums over lanes need whole warps. Otherwise lanes without an element exit.
        if !F::ACROSS {
            if !live || column >= p.columns {
                return;
            }
            unroll!(f < N, {
                spot.base[f] += column as u64 * p.factors[f.min(EINSUM_FACTORS - 1)].inner;
            });
            spot.out += column as u64 * p.out_inner;
        }
        let mut sum = Sum::<F::E, VEC> { acc: [F::E::ZERO; VEC], seen: false };
        let kept = Kept::new::<VEC, F>(p, rest, lane);
        let (first, step) = if F::ACROSS { (lane, lanes) } else { (0, 1) };
        if p.flags & FLAG_JOIN != 0 {
            out::join::<F::E, VEC>(p, &mut sum, (start + first, start + len, step), kept);
        } else if p.summed == 0 {
            let line = p.listed(spot.base, start, len);
            if N < 4 {
                Self::add_line::<4, true>(p, &mut sum, line, (first, step));
            } else {
                Self::add_line::<2, true>(p, &mut sum, line, (first, step));
            }
        } else {
            Self::add_lines(p, &mut sum, spot.base, (start, len), (first, step));
        }
        if F::ACROSS {
            out::over_lanes::<F::E, VEC>(p, &mut sum);
            if !live || lane != 0 {
                return;
            }
        }
        if slot != EINSUM_WHOLE {
            out::epilogue::<F::E, VEC>(p, &sum, kept.at(slot));
        } else {
            let column = if F::ACROSS { 0 } else { column };
            // SAFETY: the loops of the listing stay inside of the output, which `AnyPlan::check`
            // has checked.
            let to = unsafe { Global::<F::E, ReadWrite>::new(spot.out) };
            out::finish::<F::E, VEC>(p, &sum, to, (place, rest, column));
        }
    }

    /// Adds a line for each term of an item and each step of the summed loops.
    #[inline(always)]
    fn add_lines(
        p: &EinsumParams,
        sum: &mut Sum<F::E, VEC>,
        base: [u64; N],
        (start, len): (u32, u32),
        lanes: (u32, u32),
    ) {
        let mut term = 0;
        while term < len {
            let mut number = 0;
            while number < p.lines {
                let line = p.line_of(&Device, base, start + term, number);
                if line.ok {
                    Self::add_line::<2, false>(p, sum, line, lanes);
                }
                number += 1;
            }
            term += 1;
        }
    }

    /// Adds the terms of a line from `lane` on, `step` apart.
    #[inline(always)]
    fn add_line<const UNROLL: usize, const AHEAD: bool>(
        p: &EinsumParams,
        sum: &mut Sum<F::E, VEC>,
        line: Line<N>,
        (lane, step): (u32, u32),
    ) {
        let run = Run::new::<UNROLL, F>(line, step);
        let mut at = lane;
        let mut next = run.fetch::<UNROLL, F>(at);
        while at < run.line.len {
            let slots = if AHEAD { next } else { run.fetch::<UNROLL, F>(at) };
            if AHEAD {
                next = run.fetch::<UNROLL, F>(at + step * UNROLL as u32);
            }
            Self::burst(p, sum, &run, at, &slots);
            at += step * UNROLL as u32;
        }
    }

    /// Adds `UNROLL` terms: computes all addresses, then issues all loads, then adds the products in term order.
    #[inline(always)]
    fn burst<const UNROLL: usize>(
        p: &EinsumParams,
        sum: &mut Sum<F::E, VEC>,
        run: &Run<N>,
        at: u32,
        slots: &Slots<N, UNROLL>,
    ) {
        let line = &run.line;
        // SAFETY: the terms of the listing stay inside of the factors, which `AnyPlan::check` has
        // checked.
        let base = line.base.map(|base| unsafe { Global::<F::E, ReadOnly>::new(base) });
        let mut from = [base; UNROLL];
        let mut exists = [false; UNROLL];
        unroll!(u < UNROLL, {
            let own = at + u as u32 * run.step;
            let mut ok = own >= run.lead && own < line.len;
            unroll!(f < N, {
                let walk = (line.tables[f], line.strides[f]);
                let place = line.first + own;
                let (bytes, valid) = if f < F::FIXED {
                    stepped(&Device, walk, place, ok)
                } else {
                    moved(walk, place, slots[f][u], ok)
                };
                from[u][f] = base[f].bytes(bytes);
                ok = valid;
            });
            exists[u] = ok;
        });
        let mut raw: [[Raw; N]; UNROLL] = [[[0; 4]; N]; UNROLL];
        unroll!(u < UNROLL, {
            unroll!(f < N, {
                raw[u][f] = if f < F::FIXED {
                    from[u][f].ld_raw::<1>(exists[u])
                } else {
                    from[u][f].ld_raw::<VEC>(exists[u])
                };
            });
        });
        // A zero that fills a block is not a nonzero: its product with an infinite factor must not be added. Zeros replace
        // the factors of such a term. Conditions around the additions would take a predicate for each term, and ptxas
        // would then wait for each load before it issues the next one.
        let filled = p.flags & FLAG_FILLED != 0;
        let mut terms = 0;
        unroll!(u < UNROLL, {
            let first = magnitude::<F::E>(&raw[u][0]);
            terms |= if filled { first } else { u32::from(exists[u]) };
            unroll!(f < N, {
                if f > 0 && filled && first == 0 {
                    raw[u][f] = [0; 4];
                }
            });
            Self::add_product(sum, &raw[u]);
        });
        sum.seen |= terms != 0;
    }

    /// Adds one term: the product of the `FIXED` factors is computed once, the other factors multiply each element.
    #[inline(always)]
    fn add_product(sum: &mut Sum<F::E, VEC>, raw: &[Raw; N]) {
        let mut fixed = F::E::get(&raw[0], 0);
        unroll!(f < F::FIXED, {
            if f > 0 {
                fixed = F::E::mul(fixed, F::E::get(&raw[f], 0));
            }
        });
        unroll!(i < VEC, {
            let mut product = if F::FIXED == 0 { F::E::get(&raw[0], i) } else { fixed };
            unroll!(f < N, {
                if f + 1 < N && f >= F::FIXED && f > 0 {
                    product = F::E::mul(product, F::E::get(&raw[f], i));
                }
            });
            // A single factor is added without a product.
            sum.acc[i] = if N == 1 {
                F::E::add(sum.acc[i], product)
            } else {
                F::E::fma(product, F::E::get(&raw[N - 1], i), sum.acc[i])
            };
        });
    }
}
