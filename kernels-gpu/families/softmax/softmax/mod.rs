//! Softmax of the nonzeros of each row, and its gradient. blockIdx.y is the head. Each *class* of items has a range of
//! blockIdx.x. Its thread blocks, of four warps each, iterate over the items of the class. `softmax_class` gives the
//! lanes of a row and the 16-byte vectors of a lane. A warp computes 8, 4 or 1 rows at a time, or a quarter of a row:
//!
//! ```text
//! classes 1 to 9   row      global -> registers of 4 to 128 lanes -> max, sum: shuffles (128 lanes: and shared memory)
//!                           -> registers -> global
//! class 0          piece    of a longer row. First launch: max and sum of each piece -> global. Second launch: loads
//!                           the piece again, waits for the first launch, combines the results of all pieces of the
//!                           row in a fixed order, writes the piece
//! class 10         stretch  short rows: global -> shared -> one thread a row -> shared -> global (module `stretch`)
//! ```
//!
//! All loads of a row are in flight together. Loads, arithmetic and stores of one row do not overlap. Only the position
//! of the thread's next row is loaded while a row is computed. Other thread blocks of the multiprocessor hide the
//! loads. Registers are limited so that at least seven are resident, five for the gradient.
//!
//! A row may start at any element. Its loads begin at the aligned vector that holds the first entry, as in Sputnik
//! (arXiv 2006.10901, section 5.2).

mod forward;
mod gradient;
mod stretch;

use core::marker::PhantomData;

use crate::device::lanes;
use crate::device::prelude::*;
use crate::families::softmax::abi::*;
use forward::Forward;
use gradient::Gradient;

buffers! {
    // `SparseSoftmax::check` compares the rows of all tensors with the planned ones (`host/core/ops/softmax.rs`), and
    // `SoftmaxLaunch` checks alignment and makes the other arrays from these rows (`host/core/families/softmax`).
    unsafe SoftmaxParams {
        items: [u32; 2], ReadOnly;
        live: u32, ReadOnly;
        bounds: u16, ReadOnly;
        pieces: [u32; 2], ReadOnly;
        sums: [u32; 2], Fresh;
        // In place, a thread writes the vectors that it has loaded, and others write before and after its row.
        input<E: Elem>: E, ReadWrite;
        upstream<E: Elem>: E, ReadWrite;
        output<E: Elem>: E, ReadWrite;
    }
}

impl<W: WalkInfo, E: Elem<Acc = f32>, const VEC: usize, const WIDE: usize, const GRADIENT: bool>
    Kernel<W, E, SoftmaxParams> for SoftmaxRows<VEC, WIDE, GRADIENT>
{
    #[inline(always)]
    unsafe fn run(p: &SoftmaxParams, _: Maps) {
        if p.flags & SOFTMAX_LOG != 0 {
            Self::rows::<E, true>(p);
        } else {
            Self::rows::<E, false>(p);
        }
    }
}

impl<const VEC: usize, const WIDE: usize, const GRADIENT: bool> SoftmaxRows<VEC, WIDE, GRADIENT> {
    #[inline(always)]
    fn rows<E: Elem<Acc = f32>, const LOG: bool>(p: &SoftmaxParams) {
        // The table repeats `softmax_class`. Rust does not accept `WIDE / 2` as an argument of a type. Class 2
        // therefore lists both possible values, 4 and 2, and `agree` selects one of them.
        macro_rules! classes {
            ($($class:literal: $lanes:literal, $($rep:expr),+;)+) => {$(
                if gpu::block_x() < p.blocks[$class + 1] {
                    const { assert!($(agree::<$lanes>($class, $rep as u32, WIDE as u32))||+) };
                    $(if const { agree::<$lanes>($class, $rep as u32, WIDE as u32) } {
                        return if GRADIENT {
                            distribute::<Gradient<VEC, { $rep }, RowOf<E, $lanes, LOG>>>(p, $class)
                        } else {
                            distribute::<Forward<VEC, { $rep }, RowOf<E, $lanes, LOG>>>(p, $class)
                        };
                    })+
                }
            )+};
        }
        classes! {
            0: 128, WIDE;
            1: 128, WIDE;
            2: 128, 4, 2;
            3: 32, WIDE;
            4: 32, 4;
            5: 32, 2;
            6: 32, 1;
            7: 8, 2;
            8: 4, 2;
            9: 4, 1;
        }
        const { assert!(agree::<SOFTMAX_THREADS>(SOFTMAX_STRETCHES, WIDE as u32 / 2, WIDE as u32)) };
        const { assert!(WIDE as u32 / 2 * VEC as u32 * SOFTMAX_THREADS == STRETCH_SLOTS) };
        const { assert!(WIDE == 8 || WIDE == 4) };
        if WIDE == 8 {
            stretch::distribute::<VEC, 4, RowOf<E, SOFTMAX_THREADS, LOG>>(p, GRADIENT);
        } else {
            stretch::distribute::<VEC, 2, RowOf<E, SOFTMAX_THREADS, LOG>>(p, GRADIENT);
        }
    }
}

