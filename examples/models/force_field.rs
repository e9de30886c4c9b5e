//! Force field like MACE (Batatia et al., arXiv 2206.07697): two layers of messages along the edges between atoms,
//! features of degrees up to 2, products of an atom's features with themselves, and an energy for each atom. Forces are
//! a hand-written chain of gradients. Weights are random, not trained; a repulsion of pairs keeps atoms apart.

use std::ops::Range;

use einsparse::dynamic::Gate;
use einsparse::formats::Dense;
use einsparse::formats::generate::random_values;
use einsparse::nn::Activation;
use einsparse::ops::{Couplings, EdgeGeometry, Edges, GeometryOptions};
use einsparse::{Context, Precision, Result, Scalar, Stream, Tensor, TensorViewMut};

use super::atoms::{Atoms, SPECIES};
use super::domains::Neighbours;
use super::interaction::{Layer, RADIAL, ROWS, of_degrees};
use super::mixing::{Mix, Plans};

/// Values read out of the second layer for each atom.
const READ: usize = 16;
/// Repulsion of pairs, eV.
const REPULSION: f64 = 1.0;

/// The model for atoms whose edges do not change; positions are f64. Over ranks, each rank has the atoms of a domain,
/// and receives rows of its [`Neighbours`].
pub struct ForceField<T: Scalar> {
    plans: Plans<T>,
    geometry: EdgeGeometry<T>,
    /// Harmonics and radial functions, with their gradients.
    y: [Tensor<T>; 2],
    basis: [Tensor<T>; 2],
    layers: [Layer<T>; 2],
    mix: Mix<T>,
    skip: Mix<T>,
    read: Mix<T>,
    silu: Activation<T>,
    /// `[atoms, 16]`: values read out of the second layer, activated values, and gradients of both.
    readout: [Tensor<T>; 4],
    /// Readout rows: of the first layer, `[9, channels]`, only degree 0 nonzero; of the second layer; of pairs.
    rows: [Tensor<T>; 3],
    /// Ones, for atoms and for edges.
    ones: [Tensor<T>; 2],
    receivers: Vec<u32>,
    own: Range<usize>,
    pub neighbours: Option<Neighbours<T>>,
    /// Energy of each own atom, eV.
    pub energy: Tensor<T>,
    /// Gradient by the positions, minus the forces, eV / Angstrom. Over ranks only the rows of own atoms are complete.
    pub gradient: Tensor<f64>,
}

impl<T: Scalar> ForceField<T> {
    pub fn new(
        ctx: &Context,
        atoms: &Atoms,
        channels: usize,
        cutoff: f64,
        precision: Precision,
    ) -> Result<Self> {
        let (nodes, edges, c) = (atoms.own.len(), atoms.receivers.len(), channels);
        let plans = Plans::new(ctx, precision);
        let scalar = Couplings::new(&[[0, 0, 0], [0, 1, 1], [0, 2, 2]])?;
        let (all, last) =
            (Couplings::natural(2)?, Couplings::new(&[[0, 0, 0], [1, 1, 0], [2, 2, 0]])?);
        let mut layers = [
            Layer::new(&plans, ctx, atoms, c, [&scalar, &all], 100)?,
            Layer::new(&plans, ctx, atoms, c, [&all, &last], 200)?,
        ];
        // Features of a species do not depend on positions, so they are computed here.
        let of_species = random_values::<f64>(SPECIES * c, 300);
        let embedded = |at: &[usize]| T::from_f64(of_species[atoms.species[at[0]] * c + at[2]]);
        layers[0].x[0].write(&Dense::from_fn([atoms.count(), 1, c], embedded)?)?;
        let row = |shape: Vec<usize>, value: &dyn Fn(usize) -> f64| -> Result<Tensor<T>> {
            let count = shape.iter().product();
            let values = (0..count).map(|at| T::from_f64(value(at))).collect();
            ctx.upload_dense(&Dense::new(shape, values)?)
        };
        let drawn = random_values::<f64>(ROWS * c, 301);
        let size = 0.3 / (c as f64).sqrt();
        let upto = |n: usize, size: f64| {
            let drawn = &drawn;
            move |at: usize| if at < n { size * drawn[at] } else { 0.0 }
        };
        // Lower frequencies have larger weights, so the repulsion falls without ripples.
        let pairs = |n: usize| REPULSION * (1.0 - (n + 1) as f64 / (RADIAL + 1) as f64);
        let options = GeometryOptions { cutoff, functions: RADIAL, ..Default::default() };
        let first = atoms.own.start as u32;
        let held: Vec<u32> = atoms.receivers.iter().map(|to| to + first).collect();
        let held = Edges { receivers: &held, nodes: [atoms.count(); 2], ..atoms.edges() };
        let edge = |width: usize| -> Result<_> {
            Ok([ctx.zeros(&[edges, width])?, ctx.zeros(&[edges, width])?])
        };
        let [r, dr] = [0, 1].map(|_| ctx.zeros(&[nodes, READ]));
        let weights = row(vec![READ], &upto(READ, 0.3))?;
        let mut field = ForceField {
            geometry: EdgeGeometry::new(ctx, held, Some(atoms.periodic()), &options)?,
            y: edge(ROWS)?,
            basis: edge(RADIAL)?,
            layers,
            mix: Mix::new(&plans, nodes, [ROWS; 2], &of_degrees(ROWS), [c; 2], (1.0, 302))?,
            skip: Mix::new(&plans, nodes, [ROWS, 1], &vec![[0, 0, 0]], [c; 2], (1.0, 303))?,
            read: Mix::dense(&plans, nodes, [c, READ], (1.0, 304))?,
            silu: Activation::new(ctx, Gate::Silu, [nodes, READ])?,
            readout: [r?, dr?, ctx.zeros(&[nodes, READ])?, ctx.zeros(&[nodes, READ])?],
            rows: [row(vec![ROWS * c], &upto(c, size))?, weights, row(vec![RADIAL], &pairs)?],
            ones: [row(vec![nodes], &|_| 1.0)?, row(vec![edges], &|_| 1.0)?],
            receivers: atoms.receivers.clone(),
            own: atoms.own.clone(),
            neighbours: None,
            energy: ctx.zeros(&[nodes])?,
            gradient: ctx.zeros(&[atoms.count(), 3])?,
            plans,
        };
        // The gradient of the readout does not depend on the positions.
        let stream = ctx.stream()?;
        let (ones, rows) = (&field.ones[0], &field.rows[1]);
        field.plans.add_rows(ones, rows, &mut field.readout[2], &stream)?;
        stream.synchronize()?;
        Ok(field)
    }

