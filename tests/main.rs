//! The one integration binary; its modules are named after those of the library.

mod command;
mod convert;
mod cpu;
mod device_code;
mod docs;
mod downstream;
mod dynamic;
mod gpu;
mod language;
mod lines;
mod machine_code;
mod plan;
mod random;
mod support;
