//! Tests of several families: every row of the table, exact on integers; random values within their bound; the rule of
//! zeros; determinism, graphs, raw addresses; real matrices; plans, random operands, the driver, and failures. Without
//! a GPU they are skipped with a message. Tests that can run on the CPU executor do so too, which checks their
//! expectations.

mod axes;
mod cases;
mod columns;
mod coverage;
mod driver;
mod failures;
mod files;
mod gate;
mod group;
mod large;
#[cfg(feature = "cudarc")]
mod libraries;
// The rest of the module is used by the test of models as programs.
#[allow(dead_code)]
mod models;
mod numbers;
pub mod operator_trials;
mod parts;
mod places;
mod prepacked;
mod refusals;
mod rows;
mod runs;
mod trials;
mod wide;
mod workspace;
mod zeros;
