//! The architectures that modules are compiled for. No other file names one.

use crate::abi::{CLUSTER, FP8_MMA, TMA, WGMMA};

/// What a module is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arch {
    /// As compilers name it.
    pub name: &'static str,
    /// The least compute capability whose GPUs run the code.
    pub capability: (u32, u32),
    /// Only GPUs of exactly this compute capability run the code.
    pub exact: bool,
    /// Machine code is kept beside the PTX.
    pub has_cubin: bool,
    /// Dynamic shared memory of a thread block, bytes: the maximum over the GPUs that run the code.
    pub shared_bytes: u32,
    /// What rows may need: [`crate::abi::TMA`] and the like.
    pub has: u32,
}

/// Every architecture, the one with most capabilities first.
pub const ARCHS: &[Arch] = &[
    Arch {
        name: "sm_90a",
        capability: (9, 0),
        exact: true,
        has_cubin: true,
        shared_bytes: 227 << 10,
        has: TMA | CLUSTER | WGMMA | FP8_MMA,
    },
    Arch {
        name: "sm_90",
        capability: (9, 0),
        exact: false,
        has_cubin: false,
        shared_bytes: 227 << 10,
        has: TMA | CLUSTER | FP8_MMA,
    },
    Arch {
        name: "sm_89",
        capability: (8, 9),
        exact: false,
        has_cubin: true,
        shared_bytes: 99 << 10,
        has: FP8_MMA,
    },
    Arch {
        name: "sm_80",
        capability: (8, 0),
        exact: false,
        has_cubin: true,
        shared_bytes: 163 << 10,
        has: 0,
    },
];

/// The compute capabilities that kernels are assembled and tested for, and the dynamic shared memory of a thread block,
/// bytes. (CUDA C++ Programming Guide, technical specifications per compute capability.)
pub const GPUS: &[((u32, u32), u32)] = &[
    ((9, 0), 227 << 10),
    ((10, 0), 227 << 10),
    ((12, 0), 99 << 10),
    ((8, 9), 99 << 10),
    ((8, 6), 99 << 10),
    ((8, 0), 163 << 10),
];

/// The dynamic shared memory of a thread block on GPUs of this compute capability, bytes; of one that is not listed, the
/// least of its major version. `None` where nothing is known.
pub fn shared_bytes_of(capability: (u32, u32)) -> Option<u32> {
    // Jetson Orin has as much as an A100.
    let capability = if capability == (8, 7) { (8, 0) } else { capability };
    let listed = GPUS.iter().find(|(gpu, _)| *gpu == capability);
    let alike = GPUS.iter().filter(|(gpu, _)| gpu.0 == capability.0);
    listed.or_else(|| alike.min_by_key(|(_, bytes)| *bytes)).map(|(_, bytes)| *bytes)
}

/// Compute capabilities that brought instructions which others replace before: sources see those that an architecture has
/// as `cfg(since = "9.0")`.
pub const CAPABILITIES: &[(u32, u32)] = &[(8, 0), (8, 9), (9, 0)];

impl Arch {
    /// The architecture of this name.
    pub fn named(name: &str) -> Option<&'static Arch> {
        ARCHS.iter().find(|arch| arch.name == name)
    }

    /// Whether a GPU of this compute capability runs the code.
    pub fn runs_on(&self, capability: (u32, u32)) -> bool {
        if self.exact { capability == self.capability } else { capability >= self.capability }
    }
}

/// The architectures whose code a GPU of this compute capability runs, the one with most capabilities first.
pub fn archs_of(capability: (u32, u32)) -> impl Iterator<Item = &'static Arch> {
    ARCHS.iter().filter(move |arch| arch.runs_on(capability))
}
