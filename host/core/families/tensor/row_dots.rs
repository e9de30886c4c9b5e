//! Launch of module `mttkrp` at the nonzeros of a tensor: uploads the indices of every slot, nonzero by nonzero.

use einsparse_kernels::abi::{FLAG_ACCUMULATE, SpmmParams};
use einsparse_kernels::families::{DOT_ENTRIES, MttkrpParams};
use einsparse_kernels::table::Row;

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::Result;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, aligned, in_vectors, row_bytes, small, within};
use crate::tensor::VECTOR_ENTRIES;

/// Device addresses of one run. Row strides are in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawDots {
    /// Mask values, one per slot; 0 if the products are not scaled by a mask.
    pub mask: u64,
    /// Address and row stride of each factor; 0 for absent factors.
    pub factors: [(u64, usize); 3],
    /// Output, one element per slot.
    pub out: u64,
    /// Scalar factor of all products.
    pub alpha: f64,
    /// Whether the products are added to the output.
    pub accumulate: bool,
}

/// Kernel prepared for one pattern.
#[derive(Debug)]
pub(crate) struct DotsLaunch {
    kernel: Kernel<MttkrpParams>,
    places: Vec<DeviceMemory>,
    slots: u32,
    n: u32,
}

impl DotsLaunch {
    /// Creates the launch. `places`: for each factor, the row that every slot reads. Factors have `n` columns.
    pub(crate) fn new(
        device: &Device,
        row: &'static Row,
        places: &[&[u32]],
        n: usize,
    ) -> Result<Self> {
        let upload = |words: &&[u32]| device.upload_padded(words, VECTOR_ENTRIES);
        let slots = places.first().map_or(0, |own| own.len());
        Ok(DotsLaunch {
            kernel: Kernel::load(device, row)?,
            places: places.iter().map(upload).collect::<Result<_>>()?,
            slots: small("entries", slots)?,
            n: small("columns", n)?,
        })
    }

    pub(crate) fn row(&self) -> &'static Row {
        self.kernel.row()
    }

    /// Workspace in device memory, bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.places.iter().map(DeviceMemory::bytes).sum()
    }

    /// Geometry of the launch, for `explain`.
    pub(crate) fn describe(&self) -> String {
        let (entries, factors) = (self.slots, self.places.len());
        format!("{entries} entries of {factors} gathered rows of {}", self.n)
    }

    /// Queues the kernel.
    pub(crate) fn run(&self, raw: &RawDots, queue: Queue<'_>) -> Result<()> {
        if self.slots == 0 {
            return Ok(());
        }
        in_vectors("values", raw.out)?;
        let element = self.row().dtype.bytes();
        let mut leading = [0; 3];
        for (f, &(address, own)) in raw.factors.iter().enumerate().take(self.places.len()) {
            aligned(self.row(), &format!("factor {f}"), address, own)?;
            leading[f] = row_bytes("a factor", own, element)?;
        }
        let place = |f: usize| self.places.get(f).map_or(0, DeviceMemory::address);
        let params = MttkrpParams {
            product: SpmmParams {
                items: 0,
                slots: 0,
                columns: place(0),
                values: raw.mask,
                b: raw.factors[0].0,
                c: raw.out,
                bias: 0,
                partial: 0,
                counters: 0,
                spans: 0,
                alpha: raw.alpha,
                item_count: self.slots,
                n: self.n,
                m: 0,
                k: 0,
                ldb_bytes: leading[0],
                ldc_bytes: 0,
                partial_columns: 0,
                flags: if raw.accumulate { FLAG_ACCUMULATE } else { 0 },
            },
            places: [place(1), place(2)],
            factors: [raw.factors[1].0, raw.factors[2].0],
            rows: 0,
            leading: [leading[1], leading[2]],
        };
        let each = self.row().items as usize * DOT_ENTRIES as usize;
        let blocks = within("thread blocks", (self.slots as usize).div_ceil(each), MAX_GRID_X)?;
        let grid = Grid::of([blocks, 1, 1]).early();
        queue.launch(&self.kernel, grid, &params)
    }
}
