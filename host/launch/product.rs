//! Interface of plans to kernels of products: of a matrix and a dense matrix (SpMM), and of two dense matrices at the
//! nonzeros of a pattern (SDDMM).

use std::fmt;
use std::sync::Arc;

use einsparse_formats::SlicedEllPattern;
use einsparse_kernels::table::Row;

use super::{Extents, RawSpmm};
use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::indirect::SpmmForm;
use crate::kernel::Queue;
use crate::registry::Dtype;
use crate::worklist::Runs;

/// Matrix A of a product.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Matrix<'a> {
    /// Sparse matrix in row order. For a blocked matrix: block columns, and the extents of a block.
    Sparse {
        runs: &'a Arc<Runs>,
        /// Copy of `runs` in device memory, if the tensor has one.
        spans: Option<&'a Arc<DeviceMemory>>,
        columns: &'a [u32],
        block: (usize, usize),
        /// Number of stored blocks.
        stored: usize,
        /// Device address of `columns`.
        address: u64,
    },
    /// Sliced ELLPACK.
    Sliced { runs: &'a Arc<Runs>, pattern: &'a Arc<SlicedEllPattern> },
    /// Dense matrix with its row stride in elements.
    Dense { leading: usize },
}

/// Row, form and extents for which a kernel of a product is prepared.
#[derive(Debug)]
pub(crate) struct SpmmConfig<'d> {
    pub(crate) device: &'d Arc<Device>,
    pub(crate) row: &'static Row,
    pub(crate) form: SpmmForm,
    pub(crate) extents: Extents,
    /// Element type of C.
    pub(crate) out: Dtype,
}

/// Kernel selected for one pattern, with its work list and workspace. Its runs receive addresses: of an SpMM, or of an
/// SDDMM.
pub(crate) trait Product<Raw = RawSpmm>: fmt::Debug + Send + Sync {
    /// Returns the row of the table of kernels.
    fn row(&self) -> &'static Row;

    /// Returns the row stride of a dense A in elements, if the plan depends on it.
    fn leading(&self) -> Option<usize> {
        None
    }

    /// Announces that A changes only before calls of [`a_changed`](Self::a_changed). A kernel may then read A ahead of
    /// earlier work on the stream, or read a copy of its values. Returns whether this kernel does.
    fn keeps_a(&mut self) -> bool {
        false
    }

    /// Announces new values of A at this address. The call is queued after the work that writes them, and later kernels
    /// start after that work.
    fn a_changed(&self, _values: u64, _: Queue<'_>) -> Result<()> {
        Ok(())
    }

    /// Returns the bytes of device memory in addition to the operands.
    fn bytes(&self) -> usize;

    /// Describes the geometry for `explain`.
    fn describe(&self) -> String;

    /// Queues the kernel.
    fn run(&self, raw: &Raw, queue: Queue<'_>) -> Result<()>;

    /// Checks that a dense A has the planned row stride.
    fn check_leading(&self, name: &str, leading: usize) -> Result<()> {
        match self.leading() {
            Some(planned) if planned != leading => {
                Err(Error::stride(name, leading, format_args!("{planned} as planned")))
            }
            _ => Ok(()),
        }
    }
}
