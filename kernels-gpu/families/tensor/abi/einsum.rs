//! The module `einsum`: any indirect Einsum as data. What a plan has listed is walked term by term; what is left are
//! plain strides. The arithmetic of places stands here, as functions that the kernels and the executor on the CPU both
//! call.

use crate::abi::{Dtype, Tile};

/// Factors at the most.
pub const EINSUM_FACTORS: usize = 5;
/// The slot that drops its term, as the formats pad.
pub const EINSUM_PAD: u32 = u32::MAX;
/// The slot of an item that is the whole sum of its place.
pub const EINSUM_WHOLE: u32 = u32::MAX;
/// Factor 0 holds filled blocks: a zero there is no entry.
pub const FLAG_FILLED: u32 = 256;
/// Items are cut sums, whose parts are added up.
pub const FLAG_JOIN: u32 = 512;
/// A bias of any axes of the output.
pub const FLAG_BIAS: u32 = 1024;

/// `N` factors, lanes along a dense index of the output, `VEC` elements each; the first `FIXED` factors do not have
/// that index.
#[derive(Clone, Copy, Debug)]
pub struct Wide<const N: usize, const FIXED: usize, const VEC: usize>;

/// `N` factors, lanes along an index of the output with any stride, or a lane for each element of it.
#[derive(Clone, Copy, Debug)]
pub struct Thin<const N: usize>;

/// `N` factors, lanes along the terms of one element of the output.
#[derive(Clone, Copy, Debug)]
pub struct Across<const N: usize>;

macro_rules! tile {
    ([$($generics:tt)*] $tile:ty, $min:expr, $columns:expr, $parts:expr, $vec:expr, $depth:expr) => {
        impl<$($generics)*> Tile for $tile {
            const THREADS: u32 = 256;
            const MIN_BLOCKS: u32 = $min;
            /// What lanes run along: 2 vectors of an index of the output, 1 single elements of it, 0 terms.
            const COLUMNS: u32 = $columns;
            /// Factors.
            const ITEMS: u32 = $parts;
            /// Factors without the index that lanes run along.
            const PARTS: u32 = $depth;
            const BURST: u32 = 4;
            const ACCESS: u32 = 1;
            fn vector(_: Dtype) -> u32 {
                $vec
            }
        }
    };
}

tile!([const N: usize, const FIXED: usize, const VEC: usize] Wide<N, FIXED, VEC>, if N == 2 && FIXED == 1 && VEC == 4 { 4 } else if N < 3 { 3 } else { 2 }, 2, N as u32, VEC as u32, FIXED as u32);
tile!([const N: usize] Thin<N>, 2, 1, N as u32, 1, 0);
tile!([const N: usize] Across<N>, 2, 0, N as u32, 1, 0);

/// A factor: where term `t` of the list finds it is `table[t]`, or `t` without a table, times the stride.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct EinsumFactor {
    /// Its first element.
    pub address: u64,
    /// u32 for each term, [`EINSUM_PAD`] drops it; 0 for none.
    pub table: u64,
    /// Bytes from one place of the table, or from one term, to the next; below 2^32.
    pub stride: u64,
    /// Bytes from one element along the lanes' index to the next; 0 if the factor does not have it.
    pub inner: u64,
}

/// A loop with what one step of it moves, in bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EinsumDim {
    /// Steps.
    pub extent: u64,
    /// Of the output.
    pub out: u64,
    /// Of the bias.
    pub bias: u64,
    /// Of the gate.
    pub gate: u64,
    /// Of each factor.
    pub strides: [u64; EINSUM_FACTORS],
    /// For each factor u32 that stand for the number of the step, none of them a pad; 0 for none.
    pub tables: [u64; EINSUM_FACTORS],
}

/// Bytes of a loop's description.
pub const EINSUM_DIM_BYTES: u64 = size_of::<EinsumDim>() as u64;

