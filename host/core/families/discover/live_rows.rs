//! Launches of kernels for varlen rows, whose number is known on the device only: device modules `live_rows` and
//! `dense_live`.

use einsparse_kernels::abi::{FLAG_BIAS_COLUMNS, FLAG_GELU, FLAG_VECTORS, PANEL_BYTES};
use einsparse_kernels::families::{
    DenseParams, LIVE_ROWS_EARLY, LIVE_ROWS_PACKED, LIVE_ROWS_SCATTER, LiveRowsParams,
    NORM_COLUMNS, PACK_AHEAD, PACK_PAD, PACK_PARTS, STEP_LIVE_PRODUCT, STEP_NORM_ROWS,
    STEP_PACK_ROWS,
};
use einsparse_kernels::table::{Row, kernels};

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::families::discover::cost::live::clocks;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::maps::{Flat, Maps};
use crate::launch::{MAX_GRID_X, MAX_GRID_Y, aligned_to, in_vectors, row_bytes, small, within};
use crate::registry::{Dtype, Operation, none_of};

/// Rows in device memory, with row stride `leading` in elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    pub address: u64,
    pub leading: usize,
}

/// Max bytes of weights that packing prefetches into L2: they should still be in L2 when they are multiplied.
const FETCHED: usize = 24 << 20;

/// Returns the rows of the family and step for an element type.
fn rows_of(step: u32, dtype: Dtype) -> impl Iterator<Item = &'static Row> + Clone {
    kernels().iter().filter(move |row| {
        row.operation == Operation::Live && row.step == step && row.dtype == dtype
    })
}

fn find(step: u32, dtype: Dtype, what: &str) -> Result<&'static Row> {
    rows_of(step, dtype).next().ok_or_else(|| {
        let of_step = |row: &&Row| row.operation == Operation::Live && row.step == step;
        none_of(kernels().iter().filter(of_step), what, |row| {
            format!("is for {}, not {}", row.dtype.name(), dtype.name())
        })
    })
}

/// Packing of rows, and its results about them.
#[derive(Debug)]
pub struct PackLaunch {
    pack: Kernel<LiveRowsParams>,
    norm: Kernel<LiveRowsParams>,
    params: LiveRowsParams,
    /// Max packed rows, a multiple of 128.
    capacity: usize,
    /// Thread blocks of the normalization that the GPU holds at once.
    norm_blocks: usize,
    ranges: DeviceMemory,
    sources: DeviceMemory,
    live: DeviceMemory,
}

impl PackLaunch {
    /// Creates the packing of `items` sequences that begin `distance` rows apart, with at most `most` rows in total.
    pub fn new(
        device: &Device,
        dtype: Dtype,
        [items, distance, columns]: [usize; 3],
        most: usize,
        epsilon: f64,
    ) -> Result<Self> {
        if !columns.is_multiple_of(8) || columns > NORM_COLUMNS as usize {
            let allowed = format!("a multiple of 8, at most {NORM_COLUMNS}");
            return Err(Error::range("columns of x", columns, allowed));
        }
        let all = items.saturating_mul(distance);
        within("rows of all sequences", all, 1 << 30)?;
        let most = most.min(all);
        let capacity = most.next_multiple_of(PACK_PAD as usize);
        let kernel = |step, what: &str| Kernel::load(device, find(step, dtype, what)?);
        let ranges = device.zeros((capacity * 8).max(16))?;
        let sources = device.zeros((capacity * 4).max(16))?;
        let live = device.zeros(16)?;
        let params = LiveRowsParams {
            ranges: ranges.address(),
            sources: sources.address(),
            live: live.address(),
            columns: columns as u32,
            items: within("sequences", items, MAX_GRID_X)?,
            distance: small("rows of a sequence", distance)?,
            epsilon: epsilon as f32,
            most: small("packed rows", most)?,
            ..LiveRowsParams::default()
        };
        Ok(PackLaunch {
            pack: kernel(STEP_PACK_ROWS, "rows of sequences, packed")?,
            norm: kernel(STEP_NORM_ROWS, "rows, normalised")?,
            params,
            capacity,
            norm_blocks: 2 * device.machine().multiprocessors as usize,
            ranges,
            sources,
            live,
        })
    }

