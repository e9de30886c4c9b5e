//! Kernels with the parameters they take, and streams that may launch them: the one place that starts work by address.

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;

use einsparse_kernels::table::Row;

use crate::device::Device;
use crate::driver::{
    Function, LaunchConfig, RawStream, memset_2d_async, memset_d8_async, memset_d32_async,
};
use crate::error::{Error, Refusal, Result};

/// A kernel of the table as it is loaded, and the parameters that it takes: those of no other fit.
pub(crate) struct Kernel<P> {
    row: &'static Row,
    function: Function,
    shared_bytes: u32,
    params: PhantomData<fn(P)>,
}

impl<P: Copy + 'static> Kernel<P> {
    /// # Errors
    /// [`Error::Cuda`] if the row takes other parameters, a fault of ours, or if this build does not hold its code.
    pub(crate) fn load(device: &Device, row: &'static Row) -> Result<Self> {
        Self::with_shared(device, row, row.shared_bytes)
    }

    /// The same with so much dynamic shared memory in place of what the row says.
    pub(crate) fn with_shared(
        device: &Device,
        row: &'static Row,
        shared_bytes: u32,
    ) -> Result<Self> {
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

    pub(crate) fn row(&self) -> &'static Row {
        self.row
    }

    /// Makes its context the one of this thread, for what is queued ahead of it.
    pub(crate) fn set_current(&self) -> Result<()> {
        self.function.context().set_current()
    }
}

// Derived, it would ask the parameters for as much.
impl<P> fmt::Debug for Kernel<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Kernel").field(&self.row.name).finish()
    }
}

/// Whether the kernel of a row takes these parameters.
fn takes<P: 'static>(row: &Row) -> Result<()> {
    if row.takes::<P>() {
        return Ok(());
    }
    Err(Error::Cuda {
        call: format!("load kernel {}", row.name),
        reason: format!("its row is `{}`, not {}", row.source, type_name::<P>()),
    })
}

/// Thread blocks of a launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    blocks: [u32; 3],
    cluster: Option<[u32; 3]>,
    overlap_previous: bool,
}

impl Grid {
    /// So many in x, y and z, after the kernel ahead has ended.
    pub(crate) fn of(blocks: [u32; 3]) -> Self {
        Grid { blocks, cluster: None, overlap_previous: false }
    }

    /// In clusters of so many along x, if more than one.
    pub(crate) fn in_clusters(self, parts: u32) -> Self {
        Grid { cluster: (parts > 1).then_some([parts, 1, 1]), ..self }
    }

    /// Started early: the kernel waits for the one ahead before it touches what that one may write.
    pub(crate) fn early(self) -> Self {
        self.early_if(true)
    }

    /// Started early if so.
    pub(crate) fn early_if(self, early: bool) -> Self {
        Grid { overlap_previous: early, ..self }
    }
}

/// A stream, and the promise of whoever made it: what is launched through it finds its memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue<'s> {
    stream: RawStream<'s>,
}

impl<'s> Queue<'s> {
    /// # Safety
    /// All device memory that launches through the result name by address is of the device of their kernels and of the
    /// extents and contents that they were planned for. Until their work is done, it and the device live, and nobody
    /// else writes it, or reads what they write, but in the order of the stream. What launches own themselves they see
    /// to: the driver frees it only after the work.
    pub(crate) unsafe fn new(stream: RawStream<'s>) -> Self {
        Queue { stream }
    }

    pub(crate) fn stream(self) -> RawStream<'s> {
        self.stream
    }

    /// Queues the kernel. A grid without blocks launches nothing.
    pub(crate) fn launch<P: Copy + 'static>(
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
        // SAFETY: the row takes these parameters, as was looked at when it was loaded; its code lives as long as the
        // device. The rest is the promise of the queue.
        unsafe { kernel.function.launch(&config, self.stream, params) }
    }

    /// Queues `count` bytes of `value`, in memory that a launch would be given. The context is current.
    pub(crate) fn fill(self, address: u64, value: u8, count: usize) -> Result<()> {
        // SAFETY: the promise of the queue.
        unsafe { memset_d8_async(address, value, count, self.stream) }
    }

    /// The same of words.
    pub(crate) fn fill_words(self, address: u64, value: u32, count: usize) -> Result<()> {
        // SAFETY: the promise of the queue.
        unsafe { memset_d32_async(address, value, count, self.stream) }
    }

    /// The same of `[bytes, rows]`, each row `pitch` bytes behind the one before; what lies between is left as it is.
    pub(crate) fn fill_rows(
        self,
        address: u64,
        pitch: usize,
        value: u8,
        extents: [usize; 2],
    ) -> Result<()> {
        // SAFETY: the promise of the queue.
        unsafe { memset_2d_async(address, pitch, value, extents, self.stream) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use einsparse_kernels::abi::*;
    use einsparse_kernels::families::*;
    use einsparse_kernels::table::kernels;

    use super::*;

    /// Names of params, and whether a row takes them: those of the whole table.
    type Params = (&'static str, fn(&Row) -> bool);

    macro_rules! params {
        ($($family:ident {
            $($module:ident $cfg:tt $params:ident $operation:ident { $($rows:tt)+ })+
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
        let row = kernels().iter().find(|row| row.module == "join").unwrap();
        let error = takes::<SpmmParams>(row).unwrap_err().to_string();
        let told = error.contains(row.name) && error.contains("JoinParams");
        assert!(told && error.contains("SpmmParams"), "{error}");
    }
}
