//! The module `einsum`: any indirect Einsum as data. Listed terms are read one by one from the plan's list; all other
//! loops are plain strides. The index arithmetic is written here, as functions that the kernels and the CPU executor
//! both call.

use crate::abi::{Dtype, Tile};

/// Max factors.
pub const EINSUM_FACTORS: usize = 5;
/// The table slot that drops its term, as the padding of formats does.
pub const EINSUM_PAD: u32 = u32::MAX;
/// The slot of an item that is the whole sum of its output position.
pub const EINSUM_WHOLE: u32 = u32::MAX;
/// Factor 0 has filled blocks: a zero in it is fill, not a nonzero.
pub const FLAG_FILLED: u32 = 256;
/// Items are cut sums; their parts are added up.
pub const FLAG_JOIN: u32 = 512;
/// The bias has any subset of the output's axes.
pub const FLAG_BIAS: u32 = 1024;

/// `N` factors, lanes along a contiguous index of the output, `VEC` elements each. The first `FIXED` factors do not
/// have that index.
#[derive(Clone, Copy, Debug)]
pub struct Wide<const N: usize, const FIXED: usize, const VEC: usize>;

/// `N` factors, lanes along an index of the output with any stride, or one lane for each element of the output.
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
            /// Lanes run along: 2 vectors of an output index, 1 single elements of an output index, 0 terms.
            const COLUMNS: u32 = $columns;
            /// Number of factors.
            const ITEMS: u32 = $parts;
            /// Number of factors without the lanes' index.
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

/// A factor. Term `t` of the list reads index `table[t]` (`t` without a table), times the stride.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct EinsumFactor {
    /// Address of its first element.
    pub address: u64,
    /// Address of a u32 for each term, where [`EINSUM_PAD`] drops the term; 0 without a table.
    pub table: u64,
    /// Bytes per unit of the index; below 2^32.
    pub stride: u64,
    /// Bytes between elements along the lanes' index; 0 if the factor does not have that index.
    pub inner: u64,
}

/// A loop, with the bytes that one step adds to each address.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EinsumDim {
    /// Number of steps.
    pub extent: u64,
    /// Bytes per step in the output.
    pub out: u64,
    /// Bytes per step in the bias.
    pub bias: u64,
    /// Bytes per step in `gate`.
    pub gate: u64,
    /// Bytes per step in each factor.
    pub strides: [u64; EINSUM_FACTORS],
    /// For each factor the address of a u32 table that maps steps to indices, without pads; 0 without a table.
    pub tables: [u64; EINSUM_FACTORS],
}

/// Bytes of one [`EinsumDim`].
pub const EINSUM_DIM_BYTES: u64 = size_of::<EinsumDim>() as u64;

/// Parameters of the `einsum` kernels. An item is `[place, start, len, slot]`: terms `start .. start + len` of the list
/// are added up at output position `place`, a row-major index over the position loops. A unit of work is an item, one
/// step of every free loop, and one chunk of the lanes' index.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct EinsumParams {
    /// Factors; those without the lanes' index precede the others.
    pub factors: [EinsumFactor; EINSUM_FACTORS],
    /// Address of the output.
    pub out: u64,
    /// Address of the bias.
    pub bias: u64,
    /// Address of the mask `gate`: the output is zero where it is not positive.
    pub gate: u64,
    /// Bytes between elements of the output along the lanes' index.
    pub out_inner: u64,
    /// Bytes between elements of the bias along the lanes' index.
    pub bias_inner: u64,
    /// Bytes between elements of `gate` along the lanes' index.
    pub gate_inner: u64,
    /// Address of the items, four u32 each.
    pub items: u64,
    /// [`EinsumDim`]s: position loops, free loops, summed loops. In each group the last loop is the innermost.
    pub dims: u64,
    /// Address of the partial sums of cut items.
    pub partial: u64,
    /// Scalar factor.
    pub alpha: f64,
    /// Number of items.
    pub count: u32,
    /// Units per item.
    pub per_item: u32,
    /// Chunks of the lanes' index.
    pub chunks: u32,
    /// Extent of the lanes' index.
    pub columns: u32,
    /// log2 of the lanes of a unit.
    pub lane_bits: u32,
    /// Number of position loops.
    pub parts: u32,
    /// Number of free loops.
    pub free: u32,
    /// Number of summed loops. The last one is the line (the innermost loop of terms). Without summed loops the list is
    /// the line.
    pub summed: u32,
    /// Product of the extents of all summed loops except the line.
    pub lines: u32,
    /// Extent of the line.
    pub line: u32,
    /// `FLAG_*`.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<EinsumParams>() == 288);
