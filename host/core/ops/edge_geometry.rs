//! Geometry of edges between atoms: directions as spherical harmonics, lengths as Bessel functions.

use std::marker::PhantomData;

use einsparse_kernels::families::HARMONIC_DEGREE;

use super::Edges;
use crate::context::Context;
use crate::device::Stream;
use crate::error::{Error, Result};
use crate::families::tensor::cpu::{geometry_backward, geometry_forward};
use crate::families::tensor::edge_geometry::{Geometry, GeometryLaunch};
use crate::operator::{Operator, Run};
use crate::registry::Scalar;
use crate::tensor::{DenseMatrix, Tensor};

/// Cell that repeats in all directions.
///
/// ```
/// use einsparse::ops::PeriodicCell;
/// // One edge, to the next image along the first vector.
/// let cell = PeriodicCell { vectors: [[4.0, 0.0, 0.0], [0.0, 4.0, 0.0], [0.0, 0.0, 4.0]], shifts: &[[1, 0, 0]] };
/// assert_eq!(cell.shifts.len(), 1);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PeriodicCell<'a> {
    /// Vectors of the cell, in the unit of the positions.
    pub vectors: [[f64; 3]; 3],
    /// Multiples of the three vectors that are added to the vector from sender to receiver, for each edge.
    pub shifts: &'a [[i32; 3]],
}

/// Constants of an [`EdgeGeometry`].
///
/// ```
/// use einsparse::ops::GeometryOptions;
/// let options = GeometryOptions { cutoff: 4.5, ..GeometryOptions::default() };
/// assert_eq!((options.degree, options.functions, options.exponent), (2, 8, 5));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GeometryOptions {
    /// Length at which the radial functions and their first and second derivatives become 0, in the unit of the
    /// positions.
    pub cutoff: f64,
    /// Largest degree of the harmonics, at most 3.
    pub degree: usize,
    /// Number of radial functions.
    pub functions: usize,
    /// Exponent of the envelope, at least 1.
    pub exponent: usize,
}

impl Default for GeometryOptions {
    /// Cutoff 5, degrees up to 2, 8 radial functions, exponent 5.
    fn default() -> Self {
        GeometryOptions { cutoff: 5.0, degree: 2, functions: 8, exponent: 5 }
    }
}

/// Inputs of equivariant networks for an edge's vector `v = x[receiver] - x[sender] + shift * cell` of length r, and
/// the gradient with respect to the positions x. Positions, their gradient and the arithmetic are f64 for every T: f32
/// suffices for differences of positions, but not for the positions of a long simulation.
///
/// | tensor | shape | content |
/// |---|---|---|
/// | positions | `[atoms, 3]` | f64 |
/// | Y | `[edges, (degree + 1)^2]` | real spherical harmonics of v / r |
/// | basis | `[edges, functions]` | `sqrt(2 / c) sin(n pi r / c) / r * f(r / c)`, n from 1 |
///
/// Harmonics have the components of [`Couplings`](super::Couplings); those of degree l have the squared norm `2 l + 1`.
/// The radial functions are Bessel functions that end at the cutoff c.
///
/// The envelope is `f(x) = 1 - (p+1)(p+2)/2 x^p + p(p+2) x^(p+1) - p(p+1)/2 x^(p+2)`, and 0 for x >= 1 (Gasteiger et
/// al., arXiv 2003.03123). The list may contain edges longer than the cutoff; their radial functions are 0. GPU kernels
/// support f32 and f64, with one launch forward and one backward. The gradient of an atom is summed in the order of its
/// edges. Results are bitwise deterministic.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::Dense;
/// use einsparse::ops::{EdgeGeometry, Edges, GeometryOptions};
/// let ctx = Context::cpu();
/// let edges = Edges { receivers: &[1, 0], senders: &[0, 1], nodes: [2, 2] };
/// let geometry = EdgeGeometry::<f32>::new(&ctx, edges, None, &GeometryOptions::default())?;
/// let positions = ctx.upload_dense(&Dense::new([2, 3], vec![0.0, 0.0, 0.0, 0.0, 0.0, 2.0])?)?;
/// let (mut y, mut basis) = (ctx.zeros(&[2, 9])?, ctx.zeros(&[2, 8])?);
/// geometry.forward(&positions, &mut y, &mut basis, &ctx.stream()?)?;
/// // Up and down: components of degree 1 are y, z, x.
/// let y = y.to_dense()?;
/// assert_eq!((y.values()[2], y.values()[9 + 2]), (3f32.sqrt(), -(3f32.sqrt())));
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct EdgeGeometry<T> {
    geometry: Geometry,
    operator: Operator<GeometryLaunch>,
    element: PhantomData<T>,
}

