//! Product of few rows whose kernel itself finds the empty columns of A. Nothing is stored between runs.

use einsparse_kernels::abi::CLUSTER;
use einsparse_kernels::families::{FEW_PAIRS, FEW_PARTS, FEW_VECTORS, PitFewParams};
use einsparse_kernels::table::{Row, rows_of};

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, Turns, aligned, row_bytes, small, within};
use crate::machine::Machine;
use crate::registry::Dtype;
use crate::tensor::DenseMatrix;

/// Min columns of A per part, and the unit of which shares are multiples.
const LEAST_SHARE: usize = 256;
const SHARE_UNIT: usize = 64;

/// Kernel chosen for these extents.
#[derive(Debug)]
pub(crate) struct PitFewLaunch {
    kernel: Kernel<PitFewParams>,
    extents: [usize; 3],
    params: PitFewParams,
    grid: u32,
    /// Sums of parts without clusters, which runs share.
    partial: DeviceMemory,
    turns: Turns,
}

/// Returns the kernels for few rows.
pub(crate) fn few_rows(dtype: Dtype) -> impl Iterator<Item = &'static Row> + Clone {
    rows_of::<PitFewParams>().filter(move |row| row.dtype == dtype)
}

/// Returns the kernels that the GPU runs. If there are kernels with clusters, only those are returned.
fn runnable(dtype: Dtype, machine: &Machine) -> Vec<&'static Row> {
    let mut rows: Vec<_> = few_rows(dtype).filter(|row| machine.lacks(row).is_none()).collect();
    if rows.iter().any(|row| in_cluster(row)) {
        rows.retain(|row| in_cluster(row));
    }
    rows
}

/// Returns whether the parts of a tile form a cluster.
fn in_cluster(row: &Row) -> bool {
    row.needs & CLUSTER != 0
}

/// Returns the number of multiprocessors that clusters of `parts` thread blocks can use. A cluster stays within one
/// section of the GPU, so multiprocessors at its end remain unused.
fn reach(parts: usize, multiprocessors: u32) -> usize {
    let percent = match parts {
        1 | 2 => 100,
        4 => 93,
        _ => 86,
    };
    multiprocessors as usize * percent / 100 / parts * parts
}

/// Returns the tiles along n, and the thread blocks that split a tile along k to fill the multiprocessors.
fn cut(row: &Row, [m, k, n]: [usize; 3], multiprocessors: u32) -> [usize; 2] {
    let tiles = n.div_ceil(row.columns as usize);
    if !in_cluster(row) {
        return [tiles, apart(row, [m, k], (multiprocessors as usize).checked_div(tiles))];
    }
    let mut parts = FEW_PARTS as usize;
    while parts > 1 && (tiles * parts > reach(parts, multiprocessors) || k < LEAST_SHARE * parts) {
        parts /= 2;
    }
    [tiles, parts]
}

/// Returns the parts of a tile without clusters, at most `most`. The last part to arrive adds up all sums, while the
/// other thread blocks have exited.
fn apart(row: &Row, [m, k]: [usize; 2], most: Option<usize>) -> usize {
    /// One in this many columns of A is assumed to be nonempty.
    const OFTEN: usize = 4;
    let columns = row.columns as usize;
    // Bytes of a column of A and of its row of B that a part reads, and bytes of its sums.
    let each = (m + columns / OFTEN) * row.dtype.bytes();
    let sums = m.next_multiple_of(8) * columns * 4;
    let most = most.unwrap_or(1).min(FEW_PARTS as usize).min(k / LEAST_SHARE).max(1);
    (1..=most).min_by_key(|parts| k / parts * each + (parts - 1) * sums).unwrap_or(1)
}

/// Returns the kernel for these extents whose thread blocks gather the least. `None` if there are too many rows.
pub(crate) fn few_row(
    dtype: Dtype,
    extents: [usize; 3],
    machine: &Machine,
) -> Option<&'static Row> {
    let multiprocessors = machine.multiprocessors;
    let mut rows = runnable(dtype, machine);
    rows.retain(|row| row.block.0 as usize >= extents[0]);
    let least = rows.iter().map(|row| row.block.0).min()?;
    rows.retain(|row| row.block.0 == least);
    rows.into_iter().min_by_key(|row| {
        let [tiles, parts] = cut(row, extents, multiprocessors);
        let turns = (tiles * parts).div_ceil(multiprocessors.max(1) as usize);
        row.columns as usize * FEW_PARTS as usize / parts * turns
    })
}

