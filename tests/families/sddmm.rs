//! Dense times dense at the entries of a pattern.

mod int8;
mod sampled;
mod sddmm;
