//! Gradient of a stack of matrices on a GPU, and of the weights of a router's choices.

use einsparse_kernels::abi::{Divisor, FLAG_VECTORS};
use einsparse_kernels::families::{GRAD_A_TOKENS, GRAD_B_TOKENS, GroupedGradParams};
use einsparse_kernels::table::{Row, rows_of};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::families::discover::route::DeviceRoutes;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{aligned, row_bytes, small, within};
use crate::registry::{Dtype, of_type};
use crate::tensor::DenseMatrix;

/// Extents of a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GradExtents {
    /// Choices per token.
    pub top: usize,
    pub experts: usize,
    /// Columns of A, which are the rows of a matrix.
    pub m: usize,
    /// Columns of B, which are the columns of a matrix.
    pub n: usize,
    /// Whether rows of A, and of B, are indexed by token; otherwise by slot.
    pub tokens: [bool; 2],
}

#[derive(Debug)]
pub(crate) struct GradLaunch {
    kernel: Kernel<GroupedGradParams>,
    extents: GradExtents,
    tiles: u32,
    grid: u32,
}

impl GradLaunch {
    pub(crate) fn new(device: &Device, dtype: Dtype, extents: GradExtents) -> Result<Self> {
        let runs = |row: &&Row| device.machine().lacks(row).is_none();
        let own = rows_of::<GroupedGradParams>().filter(runs);
        let row = of_type(own, dtype, "W[WE[s],m,n] += A[AM[s],m] * B[BM[s],n]")?;
        let kernel = Kernel::load(device, row)?;
        let vector = row.vector as usize;
        for (name, value) in [("A", extents.m), ("B", extents.n)] {
            if !value.is_multiple_of(vector) {
                return Err(Error::columns(name, value, vector));
            }
            within("columns", value, i32::MAX as usize - 256)?;
        }
        let [down, across] = Self::tiles(row, &extents);
        let tiles = extents.experts.saturating_mul(down).saturating_mul(across);
        let tiles = within("tiles", tiles, i32::MAX as usize)?;
        Ok(GradLaunch { kernel, extents, tiles, grid: tiles.min(device.machine().multiprocessors) })
    }

    /// Returns the tiles of a matrix along m and n.
    fn tiles(row: &Row, extents: &GradExtents) -> [usize; 2] {
        [extents.m.div_ceil(row.block.0 as usize), extents.n.div_ceil(row.columns as usize)]
    }

    pub(crate) fn name(&self) -> &'static str {
        self.kernel.row().name
    }

    /// Queues the gradient. `w` is the rows of all matrices, concatenated. `names` are those of A, B and W in errors.
    /// The routes are those of the rows.
    pub(crate) fn run(
        &self,
        routes: &DeviceRoutes,
        names: [&str; 3],
        [a, b, w]: [DenseMatrix; 3],
        queue: Queue<'_>,
    ) -> Result<()> {
        let GradExtents { top, m, n, tokens, .. } = self.extents;
        for (name, matrix) in names.into_iter().zip([a, b, w]) {
            aligned(self.kernel.row(), name, matrix.address, matrix.leading)?;
        }
        let element = self.kernel.row().dtype.bytes();
        let bytes = |of: &str, leading: usize| row_bytes(of, leading, element);
        let [down, across] = Self::tiles(self.kernel.row(), &self.extents);
        let flags = [(tokens[0], GRAD_A_TOKENS), (tokens[1], GRAD_B_TOKENS)];
        let flags = flags.iter().filter(|(set, _)| *set).map(|(_, flag)| flag);
        let params = GroupedGradParams {
            a: a.address,
            b: b.address,
            w: w.address,
            order: routes.order.address(),
            offsets: routes.offsets.address(),
            top: Divisor::new(small("choices of a token", top)?),
            across: Divisor::new(small("tiles across", across)?),
            down: Divisor::new(small("tiles down", down)?),
            m: small("columns of A", m)?,
            n: small("columns of B", n)?,
            lda_bytes: bytes("A", a.leading)?,
            ldb_bytes: bytes("B", b.leading)?,
            ldw_bytes: bytes("W", w.leading)?,
            tiles: self.tiles,
            flags: flags.fold(FLAG_VECTORS, |all, flag| all | flag),
            reserved: 0,
        };
        // The kernel waits for the previous launch before it accesses an operand.
        let grid = Grid::of([self.grid, 1, 1]).early();
        queue.launch(&self.kernel, grid, &params)
    }
}
