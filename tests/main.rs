//! The one integration binary; its modules are named after those of the library.

mod command;
mod cpu;
mod downstream;
mod gpu;
mod language;
mod support;