impl<T: Scalar> EdgeGeometry<T> {
    /// Plans the geometry of edges between atoms; both numbers in `nodes` are the number of atoms.
    ///
    /// # Errors
    /// [`Error::Shape`] for lists of different lengths; [`Error::InvalidIndex`] for an atom index out of range;
    /// [`Error::OutOfRange`] for constants out of range; [`Error::NoKernel`] for types other than f32 and f64.
    pub fn new(
        context: &Context,
        edges: Edges<'_>,
        cell: Option<PeriodicCell<'_>>,
        options: &GeometryOptions,
    ) -> Result<Self> {
        edges.check()?;
        let [atoms, senders] = edges.nodes;
        if atoms != senders {
            let (from, to) = (format!("{senders} senders"), format!("{atoms} receivers"));
            return Err(Error::shape("edges", from, to));
        }
        let count = edges.receivers.len();
        if let Some(cell) = &cell
            && cell.shifts.len() != count
        {
            let found = format!("{} shifts", cell.shifts.len());
            return Err(Error::shape("shifts", found, format!("{count} edges")));
        }
        let GeometryOptions { cutoff, degree, functions, exponent } = *options;
        if !(cutoff.is_finite() && cutoff > 0.0) {
            return Err(Error::range("cutoff", cutoff, "> 0 and finite"));
        }
        let most = HARMONIC_DEGREE as usize;
        if degree > most {
            return Err(Error::range("degree", degree, format!("<= {most}")));
        }
        if exponent == 0 {
            return Err(Error::range("exponent", exponent, ">= 1"));
        }
        let geometry = Geometry {
            atoms,
            receivers: edges.receivers.to_vec(),
            senders: edges.senders.to_vec(),
            shifts: cell.map_or(Vec::new(), |cell| cell.shifts.to_vec()),
            cell: cell.map_or([[0.0; 3]; 3], |cell| cell.vectors),
            cutoff,
            degree,
            functions,
            exponent,
        };
        let operator =
            Operator::new(context, |device| GeometryLaunch::new(device, T::DTYPE, &geometry))?;
        Ok(EdgeGeometry { geometry, operator, element: PhantomData })
    }

    /// Returns the names of the forward and the backward kernel; `cpu` on a CPU context.
    pub fn variants(&self) -> [&'static str; 2] {
        self.operator.variants(GeometryLaunch::variants)
    }

    /// Returns the device memory in bytes, operands excluded: the edges, also sorted by receiver and by sender.
    pub fn workspace_bytes(&self) -> usize {
        self.operator.bytes(GeometryLaunch::bytes)
    }

    /// Begins a run: validates positions, and Y and the basis or their gradients.
    fn start<'o>(
        &'o self,
        positions: &Tensor<f64>,
        own: [(&str, &Tensor<T>); 2],
        stream: &'o Stream,
    ) -> Result<(Run<'o, GeometryLaunch>, [DenseMatrix; 3])> {
        let of = &self.geometry;
        let run = self.operator.start(stream)?;
        let edges = of.receivers.len();
        let [(y_name, y), (basis_name, basis)] = own;
        let matrices = [
            run.matrix("positions", positions.any(), &[of.atoms, 3])?,
            run.matrix(y_name, y.any(), &[edges, (of.degree + 1).pow(2)])?,
            run.matrix(basis_name, basis.any(), &[edges, of.functions])?,
        ];
        Ok((run, matrices))
    }

    /// Queues Y and basis of all edges. The call neither allocates nor waits.
    ///
    /// # Errors
    /// Fails for tensors of other shapes or another context than planned.
    pub fn forward(
        &self,
        positions: &Tensor<f64>,
        y: &mut Tensor<T>,
        basis: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let (run, matrices) = self.start(positions, [("Y", y), ("basis", basis)], stream)?;
        run.queue(
            |launch, queue| launch.run(matrices, None, queue),
            || {
                let to = [y.host_rows_mut("Y")?, basis.host_rows_mut("basis")?];
                geometry_forward(&self.geometry, positions.host_rows("positions")?, to);
                Ok(())
            },
        )
    }

    /// Queues the gradient with respect to the positions, from the gradients of Y and of the basis. For an energy, it
    /// is minus the forces. Every element is written.
    ///
    /// # Errors
    /// See [`EdgeGeometry::forward`].
    pub fn backward(
        &self,
        positions: &Tensor<f64>,
        [dy, dbasis]: [&Tensor<T>; 2],
        dpositions: &mut Tensor<f64>,
        stream: &Stream,
    ) -> Result<()> {
        let (run, matrices) = self.start(positions, [("dY", dy), ("dbasis", dbasis)], stream)?;
        let to = run.matrix("dpositions", dpositions.any(), &[self.geometry.atoms, 3])?;
        run.queue(
            |launch, queue| launch.run(matrices, Some(to), queue),
            || {
                let x = positions.host_rows("positions")?;
                let own = [dy.host_rows("dY")?, dbasis.host_rows("dbasis")?];
                geometry_backward(&self.geometry, x, own, dpositions.host_rows_mut("dpositions")?);
                Ok(())
            },
        )
    }
}
