//! The product of a matrix with a dense one, as plans see it.

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

/// What a product's A is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Matrix<'a> {
    /// A sparse matrix in row order; block columns and extents where it is made of blocks.
    Sparse {
        runs: &'a Arc<Runs>,
        /// The same on the device, where the tensor has it there.
        spans: Option<&'a Arc<DeviceMemory>>,
        columns: &'a [u32],
        block: (usize, usize),
        /// Blocks that the array of values holds.
        stored: usize,
        /// Where `columns` lies on the device.
        address: u64,
    },
    /// Slices of rows.
    Sliced { runs: &'a Arc<Runs>, pattern: &'a Arc<SlicedEllPattern> },
    /// A dense one, with the elements from one row to the next.
    Dense { leading: usize },
}

/// A product that a kernel is to be made for, and the kernel.
#[derive(Debug)]
pub(crate) struct Asked<'d> {
    pub(crate) device: &'d Arc<Device>,
    pub(crate) row: &'static Row,
    pub(crate) form: SpmmForm,
    pub(crate) extents: Extents,
    /// Type of C.
    pub(crate) out: Dtype,
}

/// A kernel chosen for one pattern, with what it needs beside the operands.
pub(crate) trait Product: fmt::Debug + Send + Sync {
    /// The row of the table.
    fn row(&self) -> &'static Row;

    /// Is this the pattern that the work list was made for? Not where there is none.
    fn fits(&self, _runs: &Arc<Runs>, _columns: Option<&[u32]>) -> bool {
        false
    }

    /// Elements from one row of a dense A to the next, where they are part of the plan.
    fn leading(&self) -> Option<usize> {
        None
    }

    /// A is written by nobody but in front of [`a_changed`](Self::a_changed): a kernel may read it ahead of the end of what is
    /// queued before, or a copy of its values. Whether this one does.
    fn keeps_a(&mut self) -> bool {
        false
    }

    /// Queued behind whoever wrote A's values, which lie there: kernels behind this start when that has ended.
    fn a_changed(&self, _values: u64, _: Queue<'_>) -> Result<()> {
        Ok(())
    }

    /// Device bytes beside the operands.
    fn bytes(&self) -> usize;

    /// What `explain` says of the geometry.
    fn describe(&self) -> String;

    /// Queues the kernel.
    fn run(&self, raw: &RawSpmm, queue: Queue<'_>) -> Result<()>;

    /// A dense A must be laid out as planned.
    fn check_leading(&self, name: &str, leading: usize) -> Result<()> {
        match self.leading() {
            Some(planned) if planned != leading => {
                let reason = format!("rows are {leading} elements apart, planned with {planned}");
                Err(Error::operand(name, reason))
            }
            _ => Ok(()),
        }
    }
}
