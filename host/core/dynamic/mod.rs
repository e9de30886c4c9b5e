//! Sparsity that is known only at run time (PIT, arXiv 2301.10936): the axes that may be permuted, the micro-tiles that
//! result, their detection on the device, and products of them.

mod axes;
mod channels;
mod convolution;
mod detect;
mod gradient;
mod grouped;
mod index;
mod micro;
mod routing;
mod rows;
mod skipping;

#[doc(hidden)]
pub use crate::families::gather_gemm::ConvolutionShape;
pub use crate::tensor::{Dynamic, SparsityHint};
#[doc(hidden)]
pub use axes::{AxisUse, OperandAxis, pit_axes};
#[doc(hidden)]
pub use channels::ChannelDetector;
pub use convolution::{ConvolutionAxis, ConvolutionOptions, DynamicConvolution};
pub use detect::{DetectOptions, Detector};
pub use gradient::{DynamicMatmulGradient, GradientOfA};
pub use grouped::{Gate, GroupedGemm, GroupedOptions, Matrices};
#[doc(hidden)]
pub use grouped::{GroupedProduct, GroupedRun, GroupedWeight, NO_GRADIENTS, WeightOptions};
pub use index::MicroIndex;
#[doc(hidden)]
pub use micro::{DenseTile, MicroTile, dense_tiles, matmul_extents, micro_tiles};
#[doc(hidden)]
pub use routing::HostRoutes;
pub use routing::Routing;
