//! Products of entries with A's transpose, whose pattern is made here, once for a plan, and a kernel of family `batched`.
//! A kernel of walk `Permuted` reads values through the pattern; to others they are brought in order first, in every run.

use std::sync::Arc;

use einsparse_kernels::abi::BatchedParams;
use einsparse_kernels::table::Row;

use super::entries::{Reorder, SortOut, Steps, Transpose, permute};
use super::gather::Gather;
use super::planned::Planned;
use super::turns::Turns;
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
    planned: Planned,
    /// Pairs of column and position, or columns.
    pattern: DeviceMemory,
    ordered: Option<Ordered>,
}

/// Values in the order of the transpose, which the kernel reads once they are gathered.
#[derive(Debug)]
pub(super) struct Ordered {
    /// End of the last run: runs share the values.
    pub(super) turns: Turns,
    way: Way,
    pub(super) values: DeviceMemory,
    steps: Steps,
    entries: usize,
}

/// How values come into order.
#[derive(Debug)]
enum Way {
    /// Each by itself, from its position.
    Apart(DeviceMemory),
    /// By tiles: many values, without padding between them.
    Tiles(Reorder),
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
            spans,
            columns,
            address,
            ..
        } = matrix
        else {
            return Err(refused(&form.sparse, "is dense".into()));
        };
        if !form.order.transposed {
            return Ok(Batched {
                gather: Gather::new(device, row, form.clone(), extents, (runs, spans))?,
                form,
                extents,
                turned: None,
            });
        }
        let (made, turned) = turn(device, row, extents, runs, (columns.len(), address))?;
        let (pattern, ordered) = made;
        let gather = Gather::new(
            device,
            row,
            form.clone(),
            extents,
            (&Arc::new(turned), None),
        )?;
        Ok(Batched {
            gather,
            form,
            extents,
            turned: Some(Turned {
                planned: Planned::new(runs, columns),
                pattern,
                ordered,
            }),
        })
    }

    pub(super) fn row(&self) -> &'static Row {
        self.gather.row()
    }

    /// Is this the pattern that the plan was made for?
    pub(super) fn fits(&self, runs: &Arc<Runs>, columns: Option<&[u32]>) -> bool {
        match &self.turned {
            None => self.gather.fits(runs),
            Some(own) => own.planned.is(runs, columns),
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.gather.bytes() + self.turned.as_ref().map_or(0, Turned::bytes)
    }

    pub(super) fn describe(&self) -> String {
        let turned = match &self.turned {
            Some(own) => format!(", {} bytes of transposed pattern among them", own.bytes()),
            None => String::new(),
        };
        let batch = match self.extents.items {
            1 => String::new(),
            items => format!("{items} of a batch, "),
        };
        let more = self.bytes() - self.gather.bytes();
        format!("{batch}{}{turned}", self.gather.describe_with(more))
    }

    /// Queues the kernel, once for as many of the batch as a grid is deep.
    ///
    /// # Safety
    /// The addresses hold operands of the planned shapes, element type and pattern until the work is done.
    pub(super) unsafe fn run(&self, raw: &RawSpmm, stream: RawStream<'_>) -> Result<()> {
        let Some(turned) = &self.turned else {
            // SAFETY: the caller's promise.
            return unsafe { self.products(raw, stream) };
        };
        let own = RawSpmm {
            columns: turned.pattern.address(),
            ..*raw
        };
        let Some(ordered) = &turned.ordered else {
            // SAFETY: the caller's promise.
            return unsafe { self.products(&own, stream) };
        };
        // They are read by vectors of 16 bytes whatever the row takes, ahead of the launch that else looks at them.
        super::in_vectors("values of A", raw.values)?;
        ordered.turns.queue(true, stream, || {
            // SAFETY: the caller's promise; the permutation names places of the values.
            unsafe { ordered.fill(raw.values, stream)? };
            let own = RawSpmm {
                values: ordered.values.address(),
                ..own
            };
            // SAFETY: as above.
            unsafe { self.products(&own, stream) }
        })
    }

    /// # Safety
    /// As [`Batched::run`], of the pattern that the kernel reads.
    unsafe fn products(&self, raw: &RawSpmm, stream: RawStream<'_>) -> Result<()> {
        if self.row().family != "batched" {
            // SAFETY: the caller's promise.
            return unsafe { self.gather.run(raw, stream) };
        }
        let dtype = self.row().dtype;
        let [b, c, _] = raw.strides(self.form.order, self.extents, [dtype; 2]);
        let [partial, counters] = self.gather.strides();
        let params = BatchedParams {
            product: self.gather.params(raw)?,
            values: (raw.value_stride as u64).saturating_mul(dtype.bytes() as u64),
            b,
            c,
            partial,
            counters,
        };
        let mut done = 0;
        while done < self.extents.items {
            // A grid is as deep as it is high.
            let depth = (self.extents.items - done).min(MAX_GRID_Y);
            let part = BatchedParams {
                product: params.item(done as u32),
                ..params
            };
            // SAFETY: the params are those of the family; the addresses are the caller's promise, the rest is owned by
            // self, whose memory the driver frees only after the work.
            unsafe { self.gather.launch(depth as u32, &part, stream)? };
            done += depth;
        }
        Ok(())
    }
}

