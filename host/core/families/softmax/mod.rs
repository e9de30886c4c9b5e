//! Softmax over the nonzeros of each row. The kernels are in `kernels-gpu/families/softmax`.

pub(crate) mod cpu;
pub(crate) mod softmax;

pub use softmax::RawSoftmax;
pub(crate) use softmax::SoftmaxLaunch;
