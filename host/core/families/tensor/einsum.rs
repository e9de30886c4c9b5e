//! General Einsum kernels: uploads a listing, and launches once per run, or twice if sums were cut.

use std::sync::Arc;

use einsparse_kernels::families::{EinsumParams, FLAG_JOIN};
use einsparse_kernels::table::Row;

use crate::cpu::listed::{Lanes, Listing};
use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::Result;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{Turns, in_vectors};
use crate::tensor::VECTOR_ENTRIES;

/// Device addresses of one run.
#[derive(Clone, Debug)]
pub(crate) struct RawEinsum {
    /// Addresses of the factors, in the order of the listing.
    pub(crate) factors: Vec<u64>,
    /// Address of the operand's own index array on the device, which [`Table::Operand`] uses.
    pub(crate) columns: u64,
    /// Output.
    pub(crate) out: u64,
    /// Bias, or 0 without a bias.
    pub(crate) bias: u64,
    /// Gate, or 0 without a gate.
    pub(crate) gate: u64,
    /// Scalar factor.
    pub(crate) alpha: f64,
}

/// Storage of a table.
#[derive(Debug)]
enum Table {
    Own(DeviceMemory),
    /// The column array of the sparse operand, which is already in device memory.
    Operand,
}

/// Kernel with the listing of one pattern.
#[derive(Debug)]
pub(crate) struct EinsumLaunch {
    /// Serializes runs, because they share the workspace of the partial sums.
    turns: Turns,
    kernel: Kernel<EinsumParams>,
    params: EinsumParams,
    tables: Vec<Table>,
    dims: DeviceMemory,
    items: DeviceMemory,
    cuts: DeviceMemory,
    cut_count: u32,
    partial: DeviceMemory,
    /// Whether the output has zero elements.
    empty: bool,
}

impl EinsumLaunch {
    /// Creates the launch. `columns`: the sparse operand's index array on the device, identified by its host address.
    pub(crate) fn new(
        device: &Arc<Device>,
        row: &'static Row,
        listing: &Listing<'_>,
        (lanes, empty): (Lanes, bool),
        columns: Option<&[u32]>,
    ) -> Result<Self> {
        let kernel = Kernel::load(device, row)?;
        let there = |table: &[u32]| columns.is_some_and(|c| std::ptr::eq(c, table));
        let tables = listing
            .tables
            .iter()
            .map(|table| match table {
                table if there(table) => Ok(Table::Operand),
                table => Ok(Table::Own(device.upload_padded(table, VECTOR_ENTRIES)?)),
            })
            .collect::<Result<Vec<_>>>()?;
        let mut dims = listing.dims.clone();
        for table in dims.iter_mut().flat_map(|d| &mut d.tables) {
            *table = match table.checked_sub(1).map(|t| &tables[t as usize]) {
                Some(Table::Own(memory)) => memory.address(),
                // Only lists may refer to the columns of an operand.
                Some(Table::Operand) | None => 0,
            };
        }
        let words: Vec<u64> = dims
            .iter()
            .flat_map(|d| {
                let own = [d.extent, d.out, d.bias, d.gate];
                [&own[..], &d.strides, &d.tables].concat()
            })
            .collect();
        let elements = listing.partials(lanes, row.vector as usize) as usize;
        let partial = elements * row.dtype.acc_bytes();
        Ok(EinsumLaunch {
            turns: Turns::new(device)?,
            kernel,
            params: listing.params,
            tables,
            dims: device.upload(&words)?,
            items: device.upload(listing.items.as_flattened())?,
            cuts: device.upload(listing.cuts.as_flattened())?,
            cut_count: listing.cuts.len() as u32,
            partial: DeviceMemory::alloc(device.context(), partial)?,
            empty,
        })
    }

    pub(crate) fn row(&self) -> &'static Row {
        self.kernel.row()
    }

    /// Workspace in device memory, bytes.
    pub(crate) fn bytes(&self) -> usize {
        let own = |table: &Table| match table {
            Table::Own(memory) => memory.bytes(),
            Table::Operand => 0,
        };
        let rest = [&self.dims, &self.items, &self.cuts, &self.partial];
        self.tables.iter().map(own).sum::<usize>()
            + rest.map(DeviceMemory::bytes).iter().sum::<usize>()
    }

    /// Geometry of the launch, for `explain`.
    pub(crate) fn describe(&self) -> String {
        let p = &self.params;
        format!(
            "{} items x {} units of {} lanes, {} cut sums, {} loops of places, {} free, {} summed",
            p.count,
            p.per_item,
            1 << p.lane_bits,
            self.cut_count,
            p.parts,
            p.free,
            p.summed
        )
    }

    /// Queues the kernel.
    pub(crate) fn run(&self, raw: &RawEinsum, queue: Queue<'_>) -> Result<()> {
        if self.empty {
            return Ok(());
        }
        let mut p = self.params;
        for (factor, &address) in p.factors.iter_mut().zip(&raw.factors) {
            if self.row().vector > 1 && factor.inner != 0 {
                in_vectors("factor", address)?;
            }
            factor.address = address;
            factor.table = match factor.table.checked_sub(1).map(|t| &self.tables[t as usize]) {
                Some(Table::Own(memory)) => memory.address(),
                Some(Table::Operand) => raw.columns,
                None => 0,
            };
        }
        if self.row().vector > 1 {
            in_vectors("output", raw.out)?;
        }
        (p.out, p.bias, p.gate, p.alpha) = (raw.out, raw.bias, raw.gate, raw.alpha);
        p.items = self.items.address();
        p.dims = self.dims.address();
        p.partial = self.partial.address();
        let grid = |count: u32| {
            let units = u64::from(count) * u64::from(p.per_item);
            let of_block = u64::from(self.row().threads) >> p.lane_bits;
            Grid::of([units.div_ceil(of_block) as u32, 1, 1])
        };
        self.turns.queue(self.cut_count > 0, queue.stream(), || {
            queue.launch(&self.kernel, grid(p.count), &p)?;
            let mut join = p;
            join.items = self.cuts.address();
            join.count = self.cut_count;
            join.flags |= FLAG_JOIN;
            queue.launch(&self.kernel, grid(self.cut_count), &join)
        })
    }
}
