//! Softmax of the entries of each row. The kernels: `kernels-gpu/families/softmax`.

pub(crate) mod cpu;
pub(crate) mod softmax;

pub use softmax::RawSoftmax;
pub(crate) use softmax::SoftmaxLaunch;
