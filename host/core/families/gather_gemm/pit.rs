//! Product with an operand of dynamic micro-tiles. Their lists and packed values are read on the device.

use einsparse_kernels::abi::{C_COLUMNS, Divisor, FLAG_VECTORS, MapWords, PLAIN, TMA};
use einsparse_kernels::families::{PIT_TF32_DEPTH, PitParams};
use einsparse_kernels::table::{Row, rows_of};

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::families::discover::DeviceLists;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::maps::{Flat, Maps};
use crate::launch::{aligned, row_bytes, small, within};
use crate::machine::Machine;
use crate::registry::{Dtype, none_of};
use crate::tensor::DenseMatrix;

/// Product `C[z,m,n] = A[z,m,k] * B[z,k,n]`, or `C[z,m,n] = A[z,k,m] * B[z,k,n]` if `turned`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PitWork {
    /// Items of the batch. With more than one, micro-tiles must not extend into the next item: `m` is a multiple of
    /// their rows, or A is transposed.
    pub items: usize,
    /// `[m, k, n]` of an item.
    pub extents: [usize; 3],
    /// Rows of C per micro-tile.
    pub height: usize,
    /// Whether A is stored as `[k, m]`.
    pub turned: bool,
    /// Whether C is stored as `[n, m]`, which requires `turned`. In this product, the user's right factor is A, and the
    /// transpose of the user's left factor is B.
    pub right: bool,
}

impl PitWork {
    /// Creates the product of one item, with A stored as `[m, k]`.
    pub(crate) fn single(extents: [usize; 3], height: usize) -> Self {
        PitWork { items: 1, extents, height, turned: false, right: false }
    }

    /// Creates `C[z,m,n] = A[z,m,k] * B[z,k,n]` for extents `[m, k, n]`. The kernel reads the transpose of A, and
    /// micro-tiles of `1 x width` of B.
    pub(crate) fn right(items: usize, [m, k, n]: [usize; 3], width: usize) -> Self {
        PitWork { items, extents: [n, k, m], height: width, turned: true, right: true }
    }

    /// Returns the user's names of the operand with micro-tiles and of the other operand.
    fn names(&self) -> [&'static str; 2] {
        if self.right { ["B", "A"] } else { ["A", "B"] }
    }

    fn block(&self) -> (u32, u32) {
        let height = self.height as u32;
        if self.turned { (1, height) } else { (height, 1) }
    }
}

/// Returns the kernels that multiply in this type. `turned`: A is stored as `[k, m]`. `right`: C is stored as `[n, m]`.
pub(crate) fn pit_rows(
    dtype: Dtype,
    turned: bool,
    right: bool,
) -> impl Iterator<Item = &'static Row> + Clone {
    let order = if right { C_COLUMNS } else { PLAIN };
    rows_of::<PitParams>()
        .filter(move |row| row.dtype == dtype && row.order == order && (row.block.0 == 1) == turned)
}

/// Returns the kernel for this product on this GPU.
fn pick(dtype: Dtype, work: &PitWork, machine: &Machine) -> Result<&'static Row> {
    let order = if work.right { C_COLUMNS } else { PLAIN };
    let alike = |row: &&Row| row.order == order && (row.block.0 == 1) == work.turned;
    let runs = |row: &&Row| machine.lacks(row).is_none();
    let fits = |row: &&Row| row.dtype == dtype && row.block == work.block();
    let all = rows_of::<PitParams>().filter(alike);
    if let Some(row) = all.clone().filter(runs).find(fits) {
        return Ok(row);
    }
    let what = format!("C[m,n] += A[m,AK[p]] * B[AK[p],n], {} rows at a time", work.height);
    let reason = |row: &Row| {
        let rows = row.block.0.max(row.block.1);
        let other = format!("is for {rows} rows of {}", row.dtype.name());
        machine.lacks(row).unwrap_or(other)
    };
    // If this GPU runs none of the kernels, the reasons name the kernels of other GPUs.
    Err(match all.clone().any(|row| runs(&row)) {
        true => none_of(all.filter(runs), what, reason),
        false => none_of(all, what, reason),
    })
}

#[derive(Debug)]
pub(crate) struct PitLaunch {
    kernel: Kernel<PitParams>,
    work: PitWork,
    panels: usize,
    stride: usize,
    grid: u32,
    empty: DeviceMemory,
}

impl PitLaunch {
    /// Loads the kernel, for lists of `stride` words.
    pub(crate) fn new(device: &Device, dtype: Dtype, work: PitWork, stride: usize) -> Result<Self> {
        let PitWork { items, extents: [m, k, n], height, .. } = work;
        let row = pick(dtype, &work, device.machine())?;
        let kernel = Kernel::load(device, row)?;
        let rows = items.saturating_mul(m);
        for (what, value) in [("rows of A", rows), ("rows of B", k), ("columns of B", n)] {
            within(what, value, i32::MAX as usize - row.columns as usize)?;
        }
        let panels = items.saturating_mul(m.div_ceil(height));
        within("places of all lists", panels.saturating_mul(stride), i32::MAX as usize)?;
        let tiles = panels.saturating_mul(n.div_ceil(row.columns as usize));
        let tiles = within("tiles", tiles, i32::MAX as usize)?;
        Ok(PitLaunch {
            kernel,
            work,
            panels,
            stride,
            grid: tiles.min(device.machine().multiprocessors),
            empty: device.zeros(16)?,
        })
    }