/// Parameters of the `einsum` kernels. An item is `[place, start, len, slot]`: terms `start .. start + len` of the list
/// are added up in `place`, which is numbered row-major over the loops of places. A unit of work is an item, a step of
/// every free loop, and a chunk of the lanes' index.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct EinsumParams {
    /// Factors, those without the lanes' index in front.
    pub factors: [EinsumFactor; EINSUM_FACTORS],
    /// Output.
    pub out: u64,
    /// Bias.
    pub bias: u64,
    /// Gate.
    pub gate: u64,
    /// Bytes from one element along the lanes' index to the next.
    pub out_inner: u64,
    /// The same of the bias.
    pub bias_inner: u64,
    /// The same of the gate.
    pub gate_inner: u64,
    /// Four u32 each.
    pub items: u64,
    /// [`EinsumDim`]s: of places, free, summed; of each the last runs fastest.
    pub dims: u64,
    /// Sums of cut items.
    pub partial: u64,
    /// Scalar factor.
    pub alpha: f64,
    /// Number of items.
    pub count: u32,
    /// Units of an item.
    pub per_item: u32,
    /// Chunks of the lanes' index.
    pub chunks: u32,
    /// Extent of the lanes' index.
    pub columns: u32,
    /// Lanes of a unit, a power of two, as its exponent.
    pub lane_bits: u32,
    /// Loops of places.
    pub parts: u32,
    /// Free loops.
    pub free: u32,
    /// Summed loops; the last of them is the line, if there is one. Else the list is.
    pub summed: u32,
    /// Steps of all summed loops but the line.
    pub lines: u32,
    /// Steps of the line.
    pub line: u32,
    /// `FLAG_*`.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<EinsumParams>() == 288);
const _: () = assert!(size_of::<EinsumDim>() == 112);

/// Straight code for every factor: an array indexed at run time would lie in local memory.
macro_rules! each_factor {
    ($f:ident < $n:expr, $body:block) => {
        each_factor!(@ $f $n, $body, 0 1 2 3 4)
    };
    (@ $f:ident $n:expr, $body:block, $($k:literal)*) => {
        $({
            let $f: usize = $k;
            if $f < $n $body
        })*
    };
}

/// Reads the index arrays and descriptions: device memory in a kernel, that of the host in the executor.
pub trait Arrays {
    /// A u32, 0 where `ok` is false.
    fn slot(&self, address: u64, ok: bool) -> u32;
    /// A u64.
    fn word(&self, address: u64) -> u64;
}

/// Where a unit works.
#[derive(Clone, Copy, Debug)]
pub struct Spot<const N: usize> {
    /// Each factor.
    pub base: [u64; N],
    /// Output.
    pub out: u64,
    /// Bias.
    pub bias: u64,
    /// Gate.
    pub gate: u64,
    /// Chunk of the lanes' index.
    pub chunk: u32,
}

/// A line of terms: where it starts, and what a step moves.
#[derive(Clone, Copy, Debug)]
pub struct Line<const N: usize> {
    /// Each factor at step 0.
    pub base: [u64; N],
    /// Its table, or 0.
    pub tables: [u64; N],
    /// Bytes of a step.
    pub strides: [u64; N],
    /// First step.
    pub first: u32,
    /// Steps.
    pub len: u32,
    /// False where the term is dropped.
    pub ok: bool,
}

/// What step `at` moves a factor by, and whether there is such a term.
#[inline(always)]
pub fn stepped(arrays: &impl Arrays, walk: (u64, u64), at: u32, ok: bool) -> (u64, bool) {
    let found = arrays.slot(walk.0 + at as u64 * 4, ok && walk.0 != 0);
    moved(walk, at, found, ok)
}

/// The same where the slot of the table has been read: `found`, anything without a table.
#[inline(always)]
pub fn moved((table, stride): (u64, u64), at: u32, found: u32, ok: bool) -> (u64, bool) {
    let listed = table != 0;
    let index = if listed { found } else { at };
    // Below 2^32 both: one multiplication.
    let bytes = index as u64 * (stride as u32) as u64;
    (bytes, ok && !(listed && found == EINSUM_PAD))
}

