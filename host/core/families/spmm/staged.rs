//! Launch of the module `staged`: rows and windows of the slices, tensor map of B.

mod shares;

use std::sync::Arc;

use einsparse_formats::{PAD, SlicedEllPattern};
use einsparse_kernels::abi::FLAG_VECTORS;
use einsparse_kernels::families::{EMPTY_ROW, K_TILE, StagedJoin, StagedParams, WINDOW_BITS};
use einsparse_kernels::table::Row;

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::Result;
use crate::indirect::SpmmForm;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::maps::{Flat, Maps};
use crate::launch::{
    Extents, MAX_GRID_X, MAX_GRID_Y, Product, RawSpmm, SpmmConfig, aligned, flags, footprint,
    row_bytes, small, within,
};
use crate::worklist::Runs;
use shares::Shares;

/// Kernel that is prepared for one pattern.
#[derive(Debug)]
pub(crate) struct Staged {
    kernel: Kernel<StagedParams>,
    form: SpmmForm,
    extents: Extents,
    pattern: Arc<SlicedEllPattern>,
    offsets: DeviceMemory,
    windows: DeviceMemory,
    rows: DeviceMemory,
    lists: Option<Shared>,
    slices: u32,
    grid: [u32; 3],
    /// Thread blocks of a cluster.
    cluster: u32,
}

/// Lists of the pieces of all warps, for kernels that hold all of B in shared memory.
#[derive(Debug)]
struct Shared {
    pieces: DeviceMemory,
    others: DeviceMemory,
    spans: DeviceMemory,
    joins: DeviceMemory,
}

impl Shared {
    fn new(device: &Device, shares: &Shares) -> Result<Shared> {
        let pieces = shares.pieces.iter();
        let pieces: Vec<[u32; 4]> = pieces.map(|p| [p.first, p.end, p.slice, p.kind]).collect();
        let spans = shares.spans.iter();
        let spans: Vec<[u32; 4]> =
            spans.map(|s| [s.first, s.count, s.crossing[0], s.crossing[1]]).collect();
        let words = |j: &StagedJoin| [j.warp, j.count, j.end, j.reserved].into_iter().chain(j.rows);
        let joins: Vec<u32> = shares.joins.iter().flat_map(words).collect();
        Ok(Shared {
            pieces: device.upload(&pieces)?,
            others: device.upload(&shares.others)?,
            spans: device.upload(&spans)?,
            joins: device.upload(&joins)?,
        })
    }

    fn all(&self) -> [&DeviceMemory; 4] {
        [&self.pieces, &self.others, &self.spans, &self.joins]
    }
}

/// Rows of all lanes. Rows without nonzeros are marked.
pub(super) fn marked(order: &[u32], runs: &Runs) -> Vec<u32> {
    let of = |&row: &u32| match row {
        PAD => PAD,
        row if runs.rows[row as usize].1 == 0 => row | EMPTY_ROW,
        row => row,
    };
    order.iter().map(of).collect()
}

/// Windows of all chunks, one word each.
pub(super) fn windows(pattern: &SlicedEllPattern) -> Vec<u32> {
    const { assert!(SlicedEllPattern::REACH < 1 << WINDOW_BITS) };
    let of = |&[first, end]: &[u32; 2]| {
        debug_assert!(end >= first && end - first < 1 << WINDOW_BITS);
        first << WINDOW_BITS | (end - first)
    };
    pattern.windows().as_chunks().0.iter().map(of).collect()
}

