//! Launch of device module `dense_conv`: a convolution of all channels to all filters.

use einsparse_kernels::abi::{Divisor, FLAG_VECTORS};
use einsparse_kernels::families::{DenseConvParams, DenseParams};
use einsparse_kernels::table::{Row, rows_of};

use crate::cost::Cost;
use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::Result;
use crate::families::gather_gemm::ConvolutionShape;
use crate::families::gather_gemm::pit_conv::{limits, whole};
use crate::families::gemm::cost::dense::{Rates, of_tiles};
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::maps::{Heads, Images, Maps, Places};
use crate::launch::{MAX_GRID_X, MAX_GRID_Y, small, within};
use crate::machine::Machine;
use crate::registry::{Dtype, none_of};
use crate::tensor::DenseMatrix;

/// Limits of a tensor map of pixels: zeros of padding, positions between the first and the last tap, and stride.
const MOST_PADDING: usize = 127;
const MOST_REACH: usize = 127;
const MOST_STRIDE: usize = 8;

/// Kernel chosen for a shape.
#[derive(Debug)]
pub(crate) struct DenseConvLaunch {
    kernel: Kernel<DenseConvParams>,
    shape: ConvolutionShape,
    params: DenseConvParams,
    /// Thread blocks: parts along k x tiles of filters, tiles of positions.
    grid: [u32; 3],
    cost: Cost,
    empty: DeviceMemory,
}

/// Extents of the matrix product of a shape.
struct Extents {
    positions: usize,
    /// Stages of a tap, and channels of a stage.
    stages: usize,
    deep: usize,
    k: usize,
}

impl Extents {
    fn of(row: &Row, shape: &ConvolutionShape, out: [usize; 2]) -> Self {
        let deep = row.block.1 as usize;
        let stages = shape.channels.div_ceil(deep);
        Extents {
            positions: shape.images * out[0] * out[1],
            stages,
            deep,
            k: shape.taps().saturating_mul(stages).saturating_mul(deep),
        }
    }
}

/// Predicts the cost of the kernel.
fn predict(row: &Row, shape: &ConvolutionShape, out: [usize; 2], machine: &Machine) -> Cost {
    let Extents { positions, k, .. } = Extents::of(row, shape, out);
    let read = (shape.images * shape.size[0] * shape.size[1]) as f64 * shape.channels as f64;
    let weights = (shape.taps() * shape.channels) as f64 * shape.filters as f64;
    let written = positions as f64 * shape.filters as f64;
    let bytes = (read + weights + written) * row.dtype.bytes() as f64;
    let hbm_us = bytes / machine.hbm * 1e6;
    let rates = Rates { hbm_us, l2: PIXELS_L2, followed: row.parts == 1 };
    // Fewer than 64 filters cost as much as 64.
    let extents = [positions, k, shape.filters.max(64)];
    let cost = of_tiles(row, extents, rates, machine);
    let narrow = if row.columns == 64 { NARROW } else { 1.0 };
    Cost { us: OVERLAP * narrow * cost.us, ..cost }
}

/// L2 rate of copies of pixels, relative to that of gathers.
const PIXELS_L2: f64 = 1.25;
/// Factor of the predicted time, because consecutive tiles overlap. These factors are fitted to the five layers of the
/// bench `pit_conv`.
const OVERLAP: f64 = 0.85;
/// Additional factor of 64 columns: each read of A from shared memory serves half as many products.
const NARROW: f64 = 1.08;

impl DenseConvLaunch {
    /// Loads the kernel with the min predicted cost, or the kernel of this name.
    pub(crate) fn new(
        device: &Device,
        dtype: Dtype,
        shape: ConvolutionShape,
        name: Option<&str>,
    ) -> Result<Self> {
        let out = shape.out()?;
        limits(&shape, out)?;
        for axis in 0..2 {
            within("stride", shape.stride[axis], MOST_STRIDE)?;
            within("padding", shape.padding[axis], MOST_PADDING)?;
            within("positions of a window", reach(&shape)[axis], MOST_REACH)?;
        }
        let machine = device.machine();
        let own = rows_of::<DenseConvParams>();
        let of_type = own
            .clone()
            .filter(|row| row.dtype == dtype && name.is_none_or(|name| row.name == name))
            .filter(|row| machine.lacks(row).is_none())
            .map(|row| (row, predict(row, &shape, out, machine)));
        let best = of_type.min_by(|(_, a), (_, b)| a.us.total_cmp(&b.us));
        let Some((row, cost)) = best else {
            return Err(none_of(own, "C[n,x,y,f] = A[n,x+i,y+j,m] * B[i,j,m,f]", |row| {
                let lacks = machine.lacks(row).filter(|_| row.dtype == dtype);
                lacks.unwrap_or_else(|| format!("is for {}", row.dtype.name()))
            }));
        };
        let Extents { positions, .. } = Extents::of(row, &shape, out);
        let across = shape.filters.div_ceil(row.columns as usize) * row.parts as usize;
        let mut down = positions.div_ceil(row.block.0 as usize);
        if row.parts == 1 {
            // Launch only the thread blocks that run at once. Each continues with the tile one grid further down.
            let slots = (machine.multiprocessors * row.min_blocks) as usize;
            down = down.min((slots / across.max(1)).max(1));
        }
        Ok(DenseConvLaunch {
            kernel: Kernel::load(device, row)?,
            params: params(row, &shape, out)?,
            grid: [
                within("thread blocks of a row of tiles", across, MAX_GRID_X)?,
                within("rows of tiles", down, MAX_GRID_Y)?,
                1,
            ],
            cost,
            empty: device.zeros(16)?,
            shape,
        })
    }

