//! Product at the micro-tiles of another matrix, which are dynamic: their lists are read on the device.

use einsparse_kernels::families::{PitSampledParams, SAMPLED_GATE, SAMPLED_WIDTH};
use einsparse_kernels::table::{Row, rows_of};

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::families::discover::{DeviceLists, list_stride};
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::maps::{Flat, Maps};
use crate::launch::{aligned, row_bytes, small, within};
use crate::machine::Machine;
use crate::registry::{Dtype, none_of};
use crate::tensor::DenseMatrix;

/// Kernel for `S[m,n] = X[m,k] * Y[n,k]`, prepared for fixed extents.
#[derive(Debug)]
pub(crate) struct PitSampledLaunch {
    kernel: Kernel<PitSampledParams>,
    extents: [usize; 3],
    grid: u32,
    empty: DeviceMemory,
}

/// Operands of a run. `gate` has S's shape; S is zero where `gate` is not positive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PitSampledRun {
    pub x: DenseMatrix,
    pub y: DenseMatrix,
    pub gate: Option<DenseMatrix>,
    pub s: DenseMatrix,
}

/// Kernel of this type that the GPU runs.
fn pick(dtype: Dtype, machine: &Machine) -> Result<&'static Row> {
    let mut own = rows_of::<PitSampledParams>().filter(|row| row.dtype == dtype);
    own.find(|row| machine.lacks(row).is_none()).ok_or_else(|| {
        let what = "S[L[p],n] = X[L[p],k] * Y[n,k], 64 columns at a time";
        none_of(rows_of::<PitSampledParams>(), what, |row| {
            machine.lacks(row).unwrap_or_else(|| format!("is for {}", row.dtype.name()))
        })
    })
}

impl PitSampledLaunch {
    /// Prepares the product for `[m, n, k]`.
    pub(crate) fn new(device: &Device, dtype: Dtype, extents: [usize; 3]) -> Result<Self> {
        let row = pick(dtype, device.machine())?;
        let kernel = Kernel::load(device, row)?;
        let [m, n, k] = extents;
        let listed = row.items as usize;
        for (what, value) in [("rows of S", m), ("columns of S", n), ("terms", k)] {
            within(what, value, i32::MAX as usize - listed)?;
        }
        let vector = row.vector as usize;
        // Operand names of the caller: S is the gradient of a dynamic A.
        for (name, columns) in [("A", n), ("dC", k)] {
            if !columns.is_multiple_of(vector) {
                return Err(Error::columns(name, columns, vector));
            }
        }
        let panels = n.div_ceil(SAMPLED_WIDTH);
        let places = panels.saturating_mul(list_stride(m));
        within("places of all lists", places, i32::MAX as usize)?;
        let tiles = within("tiles", panels * m.div_ceil(listed), i32::MAX as usize)?;
        Ok(PitSampledLaunch {
            kernel,
            extents,
            grid: tiles.min(device.machine().multiprocessors),
            empty: device.zeros(16)?,
        })
    }

    pub(crate) fn name(&self) -> &'static str {
        self.kernel.row().name
    }

    /// Params of a run, or an error if the operands cannot be read.
    pub(crate) fn params(
        &self,
        lists: &DeviceLists,
        run: &PitSampledRun,
    ) -> Result<PitSampledParams> {
        let PitSampledRun { x, y, gate, s } = *run;
        let [m, n, k] = self.extents;
        let named = [("dC", Some(x)), ("B", Some(y)), ("dA", Some(s)), ("A", gate)];
        for (name, matrix) in named {
            if let Some(matrix) = matrix {
                aligned(self.kernel.row(), name, matrix.address, matrix.leading)?;
            }
        }
        let dtype = self.kernel.row().dtype;
        let bytes = |of: &str, matrix: DenseMatrix| row_bytes(of, matrix.leading, dtype.bytes());
        let rows_of_y = Flat { address: y.address, extents: [k, n], leading: y.leading };
        let maps = Maps::of(self.kernel.row(), &self.empty);
        let y_map = maps.matrix(&rows_of_y, [64, SAMPLED_WIDTH], 64)?;
        Ok(PitSampledParams {
            y_map,
            lists: lists.lists.address(),
            counts: lists.counts.address(),
            x: x.address,
            s: s.address,
            gate: gate.map_or(0, |gate| gate.address),
            ldx_bytes: bytes("X", x)?,
            lds_bytes: bytes("S", s)?,
            gate_bytes: gate.map_or(Ok(0), |gate| bytes("the gate", gate))?,
            n: small("columns of S", n)?,
            k: small("terms", k)?,
            panels: small("panels", n.div_ceil(SAMPLED_WIDTH))?,
            stride: small("places of a list", list_stride(m))?,
            flags: if gate.is_some() { SAMPLED_GATE } else { 0 },
            reserved: [0; 2],
        })
    }

    /// Queues a memset of all of S to zero.
    pub(crate) fn clear(&self, s: DenseMatrix, queue: Queue<'_>) -> Result<()> {
        let [m, n, _] = self.extents;
        let element = self.kernel.row().dtype.bytes();
        let (width, pitch) = (n * element, s.leading * element);
        if width == pitch {
            queue.fill(s.address, 0, m * width)
        } else {
            queue.fill_rows(s.address, pitch, 0, [width, m])
        }
    }

    /// Queues the product with these params. Other elements of S are unchanged. The lists in the params must be those
    /// of micro-tiles of 1 x 64 of a matrix of S's shape, found earlier on the stream.
    pub(crate) fn start(&self, params: &PitSampledParams, queue: Queue<'_>) -> Result<()> {
        if self.grid == 0 {
            return Ok(());
        }
        // No early start: the preceding operation clears S and is not a kernel.
        let grid = Grid::of([self.grid, 1, 1]);
        queue.launch(&self.kernel, grid, params)
    }
}
