//! What needs no GPU; its modules are named after those of the library.

mod allocations;
// Without the feature there is no command to run.
#[cfg(feature = "command")]
mod command;
mod convert;
mod copies;
mod cpu;
mod device_code;
#[cfg(feature = "dlpack")]
mod dlpack;
mod docs;
mod extents;
mod group;
mod language;
mod lines;
mod machine_code;
// Models as programs use the rest.
#[allow(dead_code)]
mod models;
mod packages;
mod plan;
mod rooms;
// The other program uses the rest.
#[allow(dead_code)]
mod support;
mod support_table;
mod texts;
