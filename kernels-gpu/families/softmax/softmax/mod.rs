//! Softmax of the entries of each row, and its gradient: a row is held in registers by a few lanes, a warp or a thread
//! block, so that values are read once and written once. Rows start anywhere: loads begin at the aligned vector in
//! front of the row, as in Sputnik (arXiv 2006.10901, section 5.2), whose sparse softmax this module replaces.
//! blockIdx.y: head.

mod forward;
mod gradient;
mod stretch;

use crate::device::lanes;
use crate::device::prelude::*;
use crate::families::softmax::abi::*;
use forward::Forward;
use gradient::Gradient;

impl<
    W: WalkInfo,
    E: Elem<Acc = f32>,
    const VEC: usize,
    const WIDE: usize,
    const HALF: usize,
    const GRADIENT: bool,
> Kernel<W, E, SoftmaxParams> for SoftmaxRows<VEC, WIDE, HALF, GRADIENT>
{
    #[inline(always)]
    unsafe fn run(p: &SoftmaxParams, _: u64) {
        if p.flags & SOFTMAX_LOG != 0 {
            Self::rows::<E, true>(p);
        } else {
            Self::rows::<E, false>(p);
        }
    }
}

impl<const VEC: usize, const WIDE: usize, const HALF: usize, const GRADIENT: bool>
    SoftmaxRows<VEC, WIDE, HALF, GRADIENT>
{
    #[inline(always)]
    fn rows<E: Elem<Acc = f32>, const LOG: bool>(p: &SoftmaxParams) {
        // Lanes and vectors are those of `softmax_class`: arguments of types cannot be computed from `WIDE`.
        macro_rules! classes {
            ($($class:literal: $lanes:literal, $rep:expr;)+) => {$(
                if gpu::block_x() < p.blocks[$class + 1] {
                    const { check::<$lanes>($class, $rep as u32, WIDE as u32) };
                    return deal::<E, VEC, $lanes, { $rep }, $class, GRADIENT, LOG>(p);
                }
            )+};
        }
        classes! {
            0: 128, WIDE;
            1: 128, WIDE;
            2: 128, HALF;
            3: 32, WIDE;
            4: 32, 4;
            5: 32, 2;
            6: 32, 1;
            7: 8, 2;
            8: 4, 2;
            9: 4, 1;
        }
        const { check::<SOFTMAX_THREADS>(SOFTMAX_STRETCHES, HALF as u32, WIDE as u32) };
        const { assert!(HALF as u32 * VEC as u32 * SOFTMAX_THREADS == STRETCH_SLOTS) };
        stretch::deal::<E, VEC, HALF, GRADIENT, LOG>(p);
    }
}

/// Host and device agree on the classes.
const fn check<const LANES: u32>(class: usize, rep: u32, wide: u32) {
    let (lanes, vectors) = softmax_class(class, wide);
    assert!(lanes == LANES && vectors == rep);
}

/// Where a row lies: slots are counted from the aligned vector that holds its first entry.
#[derive(Clone, Copy)]
struct Span {
    /// Slot of the tensor at which the count starts.
    base: u64,
    lead: u32,
    /// Entries that no mask hides.
    live: u32,
    end: u32,
}

impl Span {
    #[inline(always)]
    fn load<const VEC: usize>(p: &SoftmaxParams, index: u32, count: u32) -> Span {
        let valid = index < count;
        let [start, len] = global::ld_nc_v2(p.items + index as u64 * 8, valid);
        let live = match p.live {
            0 => len,
            live => global::ld_nc_b32(live + index as u64 * 4, valid),
        };
        Span::new::<VEC>(p, start, len, live)
    }

    /// In this thread block's head: all begin at multiples of a vector.
    #[inline(always)]
    fn new<const VEC: usize>(p: &SoftmaxParams, start: u32, len: u32, live: u32) -> Span {
        let lead = start % VEC as u32;
        Span {
            base: gpu::block_y() as u64 * p.stride + (start - lead) as u64,
            lead,
            live,
            end: lead + len,
        }
    }

    /// What this thread sees of the row. Made anew for each pass: kept from one to the next, or
    /// over rows, it would take a register for each element.
    #[inline(always)]
    fn lane<const VEC: usize, const LANES: u32>(&self) -> Lane<VEC, LANES> {
        let first = gpu::opaque_thread() % LANES * VEC as u32;
        Lane {
            slot: self.base + first as u64,
            lead: self.lead as i32 - first as i32,
            live: (self.lead + self.live) as i32 - first as i32,
            end: self.end as i32 - first as i32,
        }
    }
}

/// A thread's vectors of a row, `LANES` apart. Slots are counted from its first one, so that the compiler knows them.
#[derive(Clone, Copy)]
struct Lane<const VEC: usize, const LANES: u32> {
    /// Slot of the tensor of the first.
    slot: u64,
    /// Where the row starts, if it does in the first vector.
    lead: i32,
    /// Past the last entry that no mask hides.
    live: i32,
    end: i32,
}

impl<const VEC: usize, const LANES: u32> Lane<VEC, LANES> {
    const fn ahead(r: usize) -> i32 {
        (r * LANES as usize * VEC) as i32
    }

    #[inline(always)]
    fn address<E: Elem>(&self, array: u64, r: usize) -> u64 {
        array + self.slot * E::BYTES as u64 + Self::ahead(r) as u64 * E::BYTES as u64
    }

