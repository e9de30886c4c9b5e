//! Tests of patterns, conversions, statistics and bridges.

mod bitmap;
mod bridges;
mod bytemap;
mod conversions;
mod dense;
mod fill;
mod invariants;
mod nm;
mod reorder;
mod round_trips;
mod sliced_ell;
mod speed;
mod statistics;
mod tiles;
mod vectors;
