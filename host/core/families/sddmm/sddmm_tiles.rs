//! Launch of the module `sddmm_tiles`: tiles that contain entries, their picks, maps of X and Y.

use einsparse_kernels::abi::{
    A_COLUMNS, B_COLUMNS, FLAG_ACCUMULATE, FLAG_MASK_VALUES, FLAG_VECTORS, HALF, MapWords,
    PANEL_BYTES, STRIP,
};
use einsparse_kernels::families::{Pane, Picks, SddmmTilesParams};
use einsparse_kernels::table::Row;

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::einsum::Mode;
use crate::error::{Error, Result};
use crate::families::sddmm::SddmmExtents;
use crate::families::sddmm::panes::Panes;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::maps::{Flat, Maps};
use crate::launch::{Product, RawSddmm, aligned, within};
use crate::worklist::Runs;

#[derive(Debug)]
pub(crate) struct SddmmTiles {
    kernel: Kernel<SddmmTilesParams>,
    extents: SddmmExtents,
    mode: Mode,
    panes: DeviceMemory,
    groups: DeviceMemory,
    bases: DeviceMemory,
    picks: DeviceMemory,
    zeros: DeviceMemory,
    rounds: u32,
    blocks: u32,
    count: usize,
}

impl SddmmTiles {
    pub(crate) fn new(
        device: &Device,
        row: &'static Row,
        extents: SddmmExtents,
        mode: Mode,
        (runs, columns): (&Runs, &[u32]),
    ) -> Result<Self> {
        let SddmmExtents { m, n, k } = extents;
        for (what, value) in [("rows", m), ("columns", n), ("terms", k)] {
            within(what, value, i32::MAX as usize - STRIP)?;
        }
        let kernel = Kernel::load(device, row)?;
        let multiprocessors = device.machine().multiprocessors as usize;
        let list = Panes::new(row, (runs, columns), k, multiprocessors)?;
        Ok(SddmmTiles {
            kernel,
            extents,
            mode,
            panes: device.upload(pane_words(&list.panes))?,
            groups: device.upload(pick_words(&list.groups))?,
            bases: device.upload(&list.bases)?,
            picks: device.upload(&list.picks)?,
            zeros: device.zeros(128)?,
            rounds: (list.panes.len() / list.blocks.max(1)) as u32,
            blocks: list.blocks as u32,
            count: list.count,
        })
    }

    fn params(&self, raw: &RawSddmm) -> Result<SddmmTilesParams> {
        let SddmmExtents { m, n, k } = self.extents;
        let order = self.row().order;
        let x = (raw.x, raw.ldx, m, order & A_COLUMNS != 0);
        let y = (raw.y, raw.ldy, n, order & B_COLUMNS == 0);
        let accumulate = u32::from(self.mode == Mode::Accumulate) * FLAG_ACCUMULATE;
        let masked = u32::from(raw.mask != 0) * FLAG_MASK_VALUES;
        let pair = 2 * self.row().dtype.bytes() as u64;
        let pairs = u32::from(raw.values.is_multiple_of(pair)) * FLAG_VECTORS;
        Ok(SddmmTilesParams {
            x_map: self.map("X", x)?,
            y_map: self.map("Y", y)?,
            panes: self.panes.address(),
            groups: self.groups.address(),
            bases: self.bases.address(),
            picks: self.picks.address(),
            values: raw.values,
            mask: raw.mask,
            alpha: raw.alpha,
            rounds: self.rounds,
            stages: k.div_ceil(PANEL_BYTES / self.row().dtype.bytes()) as u32,
            flags: accumulate | masked | pairs,
            reserved: 0,
        })
    }

    /// Map of tiles of 64 rows and 128 bytes along k. `columns`: the matrix is stored as `[k, rows]`.
    fn map(
        &self,
        name: &str,
        (address, leading, rows, columns): (u64, usize, usize, bool),
    ) -> Result<MapWords> {
        let k = self.extents.k;
        let extents = if columns { [rows, k] } else { [k, rows] };
        aligned(self.row(), name, address, leading)?;
        if leading < extents[0] {
            return Err(Error::stride(name, leading, format_args!("at least {}", extents[0])));
        }
        let deep = PANEL_BYTES / self.row().dtype.bytes();
        let tile = if columns { [HALF, deep] } else { [deep, HALF] };
        let matrix = Flat { address, extents, leading };
        Maps::of(self.row(), &self.zeros).matrix(&matrix, tile, tile[0])
    }
}

impl Product<RawSddmm> for SddmmTiles {
    fn row(&self) -> &'static Row {
        self.kernel.row()
    }

    fn bytes(&self) -> usize {
        let lists = self.panes.bytes() + self.groups.bytes() + self.bases.bytes();
        lists + self.picks.bytes()
    }

    fn describe(&self) -> String {
        format!(
            "{} tiles of {} x {}, {} persistent thread blocks, {} bytes of workspace",
            self.count,
            STRIP,
            self.row().columns,
            self.blocks,
            self.bytes()
        )
    }

    fn run(&self, raw: &RawSddmm, queue: Queue<'_>) -> Result<()> {
        if self.blocks == 0 {
            return Ok(());
        }
        let params = self.params(raw)?;
        let grid = Grid::of([self.blocks, 1, 1]);
        queue.launch(&self.kernel, grid, &params)
    }
}

/// Tiles as rows of words, which the driver module copies.
fn pane_words(list: &[Pane]) -> &[[u32; 8]] {
    const { assert!(size_of::<Pane>() == 32) };
    // SAFETY: `Pane` is a `repr(C)` struct of eight u32, without padding (asserted above).
    unsafe { std::slice::from_raw_parts(list.as_ptr().cast(), list.len()) }
}

/// Lists of picks as rows of words.
fn pick_words(list: &[Picks]) -> &[[u32; 2]] {
    const { assert!(size_of::<Picks>() == 8) };
    // SAFETY: `Picks` is a `repr(C)` struct of two u32, without padding (asserted above).
    unsafe { std::slice::from_raw_parts(list.as_ptr().cast(), list.len()) }
}
