//! Stable counting sorts on a GPU: rows by length, nonzeros by column.

use std::sync::Arc;

use einsparse_kernels::families::{
    EntriesParams, SORT_BITS, SORT_CLASSES, SORT_FIRST, SORT_KEYS, SORT_LENGTHS, SORT_PAIRS,
    SORT_SECOND, SORT_TILE, STEP_ENTRY_OFFSETS, STEP_ENTRY_ROWS, STEP_PERMUTE_VALUES,
    STEP_SORT_COUNT, STEP_SORT_MOVE, STEP_SORT_PLACE,
};

use super::{Steps, copies, tiles};
use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::Result;
use crate::kernel::Queue;
use crate::launch::{small, within};
use crate::registry::Dtype;

/// Order of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Longest row first.
    Lengths,
    /// Descending by the power of two of the length. Rows of a class keep their order, and with it their locality (the
    /// row swizzle of plans).
    Classes,
}

/// Output addresses of the last pass.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SortOut {
    /// Sorted keys, or 0.
    pub keys: u64,
    /// Positions in the order of the keys. With `pairs`: pairs of the carried value and the position.
    pub first: u64,
    /// Carried values.
    pub second: u64,
    pub pairs: bool,
    /// Capacity of the outputs in elements.
    pub capacity: usize,
}

/// Arrays between two passes.
#[derive(Debug)]
struct Between {
    keys: DeviceMemory,
    first: DeviceMemory,
    second: DeviceMemory,
}

impl Between {
    fn out(&self, count: usize) -> SortOut {
        SortOut {
            keys: self.keys.address(),
            first: self.first.address(),
            second: self.second.address(),
            pairs: false,
            capacity: count,
        }
    }
}

/// Sort of `count` keys below 2^`bits`, with workspace.
#[derive(Debug)]
pub(crate) struct Sort {
    count: usize,
    /// Number of low bits of a key that the sort ignores.
    below: u32,
    /// Bits of each pass, lowest bits first.
    passes: Vec<u32>,
    carries: bool,
    between: Vec<Between>,
    counts: DeviceMemory,
    totals: DeviceMemory,
}

impl Sort {
    pub(crate) fn new(device: &Device, count: usize, bits: u32, carries: bool) -> Result<Self> {
        small("keys", count)?;
        let bits = bits.max(1);
        let passes = bits.div_ceil(SORT_BITS);
        // Distributes the bits evenly, because a pass of few bits costs as much as a pass of many.
        let passes: Vec<u32> =
            (0..passes).map(|i| bits * (i + 1) / passes - bits * i / passes).collect();
        let digits = passes.iter().map(|&bits| 1usize << bits).max().unwrap_or(1);
        let alloc = |words: usize| DeviceMemory::alloc(device.context(), words.saturating_mul(4));
        let between = (1..passes.len().min(3)).map(|_| {
            Ok(Between {
                keys: alloc(count)?,
                first: alloc(count)?,
                second: alloc(if carries { count } else { 0 })?,
            })
        });
        Ok(Sort {
            between: between.collect::<Result<_>>()?,
            counts: alloc(digits * count.div_ceil(SORT_TILE as usize))?,
            totals: alloc(digits)?,
            count,
            below: 0,
            passes,
            carries,
        })
    }

    /// Ignores the lowest `below` bits of the keys.
    pub(crate) fn above(self, below: u32) -> Self {
        Sort { below, ..self }
    }

    pub(crate) fn bytes(&self) -> usize {
        let arrays = |b: &Between| b.keys.bytes() + b.first.bytes() + b.second.bytes();
        self.between.iter().map(arrays).sum::<usize>() + self.counts.bytes() + self.totals.bytes()
    }

    /// Queues the sort of the keys that `params` describes, and of the carried values `params.second`. `alone`: no
    /// preceding step writes them. The arrays have one word per key, or as many as `out` states.
    pub(crate) fn run(
        &self,
        steps: &Steps,
        params: EntriesParams,
        out: SortOut,
        alone: bool,
        queue: Queue<'_>,
    ) -> Result<()> {
        let blocks = self.count.div_ceil(SORT_TILE as usize);
        let mut source = params;
        let mut shift = self.below;
        for (pass, &bits) in self.passes.iter().enumerate() {
            let last = pass + 1 == self.passes.len();
            let mut flags = source.flags;
            if pass == 0 {
                flags |= SORT_FIRST;
            }
            if self.carries {
                flags |= SORT_SECOND;
            }
            let to = match last {
                true => out,
                false => self.between[pass % 2].out(self.count),
            };
            flags |= if to.keys != 0 { SORT_KEYS } else { 0 };
            flags |= if to.pairs { SORT_PAIRS } else { 0 };
            let params = EntriesParams {
                out_keys: to.keys,
                out_first: to.first,
                out_second: to.second,
                counts: self.counts.address(),
                totals: self.totals.address(),
                count: small("keys", self.count)?,
                capacity: small("places", to.capacity)?,
                tiles: blocks as u32,
                shift,
                bits,
                flags,
                ..source
            };
            let digits = if blocks == 0 { 0 } else { 1 << bits };
            let first = alone && pass == 0;
            steps.launch(STEP_SORT_COUNT, (false, first), blocks, queue, &params)?;
            steps.launch(STEP_SORT_PLACE, (false, false), digits, queue, &params)?;
            steps.launch(STEP_SORT_MOVE, (false, false), blocks, queue, &params)?;
            source = EntriesParams {
                keys: to.keys,
                first: to.first,
                second: to.second,
                flags: 0,
                ..params
            };
            shift += bits;
        }
        Ok(())
    }

