//! bridges.