    pub(crate) fn name(&self) -> &'static str {
        self.kernel.row().name
    }

    pub(crate) fn cost(&self) -> Cost {
        self.cost
    }

    /// Returns an error if the kernel cannot read these operands. Called before anything is queued.
    pub(crate) fn check(&self, [a, b, _]: [DenseMatrix; 3]) -> Result<()> {
        let vector = self.kernel.row().vector as usize;
        whole("A", &a, vector)?;
        whole("B", &b, vector)
    }

    pub(crate) fn run(&self, all: [DenseMatrix; 3], queue: Queue<'_>) -> Result<()> {
        let params = self.bound(all)?;
        if self.grid.contains(&0) {
            return Ok(());
        }
        // The kernel waits for the previous launch before it accesses an operand.
        let grid = Grid::of(self.grid).in_clusters(self.kernel.row().parts).early();
        queue.launch(&self.kernel, grid, &params)
    }

    fn bound(&self, all: [DenseMatrix; 3]) -> Result<DenseConvParams> {
        self.check(all)?;
        let [a, b, c] = all;
        let (shape, row) = (&self.shape, self.kernel.row());
        let element = row.dtype.bytes();
        let [h, w] = shape.size;
        let images = Images {
            address: a.address,
            extents: [shape.channels, w, h, shape.images],
            strides: [a.leading, w * a.leading, h * w * a.leading],
        };
        let places = Places { padding: shape.padding, reach: reach(shape), stride: shape.stride };
        // The heads of this map are the matrices of the taps.
        let taps = Heads {
            address: b.address,
            extents: [shape.filters, shape.channels, shape.taps()],
            strides: [b.leading, shape.channels * b.leading],
        };
        let (rows, deep) = (row.block.0 as usize, row.block.1 as usize);
        let mut params = self.params;
        let maps = Maps::of(row, &self.empty);
        params.product.a_map = maps.pixels(&images, &places, rows)?;
        params.product.b_map = maps.heads(&taps, [64, deep])?;
        params.product.c = c.address;
        let line = c.leading.saturating_mul(element);
        params.product.ldc_bytes = small("bytes of a row of C", line)?;
        let lines = [c.leading, shape.filters];
        if c.address.is_multiple_of(16) && lines.iter().all(|x| x.is_multiple_of(16 / element)) {
            params.product.flags |= FLAG_VECTORS;
        }
        Ok(params)
    }
}

/// Returns the distance of the last tap from the first.
fn reach(shape: &ConvolutionShape) -> [usize; 2] {
    [0, 1].map(|axis| (shape.window[axis] - 1).saturating_mul(shape.dilation[axis]))
}

/// Returns the params that are equal in all runs.
fn params(row: &Row, shape: &ConvolutionShape, out: [usize; 2]) -> Result<DenseConvParams> {
    let Extents { positions, stages, deep, k } = Extents::of(row, shape, out);
    let pair = |of: [usize; 2]| of.map(|extent| extent as u32);
    Ok(DenseConvParams {
        product: DenseParams {
            a_map: [0; 16],
            b_map: [0; 16],
            c: 0,
            bias: 0,
            live: 0,
            alpha: 1.0,
            n: small("filters", shape.filters)?,
            m: small("positions of C", positions)?,
            ldc_bytes: 0,
            flags: 0,
            // Without positions, images require no stages: all of C is zero.
            stages: match shape.size.contains(&0) {
                true => 0,
                false => small("stages of a tile", k / deep)?,
            },
            early: 0,
        },
        image: Divisor::new(small("positions of an image", out[0] * out[1])?),
        row: Divisor::new(small("positions of a row", out[1])?),
        window: Divisor::new(small("taps of a row", shape.window[1])?),
        tap: Divisor::new(small("stages of a tap", stages)?),
        stride: pair(shape.stride),
        dilation: pair(shape.dilation),
        padding: pair(shape.padding),
    })
}