impl Staged {
    pub(crate) fn new(
        of: SpmmConfig<'_>,
        (runs, pattern): (&Runs, &Arc<SlicedEllPattern>),
    ) -> Result<Self> {
        let (device, row, extents) = (of.device, of.row, of.extents);
        let kernel = Kernel::load(device, row)?;
        let Extents { m, k, n, .. } = extents;
        within("rows of A", m, MAX_GRID_X)?;
        for (what, value) in [("rows of B", k), ("columns of B", n)] {
            within(what, value, i32::MAX as usize - K_TILE)?;
        }
        let tiles = n.div_ceil(row.columns as usize);
        within("column tiles", tiles, MAX_GRID_Y)?;
        let slices = small("slices of A", pattern.offsets().len() - 1)?;
        let marked = marked(pattern.order(), runs);
        let (mut lists, mut blocks, mut cluster) = (None, slices.div_ceil(row.items), 1);
        if row.holds_b() {
            let sms = device.machine().multiprocessors;
            let spread = shares::spread(pattern.offsets(), tiles, sms);
            let shares = Shares::new(pattern.offsets(), &marked, spread, row.items as usize);
            lists = Some(Shared::new(device, &shares)?);
            cluster = spread.blocks as u32;
            blocks = if slices == 0 { 0 } else { spread.clusters as u32 * cluster };
        }
        Ok(Staged {
            kernel,
            form: of.form,
            extents,
            offsets: device.upload(pattern.offsets())?,
            windows: device.upload(&windows(pattern))?,
            rows: device.upload(&marked)?,
            pattern: Arc::clone(pattern),
            lists,
            slices,
            grid: [blocks, tiles as u32, 1],
            cluster,
        })
    }

    fn params(&self, raw: &RawSpmm) -> Result<StagedParams> {
        let Extents { k, n, .. } = self.extents;
        let element = self.row().dtype.bytes();
        let (mut flags, column_bias) = flags(&self.form, self.extents, raw)?;
        for (name, address) in [("columns of A", raw.columns), ("values of A", raw.values)] {
            crate::launch::in_vectors(name, address)?;
        }
        aligned(self.row(), "B", raw.b, raw.ldb)?;
        let whole = [raw.ldc, n].iter().all(|x| x.is_multiple_of(16 / element));
        if whole && raw.c.is_multiple_of(16) && column_bias.is_multiple_of(16) {
            flags |= FLAG_VECTORS;
        }
        let b = Flat { address: raw.b, extents: [n, k], leading: raw.ldb };
        let lists = self.lists.as_ref().map(|lists| lists.all().map(|m| m.address()));
        let [pieces, others, spans, joins] = lists.unwrap_or_default();
        let tile = [self.row().columns as usize, K_TILE];
        Ok(StagedParams {
            b_map: Maps::of(self.row(), &self.offsets).matrix(&b, tile, 0)?,
            offsets: self.offsets.address(),
            windows: self.windows.address(),
            rows: self.rows.address(),
            columns: raw.columns,
            values: raw.values,
            c: raw.c,
            bias: raw.bias,
            pieces,
            others,
            spans,
            joins,
            alpha: raw.alpha,
            slices: self.slices,
            tiles: small("tiles of B", k.div_ceil(K_TILE))?,
            n: small("columns of B", n)?,
            ldc_bytes: row_bytes("C", raw.ldc, element)?,
            flags,
            reserved: 0,
        })
    }
}

impl Product for Staged {
    fn row(&self) -> &'static Row {
        self.kernel.row()
    }

    fn bytes(&self) -> usize {
        let lists = self.lists.iter().flat_map(Shared::all);
        let shared = lists.map(DeviceMemory::bytes).sum::<usize>();
        self.offsets.bytes() + self.windows.bytes() + self.rows.bytes() + shared
    }

    fn describe(&self) -> String {
        format!(
            "{} slices of {} rows, {} chunks, 0 rows cut, grid {} x {}, clusters of {}, {}",
            self.slices,
            SlicedEllPattern::SLICE,
            self.pattern.windows().len() / 2,
            self.grid[0],
            self.grid[1],
            self.cluster,
            footprint(self.row(), self.bytes())
        )
    }

    fn run(&self, raw: &RawSpmm, queue: Queue<'_>) -> Result<()> {
        let params = self.params(raw)?;
        if self.grid[0] == 0 || self.grid[1] == 0 {
            return Ok(());
        }
        let grid = Grid::of(self.grid).in_clusters(self.cluster).early();
        queue.launch(&self.kernel, grid, &params)
    }
}
