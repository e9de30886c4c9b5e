//! Addresses of the module `vectors`.

use crate::device::memory::buffers;
use crate::families::spmm::abi::VectorsParams;

buffers! {
    // `VectorProduct` makes the windows and the records from the pattern of A, and checks the alignment and the strides.
    // `ProductPlan` checks the shapes and the pattern.
    unsafe VectorsParams {
        windows: [u32; 4], ReadOnly;
        records: u32, ReadOnly;
        values: u8, ReadOnly;
        b: u8, ReadOnly;
    }
}
