//! Generated inputs: graphs, random and pruned patterns, stencils, voxels, Clebsch-Gordan tensors. Generators with a
//! seed return the same result on every machine and for every number of threads. Each fixed piece of the output has its
//! own ChaCha8 stream, and logarithms and exponentials do not come from the platform.

mod clebsch_gordan;
mod karate;
mod pruned;
mod random;
mod rmat;
mod stencil;
mod uniform;
mod voxels;

pub use clebsch_gordan::clebsch_gordan;
pub use karate::karate;
pub use pruned::pruned;
pub use random::{random_values, small_integers};
pub use rmat::rmat;
pub use stencil::{elasticity2d, poisson2d, poisson3d};
pub use uniform::{banded, blocks, uniform, uniform_rows};
pub use voxels::{sphere_surface, torus_surface, voxel_surface};
