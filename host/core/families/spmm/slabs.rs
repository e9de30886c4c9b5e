//! Products with an A that is streamed to the GPU in chunks of rows: a launch on the chunk in a buffer.

mod layout;

use einsparse_formats::Format;
use einsparse_kernels::abi::{Operation, SpmmParams, WalkKind};
use einsparse_kernels::table::Row;

use super::gather::Listed;
use super::offers::FAMILY;
use crate::cost::Cost;
use crate::device::Device;
use crate::driver::{DeviceMemory, PinnedMemory};
use crate::error::{Refusal, Result};
use crate::indirect::{BiasAxis, SpmmForm};
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{Extents, MAX_GRID_X, MAX_GRID_Y, RawSpmm, small, within};
use crate::offer::{Problem, Request};
pub(crate) use layout::{Layout, Streamed};

/// Number of products that run concurrently. A few long rows of a chunk last as long as its other rows, and overlap
/// with the next chunk.
pub(crate) const LANES: usize = 2;

/// Kernels that can read chunks, cheapest first, or the reason for each kernel that cannot.
pub(crate) fn rows(
    request: &Request<'_, '_>,
    problem: &Problem,
) -> std::result::Result<Vec<(&'static Row, Cost)>, Vec<Refusal>> {
    let (mut found, mut refused) = (Vec::new(), Vec::new());
    for (row, answer) in problem.rows_of(FAMILY, request.machine, request.options) {
        match answer {
            Ok(cost) if reads_slabs(row) => found.push((row, cost)),
            Ok(_) => {
                refused.push(Refusal::of(row.name, "reads A as a whole, not in chunks of rows"))
            }
            Err(refusal) => refused.push(refusal),
        }
    }
    found.sort_by(|a, b| a.1.us.total_cmp(&b.1.us));
    match found.is_empty() {
        false => Ok(found),
        true => Err(refused),
    }
}

fn reads_slabs(row: &Row) -> bool {
    let entries = row.walk == WalkKind::Csr && row.operation == Operation::Product;
    entries && row.module == "spmm" && row.takes::<SpmmParams>()
}

/// Products that can be streamed, for error messages.
pub(crate) const STREAMED: &str =
    "streams A of C[m,n] (= | +=) A[m,k] * B[k,n] alone, A in csr or coo, C of the type of A and B";

/// Whether a product can be streamed.
pub(crate) fn takes(problem: &Problem, form: &SpmmForm) -> bool {
    let plain = form.order.is_plain() && !form.batched && !form.stacked;
    let taken = matches!(problem.format, Some(Format::Csr | Format::Coo));
    taken && plain && problem.dtype == problem.out
}

/// Kernel for chunks, with work lists and partial sums.
#[derive(Debug)]
pub(crate) struct SlabProduct {
    kernel: Kernel<SpmmParams>,
    form: SpmmForm,
    extents: Extents,
    layout: Layout,
    lists: Lists,
    partial: DeviceMemory,
    counters: DeviceMemory,
    tiles: u32,
    partial_columns: u32,
}

/// Memory of the work lists.
#[derive(Debug)]
enum Lists {
    OnDevice(DeviceMemory),
    /// In host memory; copied with each chunk.
    OnHost(PinnedMemory),
}

impl SlabProduct {
    pub(crate) fn new(
        device: &Device,
        form: SpmmForm,
        of: &Streamed<'_>,
        mut layout: Layout,
    ) -> Result<Self> {
        let (kernel, extents) = (Kernel::load(device, of.row)?, of.extents);
        within("rows of A", extents.m, MAX_GRID_X)?;
        small("rows of B", extents.k)?;
        let tiles = extents.n.div_ceil(of.row.columns as usize);
        let tiles = within("column tiles", tiles, MAX_GRID_Y)?;
        for part in &layout.lists {
            within("work items", part.items, MAX_GRID_X)?;
        }
        let words = std::mem::take(&mut layout.words);
        let lists = if layout.lists_streamed {
            let mut memory = PinnedMemory::zeros(device.context(), words.len() * 4)?;
            memory.bytes_mut().copy_from_slice(bytemuck::cast_slice(&words));
            Lists::OnHost(memory)
        } else {
            Lists::OnDevice(device.upload(&words)?)
        };
        Ok(SlabProduct {
            kernel,
            form,
            extents,
            lists,
            partial: DeviceMemory::alloc(device.context(), LANES * layout.partial_bytes)?,
            counters: device.zeros(LANES * layout.counter_bytes)?,
            tiles,
            partial_columns: small(
                "padded columns of B",
                tiles as usize * of.row.columns as usize,
            )?,
            layout,
        })
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn row(&self) -> &'static Row {
        self.kernel.row()
    }
    /// Device bytes without the buffers.
    pub(crate) fn bytes(&self) -> usize {
        let lists = match &self.lists {
            Lists::OnDevice(memory) => memory.bytes(),
            Lists::OnHost(_) => 0,
        };
        lists + self.partial.bytes() + self.counters.bytes()
    }

    /// Work lists that are copied with a chunk.
    pub(crate) fn streamed_lists(&self, slab: usize) -> &[u8] {
        let [first, _, _, end] = self.layout.lists[slab].at;
        match &self.lists {
            Lists::OnDevice(_) => &[],
            Lists::OnHost(memory) => &memory.bytes()[first..end],
        }
    }

    /// Validates the addresses of a run like the launches do: columns and values are those of a buffer.
    pub(crate) fn check(&self, raw: &RawSpmm) -> Result<()> {
        self.listed((0, 0), [0; 3]).params(self.row(), (&self.form, self.extents), raw).map(|_| ())
    }

    /// Queues the product of the chunk in the buffer at address `buffer`, on a lane below [`LANES`], after the previous
    /// product of that lane.
    pub(crate) fn run(
        &self,
        (slab, lane): (usize, usize),
        buffer: u64,
        raw: &RawSpmm,
        queue: Queue<'_>,
    ) -> Result<()> {
        let (items, element) = (self.layout.lists[slab].items as u32, self.row().dtype.bytes());
        let rows = self.layout.slabs[slab].rows.clone();
        let kept = match &self.lists {
            Lists::OnDevice(memory) => Some(memory.address()),
            Lists::OnHost(_) => None,
        };
        let (values, at) = self.layout.addresses(slab, element, (buffer, kept));
        let below = |leading: usize| (rows.start * leading * element) as u64;
        let row_bias = matches!(self.form.bias, Some((_, BiasAxis::Rows)));
        let own = RawSpmm {
            columns: buffer,
            values,
            c: raw.c + below(raw.ldc),
            bias: raw.bias + if row_bias { below(1) } else { 0 },
            ..*raw
        };
        let extents = Extents { m: rows.len(), ..self.extents };
        let params =
            self.listed((items, lane), at).params(self.row(), (&self.form, extents), &own)?;
        // No early start: the previous kernel uses the same partial sums.
        let grid = Grid::of([items.div_ceil(self.row().items), self.tiles, 1]);
        queue.launch(&self.kernel, grid, &params)
    }

    fn listed(&self, (item_count, lane): (u32, usize), [items, slots, spans]: [u64; 3]) -> Listed {
        let of_lane = |bytes: usize| (lane * bytes) as u64;
        Listed {
            items,
            slots,
            spans,
            partial: self.partial.address() + of_lane(self.layout.partial_bytes),
            counters: self.counters.address() + of_lane(self.layout.counter_bytes),
            item_count,
            partial_columns: self.partial_columns,
        }
    }
}
