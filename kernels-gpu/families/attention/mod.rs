//! SDDMM, softmax and SpMM in one kernel; the masks that it reads; one query of each head over a cache.

pub mod abi;

#[cfg(any(module = "attention", module = "attention_mma", feature = "cuda_std"))]
mod attention;
#[cfg(any(module = "decode", module = "decode_mma", feature = "cuda_std"))]
mod decode;
#[cfg(any(module = "key_blocks", feature = "cuda_std"))]
mod key_blocks;
#[cfg(any(
    module = "attention",
    module = "attention_mma",
    module = "decode",
    module = "decode_mma",
    feature = "cuda_std"
))]
mod lanes;
#[cfg(any(module = "masks", feature = "cuda_std"))]
mod masks;
