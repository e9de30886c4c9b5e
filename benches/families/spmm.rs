//! A of single entries times a dense matrix.

pub mod decode;
pub mod determinism;
pub mod epilogue;
pub mod int8;
pub mod turned;
