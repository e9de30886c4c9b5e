//! Permutation of values in two passes over tiles. The offsets of both passes are computed once.

use einsparse_kernels::families::{
    EntriesParams, REORDER_THREADS, STEP_JOIN, STEP_REORDER_PLACES, STEP_SPLIT,
};

use super::sort::{Sort, SortOut};
use super::steps::Steps;
use crate::cost::permutation_tile;
use crate::driver::DeviceMemory;
use crate::error::Result;
use crate::kernel::Queue;
use crate::launch::small;
use crate::tensor::VECTOR_ENTRIES;

/// Arrays that the two passes read, and the buffer for the values between the passes.
#[derive(Debug)]
pub(crate) struct Reorder {
    count: usize,
    /// Values of a tile.
    tile: u32,
    tiles: u32,
    split: DeviceMemory,
    join: DeviceMemory,
    starts: DeviceMemory,
    between: DeviceMemory,
}

impl Reorder {
    /// Prepares the permutation of `count` values at `permutation`. Returns `None` if `count` is out of range.
    pub(crate) fn new(
        steps: &Steps,
        permutation: u64,
        count: usize,
        element: usize,
        queue: Queue<'_>,
    ) -> Result<Option<Self>> {
        let Some(log) = permutation_tile(count, element) else {
            return Ok(None);
        };
        let context = steps.device.context();
        let tiles = count.div_ceil(1 << log);
        let words = |count: usize| DeviceMemory::alloc(context, count * 4);
        // Kernels read whole vectors, also past the last element.
        let halves = || steps.device.zeros((count + VECTOR_ENTRIES) * 2);
        let sort = Sort::new(&steps.device, count, super::sort::bits_of(tiles - 1), false)?;
        let (from, to) = (words(count)?, words(count)?);
        let own = Reorder {
            count,
            tile: 1 << log,
            tiles: small("tiles", tiles)?,
            split: halves()?,
            join: halves()?,
            starts: words((tiles + 1) * tiles)?,
            between: steps.device.zeros((count + VECTOR_ENTRIES) * element)?,
        };
        let keys = EntriesParams { keys: permutation, k: u32::MAX, ..EntriesParams::default() };
        let out = SortOut {
            keys: from.address(),
            first: to.address(),
            capacity: count,
            ..SortOut::default()
        };
        let places = EntriesParams {
            keys: from.address(),
            first: to.address(),
            out_first: own.split.address(),
            out_second: own.join.address(),
            starts: own.starts.address(),
            ..own.params()?
        };
        // Sorts by source tile. The values of a tile keep the order of their targets.
        sort.above(log).run(steps, keys, out, true, queue)?;
        let blocks = count.div_ceil(REORDER_THREADS as usize);
        let step = (STEP_REORDER_PLACES, own.tile);
        steps.launch_tiles(step, false, blocks, queue, &places)?;
        queue.stream().synchronize()?;
        Ok(Some(own))
    }

    fn params(&self) -> Result<EntriesParams> {
        Ok(EntriesParams {
            count: small("entries", self.count)?,
            tiles: self.tiles,
            ..EntriesParams::default()
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        let all = [&self.split, &self.join, &self.starts, &self.between];
        all.map(DeviceMemory::bytes).iter().sum()
    }

    /// Queues both passes. `values` and `to` hold as many values as the permutation, plus [`VECTOR_ENTRIES`] elements
    /// of padding. Runs must not overlap.
    pub(crate) fn run(
        &self,
        steps: &Steps,
        [values, to]: [u64; 2],
        queue: Queue<'_>,
    ) -> Result<()> {
        steps.device.context().set_current()?;
        let params = self.params()?;
        let split = EntriesParams {
            source: values,
            first: self.split.address(),
            out_values: self.between.address(),
            ..params
        };
        let join = EntriesParams {
            source: self.between.address(),
            first: self.join.address(),
            starts: self.starts.address(),
            out_values: to,
            ..params
        };
        let blocks = self.tiles as usize;
        steps.launch_tiles((STEP_SPLIT, self.tile), false, blocks, queue, &split)?;
        steps.launch_tiles((STEP_JOIN, self.tile), false, blocks, queue, &join)
    }
}
