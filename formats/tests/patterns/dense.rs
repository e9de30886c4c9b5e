//! dense.