    /// Is element `i` of vector `r` an entry that no mask hides? Only the first vector can start in front of the row.
    #[inline(always)]
    fn is_live(&self, r: usize, i: usize) -> bool {
        let slot = Self::ahead(r) + i as i32;
        slot < self.live && (r > 0 || slot >= self.lead)
    }

    /// Vector `r` with what is in front of and behind the row in it; zeros where it holds none of it.
    #[inline(always)]
    fn load<E: Elem>(&self, from: u64, r: usize) -> Raw {
        // In place this thread writes there later, and others in front of and behind it.
        E::ld_global::<VEC>(self.address::<E>(from, r), Self::ahead(r) < self.live)
    }

    /// Stores what belongs to the row: whole vectors, and at its ends single elements.
    #[inline(always)]
    fn store<E: Elem<Acc = f32>>(&self, to: u64, r: usize, v: &[f32; VEC]) {
        let (slot, at) = (Self::ahead(r), self.address::<E>(to, r));
        if slot + VEC as i32 <= self.end && (r > 0 || slot >= self.lead) {
            E::store::<VEC>(at, v);
        } else if slot < self.end {
            unroll!(i < VEC, {
                let slot = slot + i as i32;
                if slot < self.end && (r > 0 || slot >= self.lead) {
                    E::store::<1>(at + (i as u32 * E::BYTES) as u64, &[v[i]]);
                }
            });
        }
    }
}

/// The items of a class, dealt round. All threads of a block go round as often, so that they can exchange.
#[inline(always)]
fn deal<
    E: Elem<Acc = f32>,
    const VEC: usize,
    const LANES: u32,
    const REP: usize,
    const CLASS: usize,
    const GRADIENT: bool,
    const LOG: bool,
>(
    p: &SoftmaxParams,
) {
    let rows = SOFTMAX_THREADS / LANES;
    let step = (p.blocks[CLASS + 1] - p.blocks[CLASS]) * rows;
    let end = p.firsts[CLASS + 1];
    let own = gpu::thread() / LANES;
    let mut first = p.firsts[CLASS] + (gpu::block_x() - p.blocks[CLASS]) * rows;
    let mut next = Span::load::<VEC>(p, first + own, end);
    while first < end {
        let (span, index) = (next, first);
        first += step;
        // The place of the next row is under way while this one is.
        next = Span::load::<VEC>(p, first + own, end);
        match (GRADIENT, CLASS) {
            (false, 0) => Forward::<E, VEC, LANES, REP, LOG>::piece(p, span, index),
            (false, _) => Forward::<E, VEC, LANES, REP, LOG>::row(p, span),
            (true, 0) => Gradient::<E, VEC, LANES, REP, LOG>::piece(p, span, index),
            (true, _) => Gradient::<E, VEC, LANES, REP, LOG>::row(p, span),
        }
    }
}

/// Where a piece of this head leaves its two numbers.
#[inline(always)]
fn sums_of(p: &SoftmaxParams, piece: u32) -> u64 {
    p.sums + (gpu::block_y() as u64 * p.firsts[1] as u64 + piece as u64) * 8
}

/// Leaves what the whole thread block has found of a piece.
#[inline(always)]
fn store_sums(p: &SoftmaxParams, piece: u32, found: [f32; 2]) {
    if gpu::thread() == 0 {
        global::st_v2(sums_of(p, piece), found.map(f32::to_bits));
    }
}

/// What the pieces of this one's row have left: each thread's share of them, in order.
#[inline(always)]
fn each_piece(p: &SoftmaxParams, piece: u32, mut work: impl FnMut([f32; 2])) {
    let [first, count] = global::ld_nc_v2(p.pieces + piece as u64 * 8, true);
    // The launch ahead has left them.
    grid::wait_dependency();
    let mut own = gpu::thread();
    while own < count {
        work(global::ld_cg_v2(sums_of(p, first + own), true).map(f32::from_bits));
        own += SOFTMAX_THREADS;
    }
}

#[inline(always)]
fn exp(x: f32) -> f32 {
    matrix::ex2_approx(x * core::f32::consts::LOG2_E)
}

/// Sum, or maximum (NaN if one of them is), over the lanes of a row, the same bits in all of them. `word`: where a
/// thread block keeps its warps' shares; two reductions in turn need two places.
#[inline(always)]
fn reduce<const LANES: u32, const MAX: bool>(x: f32, word: u32) -> f32 {
    let join = |a: f32, b: f32| {
        if MAX { matrix::max_nan(a, b) } else { a + b }
    };
    let mut x = lanes::reduced::<LANES, MAX>(x);
    if LANES > 32 {
        let share = |warp: u32| copy::dynamic_shared() + (word + warp) * 4;
        if gpu::thread().is_multiple_of(32) {
            copy::st_shared_b32(share(gpu::thread() / 32), x.to_bits());
        }
        gpu::sync_threads();
        x = f32::from_bits(copy::ld_shared_b32(share(0)));
        unroll!(other < 4, {
            if other > 0 {
                x = join(x, f32::from_bits(copy::ld_shared_b32(share(other as u32))));
            }
        });
    }
    x
}

/// Where the two reductions of a row keep their words.
const FIRST: u32 = 0;
const SECOND: u32 = SOFTMAX_THREADS / 32;
