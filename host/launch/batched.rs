//! A kernel of family `batched`: the products of family `spmm` for a batch, and with A's transpose, whose pattern is made
//! here, once for a plan.

use std::sync::Arc;

use einsparse_kernels::abi::BatchedParams;
use einsparse_kernels::table::Row;

use super::entries::{SortOut, Transpose};
use super::gather::Gather;
use super::{Extents, MAX_GRID_Y, Matrix, RawSpmm, refused};
use crate::device::Device;
use crate::driver::{DeviceMemory, RawStream};
use crate::error::Result;
use crate::indirect::SpmmForm;
use crate::registry::WalkKind;
use crate::tensor::VECTOR_ENTRIES;
use crate::worklist::Runs;

/// Bytes of a pair of column and position.
const PAIR: usize = 8;

#[derive(Debug)]
pub(crate) struct Batched {
    gather: Gather,
    form: SpmmForm,
    extents: Extents,
    turned: Option<Turned>,
}

/// A transposed pattern, and what it was made of.
#[derive(Debug)]
struct Turned {
    runs: Arc<Runs>,
    columns: Vec<u32>,
    pairs: DeviceMemory,
}

impl Batched {
    pub(super) fn new(
        device: &Arc<Device>,
        row: &'static Row,
        form: SpmmForm,
        extents: Extents,
        matrix: Matrix<'_>,
    ) -> Result<Self> {
        let Matrix::Sparse {
            runs,
            columns,
            address,
            ..
        } = matrix
        else {
            return Err(refused(&form.sparse, "is dense".into()));
        };
        if row.walk != WalkKind::Permuted {
            return Ok(Batched {
                gather: Gather::new(device, row, form.clone(), extents, runs)?,
                form,
                extents,
                turned: None,
            });
        }
        let (pairs, turned) = turn(device, extents, runs, (columns.len(), address))?;
        Ok(Batched {
            gather: Gather::new(device, row, form.clone(), extents, &Arc::new(turned))?,
            form,
            extents,
            turned: Some(Turned {
                runs: Arc::clone(runs),
                columns: columns.to_vec(),
                pairs,
            }),
        })
    }

    pub(super) fn row(&self) -> &'static Row {
        self.gather.row()
    }

    /// Is this the pattern that the plan was made for? That of the same tensor is; others are compared.
    pub(super) fn fits(&self, runs: &Arc<Runs>, columns: Option<&[u32]>) -> bool {
        match &self.turned {
            None => self.gather.fits(runs),
            Some(own) => {
                Arc::ptr_eq(&own.runs, runs)
                    || *own.runs == **runs && columns.is_some_and(|c| c == own.columns)
            }
        }
    }

    pub(super) fn bytes(&self) -> usize {
        let pairs = self.turned.as_ref().map_or(0, |t| t.pairs.bytes());
        self.gather.bytes() + pairs
    }

    pub(super) fn describe(&self) -> String {
        let turned = match &self.turned {
            Some(own) => format!(
                ", {} bytes of transposed pattern among them",
                own.pairs.bytes()
            ),
            None => String::new(),
        };
        let batch = match self.extents.items {
            1 => String::new(),
            items => format!("{items} of a batch, "),
        };
        let pairs = self.bytes() - self.gather.bytes();
        format!("{batch}{}{turned}", self.gather.describe_with(pairs))
    }

    /// Queues the kernel, once for as many of the batch as a grid is high.
    ///
    /// # Safety
    /// The addresses hold operands of the planned shapes, element type and pattern until the work is done.
    pub(super) unsafe fn run(&self, raw: &RawSpmm, stream: RawStream<'_>) -> Result<()> {
        let own = RawSpmm {
            columns: self
                .turned
                .as_ref()
                .map_or(raw.columns, |t| t.pairs.address()),
            ..*raw
        };
        let dtype = self.row().dtype;
        let [b, c, _] = raw.strides(self.form.order, self.extents, [dtype; 2]);
        let [partial, counters] = self.gather.strides();
        let values = (raw.value_stride as u64).saturating_mul(dtype.bytes() as u64);
        let params = BatchedParams {
            product: self.gather.params(&own)?,
            values,
            b,
            c,
            partial,
            counters,
        };
        let mut done = 0;
        while done < self.extents.items {
            let height = (self.extents.items - done).min(MAX_GRID_Y);
            let part = BatchedParams {
                product: params.item(done as u32),
                ..params
            };
            // SAFETY: the params are those of the family; the addresses are the caller's promise, the rest is owned by
            // self, whose memory the driver frees only after the work.
            unsafe { self.gather.launch(height as u32, &part, stream)? };
            done += height;
        }
        Ok(())
    }
}

/// Pairs and runs of the transpose of a pattern of so many slots, whose columns lie at `address`. `extents` are the
/// product's: A has k rows and m columns.
fn turn(
    device: &Arc<Device>,
    extents: Extents,
    runs: &Runs,
    (slots, address): (usize, u64),
) -> Result<(DeviceMemory, Runs)> {
    let Extents { m, k, .. } = extents;
    let entries = runs.total as usize;
    let mut offsets = vec![slots as u32; k + 1];
    let mut next = slots as u32;
    for (offset, &(start, len)) in offsets[..k].iter_mut().zip(&runs.rows).rev() {
        next = if len > 0 { start } else { next };
        *offset = next;
    }
    let padded = slots > entries;
    let transpose = Transpose::new(device, (k, m), slots, padded, crate::registry::Dtype::F32)?;
    let pairs = device.zeros((entries + VECTOR_ENTRIES) * PAIR)?;
    let starts = DeviceMemory::alloc(device.context(), (m + 1) * 4)?;
    let offsets = device.upload(&offsets)?;
    let out = SortOut {
        first: pairs.address(),
        pairs: true,
        capacity: entries,
        ..SortOut::default()
    };
    let stream = device.after_all()?;
    // SAFETY: the arrays have these sizes and live past the read below.
    unsafe { transpose.run([offsets.address(), address], starts.address(), out, stream)? };
    let mut turned = vec![0u32; m + 1];
    device.read(&starts, &mut turned)?;
    Ok((pairs, Runs::of_offsets(&turned)))
}
