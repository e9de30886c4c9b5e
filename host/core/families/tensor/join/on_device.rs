//! Join of two columns of keys on a GPU: kernels `join`, and the sorts of module `entries`.

use std::sync::Arc;

use einsparse_formats::allocate;
use einsparse_kernels::abi::SCAN_THREADS;
use einsparse_kernels::families::{
    EntriesParams, JoinParams, STEP_JOIN_COUNT, STEP_JOIN_FILL, STEP_JOIN_STARTS,
};
use einsparse_kernels::table::rows_of;
use rayon::prelude::*;

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::families::convert::{Sort, SortOut, Steps, permute};
use crate::families::tensor::join::{Keys, MOST_ROWS, check_pairs};
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, small, within};
use crate::registry::Dtype;

/// Kernels of the join.
struct Join<'d> {
    device: &'d Arc<Device>,
    kernels: Vec<Kernel<JoinParams>>,
    sorts: Steps,
    /// Queue of the launches. The arrays have the lengths in the params and live until the next wait for all work.
    queue: Queue<'d>,
}

/// Keys in device memory. The high words exist only if one of them is not zero.
struct Words {
    low: DeviceMemory,
    high: Option<DeviceMemory>,
    /// Bits of the max key.
    bits: u32,
}

/// Returns all pairs of rows with equal keys, sorted by the sum of their order keys, then by the rows, as on the CPU.
/// Waits for all work on the GPU. The number of pairs is copied to the host before their memory is allocated.
///
/// # Errors
/// Returns `Overflow` for more pairs than positions, or an error if memory or the module for this GPU is missing.
pub(crate) fn join(
    device: &Arc<Device>,
    [left, right]: Keys<'_>,
    order: Option<Keys<'_>>,
) -> Result<(Vec<u32>, Vec<u32>)> {
    if left.is_empty() || right.is_empty() {
        return Ok((Vec::new(), Vec::new()));
    }
    let join = Join::new(device)?;
    let words = Words::new(device, right)?;
    let right_rows = join.sorted(&words, right.len())?;
    let mut held = vec![device.upload(left)?];
    let mut params = JoinParams {
        left: held[0].address(),
        right_rows: right_rows.address(),
        left_count: small("rows", left.len())?,
        right_count: small("rows", right.len())?,
        ..JoinParams::default()
    };
    let low = join.gathered(&words.low, &right_rows, right.len())?;
    params.right_low = low.address();
    held.push(low);
    if let Some(high) = &words.high {
        let high = join.gathered(high, &right_rows, right.len())?;
        params.right_high = high.address();
        held.push(high);
    }
    let blocks = left.len().div_ceil(SCAN_THREADS as usize);
    let [first, starts] = [join.room(left.len())?, join.room(left.len())?];
    let sums = join.room(2 * blocks)?;
    (params.first, params.starts, params.sums) =
        (first.address(), starts.address(), sums.address());
    join.launch(STEP_JOIN_COUNT, left.len(), &params)?;
    let pairs = join.running_sums(&sums, blocks, [left.len(), right.len()])?;
    params.pairs = small("pairs", pairs)?;
    if pairs == 0 {
        return Ok((Vec::new(), Vec::new()));
    }
    join.launch(STEP_JOIN_STARTS, left.len(), &params)?;
    join.pairs(params, order)
}

impl<'d> Join<'d> {
    fn new(device: &'d Arc<Device>) -> Result<Self> {
        let kernels = rows_of::<JoinParams>().map(|row| Kernel::load(device, row));
        Ok(Join {
            device,
            kernels: kernels.collect::<Result<_>>()?,
            sorts: Steps::new(device, Dtype::F32)?,
            // SAFETY: this module passes arrays of the lengths in the counts, and drops none before it waits for all
            // work.
            queue: unsafe { Queue::new(device.copies()) },
        })
    }

    fn room(&self, words: usize) -> Result<DeviceMemory> {
        DeviceMemory::alloc(self.device.context(), words.saturating_mul(4))
    }

    /// Queues a step with `count` threads.
    fn launch(&self, step: u32, count: usize, params: &JoinParams) -> Result<()> {
        let own = |kernel: &&Kernel<_>| kernel.row().step == step;
        let Some(kernel) = self.kernels.iter().find(own) else {
            return Err(Error::no_kernel(format!("step {step} of a join"), []));
        };
        let blocks =
            within("thread blocks", count.div_ceil(kernel.row().threads as usize), MAX_GRID_X)?;
        self.queue.launch(kernel, Grid::of([blocks, 1, 1]), params)
    }