/// Whether a class has `LANES` lanes and `rep` vectors: host and device agree on the classes.
const fn agree<const LANES: u32>(class: usize, rep: u32, wide: u32) -> bool {
    let (lanes, vectors) = softmax_class(class, wide);
    lanes == LANES && vectors == rep
}

/// Parameters of the computation of a row: constants and the element type.
trait RowForm {
    /// Lanes that hold a row.
    const LANES: u32;
    /// The logarithm of the softmax.
    const LOG: bool;
    /// Element type.
    type E: Elem<Acc = f32>;
}

/// [`RowForm`] as a type.
struct RowOf<E, const LANES: u32, const LOG: bool>(PhantomData<E>);

impl<E: Elem<Acc = f32>, const LANES: u32, const LOG: bool> RowForm for RowOf<E, LANES, LOG> {
    const LANES: u32 = LANES;
    const LOG: bool = LOG;
    type E = E;
}

/// Softmax or its gradient, of a row that is in the registers of its lanes.
trait Operation {
    /// Elements of a vector.
    const VEC: u32;
    /// Lanes that hold a row.
    const LANES: u32;
    /// A lane's part of a row.
    type Values;
    fn load(p: &SoftmaxParams, span: Span) -> Self::Values;
    /// Maximum and sum over the row; for the gradient only the sum. May replace `values` by the numbers that `write` needs.
    fn reduce(values: &mut Self::Values, span: Span) -> [f32; 2];
    /// Result of [`Operation::reduce`] for a row that was split into pieces. The first launch stores the result of each
    /// piece. The second launch has loaded the piece again. It waits for the first launch and combines the results of
    /// all pieces of the row in a fixed order.
    fn combine_pieces(p: &SoftmaxParams, piece: u32, values: &mut Self::Values) -> [f32; 2];
    /// Computes the output of the lane's entries from the result of the row, and stores it. Masked entries become 0
    /// (-Inf for the logarithm of the softmax).
    fn write(p: &SoftmaxParams, span: Span, values: &Self::Values, found: [f32; 2]);
}

/// Position of a row, a piece or a stretch. Slots (elements) are counted from the aligned vector that holds its first
/// entry.
#[derive(Clone, Copy)]
struct Span {
    /// Slot of the tensor at which the count starts.
    base: u64,
    /// Slot of the first entry.
    lead: u32,
    /// Number of unmasked entries, which precede the masked ones.
    live: u32,
    /// One past the slot of the last entry.
    end: u32,
}

impl Span {
    #[inline(always)]
    fn load(p: &SoftmaxParams, vector: u32, index: u32, count: u32) -> Span {
        let valid = index < count;
        let [start, len] = p.items().at(index).ld_if(valid);
        let live = match p.live {
            0 => len,
            _ => p.live().at(index).ld_if(valid),
        };
        Span::new(p, vector, [start, len, live])
    }

    /// Span in this thread block's head. All heads begin at multiples of a vector.
    #[inline(always)]
    fn new(p: &SoftmaxParams, vector: u32, [start, len, live]: [u32; 3]) -> Span {
        let lead = start % vector;
        Span {
            base: gpu::block_y() as u64 * p.stride + (start - lead) as u64,
            lead,
            live,
            end: lead + len,
        }
    }

    /// This thread's part of the row. Computed again for each pass: if it were kept between passes or rows, it would
    /// take a register for each element.
    #[inline(always)]
    fn lane<const VEC: usize, F: RowForm>(&self) -> Lane<VEC, F> {
        let first = gpu::opaque_thread() % F::LANES * VEC as u32;
        Lane {
            slot: self.base + first as u64,
            lead: self.lead as i32 - first as i32,
            live: (self.lead + self.live) as i32 - first as i32,
            end: self.end as i32 - first as i32,
            form: PhantomData,
        }
    }
}

/// A thread's vectors of a row, [`RowForm::LANES`] apart. Slots are counted from its first vector, so that they are
/// constants.
struct Lane<const VEC: usize, F> {
    /// Slot of the tensor at the first vector.
    slot: u64,
    /// First slot of the row, if the row starts in the first vector.
    lead: i32,
    /// One past the last unmasked entry.
    live: i32,
    /// One past the last entry.
    end: i32,
    form: PhantomData<F>,
}

impl<const VEC: usize, F: RowForm> Lane<VEC, F> {
    const fn ahead(r: usize) -> i32 {
        (r * F::LANES as usize * VEC) as i32
    }

    #[inline(always)]
    fn address(&self, array: Global<F::E, ReadWrite>, r: usize) -> Global<F::E, ReadWrite> {
        array.at(self.slot).at(Self::ahead(r) as u64)
    }

    /// Returns whether element `i` of vector `r` is an unmasked entry. Only the first vector can start before the row.
    #[inline(always)]
    fn is_live(&self, r: usize, i: usize) -> bool {
        let slot = Self::ahead(r) + i as i32;
        slot < self.live && (r > 0 || slot >= self.lead)
    }