    /// Queues the order of rows by length. `offsets` holds one word per key plus one, `out` one word per key.
    pub(crate) fn rows(
        &self,
        steps: &Steps,
        order: Order,
        k: usize,
        [offsets, out]: [u64; 2],
        queue: Queue<'_>,
    ) -> Result<()> {
        steps.device.context().set_current()?;
        let params = EntriesParams {
            offsets,
            k: small("columns", k)?,
            flags: match order {
                Order::Lengths => SORT_LENGTHS,
                Order::Classes => SORT_CLASSES,
            },
            ..EntriesParams::default()
        };
        let out = SortOut { first: out, capacity: self.count, ..SortOut::default() };
        self.run(steps, params, out, true, queue)
    }
}

/// Number of bits of `largest`.
pub(crate) fn bits_of(largest: usize) -> u32 {
    usize::BITS - largest.leading_zeros()
}

impl Order {
    /// Creates the sort of `m` rows of at most `k` nonzeros.
    pub(crate) fn sort(self, device: &Device, m: usize, k: usize) -> Result<Sort> {
        // The classes of u32 are 0 to 32, which require 6 bits.
        let bits = match self {
            Order::Lengths => bits_of(k),
            Order::Classes => 6,
        };
        Sort::new(device, m, bits, false)
    }
}

/// Transposition of a pattern in row order. It can run any number of times on patterns with the same number of slots.
#[derive(Debug)]
pub(crate) struct Transpose {
    steps: Steps,
    m: usize,
    k: usize,
    slots: usize,
    sort: Sort,
    rows: DeviceMemory,
    keys: DeviceMemory,
}

impl Transpose {
    /// Creates kernels and workspace. `padded`: some slots are padding with column `u32::MAX`.
    pub(crate) fn new(
        device: &Arc<Device>,
        (m, k): (usize, usize),
        slots: usize,
        padded: bool,
        dtype: Dtype,
    ) -> Result<Self> {
        within("rows", m, super::MAX_GRID_X - 1)?;
        within("columns", k, super::MAX_GRID_X - 1)?;
        let largest = if padded { k } else { k.saturating_sub(1) };
        let alloc = |words: usize| DeviceMemory::alloc(device.context(), words.saturating_mul(4));
        Ok(Transpose {
            steps: Steps::new(device, dtype)?,
            sort: Sort::new(device, slots, bits_of(largest), true)?,
            rows: alloc(slots.next_multiple_of(4))?,
            keys: alloc(slots)?,
            m,
            k,
            slots,
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.sort.bytes() + self.rows.bytes() + self.keys.bytes()
    }

    /// Queues the transposition of the slots `[offsets, columns]`. `to` receives the offsets of the transposed pattern,
    /// and `out` the rows (carried) and positions. `offsets` holds m + 1 words that ascend to the number of slots,
    /// `columns` one word per slot, `to` k + 1 words, and `out` as many as its capacity. Runs must not overlap.
    pub(crate) fn run(
        &self,
        [offsets, columns]: [u64; 2],
        to: u64,
        out: SortOut,
        queue: Queue<'_>,
    ) -> Result<()> {
        self.steps.device.context().set_current()?;
        let params = EntriesParams {
            offsets,
            keys: columns,
            rows: self.rows.address(),
            second: self.rows.address(),
            m: small("rows", self.m)?,
            k: small("columns", self.k)?,
            capacity: small("slots", self.slots)?,
            ..EntriesParams::default()
        };
        let out = SortOut { keys: self.keys.address(), ..out };
        let columns = EntriesParams {
            keys: self.keys.address(),
            starts: to,
            m: params.k,
            count: small("entries", out.capacity)?,
            ..EntriesParams::default()
        };
        let blocks = if self.m == 0 { 0 } else { tiles(self.slots) };
        self.steps.launch(STEP_ENTRY_ROWS, (false, true), blocks, queue, &params)?;
        self.sort.run(&self.steps, params, out, false, queue)?;
        let blocks = tiles(out.capacity + 1);
        let none = self.slots == 0;
        self.steps.launch(STEP_ENTRY_OFFSETS, (false, none), blocks, queue, &columns)
    }

    /// Queues [`permute`] with these kernels.
    pub(crate) fn gather(&self, arrays: [u64; 3], count: usize, queue: Queue<'_>) -> Result<()> {
        permute(&self.steps, arrays, count, queue)
    }
}

/// Queues the permutation of `count` values. `permutation` holds positions in `values`. `to` holds `count` values.
pub(crate) fn permute(
    steps: &Steps,
    [values, permutation, to]: [u64; 3],
    count: usize,
    queue: Queue<'_>,
) -> Result<()> {
    steps.device.context().set_current()?;
    let params = EntriesParams {
        source: values,
        first: permutation,
        out_values: to,
        count: small("entries", count)?,
        ..EntriesParams::default()
    };
    // No overlap: a kernel that allows an early start may write the values, and reads here go through L1.
    steps.launch(STEP_PERMUTE_VALUES, (false, true), copies(count), queue, &params)
}
