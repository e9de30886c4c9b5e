//! Convolution of dynamic channels, or to dynamic filters, that a detection has listed.

use einsparse_kernels::abi::Divisor;
use einsparse_kernels::families::{PIT_CONV_DEPTH, PitConvParams, STEP_CHANNELS, STEP_FILTERS};
use einsparse_kernels::table::{Row, rows_of};

use crate::cost::Cost;
use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::families::discover::{ChannelsLaunch, DeviceLists};
use crate::families::gather_gemm::ConvolutionShape;
use crate::families::gather_gemm::cost::pit_conv::ConvTiles;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::maps::{Heads, Images, Maps};
use crate::launch::{aligned_to, in_vectors, row_bytes, small, within};
use crate::machine::Machine;
use crate::registry::{Dtype, none_of};
use crate::tensor::DenseMatrix;

/// Max positions of a tile along an axis, times the stride in A: the limit of a tensor map.
const SPAN: usize = 256;
/// Max stride: the limit of the element strides of a tensor map.
const MOST_STRIDE: usize = 8;

/// Kernel and its tiles, chosen for a shape.
#[derive(Debug)]
pub(crate) struct PitConvLaunch {
    kernel: Kernel<PitConvParams>,
    shape: ConvolutionShape,
    filters: bool,
    /// Positions of a tile along both axes.
    tile: [usize; 2],
    params: PitConvParams,
    grid: u32,
    empty: DeviceMemory,
}

/// Returns the tiles of this many positions that tensor maps can read.
fn boxes(positions: usize, stride: [usize; 2]) -> impl Iterator<Item = [usize; 2]> {
    let along = (0..=positions.ilog2()).map(move |log| [positions >> log, 1 << log]);
    along.filter(move |tile| (0..2).all(|axis| tile[axis] * stride[axis] <= SPAN))
}

impl PitConvLaunch {
    /// Loads the kernel, for lists of `stride` words: one list of filters, or one of the channels of each image.
    pub(crate) fn new(
        device: &Device,
        dtype: Dtype,
        shape: ConvolutionShape,
        (filters, stride): (bool, usize),
    ) -> Result<Self> {
        if let Some(&stride) = shape.stride.iter().find(|&&stride| stride > MOST_STRIDE) {
            return Err(Error::range("stride", stride, format!("at most {MOST_STRIDE}")));
        }
        let out = shape.out()?;
        limits(&shape, out)?;
        let machine = device.machine();
        let own = rows_of::<PitConvParams>();
        let wanted = if filters { STEP_FILTERS } else { STEP_CHANNELS };
        let fits =
            |row: &&Row| row.dtype == dtype && row.step == wanted && machine.lacks(row).is_none();
        let choices = own.clone().filter(fits).flat_map(|row| {
            let tiles = boxes(row.block.0 as usize, shape.stride);
            tiles.map(move |tile| (row, tile))
        });
        // Ties are broken by fewer columns, which allow more stages in flight, then by fewer tiles.
        let order = |(row, tile): &(&'static Row, [usize; 2])| {
            let tiles = ConvTiles::of(row, *tile, &shape, out);
            (tiles.us(machine), row.columns, tiles.count())
        };
        let best = choices.min_by(|a, b| {
            let ((own, columns, tiles), (other, theirs, count)) = (order(a), order(b));
            let equal = columns.cmp(&theirs).then(tiles.total_cmp(&count));
            own.total_cmp(&other).then(equal)
        });
        let Some((row, tile)) = best else {
            let what = "C[n,x,y,f] += A[n,X[x,i],Y[y,j],AM[p]] * B[i,j,AM[p],f]";
            return Err(none_of(own, what, |row| {
                let other = format!("is for {}", row.dtype.name());
                machine.lacks(row).unwrap_or(other)
            }));
        };
        let kernel = Kernel::load(device, row)?;
        let params = params(&shape, out, tile, stride)?;
        let across = shape.filters.div_ceil(row.columns as usize);
        let tiles = (params.positions as usize).saturating_mul(across);
        let tiles = within("tiles", tiles, i32::MAX as usize)?;
        Ok(PitConvLaunch {
            kernel,
            filters,
            tile,
            params,
            grid: tiles.min(machine.multiprocessors),
            empty: device.zeros(16)?,
            shape,
        })
    }

