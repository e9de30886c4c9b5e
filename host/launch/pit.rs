//! A product with an operand whose micro-tiles were found while running: its list and its packed values are read on the device.

use einsparse_kernels::abi::{FLAG_VECTORS, PitParams};
use einsparse_kernels::table::{Row, kernels};

use super::maps::{Flat, tensor_map};
use super::{DenseMatrix, DeviceLists, aligned, config, refused, small, within};
use crate::device::Device;
use crate::driver::{DeviceMemory, Function, LaunchConfig, RawStream};
use crate::error::{Error, Refusal, Result};
use crate::registry::Dtype;

/// A kernel chosen for these extents.
#[derive(Debug)]
pub(crate) struct PitLaunch {
    row: &'static Row,
    function: Function,
    extents: [usize; 3],
    panels: usize,
    stride: usize,
    grid: u32,
    empty: DeviceMemory,
}

impl PitLaunch {
    /// The product of `[m, k, n]` for micro-tiles of `height` rows, with lists of `stride` places.
    pub(crate) fn new(
        device: &Device,
        dtype: Dtype,
        height: usize,
        [m, k, n]: [usize; 3],
        stride: usize,
    ) -> Result<Self> {
        let own = kernels().iter().filter(|row| row.family == "pit");
        let fits = |row: &&Row| row.dtype == dtype && row.block == (height as u32, 1);
        let Some(row) = own.clone().find(fits) else {
            return Err(Error::NoKernel {
                indirect: format!("C[m,n] += A[m,AK[p]] * B[AK[p],n], {height} rows at a time"),
                tried: own
                    .map(|row| Refusal {
                        name: row.name.into(),
                        reason: format!("is for {} rows of {}", row.block.0, row.dtype.name()),
                    })
                    .collect(),
            });
        };
        let function = device
            .modules()
            .function(row.family, row.name, row.shared_bytes)?;
        for (what, value) in [("rows of A", m), ("rows of B", k), ("columns of B", n)] {
            within(what, value, i32::MAX as usize - row.columns as usize)?;
        }
        let panels = m.div_ceil(height);
        within(
            "places of all lists",
            panels.saturating_mul(stride),
            i32::MAX as usize,
        )?;
        let tiles = panels.saturating_mul(n.div_ceil(row.columns as usize));
        let tiles = within("tiles", tiles, i32::MAX as usize)?;
        Ok(PitLaunch {
            row,
            function,
            extents: [m, k, n],
            panels,
            stride,
            grid: tiles.min(device.machine().multiprocessors),
            empty: device.zeros(16)?,
        })
    }

    pub(crate) fn name(&self) -> &'static str {
        self.row.name
    }

    /// Queues the product.
    ///
    /// # Safety
    /// The lists are those of a detection of A with packed values, in the order of the stream; B and C are `[k, n]` and `[m, n]`
    /// of the row's type, until the work is done.
    pub(crate) unsafe fn run(
        &self,
        lists: &DeviceLists,
        b: DenseMatrix,
        c: DenseMatrix,
        stream: RawStream<'_>,
    ) -> Result<()> {
        let params = self.params(lists, b, c)?;
        // SAFETY: the caller's promise.
        unsafe { self.start(&params, stream) }
    }

    /// Queues the product of these params.
    ///
    /// # Safety
    /// As [`PitLaunch::run`], of what the params were made of.
    pub(crate) unsafe fn start(&self, params: &PitParams, stream: RawStream<'_>) -> Result<()> {
        if self.grid == 0 {
            return Ok(());
        }
        self.function.context().set_current()?;
        let config = LaunchConfig {
            // The kernel waits for the one ahead before it touches an operand.
            overlap_previous: true,
            ..config(self.row, [self.grid, 1, 1])
        };
        // SAFETY: the params are those of the family; the addresses are the caller's promise.
        unsafe { self.function.launch(&config, stream, params) }
    }

    /// The params of a run, or why the operands cannot be read.
    pub(crate) fn params(
        &self,
        lists: &DeviceLists,
        b: DenseMatrix,
        c: DenseMatrix,
    ) -> Result<PitParams> {
        let [m, _, n] = self.extents;
        let (dtype, height) = (self.row.dtype, self.row.block.0 as usize);
        let element = dtype.bytes();
        aligned(self.row, "B", b.address, b.leading)?;
        if !n.is_multiple_of(16 / element) {
            let reason = format!(
                "has {n} columns; the kernel copies {} at once",
                16 / element
            );
            return Err(refused("B", reason));
        }
        let Some(packed) = &lists.packed else {
            return Err(refused("index", "holds no values".into()));
        };
        let values = Flat {
            address: packed.address(),
            extents: [height, self.panels * self.stride],
            leading: height,
        };
        let whole = c.leading.is_multiple_of(16 / element) && c.address.is_multiple_of(16);
        let wide = height.min(64);
        let map =
            |matrix: &Flat, tile: [usize; 2]| tensor_map(dtype, matrix, tile, tile[0], &self.empty);
        let panels = small("panels", self.panels)?;
        Ok(PitParams {
            a_map: map(&values, [wide, 64])?,
            lists: lists.lists.address(),
            counts: lists.counts.address(),
            b: b.address,
            c: c.address,
            bias: 0,
            alpha: 1.0,
            ldb_bytes: small("bytes of a row of B", b.leading.saturating_mul(element))?,
            ldc_bytes: small("bytes of a row of C", c.leading.saturating_mul(element))?,
            m: small("rows of A", m)?,
            n: small("columns of B", n)?,
            panels,
            tiles: panels * n.div_ceil(self.row.columns as usize) as u32,
            stride: small("places of a list", self.stride)?,
            flags: if whole { FLAG_VECTORS } else { 0 },
        })
    }
}
