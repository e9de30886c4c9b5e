//! The module `edge_geometry`: what an equivariant network knows of the edges between atoms, and the gradient by the
//! positions.

use crate::abi::tiles;

/// The largest degree of the harmonics.
pub const HARMONIC_DEGREE: u32 = 3;
/// Threads of a thread block.
pub const GEOMETRY_THREADS: u32 = 128;

tiles! {
    { THREADS: GEOMETRY_THREADS, MIN_BLOCKS: 4, COLUMNS: 1, ACCESS: 1 }
    /// Harmonics and radial functions; a thread has an edge.
    GeometryForward = STEP_GEOMETRY 1, ITEMS: GEOMETRY_THREADS;
    /// The gradient by the positions; a warp has an atom.
    GeometryBackward = STEP_GEOMETRY_GRADIENT 2, ITEMS: GEOMETRY_THREADS / 32;
}

/// Parameters of the `edge_geometry` kernels. The vector of edge e is
/// `positions[receivers[e]] - positions[senders[e]] + shifts[e] * cell`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GeometryParams {
    /// `[atoms, 3]`, f64.
    pub positions: u64,
    /// The atom that each edge leads to, u32.
    pub receivers: u64,
    /// The atom that it comes from, u32.
    pub senders: u64,
    /// `[edges, 3]`, i32: whole cells; 0 without.
    pub shifts: u64,
    /// `[edges, (degree + 1)^2]`; backward the gradient of it, which is read.
    pub harmonics: u64,
    /// `[edges, functions]`; backward likewise.
    pub radial: u64,
    /// Backward: the gradient by the positions, `[atoms, 3]`, f64.
    pub gradient: u64,
    /// Backward: where the edges of an atom begin among those by receiver and by sender, u32, one more than atoms.
    pub starts: [u64; 2],
    /// Backward: the edges by receiver and by sender, u32.
    pub edges: [u64; 2],
    /// Rows are the vectors of the cell.
    pub cell: [f64; 9],
    /// Where everything radial ends.
    pub cutoff: f64,
    /// 1 / cutoff.
    pub inverse: f64,
    /// sqrt(2 / cutoff).
    pub norm: f64,
    /// Bytes between the rows of positions, harmonics, radial functions, gradient.
    pub row_bytes: [u32; 4],
    /// Edges, or atoms.
    pub count: u32,
    /// The largest degree.
    pub degree: u32,
    /// Radial functions.
    pub functions: u32,
    /// The exponent of the envelope.
    pub exponent: u32,
}

const _: () = assert!(size_of::<GeometryParams>() == 216);
