//! conversions.
