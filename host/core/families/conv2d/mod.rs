//! Direct convolutions over 2-D images. The kernels are in `kernels-gpu/families/conv2d`.

mod conv2d;
pub(crate) mod cpu;
mod shape;

pub(crate) use conv2d::{Conv2dLaunch, Conv2dOperands};
pub(crate) use shape::Conv2dShape;
