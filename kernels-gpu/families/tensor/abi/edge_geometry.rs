//! The kernels `edge_geometry`: features of the edges between atoms for an equivariant network, and the gradient with
//! respect to the positions.

use crate::abi::tiles;

/// Largest degree of the harmonics.
pub const HARMONIC_DEGREE: u32 = 3;
/// Threads in a thread block.
pub const GEOMETRY_THREADS: u32 = 128;

tiles! {
    { THREADS: GEOMETRY_THREADS, MIN_BLOCKS: 4, COLUMNS: 1, ACCESS: 1 }
    /// Harmonics and radial functions; one thread per edge.
    GeometryForward = STEP_GEOMETRY 1, ITEMS: GEOMETRY_THREADS;
    /// Gradient with respect to the positions; one warp per atom.
    GeometryBackward = STEP_GEOMETRY_GRADIENT 2, ITEMS: GEOMETRY_THREADS / 32;
}

/// Parameters of the `edge_geometry` kernels. The vector of edge e is
/// `positions[receivers[e]] - positions[senders[e]] + shifts[e] * cell`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct GeometryParams {
    /// `[atoms, 3]`, f64.
    pub positions: u64,
    /// The atom that each edge ends at (its receiver), u32.
    pub receivers: u64,
    /// The atom that each edge starts from (its sender), u32.
    pub senders: u64,
    /// `[edges, 3]`, i32: whole cells; 0 without shifts.
    pub shifts: u64,
    /// `[edges, (degree + 1)^2]`; backward its gradient, which is an input.
    pub harmonics: u64,
    /// `[edges, functions]`; backward its gradient, which is an input.
    pub radial: u64,
    /// Backward: gradient with respect to the positions, `[atoms, 3]`, f64.
    pub gradient: u64,
    /// Backward: first edge of each atom in the orders by receiver and by sender, u32; `atoms + 1` elements.
    pub starts: [u64; 2],
    /// Backward: edges ordered by receiver and by sender, u32.
    pub edges: [u64; 2],
    /// Rows are the vectors of the cell.
    pub cell: [f64; 9],
    /// Distance from which all radial functions are zero.
    pub cutoff: f64,
    /// 1 / cutoff.
    pub inverse: f64,
    /// sqrt(2 / cutoff).
    pub norm: f64,
    /// Bytes between the rows of positions, harmonics, radial functions, gradient.
    pub row_bytes: [u32; 4],
    /// Number of edges, or of atoms.
    pub count: u32,
    /// Largest degree.
    pub degree: u32,
    /// Number of radial functions.
    pub functions: u32,
    /// Exponent of the envelope.
    pub exponent: u32,
}

const _: () = assert!(size_of::<GeometryParams>() == 216);
