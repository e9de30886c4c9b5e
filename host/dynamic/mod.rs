//! Sparsity that is known only while running (PIT, arXiv 2301.10936): which axes may be permuted, the micro-tiles that follow,
//! their detection on the device, and products of them.

mod axes;
mod detect;
mod gradient;
mod index;
mod marked;
mod matmul;
mod micro;
mod operand;
mod rows;

pub use axes::{AxisUse, OperandAxis, pit_axes};
pub(crate) use detect::above;
pub use detect::{DetectOptions, Detector};
pub use gradient::DynamicMatmulGradient;
pub use index::MicroIndex;
pub use marked::ReluMatmul;
pub(crate) use marked::can_mark;
pub(crate) use matmul::kernels_of;
pub use matmul::{DynamicMatmul, FEW_ROWS, MatmulOptions};
pub use micro::{DenseTile, MICRO_BYTES, MicroTile, dense_tiles, matmul_extents, micro_tiles};
pub use operand::{Dynamic, Expected, dynamic};
pub use rows::RowDetector;