    /// Loads vector `r`, with neighbouring elements before and after the row; zeros if it holds nothing of the row.
    #[inline(always)]
    fn load(&self, from: Global<F::E, ReadWrite>, r: usize) -> Raw {
        self.address(from, r).ld_raw::<VEC>(Self::ahead(r) < self.live)
    }

    /// Stores the elements of the row: whole vectors, and at its ends single elements.
    #[inline(always)]
    fn store(&self, to: Global<F::E, ReadWrite>, r: usize, v: &[f32; VEC]) {
        let (slot, at) = (Self::ahead(r), self.address(to, r));
        if slot + VEC as i32 <= self.end && (r > 0 || slot >= self.lead) {
            at.st_rounded(v);
        } else if slot < self.end {
            unroll!(i < VEC, {
                let slot = slot + i as i32;
                if slot < self.end && (r > 0 || slot >= self.lead) {
                    at.at(i as u64).st_rounded(&[v[i]]);
                }
            });
        }
    }
}

/// Distributes the items of a class over its thread blocks. A thread block processes 128 / `LANES` rows at a time. All
/// of its threads iterate equally often, because shuffles and barriers need all of them.
#[inline(always)]
fn distribute<O: Operation>(p: &SoftmaxParams, class: usize) {
    let rows = SOFTMAX_THREADS / O::LANES;
    let step = (p.blocks[class + 1] - p.blocks[class]) * rows;
    let end = p.firsts[class + 1];
    let own = gpu::thread() / O::LANES;
    let mut first = p.firsts[class] + (gpu::block_x() - p.blocks[class]) * rows;
    let mut next = Span::load(p, O::VEC, first + own, end);
    while first < end {
        let (span, index) = (next, first);
        first += step;
        // The position of the next row is loaded while this one is computed.
        next = Span::load(p, O::VEC, first + own, end);
        let mut values = O::load(p, span);
        let found = if class > 0 {
            O::reduce(&mut values, span)
        } else if p.flags & SOFTMAX_SUMS != 0 {
            grid::launch_dependents();
            let found = O::reduce(&mut values, span);
            if gpu::thread() == 0 {
                sums_of(p, index).st(found.map(f32::to_bits));
            }
            continue;
        } else {
            O::combine_pieces(p, index, &mut values)
        };
        O::write(p, span, &values, found);
    }
}

/// Address of the result (maximum and sum) of a piece of this head. Pieces are class 0, so `firsts[1]` is their number.
#[inline(always)]
fn sums_of(p: &SoftmaxParams, piece: u32) -> Global<[u32; 2], Fresh> {
    p.sums().at(gpu::block_y() as u64 * p.firsts[1] as u64 + piece as u64)
}

/// Calls `work` with the results of the pieces of this piece's row. Thread `t` gets pieces `t`, `t + 128` and so on, in
/// this order. [`over_lanes`] then combines the results of the threads.
#[inline(always)]
fn each_piece(p: &SoftmaxParams, piece: u32, mut work: impl FnMut([f32; 2])) {
    let [first, count] = p.pieces().at(piece).ld();
    // The first launch stores them.
    grid::wait_dependency();
    let mut own = gpu::thread();
    while own < count {
        work(sums_of(p, first + own).ld().map(f32::from_bits));
        own += SOFTMAX_THREADS;
    }
}

/// Sum, or maximum (NaN if one of them is NaN), over the lanes of a row, the same bits in all of them. `word`: first
/// word of the warps' shares in shared memory. One barrier precedes the loads and none follows them. Two successive
/// reductions therefore need different words, or a barrier between them.
#[inline(always)]
fn over_lanes<F: RowForm, const MAX: bool>(x: f32, word: u32) -> f32 {
    const { assert!(matches!(F::LANES, 4 | 8 | 32 | SOFTMAX_THREADS)) };
    let join = |a: f32, b: f32| {
        if MAX { matrix::max_nan(a, b) } else { a + b }
    };
    let of_warp = 1..F::LANES.min(32);
    let mut x = lanes::reduce(x, lanes::DOWN, of_warp, |x, by| join(x, F32::shfl_xor(x, by)));
    if F::LANES > 32 {
        // SAFETY: `SoftmaxRows::SHARED_BYTES` includes two words for each warp.
        let shares = unsafe { Shared::<f32>::dynamic(word * 4) };
        if gpu::thread().is_multiple_of(32) {
            shares.at(gpu::thread() / 32).st(x);
        }
        gpu::sync_threads();
        x = shares.ld();
        unroll!(other < 4, {
            if other > 0 {
                x = join(x, shares.at(other as u32).ld());
            }
        });
    }
    x
}

/// Word offsets in shared memory at which the four warps store their results: of the first reduction of a row, and of
/// the second one. They differ, because no barrier follows the loads of [`over_lanes`].
const FIRST_REDUCTION: u32 = 0;
const SECOND_REDUCTION: u32 = SOFTMAX_THREADS / 32;