    /// Queues energies and their gradient. `positions` has those of own atoms; those of other ranks' atoms are written.
    pub fn run(&mut self, positions: &mut Tensor<f64>, s: &Stream) -> Result<()> {
        let [y, dy] = &mut self.y;
        let [basis, dbasis] = &mut self.basis;
        let [first, second] = &mut self.layers;
        let plans = &mut self.plans;
        let mut neighbours = self.neighbours.as_mut();
        if let Some(others) = &mut neighbours {
            others.positions.bring(positions, s)?;
        }
        self.geometry.forward(positions, y, basis, s)?;
        first.forward(plans, [&mut *y, &mut *basis], s)?;
        let mut x = rows_of(&mut second.x[0], &self.own)?;
        self.mix.forward(&mut first.h[0], &mut x, false, s)?;
        drop(x);
        if let Some(others) = &mut neighbours {
            others.features.bring(&mut second.x[0], s)?;
        }
        second.forward(plans, [&mut *y, &mut *basis], s)?;
        self.skip.forward(&mut first.h[0], &mut second.h[0], true, s)?;
        let [z, activated, da, dz] = &mut self.readout;
        self.read.forward(&mut second.h[0], z, false, s)?;
        self.silu.forward(z, activated, s)?;
        let (e, [of_first, of_second, of_pairs]) = (&mut self.energy, &self.rows);
        let text = "Out[n] = Z[n,q] * R[q]";
        plans.run(text, &[("Z", (&*activated).into()), ("R", of_second.into())], e, s)?;
        let shape = first.h[0].shape().to_vec();
        let flat = [shape[0], shape[1] * shape[2]];
        first.h[0].reshape(&flat)?;
        let factors = [("H", (&first.h[0]).into()), ("R", of_first.into())];
        plans.run("Out[n] += H[n,u] * R[u]", &factors, e, s)?;
        first.h[0].reshape(&shape)?;
        let extents = [self.receivers.len()];
        let to = (&extents[..], &self.receivers[..]).into();
        let factors = [("B", (&*basis).into()), ("R", of_pairs.into()), ("Q", to)];
        plans.run("Out[Q[e]] += B[e,b] * R[b]", &factors, e, s)?;

        let text = "Out[e,b] = S[e] * R[b]";
        plans.run(text, &[("S", (&self.ones[1]).into()), ("R", of_pairs.into())], dbasis, s)?;
        self.silu.backward(z, da, dz, s)?;
        self.read.backward(dz, &mut second.h[1], false, s)?;
        second.backward(plans, [&mut *y, &mut *dbasis], true, s)?;
        if let Some(others) = &mut neighbours {
            others.features.take_back(&mut second.x[1], s)?;
        }
        let mut dx = rows_of(&mut second.x[1], &self.own)?;
        self.mix.backward(&mut dx, &mut first.h[1], false, s)?;
        self.skip.backward(&mut second.h[1], &mut first.h[1], true, s)?;
        first.h[1].reshape(&flat)?;
        plans.add_rows(&self.ones[0], of_first, &mut first.h[1], s)?;
        first.h[1].reshape(&shape)?;
        first.backward(plans, [&mut *y, &mut *dbasis], false, s)?;
        // The gradient of Y is the sum over both layers.
        plans.run("Out[e,j] = A[e,j]", &[("A", (&first.of_y).into())], dy, s)?;
        plans.run("Out[e,j] += A[e,j]", &[("A", (&second.of_y).into())], dy, s)?;
        self.geometry.backward(positions, [dy, dbasis], &mut self.gradient, s)?;
        let Some(others) = neighbours else {
            return Ok(());
        };
        others.positions.take_back(&mut self.gradient, s)?;
        others.add_up(&self.energy, s)
    }
}

/// Returns the rows of some atoms of a tensor `[atoms, rows, channels]`.
fn rows_of<'a, T: Scalar>(
    all: &'a mut Tensor<T>,
    atoms: &Range<usize>,
) -> Result<TensorViewMut<'a, T>> {
    let [rows, channels] = [all.shape()[1], all.shape()[2]];
    all.part_mut(atoms.start * rows * channels, &[atoms.len(), rows, channels])
}
