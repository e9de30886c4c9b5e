//! Launch of the module `sddmm`: runs of entries of a pattern, and the addresses of X and Y.

use einsparse_kernels::abi::{FLAG_ACCUMULATE, FLAG_MASK_VALUES, Item, Operation};
use einsparse_kernels::families::SddmmParams;
use einsparse_kernels::table::Row;

use super::cost::sample_limit;
use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::einsum::Mode;
use crate::error::{Error, Result};
use crate::families::sddmm::SddmmExtents;
use crate::families::spmm::gather::Words;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, Product, RawSddmm, aligned, out_flag, row_bytes, small, within};
use crate::registry::Dtype;
use crate::worklist::{Runs, pieces};

#[derive(Debug)]
pub(crate) struct Sddmm<P = SddmmParams> {
    pub(crate) kernel: Kernel<P>,
    extents: SddmmExtents,
    mode: Mode,
    out: Dtype,
    pub(crate) items: DeviceMemory,
    item_count: u32,
}

impl<P: Copy + 'static> Sddmm<P> {
    pub(crate) fn new(
        device: &Device,
        row: &'static Row,
        extents: SddmmExtents,
        (mode, out): (Mode, Dtype),
        runs: &Runs,
    ) -> Result<Self> {
        let list = pieces(runs, sample_limit(row, runs.total, device.machine()));
        Self::of_items(device, row, extents, (mode, out), &list)
    }

    /// Prepares the kernel for given items.
    pub(crate) fn of_items(
        device: &Device,
        row: &'static Row,
        extents: SddmmExtents,
        (mode, out): (Mode, Dtype),
        list: &[Item],
    ) -> Result<Self> {
        for (what, value) in [("rows", extents.m), ("columns", extents.n)] {
            small(what, value)?;
        }
        // The last step along k reaches past k.
        within("terms", extents.k, i32::MAX as usize)?;
        let kernel = Kernel::load(device, row)?;
        let item_count = within("work items", list.len(), MAX_GRID_X)?;
        Ok(Sddmm {
            kernel,
            extents,
            mode,
            out,
            items: device.upload(Item::words(list))?,
            item_count,
        })
    }

    pub(crate) fn params(&self, raw: &RawSddmm) -> Result<SddmmParams> {
        let (k, element) = (self.extents.k, self.kernel.row().dtype.bytes());
        for (name, address, leading) in [("X", raw.x, raw.ldx), ("Y", raw.y, raw.ldy)] {
            aligned(self.kernel.row(), name, address, leading)?;
            if leading < k {
                return Err(Error::stride(name, leading, format_args!("at least {k}")));
            }
        }
        let accumulate = u32::from(self.mode == Mode::Accumulate) * FLAG_ACCUMULATE;
        let masked = u32::from(raw.mask != 0) * FLAG_MASK_VALUES;
        let own = match self.kernel.row().operation {
            Operation::SampledNarrow => out_flag(self.out),
            _ => 0,
        };
        let stride = |of: &str, leading: usize| row_bytes(of, leading, element);
        Ok(SddmmParams {
            items: self.items.address(),
            columns: raw.columns,
            x: raw.x,
            y: raw.y,
            values: raw.values,
            mask: raw.mask,
            alpha: raw.alpha,
            item_count: self.item_count,
            k: small("terms", k)?,
            ldx_bytes: stride("X", raw.ldx)?,
            ldy_bytes: stride("Y", raw.ldy)?,
            flags: accumulate | masked | own,
            reserved: 0,
        })
    }
}

impl Product<RawSddmm> for Sddmm {
    fn row(&self) -> &'static Row {
        self.kernel.row()
    }

    fn bytes(&self) -> usize {
        self.items.bytes()
    }

    fn describe(&self) -> String {
        format!(
            "{} items, grid {}, {} threads, {} bytes of workspace",
            self.item_count,
            self.item_count.div_ceil(self.row().items),
            self.row().threads,
            self.bytes()
        )
    }

    fn run(&self, raw: &RawSddmm, queue: Queue<'_>) -> Result<()> {
        if self.item_count == 0 {
            return Ok(());
        }
        let params = self.params(raw)?;
        let grid = Grid::of([self.item_count.div_ceil(self.row().items), 1, 1]);
        queue.launch(&self.kernel, grid, &params)
    }
}
