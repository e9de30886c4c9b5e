//! A product of few rows whose kernel finds the empty columns of A itself: nothing is kept between runs.

use einsparse_kernels::families::{FEW_PAIRS, FEW_PARTS, FEW_VECTORS, PitFewParams};
use einsparse_kernels::table::{Row, kernels};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::families::convert::DenseMatrix;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, aligned, row_bytes, small, within};
use crate::registry::{Dtype, none_of};

/// Columns of A that a part is worth having for, and what shares are a multiple of.
const LEAST_SHARE: usize = 256;
const SHARE_UNIT: usize = 64;

/// A kernel chosen for these extents.
#[derive(Debug)]
pub(crate) struct PitFewLaunch {
    kernel: Kernel<PitFewParams>,
    extents: [usize; 3],
    params: PitFewParams,
    grid: u32,
}

/// The kernels of this family.
pub(crate) fn few_rows(dtype: Dtype) -> impl Iterator<Item = &'static Row> {
    let fits = move |row: &&Row| row.module == "pit_few" && row.dtype == dtype;
    kernels().iter().filter(fits)
}

/// Multiprocessors that clusters of so many find room on, one thread block each: they keep to a part of the GPU, the
/// ends of which are left over.
fn reach(parts: usize, multiprocessors: u32) -> usize {
    let percent = match parts {
        1 | 2 => 100,
        4 => 93,
        _ => 86,
    };
    multiprocessors as usize * percent / 100 / parts * parts
}

/// Tiles across, and thread blocks that share a tile along k: as many as there are multiprocessors for.
fn cut(row: &Row, [_, k, n]: [usize; 3], multiprocessors: u32) -> [usize; 2] {
    let tiles = n.div_ceil(row.columns as usize);
    let mut parts = FEW_PARTS as usize;
    while parts > 1 && (tiles * parts > reach(parts, multiprocessors) || k < LEAST_SHARE * parts) {
        parts /= 2;
    }
    [tiles, parts]
}

/// Of the kernels for these extents, the one whose thread blocks have the least to gather. `None` for too many rows.
pub(crate) fn few_row(
    dtype: Dtype,
    extents: [usize; 3],
    multiprocessors: u32,
) -> Option<&'static Row> {
    let height = |row: &&Row| row.block.0 as usize >= extents[0];
    let least = few_rows(dtype).filter(height).map(|row| row.block.0).min()?;
    let own = few_rows(dtype).filter(|row| row.block.0 == least);
    own.min_by_key(|row| {
        let [tiles, parts] = cut(row, extents, multiprocessors);
        let turns = (tiles * parts).div_ceil(multiprocessors.max(1) as usize);
        row.columns as usize * FEW_PARTS as usize / parts * turns
    })
}

impl PitFewLaunch {
    /// The product of `[m, k, n]` by this kernel. `above`: what makes the top bit of an element that counts.
    pub(crate) fn new(
        device: &Device,
        row: &'static Row,
        extents: [usize; 3],
        above: u32,
    ) -> Result<Self> {
        let [m, k, n] = extents;
        let m_there = within("rows of A", m, row.block.0 as usize)?;
        // Sections reach past the last column.
        let most = i32::MAX as usize - 4096;
        let (k_there, n_there) = (within("rows of B", k, most)?, within("columns of B", n, most)?);
        let [tiles, parts] = cut(row, extents, device.machine().multiprocessors);
        let share = k.div_ceil(parts).next_multiple_of(SHARE_UNIT);
        let kernel = Kernel::load(device, row)?;
        let tiles = if m == 0 { 0 } else { tiles };
        Ok(PitFewLaunch {
            kernel,
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

    /// The same for the best kernel of the type.
    pub(crate) fn best(
        device: &Device,
        dtype: Dtype,
        extents: [usize; 3],
        above: u32,
    ) -> Result<Self> {
        let row = few_row(dtype, extents, device.machine().multiprocessors);
        let row = row.ok_or_else(|| {
            let [m, ..] = extents;
            let what = format!("C[m,n] += A[m,AK[p]] * B[AK[p],n], all {m} rows at a time");
            none_of(few_rows(dtype), what, |row| format!("is for {} rows at the most", row.block.0))
        })?;
        Self::new(device, row, extents, above)
    }

    pub(crate) fn name(&self) -> &'static str {
        self.kernel.row().name
    }

    /// Thread blocks of a tile.
    pub(crate) fn parts(&self) -> u32 {
        self.params.parts
    }

    /// Queues the product.
    /// A, B and C are `[m, k]`, `[k, n]` and `[m, n]` of the row's type.
    pub(crate) fn run(&self, [a, b, c]: [DenseMatrix; 3], queue: Queue<'_>) -> Result<()> {
        let params = self.params([a, b, c])?;
        if self.grid == 0 {
            return Ok(());
        }
        let parts = params.parts;
        // The kernel waits for the one ahead before it touches an operand.
        let grid = Grid::of([self.grid, 1, 1]).in_clusters(parts).early();
        queue.launch(&self.kernel, grid, &params)
    }

    /// The params of a run, or why the operands cannot be read.
    fn params(&self, [a, b, c]: [DenseMatrix; 3]) -> Result<PitFewParams> {
        let n = self.extents[2];
        let vector = self.kernel.row().vector as usize;
        let element = self.kernel.row().dtype.bytes();
        aligned(self.kernel.row(), "B", b.address, b.leading)?;
        if !n.is_multiple_of(vector) {
            let reason = format!("has {n} columns; the kernel copies {vector} at once");
            return Err(Error::operand("B", reason));
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
            ..self.params
        })
    }
}
