//! Kernels with their parameters, and the streams that launch them. All launches by address are in this file.

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;

use einsparse_kernels::table::Row;

use crate::device::Device;
use crate::driver::{
    Function, LaunchConfig, RawStream, memset_2d_async, memset_d8_async, memset_d32_async,
};
use crate::error::{Error, Refusal, Result};

/// A loaded kernel of the table, and the type of its parameters. It accepts no other type.
pub struct Kernel<P> {
    row: &'static Row,
    function: Function,
    shared_bytes: u32,
    params: PhantomData<fn(P)>,
}

impl<P: Copy + 'static> Kernel<P> {
    /// # Errors
    /// [`Error::Cuda`] if the row has parameters of another type (a bug of this library), or if this build lacks its
    /// code.
    pub fn load(device: &Device, row: &'static Row) -> Result<Self> {
        Self::with_shared(device, row, row.shared_bytes)
    }

    /// Loads the kernel with `shared_bytes` of dynamic shared memory instead of the number in the row.
    pub fn with_shared(device: &Device, row: &'static Row, shared_bytes: u32) -> Result<Self> {
        takes::<P>(row)?;
        if let Some(reason) = device.machine().lacks_shared(shared_bytes) {
            let refusal = Refusal::of(row.name, reason);
            return Err(Error::no_kernel(row.source, [refusal]));
        }
        let modules = device.modules();
        Ok(Kernel {
            row,
            function: modules.function(row, shared_bytes)?,
            shared_bytes,
            params: PhantomData,
        })
    }

    /// The row of the kernel in the table.
    pub fn row(&self) -> &'static Row {
        self.row
    }

    /// Makes the kernel's context current on this thread, for work that is queued before the kernel.
    pub fn set_current(&self) -> Result<()> {
        self.function.context().set_current()
    }
}

// A derived implementation would require `P: Debug`.
impl<P> fmt::Debug for Kernel<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kernel").field(&self.row.name).finish()
    }
}

/// Checks that the kernel of a row accepts these parameters.
fn takes<P: 'static>(row: &Row) -> Result<()> {
    if row.takes::<P>() {
        return Ok(());
    }
    let reason = format!("its row is `{}`, not {}", row.source, type_name::<P>());
    Err(Error::cuda(format!("load kernel {}", row.name), reason))
}

/// Thread blocks of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    blocks: [u32; 3],
    cluster: Option<[u32; 3]>,
    overlap_previous: bool,
}

impl Grid {
    /// Grid of thread blocks in x, y and z. It starts after the previous kernel has ended.
    pub fn of(blocks: [u32; 3]) -> Self {
        Grid { blocks, cluster: None, overlap_previous: false }
    }

    /// Groups the thread blocks into clusters of `parts` along x, if `parts` exceeds 1.
    pub fn in_clusters(self, parts: u32) -> Self {
        Grid { cluster: (parts > 1).then_some([parts, 1, 1]), ..self }
    }

    /// Starts early: the kernel waits for the previous one before it accesses memory that the previous one may write.
    pub fn early(self) -> Self {
        self.early_if(true)
    }

    /// Starts early if `early` is true.
    pub fn early_if(self, early: bool) -> Self {
        Grid { overlap_previous: early, ..self }
    }
}

/// A stream whose operands have been validated: memory that launches access is valid.
#[derive(Clone, Copy, Debug)]
pub struct Queue<'s> {
    stream: RawStream<'s>,
}

impl<'s> Queue<'s> {
    /// # Safety
    /// Device memory that launches through this queue access by address belongs to the device of their kernels. It has
    /// the planned extents and contents. Until the work is done, the memory and the device exist. No other code writes
    /// the memory, or reads the outputs, except in the order of the stream. Memory that a launch owns is excepted: the
    /// driver frees it only after the work.
    pub unsafe fn new(stream: RawStream<'s>) -> Self {
        Queue { stream }
    }

    /// The stream of the queue.
    pub fn stream(self) -> RawStream<'s> {
        self.stream
    }

    /// Queues the kernel. A grid without blocks launches nothing.
    pub fn launch<P: Copy + 'static>(
        self,
        kernel: &Kernel<P>,
        grid: Grid,
        params: &P,
    ) -> Result<()> {
        kernel.set_current()?;
        let config = LaunchConfig {
            grid: grid.blocks,
            block: [kernel.row.threads, 1, 1],
            smem_bytes: kernel.shared_bytes,
            cluster: grid.cluster,
            overlap_previous: grid.overlap_previous,
        };
        // SAFETY: the row accepts these parameters, which was checked when it was loaded. Its code exists as long as
        // the device. The rest is guaranteed by the creator of the queue.
        unsafe { kernel.function.launch(&config, self.stream, params) }
    }

    /// Queues a fill of `count` bytes with `value`, in memory that is valid for launches. The context must be current.
    pub fn fill(self, address: u64, value: u8, count: usize) -> Result<()> {
        // SAFETY: guaranteed by the creator of the queue.
        unsafe { memset_d8_async(address, value, count, self.stream) }
    }

    /// Queues a fill of `count` words with `value`.
    pub fn fill_words(self, address: u64, value: u32, count: usize) -> Result<()> {
        // SAFETY: guaranteed by the creator of the queue.
        unsafe { memset_d32_async(address, value, count, self.stream) }
    }

    /// Queues a fill of `[bytes, rows]` with `value`. Rows are `pitch` bytes apart; the gaps between them are
    /// unchanged.
    pub fn fill_rows(
        self,
        address: u64,
        pitch: usize,
        value: u8,
        extents: [usize; 2],
    ) -> Result<()> {
        // SAFETY: guaranteed by the creator of the queue.
        unsafe { memset_2d_async(address, pitch, value, extents, self.stream) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use einsparse_kernels::abi::*;
    use einsparse_kernels::families::*;
    use einsparse_kernels::table::{kernels, rows_of};

    use super::*;

    /// Names of params structs, and whether a row accepts them: all of the table.
    type Params = (&'static str, fn(&Row) -> bool);

    macro_rules! params {
        ($($family:ident {
            $($module:literal $params:ident $operation:ident { $($rows:tt)+ })+
        })+) => {
            const ALL: &[Params] = &[$($((stringify!($params), |row| takes::<$params>(row).is_ok())),+),+];
        };
    }

    einsparse_kernels::for_each_kernel!(params);

    fn taken(row: &Row) -> BTreeSet<&'static str> {
        let own = ALL.iter().filter(|(_, fits)| fits(row));
        own.map(|(name, _)| *name).collect()
    }

    #[test]
    fn a_row_takes_its_own_params_and_no_others() {
        for row in kernels() {
            let named = row.source.split_whitespace().next();
            assert_eq!(taken(row), named.into_iter().collect(), "{}", row.name);
        }
    }

    #[test]
    fn other_params_are_refused_by_name() {
        let row = rows_of::<JoinParams>().next().unwrap();
        let error = takes::<SpmmParams>(row).unwrap_err().to_string();
        let told = error.contains(row.name) && error.contains("JoinParams");
        assert!(told && error.contains("SpmmParams"), "{error}");
    }
}
