//! Scatter of values to their offsets in another format of the matrix.

use einsparse_kernels::families::ScatterParams;
use einsparse_kernels::table::{Row, rows_of};

use crate::device::Device;
use crate::driver::DeviceMemory;
use crate::error::{Error, Result};
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{MAX_GRID_X, within};
use crate::registry::Dtype;

/// Offset of a value that is not written.
const NOWHERE: u32 = u32::MAX;

/// Offsets in device memory, and the kernel for one element size.
#[derive(Debug)]
pub(crate) struct Scatter {
    kernel: Kernel<ScatterParams>,
    places: DeviceMemory,
    count: u32,
}

impl Scatter {
    /// Prepares elements of the size of `dtype`. `places` are distinct, or `u32::MAX` for values that are not written.
    pub(crate) fn new(device: &Device, dtype: Dtype, places: &[u32]) -> Result<Self> {
        let fits = |row: &&Row| row.dtype.bytes() == dtype.bytes();
        let row = rows_of::<ScatterParams>()
            .find(fits)
            .ok_or_else(|| Error::no_kernel(format!("moving values of {}", dtype.name()), []))?;
        let most = (MAX_GRID_X * row.items as usize).min(u32::MAX as usize);
        Ok(Scatter {
            kernel: Kernel::load(device, row)?,
            places: device.upload(places)?,
            count: within("values", places.len(), most)?,
        })
    }

    /// Returns the offset of the value of each slot. `numbers` states for each offset its slot, counted from 1, or 0
    /// for none.
    ///
    /// # Errors
    /// Returns [`Error::Overflow`] if an offset does not fit 32 bits.
    pub(crate) fn places(numbers: &[i32], slots: usize) -> Result<Vec<u32>> {
        let mut places = vec![NOWHERE; slots];
        for (place, &slot) in numbers.iter().enumerate() {
            if slot > 0 {
                places[slot as usize - 1] = u32::try_from(place).map_err(|_| Error::Overflow {
                    what: "slots of the form that a plan keeps".into(),
                    value: numbers.len() as u128,
                    limit: u128::from(u32::MAX),
                })?;
            }
        }
        Ok(places)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.places.bytes()
    }

    /// Queues `out[places[i]] = values[i]`. `values` holds one element per offset; all offsets are inside `out`.
    pub(crate) fn run(&self, values: u64, out: u64, queue: Queue<'_>) -> Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        let params = ScatterParams {
            values,
            places: self.places.address(),
            out,
            count: self.count,
            reserved: 0,
        };
        let grid = Grid::of([self.count.div_ceil(self.kernel.row().items), 1, 1]);
        queue.launch(&self.kernel, grid, &params)
    }
}
