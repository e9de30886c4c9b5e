//! Dense times dense at the places of a pattern.

mod int8;
mod sampled;
mod sddmm;
