//! Row statistics.
