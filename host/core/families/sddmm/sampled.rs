//! Launch of the module `sampled`: windows of a pattern, maps of X and Y.

use einsparse_kernels::abi::{
    A_COLUMNS, B_COLUMNS, FLAG_ACCUMULATE, FLAG_MASK_VALUES, HALF, MapWords, STRIP,
};
use einsparse_kernels::families::{SampledParams, Window};
use einsparse_kernels::table::Row;

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::einsum::Mode;
use crate::error::Result;
use crate::families::sddmm::windows::{Blocks, Windows};
use crate::families::sddmm::{Places, SddmmExtents};
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::maps::{Flat, Maps};
use crate::launch::{Product, RawSddmm, Turns, aligned, small, within};

/// Kernel for windows of blocks.
#[derive(Debug)]
pub(crate) struct Sampler {
    /// End of the last run. Partial sums share one workspace, so the next run waits for it.
    turns: Turns,
    kernel: Kernel<SampledParams>,
    extents: SddmmExtents,
    mode: Mode,
    block_columns: usize,
    windows: DeviceMemory,
    columns: DeviceMemory,
    places: DeviceMemory,
    partial: DeviceMemory,
    zeros: DeviceMemory,
    rounds: u32,
    blocks: u32,
    parts: u32,
    count: usize,
}

impl Sampler {
    pub(crate) fn new(
        device: &Device,
        row: &'static Row,
        extents: SddmmExtents,
        mode: Mode,
        places: Places<'_>,
    ) -> Result<Self> {
        let Places { runs, columns, block } = places;
        let SddmmExtents { m, n, k } = extents;
        for (what, value) in [("rows", m), ("columns", n), ("terms", k)] {
            within(what, value, i32::MAX as usize - STRIP)?;
        }
        let elements = columns.len() as u128 * (block.0 * block.1) as u128;
        within(
            "values of blocks",
            usize::try_from(elements / 16).unwrap_or(usize::MAX),
            u32::MAX as usize - 1,
        )?;
        let kernel = Kernel::load(device, row)?;
        let pattern = Blocks { runs, columns, block };
        let list = Windows::new(row, pattern, k, device.machine().multiprocessors as usize);
        let partial = list.slots as usize * STRIP * row.columns as usize * 4;
        Ok(Sampler {
            kernel,
            extents,
            mode,
            block_columns: block.1,
            windows: device.upload(words(&list.windows))?,
            columns: device.upload(&list.columns)?,
            places: device.upload(&list.places)?,
            partial: DeviceMemory::alloc(device.context(), partial)?,
            zeros: device.zeros(128)?,
            rounds: (list.windows.len() / list.blocks.max(1)) as u32,
            blocks: list.blocks as u32,
            parts: list.parts,
            count: list.count,
            turns: Turns::with_counters(device, list.counters as usize * 8)?,
        })
    }

    fn params(&self, raw: &RawSddmm) -> Result<SampledParams> {
        let SddmmExtents { m, n, k } = self.extents;
        aligned(self.kernel.row(), "X", raw.x, raw.ldx)?;
        aligned(self.kernel.row(), "Y", raw.y, raw.ldy)?;
        let (order, piece) = (self.kernel.row().order, self.kernel.row().block.1 as usize);
        let x_map = if order & A_COLUMNS == 0 {
            self.map(raw.x, [k, m], raw.ldx, [HALF, HALF], HALF)?
        } else {
            self.map(raw.x, [m, k], raw.ldx, [HALF, HALF], HALF)?
        };
        let y_map = if order & B_COLUMNS != 0 {
            self.map(raw.y, [k, n], raw.ldy, [HALF, piece], HALF)?
        } else {
            self.map(raw.y, [n, k], raw.ldy, [piece, HALF], piece)?
        };
        let mut flags = 0;
        if self.mode == Mode::Accumulate {
            flags |= FLAG_ACCUMULATE;
        }
        if raw.mask != 0 {
            flags |= FLAG_MASK_VALUES;
        }
        Ok(SampledParams {
            x_map,
            y_map,
            windows: self.windows.address(),
            columns: self.columns.address(),
            places: self.places.address(),
            values: raw.values,
            mask: raw.mask,
            partial: self.partial.address(),
            counters: self.turns.counters().address(),
            alpha: raw.alpha,
            rounds: self.rounds,
            flags,
            row_bytes: small(
                "bytes of a row of a block",
                self.block_columns * self.kernel.row().dtype.bytes(),
            )?,
            reserved: 0,
        })
    }

    fn map(
        &self,
        address: u64,
        extents: [usize; 2],
        leading: usize,
        tile: [usize; 2],
        swizzled: usize,
    ) -> Result<MapWords> {
        let matrix = Flat { address, extents, leading };
        Maps::of(self.kernel.row(), &self.zeros).matrix(&matrix, tile, swizzled)
    }
}

impl Product<RawSddmm> for Sampler {
    fn row(&self) -> &'static Row {
        self.kernel.row()
    }

    fn bytes(&self) -> usize {
        let lists = self.windows.bytes() + self.columns.bytes() + self.places.bytes();
        lists + self.partial.bytes() + self.turns.counters().bytes()
    }

    fn describe(&self) -> String {
        format!(
            "{} windows of {} x {}, {} parts along k, {} persistent thread blocks, {} bytes of workspace",
            self.count,
            STRIP,
            self.kernel.row().columns,
            self.parts,
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
        self.turns
            .queue(self.parts > 1, queue.stream(), || queue.launch(&self.kernel, grid, &params))
    }
}

/// Windows as rows of words, which the driver module copies.
fn words(list: &[Window]) -> &[[u32; 8]] {
    const { assert!(size_of::<Window>() == 32) };
    // SAFETY: `Window` is a `repr(C)` struct of eight u32, without padding (asserted above).
    unsafe { std::slice::from_raw_parts(list.as_ptr().cast(), list.len()) }
}