impl EinsumParams {
    /// Where unit `rest` of an item that belongs to `place` works.
    #[inline(always)]
    pub fn spot<const N: usize>(&self, arrays: &impl Arrays, place: u32, rest: u32) -> Spot<N> {
        let mut spot =
            Spot { base: [0; N], out: self.out, bias: self.bias, gate: self.gate, chunk: 0 };
        each_factor!(f < N, { spot.base[f] = self.factors[f].address });
        let mut left = place;
        let mut part = self.parts;
        while part > 0 {
            part -= 1;
            let dim = self.dims + part as u64 * EINSUM_DIM_BYTES;
            let extent = arrays.word(dim) as u32;
            let rest = left.checked_div(extent).unwrap_or(0);
            let step = left - rest * extent;
            left = rest;
            spot.moved(arrays, dim, step);
        }
        let mut left = rest.checked_div(self.chunks).unwrap_or(0);
        spot.chunk = rest - left * self.chunks;
        let mut free = self.free;
        while free > 0 {
            free -= 1;
            let dim = self.dims + (self.parts + free) as u64 * EINSUM_DIM_BYTES;
            let extent = arrays.word(dim) as u32;
            let rest = left.checked_div(extent).unwrap_or(0);
            let step = left - rest * extent;
            left = rest;
            spot.moved(arrays, dim, step);
            each_factor!(f < N, {
                spot.base[f] += long_step(arrays, dim, f, step);
            });
        }
        spot
    }

    /// The line of an item's terms, where no other loop is summed.
    #[inline(always)]
    pub fn listed<const N: usize>(&self, base: [u64; N], start: u32, len: u32) -> Line<N> {
        let mut line = Line { base, tables: [0; N], strides: [0; N], first: start, len, ok: true };
        each_factor!(f < N, {
            line.tables[f] = self.factors[f].table;
            line.strides[f] = self.factors[f].stride;
        });
        line
    }

    /// Line `number` of term `term`.
    #[inline(always)]
    pub fn line_of<const N: usize>(
        &self,
        arrays: &impl Arrays,
        base: [u64; N],
        term: u32,
        number: u32,
    ) -> Line<N> {
        let mut line = self.listed(base, 0, self.line);
        each_factor!(f < N, {
            let (bytes, ok) = stepped(arrays, (line.tables[f], line.strides[f]), term, true);
            line.base[f] += bytes;
            line.ok &= ok;
        });
        let first = self.parts + self.free;
        let mut left = number;
        let mut summed = self.summed - 1;
        let own = self.dims + (first + summed) as u64 * EINSUM_DIM_BYTES;
        while summed > 0 {
            summed -= 1;
            let dim = self.dims + (first + summed) as u64 * EINSUM_DIM_BYTES;
            let extent = arrays.word(dim) as u32;
            let rest = left.checked_div(extent).unwrap_or(0);
            let step = left - rest * extent;
            left = rest;
            each_factor!(f < N, {
                line.base[f] += long_step(arrays, dim, f, step);
            });
        }
        each_factor!(f < N, {
            line.strides[f] = arrays.word(own + 32 + f as u64 * 8);
            line.tables[f] = arrays.word(own + 72 + f as u64 * 8);
        });
        line
    }
}

/// What a step of a loop moves factor `f` by.
#[inline(always)]
fn long_step(arrays: &impl Arrays, dim: u64, f: usize, step: u32) -> u64 {
    let stride = arrays.word(dim + 32 + f as u64 * 8);
    let table = arrays.word(dim + 72 + f as u64 * 8);
    let found = arrays.slot(table + step as u64 * 4, table != 0);
    let index = if table != 0 { found } else { step };
    index as u64 * stride
}

impl<const N: usize> Spot<N> {
    /// A step of a loop of the output.
    #[inline(always)]
    fn moved(&mut self, arrays: &impl Arrays, dim: u64, step: u32) {
        self.out += step as u64 * arrays.word(dim + 8);
        self.bias += step as u64 * arrays.word(dim + 16);
        self.gate += step as u64 * arrays.word(dim + 24);
    }
}
