//! Architectures that modules are compiled for. No other file names an architecture.

use crate::abi::{CLUSTER, FP8_MMA, TMA, WGMMA};

/// Target architecture of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arch {
    /// Name in the compilers' options.
    pub name: &'static str,
    /// Min compute capability of GPUs that run the code.
    pub capability: (u32, u32),
    /// Only GPUs of exactly this compute capability run the code.
    pub exact: bool,
    /// Machine code is stored in addition to the PTX.
    pub has_cubin: bool,
    /// Dynamic shared memory of a thread block, bytes: the maximum over the GPUs that run the code.
    pub shared_bytes: u32,
    /// Features that rows may require: [`crate::abi::TMA`] and the like.
    pub has: u32,
}

/// All architectures, those with more features first.
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

/// Compute capabilities for which kernels are assembled and tested, with the max dynamic shared memory of a thread
/// block, bytes (CUDA C++ Programming Guide, technical specifications per compute capability).
pub const GPUS: &[((u32, u32), u32)] = &[
    ((9, 0), 227 << 10),
    ((10, 0), 227 << 10),
    ((12, 0), 99 << 10),
    ((8, 9), 99 << 10),
    ((8, 6), 99 << 10),
    ((8, 0), 163 << 10),
];

/// Returns the max dynamic shared memory of a thread block on GPUs of this compute capability, bytes. For one that is
/// not in [`GPUS`], it is the min over its major version; `None` if the major version has no entry.
pub fn shared_bytes_of(capability: (u32, u32)) -> Option<u32> {
    // Jetson Orin (8.7) has as much shared memory as an A100 (8.0).
    let capability = if capability == (8, 7) { (8, 0) } else { capability };
    let listed = GPUS.iter().find(|(gpu, _)| *gpu == capability);
    let alike = GPUS.iter().filter(|(gpu, _)| gpu.0 == capability.0);
    listed.or_else(|| alike.min_by_key(|(_, bytes)| *bytes)).map(|(_, bytes)| *bytes)
}

/// Compute capabilities that introduced instructions for which there is replacement code. The build of an architecture
/// sets `cfg(since = "9.0")` for each capability that it includes.
pub const CAPABILITIES: &[(u32, u32)] = &[(8, 0), (8, 9), (9, 0)];

impl Arch {
    /// Returns the architecture of this name.
    pub fn named(name: &str) -> Option<&'static Arch> {
        ARCHS.iter().find(|arch| arch.name == name)
    }

    /// Whether a GPU of this compute capability runs the code.
    pub fn runs_on(&self, capability: (u32, u32)) -> bool {
        if self.exact { capability == self.capability } else { capability >= self.capability }
    }
}

/// Returns the architectures whose code a GPU of this compute capability runs, those with more features first.
pub fn archs_of(capability: (u32, u32)) -> impl Iterator<Item = &'static Arch> {
    ARCHS.iter().filter(move |arch| arch.runs_on(capability))
}
