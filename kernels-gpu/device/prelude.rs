//! Imports of every body: markers and flags, elements, loaders, the ring, and the modules of PTX instructions.

pub(crate) use super::elem::{Elem, Raw};
pub(crate) use super::glu;
pub(crate) use super::gpu;
pub(crate) use super::kernel::Kernel;
pub(crate) use super::loader::{Loader, Shape, Team};
pub(crate) use super::maps::{Maps, TensorMap};
pub(crate) use super::memory::{Fresh, Global, ReadOnly, ReadWrite, buffers};
pub(crate) use super::multiply::{BytesElem, Multiply, SparseElem};
pub(crate) use super::ptx::wgmma::{self, Acc};
pub(crate) use super::ptx::{barrier, bits, bulk, cluster, copy, global, grid, matrix, warp};
pub(crate) use super::shared::{Mbarrier, Shared};
pub(crate) use super::stages::{Ring, Stages};
pub(crate) use super::warpgroup::{CONSUMER_WARPS, PRODUCER_THREADS, WgmmaElem, roles};
pub(crate) use crate::abi::*;
pub(crate) use crate::frag;