    /// Returns the max number of packed rows.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the addresses of the ranges of the packed rows, and of their number.
    pub fn addresses(&self) -> [u64; 2] {
        [self.ranges.address(), self.live.address()]
    }

    /// Sets the number of rows, if nothing is packed.
    pub fn set_live(&self, device: &Device, rows: usize) -> Result<()> {
        device.write(&self.live, &[small("rows", rows)?])
    }

    pub fn bytes(&self) -> usize {
        self.ranges.bytes() + self.sources.bytes() + self.live.bytes()
    }

    fn row_bytes(&self, rows: Rows, name: &str) -> Result<u32> {
        let bytes = rows.leading.saturating_mul(2);
        aligned_to(name, (rows.address, bytes), 16)?;
        small("bytes of a row", bytes)
    }

    /// Queues the packing of `x`, the rows of all sequences, or rows that are already `packed`. `ahead` are addresses
    /// and bytes of matrices that are prefetched into L2 for the next launches. There is one length per sequence, and
    /// `out` has `capacity` rows.
    pub fn pack(
        &self,
        (x, packed): (Rows, bool),
        lengths: u64,
        out: Rows,
        ahead: [(u64, usize); PACK_AHEAD],
        queue: Queue<'_>,
    ) -> Result<()> {
        let mut left = FETCHED;
        let bytes = ahead.map(|(address, bytes)| {
            let bytes = if address.is_multiple_of(16) { bytes / 16 * 16 } else { 0 };
            let taken = if bytes <= left { bytes } else { 0 };
            left -= taken;
            taken
        });
        let blocks = (self.params.items * PACK_PARTS).max(1) as usize;
        let params = LiveRowsParams {
            ahead: ahead.map(|(address, _)| address),
            ahead_bytes: bytes.map(|bytes| bytes as u32),
            ahead_part: bytes.map(|bytes| bytes.div_ceil(blocks).next_multiple_of(128) as u32),
            x: x.address,
            out: out.address,
            lengths,
            x_row: self.row_bytes(x, "x")?,
            out_row: self.row_bytes(out, "packed rows")?,
            flags: if packed { LIVE_ROWS_PACKED } else { 0 },
            ..self.params
        };
        let grid = [self.params.items, PACK_PARTS, 1];
        // This kernel, like the others here, waits for the previous launch itself.
        queue.launch(&self.pack, Grid::of(grid).early(), &params)
    }

    /// Queues `out = norm(x + y)` of packed rows. `scatter`: results are stored at the source rows. `early`: all inputs
    /// except `y` were written by launches that had ended before the previous launch started. `affine` is the scale and
    /// the shift of each column.
    pub fn norm(
        &self,
        [x, y]: [Rows; 2],
        affine: [u64; 2],
        (out, scatter, early): (Rows, bool, bool),
        queue: Queue<'_>,
    ) -> Result<()> {
        for (name, address) in ["factor of the norm", "summand of the norm"].into_iter().zip(affine)
        {
            in_vectors(name, address)?;
        }
        let params = LiveRowsParams {
            x: x.address,
            y: y.address,
            out: out.address,
            scale: affine[0],
            shift: affine[1],
            x_row: self.row_bytes(x, "x")?,
            y_row: self.row_bytes(y, "y")?,
            out_row: self.row_bytes(out, "out")?,
            flags: if scatter { LIVE_ROWS_SCATTER } else { 0 }
                | if early { LIVE_ROWS_EARLY } else { 0 },
            ..self.params
        };
        // Further rows are processed by the same thread blocks.
        let blocks = self.capacity.div_ceil(self.norm.row().items as usize);
        let grid = [blocks.min(self.norm_blocks) as u32, 1, 1];
        queue.launch(&self.norm, Grid::of(grid).early(), &params)
    }
}

/// Product of packed rows with a matrix.
#[derive(Debug)]
pub struct LiveProduct {
    kernel: Kernel<DenseParams>,
    extents: [usize; 3],
    grid: [u32; 3],
    empty: DeviceMemory,
}