    pub(crate) fn name(&self) -> &'static str {
        self.kernel.row().name
    }

    /// Returns whether packed values must be rounded beforehand, because no copy rounds them.
    pub(crate) fn wants_rounded(&self) -> bool {
        self.kernel.row().dtype == Dtype::Tf32 && self.kernel.row().needs & TMA == 0
    }

    /// Queues the product. The lists come from a detection of A earlier on the stream.
    pub(crate) fn start(&self, params: &PitParams, queue: Queue<'_>) -> Result<()> {
        if self.grid == 0 {
            return Ok(());
        }
        // The kernel waits for the previous launch before it accesses an operand.
        let grid = Grid::of([self.grid, 1, 1]).early();
        queue.launch(&self.kernel, grid, params)
    }

    /// Returns the params of a run, or an error if the kernel cannot read the operands. The kernel reads packed values
    /// of A from the lists, or a transposed A from `a`.
    pub(crate) fn params(
        &self,
        lists: &DeviceLists,
        a: Option<DenseMatrix>,
        b: DenseMatrix,
        c: DenseMatrix,
    ) -> Result<PitParams> {
        let PitWork { items, extents: [m, k, n], .. } = self.work;
        let element = self.kernel.row().dtype.bytes();
        let name = self.work.names()[1];
        aligned(self.kernel.row(), name, b.address, b.leading)?;
        // A row that ends within 16 bytes is copied together with the bytes after it. Unless `right`, sums of these
        // bytes would be stored in additional columns of C.
        if !self.work.right && !n.is_multiple_of(16 / element) {
            return Err(Error::columns(name, n, 16 / element));
        }
        let a_map = self.a_map(lists, a.as_ref())?;
        let whole = c.leading.is_multiple_of(16 / element) && c.address.is_multiple_of(16);
        let panels = small("panels", self.panels)?;
        Ok(PitParams {
            a_map,
            lists: lists.lists.address(),
            counts: lists.counts.address(),
            b: b.address,
            c: c.address,
            bias: 0,
            alpha: 1.0,
            ldb_bytes: row_bytes("B", b.leading, element)?,
            ldc_bytes: row_bytes("C", c.leading, element)?,
            m: small("rows of A", if self.work.turned { m } else { items * m })?,
            n: small("columns of B", n)?,
            panels,
            tiles: panels * n.div_ceil(self.kernel.row().columns as usize) as u32,
            stride: small("places of a list", self.stride)?,
            flags: if whole { FLAG_VECTORS } else { 0 },
            item: Divisor::new(panels.checked_div(items.max(1) as u32).unwrap_or(1)),
            item_bytes: (k * b.leading * element) as u64,
            a: a.as_ref().map_or(0, |a| a.address),
            lda_bytes: match &a {
                Some(a) => row_bytes("A", a.leading, element)?,
                None => 0,
            },
            reserved: 0,
            a_item: a.as_ref().map_or(0, |a| (k * a.leading * element) as u64),
            c_item: ((if self.work.right { n } else { m }) * c.leading * element) as u64,
        })
    }

    /// Returns the tensor map of the packed values; zeros for a transposed A.
    fn a_map(&self, lists: &DeviceLists, a: Option<&DenseMatrix>) -> Result<MapWords> {
        if self.work.turned {
            self.check_turned(a)?;
            return Ok([0; 16]);
        }
        let Some(packed) = &lists.packed else {
            return Err(Error::operand("index", "holds no values"));
        };
        let (dtype, height) = (self.kernel.row().dtype, self.work.height);
        // Products of 4-byte elements require one packed row per row of A. The copy engine rounds the elements.
        let rows_of_a = dtype == Dtype::Tf32;
        let (extents, tile) = if rows_of_a {
            let extents = [self.stride, self.panels * height];
            (extents, [PIT_TF32_DEPTH, height])
        } else {
            let extents = [height, self.panels * self.stride];
            (extents, [height.min(64), 64])
        };
        let values = Flat { address: packed.address(), extents, leading: extents[0] };
        Maps::of(self.kernel.row(), &self.empty).matrix(&values, tile, tile[0])
    }

    /// Validates a transposed A, which is copied by 16 bytes too, without a tensor map.
    fn check_turned(&self, a: Option<&DenseMatrix>) -> Result<()> {
        let name = self.work.names()[0];
        let a = a.ok_or_else(|| Error::missing(name))?;
        let (m, vector) = (self.work.extents[0], 16 / self.kernel.row().dtype.bytes());
        aligned(self.kernel.row(), name, a.address, a.leading)?;
        if !m.is_multiple_of(vector) {
            return Err(Error::columns(name, m, vector));
        }
        Ok(())
    }
}
