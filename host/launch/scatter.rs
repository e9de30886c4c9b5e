//! Values to the places they have in another form of their matrix.

use einsparse_kernels::abi::{Operation, ScatterParams};
use einsparse_kernels::table::{Row, kernels};

use super::{MAX_GRID_X, config, within};
use crate::device::Device;
use crate::driver::{DeviceMemory, Function, RawStream};
use crate::error::{Error, Result};
use crate::registry::Dtype;

/// Places on the device, and the kernel for one width of element.
#[derive(Debug)]
pub(crate) struct Scatter {
    row: &'static Row,
    function: Function,
    places: DeviceMemory,
    count: u32,
}

impl Scatter {
    /// For elements as wide as `dtype`; `places` are distinct, or `u32::MAX` for none.
    pub(crate) fn new(device: &Device, dtype: Dtype, places: &[u32]) -> Result<Self> {
        let fits =
            |row: &&Row| row.operation == Operation::Scatter && row.dtype.bytes() == dtype.bytes();
        let row = kernels().iter().find(fits).ok_or_else(|| Error::Operand {
            name: "values".into(),
            reason: format!("are {}, which no kernel moves", dtype.name()),
        })?;
        let most = (MAX_GRID_X * row.items as usize).min(u32::MAX as usize);
        Ok(Scatter {
            row,
            function: device
                .modules()
                .function(row.family, row.name, row.shared_bytes)?,
            places: device.upload(places)?,
            count: within("values", places.len(), most)?,
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.places.bytes()
    }

    /// Queues `out[places[i]] = values[i]`.
    ///
    /// # Safety
    /// `values` holds an element for each place, `out` one at each, in device memory until the work is done.
    pub(crate) unsafe fn run(&self, values: u64, out: u64, stream: RawStream<'_>) -> Result<()> {
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
        self.function.context().set_current()?;
        let config = config(self.row, [self.count.div_ceil(self.row.items), 1, 1]);
        // SAFETY: the params are those of the family; values and output are the caller's promise, the places are owned
        // by self, whose memory the driver frees only after the work.
        unsafe { self.function.launch(&config, stream, &params) }
    }
}
