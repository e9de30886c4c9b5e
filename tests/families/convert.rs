//! From one format to another.

mod convert;
mod entries;