impl Turned {
    fn bytes(&self) -> usize {
        self.pattern.bytes() + self.ordered.as_ref().map_or(0, Ordered::bytes)
    }
}

impl Way {
    fn bytes(&self) -> usize {
        match self {
            Way::Apart(permutation) => permutation.bytes(),
            Way::Tiles(tiles) => tiles.bytes(),
        }
    }
}

impl Ordered {
    /// For positions of `entries` out of `slots` values of `element` bytes, which are on the GPU when the work of `stream` is done.
    pub(super) fn new(
        device: &Device,
        steps: Steps,
        permutation: DeviceMemory,
        (slots, entries): (usize, usize),
        element: usize,
        stream: RawStream<'_>,
    ) -> Result<Self> {
        let mut way = None;
        if slots == entries {
            way = Reorder::new(&steps, permutation.address(), entries, element, stream)?;
        }
        Ok(Ordered {
            turns: Turns::new(device)?,
            way: way.map_or(Way::Apart(permutation), Way::Tiles),
            values: steps.zeros((entries + VECTOR_ENTRIES) * element)?,
            steps,
            entries,
        })
    }

    /// Device bytes.
    pub(super) fn bytes(&self) -> usize {
        self.way.bytes() + self.values.bytes()
    }

    /// Queues the values, gathered.
    ///
    /// # Safety
    /// `values` holds a value for every slot of the pattern until the work is done.
    pub(super) unsafe fn fill(&self, values: u64, stream: RawStream<'_>) -> Result<()> {
        let to = self.values.address();
        // SAFETY: the caller's promise; the arrays have that many places, and runs take turns.
        unsafe {
            match &self.way {
                Way::Apart(permutation) => {
                    let from = [values, permutation.address(), to];
                    permute(&self.steps, from, self.entries, stream)
                }
                Way::Tiles(tiles) => tiles.run(&self.steps, [values, to], stream),
            }
        }
    }
}

/// The pattern that a kernel reads, and the values beside it where they are gathered first.
type Made = (DeviceMemory, Option<Ordered>);

/// Pattern and runs of the transpose of a pattern of so many slots, whose columns lie at `address`. `extents` are the
/// product's: A has k rows and m columns.
fn turn(
    device: &Arc<Device>,
    row: &Row,
    extents: Extents,
    runs: &Runs,
    (slots, address): (usize, u64),
) -> Result<(Made, Runs)> {
    let Extents { m, k, .. } = extents;
    let (entries, pairs) = (runs.total as usize, row.walk == WalkKind::Permuted);
    let mut offsets = vec![slots as u32; k + 1];
    let mut next = slots as u32;
    for (offset, &(start, len)) in offsets[..k].iter_mut().zip(&runs.rows).rev() {
        next = if len > 0 { start } else { next };
        *offset = next;
    }
    let transpose = Transpose::new(device, (k, m), slots, slots > entries, row.dtype)?;
    let each = if pairs { PAIR } else { 4 };
    let pattern = device.zeros((entries + VECTOR_ENTRIES) * each)?;
    let positions = if pairs { 0 } else { entries };
    let permutation = DeviceMemory::alloc(device.context(), positions * 4)?;
    let starts = DeviceMemory::alloc(device.context(), (m + 1) * 4)?;
    let offsets = device.upload(&offsets)?;
    let [first, second] = match pairs {
        true => [pattern.address(), 0],
        false => [permutation.address(), pattern.address()],
    };
    let out = SortOut {
        first,
        second,
        pairs,
        capacity: entries,
        ..SortOut::default()
    };
    let stream = device.after_all()?;
    // SAFETY: the arrays have these sizes and live past the read below.
    unsafe { transpose.run([offsets.address(), address], starts.address(), out, stream)? };
    let mut turned = vec![0u32; m + 1];
    device.read(&starts, &mut turned)?;
    let ordered = match pairs {
        true => None,
        false => {
            let counts = (slots, entries);
            let element = row.dtype.bytes();
            let steps = transpose.into_steps();
            Some(Ordered::new(
                device,
                steps,
                permutation,
                counts,
                element,
                stream,
            )?)
        }
    };
    Ok(((pattern, ordered), Runs::of_offsets(&turned)))
}
