//! What is of no single family: every row of the table, exact on integers; random values within their bound; the rule
//! of zeros; determinism, graphs, raw addresses; real matrices; plans, drawn operands, the driver and what fails.
//! Skipped loudly without a GPU; what can run on the CPU executor does so too, which tests the expectations.

mod axes;
mod cases;
mod columns;
mod coverage;
#[cfg(feature = "cudarc")]
mod doors;
mod driver;
mod failures;
mod files;
mod gate;
mod group;
mod large;
// Models as programs use the rest.
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
