//! Patterns, conversions, statistics and bridges.

mod advice;
mod bitmap;
mod bridges;
mod bytemap;
mod conversions;
mod dense;
mod invariants;
mod nm;
mod reorder;
mod round_trips;
mod sliced_ell;
mod speed;
mod statistics;
mod tiles;
mod vectors;
