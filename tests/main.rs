//! Tests that need no GPU. Modules have the names of those of the library.

mod allocations;
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
mod messages;
// The rest of the module is used by the test of models as programs.
#[allow(dead_code)]
mod models;
mod packages;
mod plan;
mod recorded_rows;
mod structure;
// The rest of the module is used by the other test program.
#[allow(dead_code)]
mod support;
mod support_table;
mod texts;