const _: () = assert!(size_of::<EinsumDim>() == 112);

/// Expands a block for each factor: an array indexed at run time would be stored in local memory.
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

/// Reads index arrays and loop descriptions: from device memory in a kernel, from host memory in the CPU executor.
pub trait Arrays {
    /// Reads a u32; 0 if `ok` is false.
    fn slot(&self, address: u64, ok: bool) -> u32;
    /// Reads a u64.
    fn word(&self, address: u64) -> u64;
}

/// Addresses of a unit of work.
#[derive(Clone, Copy, Debug)]
pub struct Spot<const N: usize> {
    /// Address of each factor.
    pub base: [u64; N],
    /// Address of the output.
    pub out: u64,
    /// Address of the bias.
    pub bias: u64,
    /// Address in `gate`.
    pub gate: u64,
    /// Chunk of the lanes' index.
    pub chunk: u32,
}

/// A line of terms: its addresses, and the bytes of a step.
#[derive(Clone, Copy, Debug)]
pub struct Line<const N: usize> {
    /// Address of each factor at step 0.
    pub base: [u64; N],
    /// Table of each factor, or 0.
    pub tables: [u64; N],
    /// Bytes per step of each factor.
    pub strides: [u64; N],
    /// First step.
    pub first: u32,
    /// Number of steps.
    pub len: u32,
    /// False if the term is dropped.
    pub ok: bool,
}

/// Returns the bytes that step `at` adds to a factor's address, and whether the term exists.
#[inline(always)]
pub fn stepped(arrays: &impl Arrays, walk: (u64, u64), at: u32, ok: bool) -> (u64, bool) {
    let found = arrays.slot(walk.0 + at as u64 * 4, ok && walk.0 != 0);
    moved(walk, at, found, ok)
}

/// [`stepped`] with the table slot already loaded: `found`, which is ignored without a table.
#[inline(always)]
pub fn moved((table, stride): (u64, u64), at: u32, found: u32, ok: bool) -> (u64, bool) {
    let listed = table != 0;
    let index = if listed { found } else { at };
    // Both are below 2^32, so one multiplication is enough.
    let bytes = index as u64 * (stride as u32) as u64;
    (bytes, ok && !(listed && found == EINSUM_PAD))
}

impl EinsumParams {
    /// Addresses for unit `rest` of an item at output position `place`.
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

    /// The line of an item's terms, if no other loop is summed.
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

/// Returns the bytes that a step of a loop adds to the address of factor `f`.
#[inline(always)]
fn long_step(arrays: &impl Arrays, dim: u64, f: usize, step: u32) -> u64 {
    let stride = arrays.word(dim + 32 + f as u64 * 8);
    let table = arrays.word(dim + 72 + f as u64 * 8);
    let found = arrays.slot(table + step as u64 * 4, table != 0);
    let index = if table != 0 { found } else { step };
    index as u64 * stride
}

impl<const N: usize> Spot<N> {
    /// Applies one step of a loop to output, bias and gate.
    #[inline(always)]
    fn moved(&mut self, arrays: &impl Arrays, dim: u64, step: u32) {
        self.out += step as u64 * arrays.word(dim + 8);
        self.bias += step as u64 * arrays.word(dim + 16);
        self.gate += step as u64 * arrays.word(dim + 24);
    }
}
