//! The naive reference.