    pub(crate) fn name(&self) -> &'static str {
        self.kernel.row().name
    }

    /// Predicts the cost of detection and product at this share of nonempty channels or filters.
    pub(crate) fn cost(&self, share: f64, machine: &Machine) -> Cost {
        let out = self.params.out.map(|extent| extent as usize);
        ConvTiles::of(self.kernel.row(), self.tile, &self.shape, out).cost(
            self.filters,
            share,
            machine,
        )
    }

    /// Queues the convolution of A, or of its packed channels, with B, or its packed filters. The lists come from a
    /// detection of A or B earlier on the stream, with packed values.
    pub(crate) fn run(
        &self,
        lists: &DeviceLists,
        all: [DenseMatrix; 3],
        queue: Queue<'_>,
    ) -> Result<()> {
        let params = self.bound(lists, all)?;
        let c = &all[2];
        let element = self.kernel.row().dtype.bytes();
        if self.filters {
            let [x, y] = self.params.out.map(|extent| extent as usize);
            let rows = self.shape.images.saturating_mul(x).saturating_mul(y);
            let extents = [self.shape.filters * element, rows];
            self.kernel.set_current()?;
            queue.fill_rows(c.address, c.leading * element, 0, extents)?;
        }
        if self.grid == 0 {
            return Ok(());
        }
        // The kernel waits for the previous launch before it accesses an operand.
        let grid = Grid::of([self.grid, 1, 1]).early();
        queue.launch(&self.kernel, grid, &params)
    }

    /// Queues the detection `channels` in the sparse operand, then the convolution.
    pub(crate) fn run_found(
        &self,
        channels: &ChannelsLaunch,
        lists: &DeviceLists,
        all: [DenseMatrix; 3],
        queue: Queue<'_>,
    ) -> Result<()> {
        // All errors are detected before anything is queued.
        self.check(all)?;
        let sparse = if self.filters { all[1] } else { all[0] };
        channels.run(sparse, lists, queue)?;
        self.run(lists, all, queue)
    }

    /// Returns an error if the kernel cannot read these operands. Called before anything is queued.
    pub(crate) fn check(&self, [a, b, c]: [DenseMatrix; 3]) -> Result<()> {
        let vector = self.kernel.row().vector as usize;
        whole("A", &a, vector)?;
        whole("B", &b, vector)?;
        if self.filters {
            return Ok(());
        }
        whole("C", &c, vector)?;
        if !self.shape.filters.is_multiple_of(vector) {
            let allowed = format!("a multiple of {vector}, which the kernel copies at once");
            return Err(Error::range("filters", self.shape.filters, allowed));
        }
        Ok(())
    }

    fn bound(&self, lists: &DeviceLists, all: [DenseMatrix; 3]) -> Result<PitConvParams> {
        self.check(all)?;
        let [a, b, c] = all;
        let Some(packed) = &lists.packed else {
            return Err(Error::operand("index", "holds no values"));
        };
        in_vectors("index", packed.address())?;
        let (shape, dtype) = (&self.shape, self.kernel.row().dtype);
        let stride = self.params.list_stride as usize;
        let (address, channels, leading) = if self.filters {
            (a.address, shape.channels, a.leading)
        } else {
            (packed.address(), stride, stride)
        };
        let [h, w] = shape.size;
        let images = Images {
            address,
            extents: [channels, w, h, shape.images],
            strides: [leading, w * leading, h * w * leading],
        };
        let maps = Maps::of(self.kernel.row(), &self.empty);
        let steps = [1, shape.stride[1], shape.stride[0], 1];
        let boxes = |channels: usize| {
            let tile = [channels, self.tile[1], self.tile[0], 1];
            maps.images(&images, (tile, steps))
        };
        let a_map = boxes(PIT_CONV_DEPTH)?;
        let b_map = if self.filters {
            // The heads of this map are the matrices of the taps.
            let taps = Heads {
                address: packed.address(),
                extents: [stride, shape.channels, shape.taps()],
                strides: [stride, shape.channels * stride],
            };
            maps.heads(&taps, [64, PIT_CONV_DEPTH])?
        } else {
            boxes(PIT_CONV_DEPTH / 2)?
        };
        let bytes = |of: &str, leading: usize| row_bytes(of, leading, dtype.bytes());
        Ok(PitConvParams {
            a_map,
            b_map,
            lists: lists.lists.address(),
            counts: lists.counts.address(),
            b: b.address,
            c: c.address,
            ldb_bytes: bytes("B", b.leading)?,
            ldc_bytes: bytes("C", c.leading)?,
            ..self.params
        })
    }
}

