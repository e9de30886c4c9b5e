//! Dense times dense at the nonzeros of a pattern. The kernels are in `kernels-gpu/families/sddmm`.

pub(crate) mod cost;
pub(crate) mod cpu;
pub(crate) mod offers;
pub(crate) mod panes;
pub(crate) mod pit_sampled;
pub(crate) mod product;
pub(crate) mod sampled;
pub(crate) mod sddmm;
pub(crate) mod sddmm_staged;
pub(crate) mod sddmm_tiles;
pub(crate) mod shelves;
pub(crate) mod windows;

pub(crate) use pit_sampled::{PitSampledLaunch, PitSampledRun};
pub(crate) use product::{Places, SddmmExtents};
