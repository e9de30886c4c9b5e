//! A product with an operand whose micro-tiles were found while running: its list and its packed values are read on the
//! device.

use einsparse_kernels::abi::{C_COLUMNS, Divisor, FLAG_VECTORS, MapWords, PLAIN, TMA};
use einsparse_kernels::families::{PIT_TF32_DEPTH, PitParams};
use einsparse_kernels::table::{Row, rows_of};

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::families::convert::DenseMatrix;
use crate::families::discover::DeviceLists;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::maps::{Flat, Maps};
use crate::launch::{aligned, row_bytes, small, within};
use crate::machine::Machine;
use crate::registry::{Dtype, none_of};

/// `C[z,m,n] = A[z,m,k] * B[z,k,n]`, or turned `C[z,m,n] = A[z,k,m] * B[z,k,n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PitWork {
    /// Items of the batch. Of more than one, micro-tiles do not reach from one to the next: `m` is a multiple of their
    /// rows, or A is turned.
    pub items: usize,
    /// `[m, k, n]` of an item.
    pub extents: [usize; 3],
    /// Rows of C that a micro-tile has.
    pub height: usize,
    /// A lies as `[k, m]`.
    pub turned: bool,
    /// C lies as `[n, m]`, of a turned A only: a product whose right factor is A, and whose left one's transpose is B.
    pub right: bool,
}

impl PitWork {
    /// One item, A as it is written.
    pub(crate) fn single(extents: [usize; 3], height: usize) -> Self {
        PitWork { items: 1, extents, height, turned: false, right: false }
    }

    /// `C[z,m,n] = A[z,m,k] * B[z,k,n]` with micro-tiles of `1 x width` of B, of the transpose of A, for extents
    /// `[m, k, n]`.
    pub(crate) fn right(items: usize, [m, k, n]: [usize; 3], width: usize) -> Self {
        PitWork { items, extents: [n, k, m], height: width, turned: true, right: true }
    }

    /// What the user calls the operand with micro-tiles, and the other one.
    fn names(&self) -> [&'static str; 2] {
        if self.right { ["B", "A"] } else { ["A", "B"] }
    }

    fn block(&self) -> (u32, u32) {
        let height = self.height as u32;
        if self.turned { (1, height) } else { (height, 1) }
    }
}

/// The kernels that multiply in this type, of a turned A or not, that store C as `[n, m]` or not.
pub(crate) fn pit_rows(
    dtype: Dtype,
    turned: bool,
    right: bool,
) -> impl Iterator<Item = &'static Row> + Clone {
    let order = if right { C_COLUMNS } else { PLAIN };
    rows_of::<PitParams>()
        .filter(move |row| row.dtype == dtype && row.order == order && (row.block.0 == 1) == turned)
}

/// The kernel for this product that the GPU runs.
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
    // Rows for other GPUs are named where this one runs none.
    Err(match all.clone().any(|row| runs(&row)) {
        true => none_of(all.filter(runs), what, reason),
        false => none_of(all, what, reason),
    })
}

/// A kernel chosen for these extents.
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
    /// The product, with lists of `stride` places.
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

    /// Whether packed values have to be rounded to the type they are multiplied in: nothing does it on their way.
    pub(crate) fn wants_rounded(&self) -> bool {
        self.kernel.row().dtype == Dtype::Tf32 && self.kernel.row().needs & TMA == 0
    }

    /// Queues the product.
    /// The lists are those of a detection of A, with packed values, or of a turned A with `a`, in the order of the
    /// stream.
    pub(crate) fn run(
        &self,
        lists: &DeviceLists,
        a: Option<DenseMatrix>,
        b: DenseMatrix,
        c: DenseMatrix,
        queue: Queue<'_>,
    ) -> Result<()> {
        let params = self.params(lists, a, b, c)?;
        self.start(&params, queue)
    }

    /// Queues the product of these params.
    pub(crate) fn start(&self, params: &PitParams, queue: Queue<'_>) -> Result<()> {
        if self.grid == 0 {
            return Ok(());
        }
        // The kernel waits for the one ahead before it touches an operand.
        let grid = Grid::of([self.grid, 1, 1]).early();
        queue.launch(&self.kernel, grid, params)
    }

    /// The params of a run, or why the operands cannot be read.
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
        // Rows that end within 16 bytes are copied with what lies behind them; a sum of that is stored only where C has
        // as many columns.
        if !self.work.right && !n.is_multiple_of(16 / element) {
            let reason = format!("has {n} columns; the kernel copies {} at once", 16 / element);
            return Err(Error::operand(name, reason));
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

    /// The map of the packed values; of a turned A there is none.
    fn a_map(&self, lists: &DeviceLists, a: Option<&DenseMatrix>) -> Result<MapWords> {
        if self.work.turned {
            self.check_turned(a)?;
            return Ok([0; 16]);
        }
        let Some(packed) = &lists.packed else {
            return Err(Error::operand("index", "holds no values"));
        };
        let (dtype, height) = (self.kernel.row().dtype, self.work.height);
        // Of elements of 4 bytes a row of A each, as products of them want it. The copy engine rounds them.
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

    /// A turned A is copied by 16 bytes too; there is no map of it.
    fn check_turned(&self, a: Option<&DenseMatrix>) -> Result<()> {
        let name = self.work.names()[0];
        let a = a.ok_or_else(|| Error::operand(name, "is gathered and was not given"))?;
        let (m, vector) = (self.work.extents[0], 16 / self.kernel.row().dtype.bytes());
        aligned(self.kernel.row(), name, a.address, a.leading)?;
        if !m.is_multiple_of(vector) {
            let reason = format!("has {m} columns; the kernel copies {vector} at once");
            return Err(Error::operand(name, reason));
        }
        Ok(())
    }
}
