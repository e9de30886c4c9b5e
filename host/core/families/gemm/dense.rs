//! Launch of the module `dense`: tensor maps of the operands, and a thread block or a cluster for each
//! tile. Runs keep no state.

use einsparse_kernels::abi::{FLAG_VECTORS, MapWords, PANEL_BYTES};
use einsparse_kernels::families::DenseParams;
use einsparse_kernels::table::Row;

use crate::driver::DeviceMemory;
use crate::error::Result;
use crate::indirect::SpmmForm;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::maps::{Flat, Maps};
use crate::launch::{
    Extents, MAX_GRID_X, MAX_GRID_Y, Product, RawSpmm, SpmmConfig, aligned, flags, footprint,
    row_bytes, small, within,
};

/// Tiles of a product, for a dense or a sparse A.
#[derive(Debug)]
pub(super) struct Tiles {
    row: &'static Row,
    form: SpmmForm,
    extents: Extents,
    /// Thread blocks: tiles across times parts along k, tiles down.
    grid: [u32; 3],
    stages: u32,
    /// Memory to which maps of matrices without elements point.
    empty: DeviceMemory,
}

impl Tiles {
    pub(super) fn new(of: SpmmConfig<'_>) -> Result<Self> {
        let (device, row, extents) = (of.device, of.row, of.extents);
        let Extents { m, k, n, .. } = extents;
        let edge = row.block.0.max(row.columns) as usize;
        for (what, value) in [("rows of A", m), ("rows of B", k), ("columns of B", n)] {
            within(what, value, i32::MAX as usize - edge)?;
        }
        let down = m.div_ceil(row.block.0 as usize);
        let across = n.div_ceil(row.columns as usize) * row.parts as usize;
        Ok(Tiles {
            row,
            form: of.form,
            extents,
            grid: [
                within("thread blocks of a row of tiles", across, MAX_GRID_X)?,
                within("rows of tiles", down, MAX_GRID_Y)?,
                1,
            ],
            stages: small("stages of a tile", k.div_ceil(row.block.1 as usize))?,
            empty: device.zeros(16)?,
        })
    }

    /// Thread blocks of a launch, which start early: the kernel waits for the previous kernel before it accesses
    /// operands.
    pub(super) fn grid(&self) -> Grid {
        Grid::of(self.grid).in_clusters(self.row.parts).early()
    }

    /// Stages along k.
    pub(super) fn stages(&self) -> u32 {
        self.stages
    }

    fn map(
        &self,
        address: u64,
        extents: [usize; 2],
        leading: usize,
        tile: [usize; 2],
    ) -> Result<MapWords> {
        let matrix = Flat { address, extents, leading };
        Maps::of(self.row, &self.empty).matrix(&matrix, tile, tile[0])
    }

    /// Parameters of the kernel. `leading`: row stride of a dense A in elements.
    pub(super) fn params(&self, raw: &RawSpmm, leading: Option<usize>) -> Result<DenseParams> {
        let Extents { m, k, n, .. } = self.extents;
        let element = self.row.dtype.bytes();
        let (mut flags, _) = flags(&self.form, self.extents, raw)?;
        aligned(self.row, "B", raw.b, raw.ldb)?;
        aligned(self.row, "values of A", raw.values, leading.unwrap_or(0))?;
        let whole = [raw.ldc, n].iter().all(|x| x.is_multiple_of(16 / element));
        if whole && raw.c.is_multiple_of(16) {
            flags |= FLAG_VECTORS;
        }
        let (rows, depth) = (self.row.block.0 as usize, self.row.block.1 as usize);
        let b_map = self.map(raw.b, [n, k], raw.ldb, [PANEL_BYTES / element, depth])?;
        let a_map = match leading {
            Some(leading) => self.map(raw.values, [k, m], leading, [depth, rows])?,
            None => b_map,
        };
        Ok(DenseParams {
            a_map,
            b_map,
            c: raw.c,
            bias: raw.bias,
            live: 0,
            alpha: raw.alpha,
            n: small("columns of B", n)?,
            m: small("rows of A", m)?,
            ldc_bytes: row_bytes("C", raw.ldc, element)?,
            flags,
            stages: self.stages,
            early: 0,
        })
    }

    /// Geometry for `explain`, with `bytes` bytes of workspace.
    pub(super) fn describe(&self, bytes: usize) -> String {
        let [across, down, _] = self.grid;
        format!(
            "{} tiles of {} x {}, {} parts along k each, 0 rows cut, grid {across} x {down}, {}",
            across / self.row.parts * down,
            self.row.block.0,
            self.row.columns,
            self.row.parts,
            footprint(self.row, bytes)
        )
    }
}

/// Kernel that is prepared for fixed extents.
#[derive(Debug)]
pub(crate) struct DenseProduct {
    kernel: Kernel<DenseParams>,
    tiles: Tiles,
    /// Row stride of A in elements.
    leading: usize,
}

impl DenseProduct {
    pub(crate) fn new(of: SpmmConfig<'_>, leading: usize) -> Result<Self> {
        Ok(DenseProduct {
            kernel: Kernel::load(of.device, of.row)?,
            tiles: Tiles::new(of)?,
            leading,
        })
    }
}

impl Product for DenseProduct {
    fn row(&self) -> &'static Row {
        self.kernel.row()
    }

    fn leading(&self) -> Option<usize> {
        Some(self.leading)
    }

    fn bytes(&self) -> usize {
        0
    }

    fn describe(&self) -> String {
        self.tiles.describe(0)
    }

    fn run(&self, raw: &RawSpmm, queue: Queue<'_>) -> Result<()> {
        let params = self.tiles.params(raw, Some(self.leading))?;
        queue.launch(&self.kernel, self.tiles.grid(), &params)
    }
}
