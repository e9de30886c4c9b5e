//! Inputs made by the program: graphs, random and pruned patterns, stencils, voxels, Clebsch-Gordan tensors.
//! Seeded ones give the same result on every machine and for every number of threads: the random stream is ChaCha8,
//! one for each fixed piece of the output, and logarithms and exponentials are not the platform's.

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
