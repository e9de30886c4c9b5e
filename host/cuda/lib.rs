//! CUDA for einsparse: the driver, the GPU with its memory, streams and device modules, and typed launches of the kernels in
//! the table. Users depend on `einsparse`, which exports [`device::Device`], [`device::Stream`] and [`driver::Graph`].

use einsparse_lang::{Error, error};

pub mod device;
pub mod driver;
pub mod kernel;
pub mod machine;
pub mod module;
pub mod owner;