/// Validates that rows can be copied by 16 bytes, which are `vector` elements.
pub(super) fn whole(name: &str, matrix: &DenseMatrix, vector: usize) -> Result<()> {
    let row_bytes = matrix.leading.saturating_mul(16 / vector);
    aligned_to(name, (matrix.address, row_bytes), 16)
}

/// Validates extents and their products against the max index of the kernels.
pub(super) fn limits(shape: &ConvolutionShape, out: [usize; 2]) -> Result<()> {
    let most = i32::MAX as usize;
    let product = |of: &[usize]| of.iter().fold(1usize, |all, &extent| all.saturating_mul(extent));
    for (what, value) in [
        ("images", shape.images),
        ("channels", shape.channels),
        ("filters", shape.filters),
        ("rows of B", product(&[shape.taps(), shape.channels])),
        ("positions of A", product(&[shape.images.max(1), shape.size[0], shape.size[1]])),
        ("positions of C", product(&[shape.images.max(1), out[0], out[1]])),
    ] {
        within(what, value, most)?;
    }
    Ok(())
}

/// Returns the params that are equal in all runs.
fn params(
    shape: &ConvolutionShape,
    out: [usize; 2],
    tile: [usize; 2],
    stride: usize,
) -> Result<PitConvParams> {
    let pair = |what: &str, of: [usize; 2]| -> Result<[u32; 2]> {
        Ok([
            within(what, of[0], i32::MAX as usize / 2)?,
            within(what, of[1], i32::MAX as usize / 2)?,
        ])
    };
    let tiles = [out[0].div_ceil(tile[0]), out[1].div_ceil(tile[1])];
    let of_image = small("tiles of an image", tiles[0].saturating_mul(tiles[1]))?;
    let positions = shape.images.saturating_mul(tiles[0] * tiles[1]);
    Ok(PitConvParams {
        a_map: [0; 16],
        b_map: [0; 16],
        lists: 0,
        counts: 0,
        b: 0,
        c: 0,
        image: Divisor::new(of_image),
        row: Divisor::new(small("tiles of a row", tiles[1])?),
        window: Divisor::new(small("taps of a row", shape.window[1])?),
        wide: Divisor::new(small("positions of a tile", tile[1])?),
        out: pair("positions of C", out)?,
        stride: pair("stride", shape.stride)?,
        dilation: pair("dilation", shape.dilation)?,
        padding: pair("padding", shape.padding)?,
        taps: small("taps", shape.taps())?,
        positions: within("tiles", positions, i32::MAX as usize)?,
        channels: within("channels", shape.channels, i32::MAX as usize)?,
        filters: within("filters", shape.filters, i32::MAX as usize)?,
        list_stride: small("places of a list", stride)?,
        ldb_bytes: 0,
        ldc_bytes: 0,
        reserved: 0,
    })
}
