//! Interface of plans to the product of a matrix and a dense matrix.

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
pub enum Matrix<'a> {
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

/// Request for a kernel of a product, and the selected row.
#[derive(Debug)]
pub struct Asked<'d> {
    pub(crate) device: &'d Arc<Device>,
    pub(crate) row: &'static Row,
    pub(crate) form: SpmmForm,
    pub(crate) extents: Extents,
    /// Element type of C.
    pub(crate) out: Dtype,
}

/// Kernel selected for one pattern, with its work list and workspace.
pub trait Product: fmt::Debug + Send + Sync {
    /// Returns the row of the table of kernels.
    fn row(&self) -> &'static Row;

    /// Whether the work list was made for this pattern; false without a work list.
    fn fits(&self, _runs: &Arc<Runs>, _columns: Option<&[u32]>) -> bool {
        false
    }

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
    fn run(&self, raw: &RawSpmm, queue: Queue<'_>) -> Result<()>;

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