impl PitFewLaunch {
    /// Creates the product of `[m, k, n]` with this kernel. Added to a magnitude, `above` sets the top bit if the
    /// element is above the threshold.
    pub(crate) fn new(
        device: &Device,
        row: &'static Row,
        extents: [usize; 3],
        above: u32,
    ) -> Result<Self> {
        let [m, k, n] = extents;
        let m_there = within("rows of A", m, row.block.0 as usize)?;
        // Sections extend past the last column.
        let most = i32::MAX as usize - 4096;
        let (k_there, n_there) = (within("rows of B", k, most)?, within("columns of B", n, most)?);
        let [tiles, parts] = cut(row, extents, device.machine().multiprocessors);
        let share = k.div_ceil(parts).next_multiple_of(SHARE_UNIT);
        let kernel = Kernel::load(device, row)?;
        let tiles = if m == 0 { 0 } else { tiles };
        let shared = parts > 1 && !in_cluster(row);
        let sums =
            if shared { tiles * parts * (row.block.0 * row.columns) as usize * 4 } else { 0 };
        Ok(PitFewLaunch {
            kernel,
            partial: DeviceMemory::alloc(device.context(), sums)?,
            turns: Turns::with_counters(device, if shared { tiles * 4 } else { 0 })?,
            extents,
            params: PitFewParams {
                m: m_there,
                k: k_there,
                n: n_there,
                parts: parts as u32,
                share: small("columns of a part", share)?,
                above,
                ..PitFewParams::default()
            },
            grid: within("thread blocks", tiles * parts, MAX_GRID_X)?,
        })
    }

    /// Returns the thread blocks per tile.
    pub(crate) fn parts(&self) -> u32 {
        self.params.parts
    }

    /// Returns the bytes of the sums and counters of parts in device memory.
    pub(crate) fn bytes(&self) -> usize {
        self.partial.bytes() + self.turns.counters().bytes()
    }

    /// Queues the product. A, B and C are `[m, k]`, `[k, n]` and `[m, n]` of the row's type.
    pub(crate) fn run(&self, [a, b, c]: [DenseMatrix; 3], queue: Queue<'_>) -> Result<()> {
        let params = self.params([a, b, c])?;
        if self.grid == 0 {
            return Ok(());
        }
        let clusters = in_cluster(self.kernel.row());
        let grid = Grid::of([self.grid, 1, 1]).in_clusters(if clusters { params.parts } else { 1 });
        // The kernel waits for the previous launch before it accesses an operand.
        let grid = grid.early();
        let shared = params.parts > 1 && !clusters;
        self.turns.queue(shared, queue.stream(), || queue.launch(&self.kernel, grid, &params))
    }

    /// Returns the params of a run, or an error if the kernel cannot read the operands.
    fn params(&self, [a, b, c]: [DenseMatrix; 3]) -> Result<PitFewParams> {
        let n = self.extents[2];
        let vector = self.kernel.row().vector as usize;
        let element = self.kernel.row().dtype.bytes();
        aligned(self.kernel.row(), "B", b.address, b.leading)?;
        if !n.is_multiple_of(vector) {
            return Err(Error::columns("B", n, vector));
        }
        let vectors = a.leading.is_multiple_of(vector) && a.address.is_multiple_of(16);
        let pairs = c.leading.is_multiple_of(2) && c.address.is_multiple_of(4);
        let bytes = |of: &str, matrix: DenseMatrix| row_bytes(of, matrix.leading, element);
        Ok(PitFewParams {
            a: a.address,
            b: b.address,
            c: c.address,
            lda_bytes: bytes("A", a)?,
            ldb_bytes: bytes("B", b)?,
            ldc_bytes: bytes("C", c)?,
            flags: if vectors { FEW_VECTORS } else { 0 } | if pairs { FEW_PAIRS } else { 0 },
            partial: self.partial.address(),
            counters: self.turns.counters().address(),
            ..self.params
        })
    }
}