impl LiveProduct {
    /// Creates `C[m,n] = A[m,k] * B[k,n]` with at most m rows, and the tiles that are fastest for `expected` rows.
    pub fn new(
        device: &Device,
        dtype: Dtype,
        [m, k, n]: [usize; 3],
        expected: usize,
    ) -> Result<Self> {
        for (what, value) in [("rows of A", m), ("rows of B", k), ("columns of B", n)] {
            within(what, value, i32::MAX as usize - 256)?;
        }
        if !k.is_multiple_of(8) || !n.is_multiple_of(8) {
            return Err(Error::range("weights", format!("{k} x {n}"), "multiples of 8"));
        }
        let machine = device.machine();
        let some = machine.multiprocessors as usize;
        let row = rows_of(STEP_LIVE_PRODUCT, dtype)
            .filter(|row| machine.lacks(row).is_none())
            .min_by_key(|row| clocks(row, [expected.clamp(1, m.max(1)), k, n], some));
        let Some(row) = row else {
            let all = kernels().iter().filter(|row| row.step == STEP_LIVE_PRODUCT);
            let all = all.filter(|row| row.operation == Operation::Live);
            return Err(none_of(all, "a product of packed rows", |row| {
                let lacks = machine.lacks(row).filter(|_| row.dtype == dtype);
                lacks.unwrap_or_else(|| format!("is for {}", row.dtype.name()))
            }));
        };
        let across = n.div_ceil(row.columns as usize) * row.parts as usize;
        // The grid has the rows of tiles that the GPU holds at once; the same thread blocks process further ones. A
        // thread block without work costs as much as a start.
        let all = m.div_ceil(row.block.0 as usize).max(1);
        let down = (some / across.max(1)).clamp(1, all);
        Ok(LiveProduct {
            grid: [
                within("tiles across", across, MAX_GRID_X)?,
                within("tiles down", down, MAX_GRID_Y)?,
                u32::from(m > 0),
            ],
            kernel: Kernel::load(device, row)?,
            extents: [m, k, n],
            empty: device.zeros(16)?,
        })
    }

    pub fn name(&self) -> &'static str {
        self.kernel.row().name
    }

    /// Queues `C = A * B + bias`, followed by GELU if `gelu`, of as many rows as `live` contains. Rows up to a multiple
    /// of 128 are written. B and bias are always read before the previous launch has ended. They must be written by
    /// launches that had ended before the previous launch started. With `early` this holds for `live` too; otherwise
    /// the previous launch may write `live`.
    pub fn run(
        &self,
        [a, b, c]: [Rows; 3],
        (bias, gelu): (u64, bool),
        (live, early): (u64, bool),
        queue: Queue<'_>,
    ) -> Result<()> {
        let [m, k, n] = self.extents;

        for (name, rows) in [("A", a), ("weights", b), ("C", c)] {
            aligned_to(name, (rows.address, rows.leading.saturating_mul(2)), 16)?;
        }
        let row = self.kernel.row();
        let (high, deep) = (row.block.0 as usize, row.block.1 as usize);
        let map = |rows: Rows, extents, tile: [usize; 2]| {
            let matrix = Flat { address: rows.address, extents, leading: rows.leading };
            Maps::of(row, &self.empty).matrix(&matrix, tile, tile[0])
        };
        let gelu = if gelu { FLAG_GELU } else { 0 };
        let params = DenseParams {
            a_map: map(a, [k, m], [deep, high])?,
            b_map: map(b, [n, k], [PANEL_BYTES / 2, deep])?,
            c: c.address,
            bias,
            live,
            alpha: 1.0,
            n: small("columns of B", n)?,
            m: small("rows of A", m)?,
            ldc_bytes: row_bytes("C", c.leading, 2)?,
            flags: FLAG_VECTORS | FLAG_BIAS_COLUMNS | gelu,
            stages: small("stages", k.div_ceil(deep))?,
            early: u32::from(early),
        };
        let grid = Grid::of(self.grid).in_clusters(self.kernel.row().parts);
        queue.launch(&self.kernel, grid.early(), &params)
    }
}

#[cfg(test)]
mod tests {
    use crate::error::Error;
    use crate::launch::in_vectors;

    #[test]
    fn factors_off_16_bytes_are_refused_with_their_address() {
        assert!(in_vectors("factor of the norm", 0x7f00).is_ok());
        let error = in_vectors("factor of the norm", 0x7f02).unwrap_err();
        assert_eq!(error, Error::alignment("factor of the norm", "address", 0x7f02, 16));
    }
}