    /// Replaces the sums of thread blocks by the number of preceding pairs, and returns the total number of pairs.
    fn running_sums(&self, sums: &DeviceMemory, blocks: usize, rows: [usize; 2]) -> Result<usize> {
        let mut found = allocate::zeroed("sums of thread blocks", 2 * blocks)?;
        self.device.read(sums, &mut found)?;
        let mut all = 0u128;
        for halves in <[u32]>::as_chunks_mut::<2>(&mut found).0 {
            let own = u128::from(halves[0]) + (u128::from(halves[1]) << 16);
            halves[0] = all.min(MOST_ROWS.into()) as u32;
            all += own;
        }
        check_pairs(all, rows)?;
        self.device.write(sums, &found)?;
        Ok(all as usize)
    }

    /// Returns the pairs in order.
    fn pairs(&self, params: JoinParams, order: Option<Keys<'_>>) -> Result<(Vec<u32>, Vec<u32>)> {
        let pairs = params.pairs as usize;
        let (left, right) = (self.room(pairs)?, self.room(pairs)?);
        let mut params =
            JoinParams { out_left: left.address(), out_right: right.address(), ..params };
        let Some([own, other]) = order else {
            self.launch(STEP_JOIN_FILL, pairs, &params)?;
            return Ok((self.read(&left, pairs)?, self.read(&right, pairs)?));
        };
        let most = |keys: &[u64]| keys.par_iter().copied().max().unwrap_or(0);
        // Both order keys are parts of one number below 2^64, so the sum does not overflow.
        let most = most(own) + most(other);
        let bits = (u64::BITS - most.leading_zeros()).max(1);
        let words = Words {
            low: self.room(pairs)?,
            high: if bits > 32 { Some(self.room(pairs)?) } else { None },
            bits,
        };
        let [own, other] = [self.device.upload(own)?, self.device.upload(other)?];
        params.left_order = own.address();
        params.right_order = other.address();
        params.out_low = words.low.address();
        params.out_high = words.high.as_ref().map_or(0, DeviceMemory::address);
        self.launch(STEP_JOIN_FILL, pairs, &params)?;
        let places = self.sorted(&words, pairs)?;
        let left = self.gathered(&left, &places, pairs)?;
        let right = self.gathered(&right, &places, pairs)?;
        Ok((self.read(&left, pairs)?, self.read(&right, pairs)?))
    }

    fn read(&self, words: &DeviceMemory, count: usize) -> Result<Vec<u32>> {
        let mut found = allocate::zeroed("positions", count)?;
        self.device.read(words, &mut found)?;
        Ok(found)
    }

    /// Returns `words[places[i]]` for each i.
    fn gathered(
        &self,
        words: &DeviceMemory,
        places: &DeviceMemory,
        count: usize,
    ) -> Result<DeviceMemory> {
        let out = self.room(count)?;
        let arrays = [words.address(), places.address(), out.address()];
        permute(&self.sorts, arrays, count, self.queue)?;
        self.device.context().synchronize()?;
        Ok(out)
    }

    /// Returns the positions of the keys in ascending order. The sort is stable.
    fn sorted(&self, keys: &Words, count: usize) -> Result<DeviceMemory> {
        let places = self.room(count)?;
        let sort = Sort::new(self.device, count, keys.bits.min(32), false)?;
        let params =
            EntriesParams { keys: keys.low.address(), k: u32::MAX, ..EntriesParams::default() };
        let out = SortOut { first: places.address(), capacity: count, ..SortOut::default() };
        self.device.context().set_current()?;
        sort.run(&self.sorts, params, out, true, self.queue)?;
        let Some(high) = &keys.high else {
            self.device.context().synchronize()?;
            return Ok(places);
        };
        let high = self.gathered(high, &places, count)?;
        let (unused, ordered) = (self.room(count)?, self.room(count)?);
        let sort = Sort::new(self.device, count, keys.bits - 32, true)?;
        let params = EntriesParams { keys: high.address(), second: places.address(), ..params };
        let out = SortOut { first: unused.address(), second: ordered.address(), ..out };
        sort.run(&self.sorts, params, out, true, self.queue)?;
        self.device.context().synchronize()?;
        Ok(ordered)
    }
}

impl Words {
    fn new(device: &Device, keys: &[u64]) -> Result<Self> {
        let most = keys.par_iter().copied().max().unwrap_or(0);
        let bits = (u64::BITS - most.leading_zeros()).max(1);
        let part = |shift: u32| -> Result<DeviceMemory> {
            let words: Vec<u32> = keys.par_iter().map(|k| (k >> shift) as u32).collect();
            device.upload(&words)
        };
        Ok(Words { low: part(0)?, high: if bits > 32 { Some(part(32)?) } else { None }, bits })
    }
}
