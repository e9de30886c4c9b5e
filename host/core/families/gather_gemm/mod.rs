//! Products of gathered rows and matrices: convolutions, experts, dynamic micro-tiles. The kernels are in
//! `kernels-gpu/families/gather_gemm`.

pub(crate) mod conv;
pub(crate) mod conv_grad;
pub(crate) mod conv_map;
pub(crate) mod cost;
pub(crate) mod cpu;
pub(crate) mod dense_conv;
pub(crate) mod found;
pub(crate) mod grouped;
mod grouped_choice;
pub(crate) mod grouped_grad;
pub(crate) mod kernel_map;
pub(crate) mod offers;
pub(crate) mod pit;
pub(crate) mod pit_conv;
pub(crate) mod pit_few;
pub(crate) mod shape;

pub(crate) use conv::{ConvFinish, ConvProduct, RawConv, conv_rows, turns};
pub(crate) use conv_grad::{RawWeights, WeightGradient};
pub(crate) use conv_map::{MapSteps, StrideSteps, strided};
pub(crate) use dense_conv::DenseConvLaunch;
pub(crate) use grouped::{GroupedExtents, GroupedLaunch, GroupedOperands, GroupedWay};
pub(crate) use grouped_grad::{GradExtents, GradLaunch};
pub(crate) use pit::{PitLaunch, PitWork, pit_rows};
pub(crate) use pit_conv::PitConvLaunch;
pub(crate) use pit_few::{PitFewLaunch, few_row, few_rows};
pub use shape::{ConvolutionAxis, ConvolutionShape};
