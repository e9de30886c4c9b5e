//! A force field like MACE (Batatia et al., arXiv 2206.07697): two layers of messages over the edges between atoms, features
//! of degrees up to 2, products of an atom's features with themselves, an energy for each atom; forces by a chain of
//! gradients, written out. Weights are drawn, not trained; a repulsion of pairs keeps atoms apart.

use einsparse::dynamic::Gate;
use einsparse::formats::Dense;
use einsparse::formats::generate::random_values;
use einsparse::nn::Activation;
use einsparse::ops::{
    Couplings, EdgeGeometry, EquivariantMessage, Factors, GeometryOptions, Gradients,
};
use einsparse::{Context, Precision, Result, Scalar, SparseTensor, Stream, Tensor};

use super::atoms::{Atoms, SPECIES};
use super::mixing::{Mix, Plans, Wiring};

/// Degrees up to 2: rows of an atom's features.
const ROWS: usize = 9;
const RADIAL: usize = 8;
const HIDDEN: usize = 64;
const READ: usize = 16;
/// eV.
const REPULSION: f64 = 1.0;

/// The degree of each row.
fn degree(row: usize) -> usize {
    row.isqrt()
}

/// Rows of paths, by path, to rows of features.
fn of_paths(couplings: &Couplings) -> Wiring {
    let rows = couplings
        .component_of_row()
        .into_iter()
        .zip(couplings.path_of_row());
    let rows = rows.enumerate();
    rows.map(|(k, (component, path))| [component as usize, k, path as usize])
        .collect()
}

/// Rows of features to themselves, by degree.
fn of_degrees(rows: usize) -> Wiring {
    (0..rows).map(|row| [row, row, degree(row)]).collect()
}

/// A message along the edges, and the product of what arrives with itself. Behind each tensor stands its gradient.
struct Layer<T: Scalar> {
    /// From radial functions to weights of the edges, `[edges, paths, channels]`.
    radial: [Mix<T>; 2],
    silu: Activation<T>,
    hidden: [Tensor<T>; 2],
    activated: Tensor<T>,
    weights: [Tensor<T>; 2],
    message: EquivariantMessage<T>,
    /// Features of the senders, and sums of messages, `[atoms, rows, channels]`.
    x: [Tensor<T>; 2],
    sums: [Tensor<T>; 2],
    mix_sums: Mix<T>,
    a: [Tensor<T>; 2],
    coefficients: SparseTensor<T>,
    square: [Tensor<T>; 2],
    mix_a: Mix<T>,
    mix_square: Mix<T>,
    h: [Tensor<T>; 2],
    of_y: Tensor<T>,
}

const PRODUCT: &str = "Out[n,k,u] = CG[i,j,k] * A[n,i,u] * B[n,j,u]";
const BY_FIRST: &str = "Out[n,i,u] += CG[i,j,k] * G[n,k,u] * B[n,j,u]";
const BY_SECOND: &str = "Out[n,j,u] += CG[i,j,k] * G[n,k,u] * A[n,i,u]";

impl<T: Scalar> Layer<T> {
    /// `messages`: paths of features and harmonics; `products`: those of features with themselves.
    fn new(
        plans: &Plans<T>,
        ctx: &Context,
        atoms: &Atoms,
        channels: usize,
        [messages, products]: [&Couplings; 2],
        seed: u64,
    ) -> Result<Self> {
        let (nodes, edges, c) = (atoms.count(), atoms.receivers.len(), channels);
        let neighbours = edges as f64 / nodes as f64;
        let message = EquivariantMessage::new(ctx, messages, c, atoms.edges())?;
        let of_atoms = |rows: usize| -> Result<_> {
            let shape = [nodes, rows, c];
            Ok([ctx.zeros(&shape)?, ctx.zeros(&shape)?])
        };
        let [paths, k, squares] = [messages.paths().len(), messages.rows(), products.rows()];
        let mix = |rows: [usize; 2], wiring: &Wiring, scale: f64, own: u64| {
            Mix::new(plans, nodes, rows, wiring, [c, c], (scale, seed + own))
        };
        let out = products.components(2);
        let edge = |shape: &[usize]| -> Result<_> { Ok([ctx.zeros(shape)?, ctx.zeros(shape)?]) };
        Ok(Layer {
            radial: [
                Mix::dense(plans, edges, [RADIAL, HIDDEN], (2.0, seed))?,
                Mix::dense(plans, edges, [HIDDEN, paths * c], (1.0, seed + 1))?,
            ],
            silu: Activation::new(ctx, Gate::Silu, [edges, HIDDEN])?,
            hidden: edge(&[edges, HIDDEN])?,
            activated: ctx.zeros(&[edges, HIDDEN])?,
            weights: edge(&[edges, paths, c])?,
            message,
            x: of_atoms(messages.components(0))?,
            sums: of_atoms(k)?,
            mix_sums: mix([k, ROWS], &of_paths(messages), 3.0 / neighbours.sqrt(), 2)?,
            a: of_atoms(ROWS)?,
            coefficients: ctx.upload(products.tensor()?)?,
            square: of_atoms(squares)?,
            mix_a: mix([ROWS, out], &of_degrees(out), 1.0, 3)?,
            mix_square: mix([squares, out], &of_paths(products), 1.0, 4)?,
            h: of_atoms(out)?,
            of_y: ctx.zeros(&[edges, ROWS])?,
        })
    }

    /// From `x` to `h`.
    fn forward(
        &mut self,
        plans: &mut Plans<T>,
        [y, basis]: [&mut Tensor<T>; 2],
        s: &Stream,
    ) -> Result<()> {
        let [first, second] = &mut self.radial;
        first.forward(basis, &mut self.hidden[0], false, s)?;
        self.silu.forward(&self.hidden[0], &mut self.activated, s)?;
        second.forward(&mut self.activated, &mut self.weights[0], false, s)?;
        let factors = Factors {
            x: &self.x[0],
            y,
            w: Some(&self.weights[0]),
        };
        self.message.forward(factors, &mut self.sums[0], s)?;
        self.mix_sums
            .forward(&mut self.sums[0], &mut self.a[0], false, s)?;
        let a = &self.a[0];
        let factors = [
            ("CG", (&self.coefficients).into()),
            ("A", a.into()),
            ("B", a.into()),
        ];
        plans.run(PRODUCT, &factors, &mut self.square[0], s)?;
        self.mix_a
            .forward(&mut self.a[0], &mut self.h[0], false, s)?;
        self.mix_square
            .forward(&mut self.square[0], &mut self.h[0], true, s)
    }

    /// From the gradient of `h` to those of the harmonics, in `of_y`, of the radial functions, which is added to, and
    /// where it is asked for of `x`.
    fn backward(
        &mut self,
        plans: &mut Plans<T>,
        [y, dbasis]: [&mut Tensor<T>; 2],
        of_x: bool,
        s: &Stream,
    ) -> Result<()> {
        self.mix_square
            .backward(&mut self.h[1], &mut self.square[1], false, s)?;
        self.mix_a
            .backward(&mut self.h[1], &mut self.a[1], false, s)?;
        let [a, da] = &mut self.a;
        for (text, other) in [(BY_FIRST, "B"), (BY_SECOND, "A")] {
            let (cg, g) = (&self.coefficients, &self.square[1]);
            let factors = [("CG", cg.into()), ("G", g.into()), (other, (&*a).into())];
            plans.run(text, &factors, da, s)?;
        }
        self.mix_sums.backward(da, &mut self.sums[1], false, s)?;
        let [x, dx] = &mut self.x;
        let [w, dw] = &mut self.weights;
        let gradients = Gradients {
            x: of_x.then_some(dx),
            y: Some(&mut self.of_y),
            w: Some(&mut *dw),
        };
        let factors = Factors { x, y, w: Some(w) };
        self.message
            .backward(factors, &self.sums[1], gradients, s)?;
        let [first, second] = &mut self.radial;
        // What was activated is not needed any more.
        second.backward(dw, &mut self.activated, false, s)?;
        let [hidden, dhidden] = &mut self.hidden;
        self.silu.backward(hidden, &self.activated, dhidden, s)?;
        first.backward(dhidden, dbasis, true, s)
    }
}

/// The model for atoms whose edges stay as they are; positions are f64.
pub struct ForceField<T: Scalar> {
    plans: Plans<T>,
    geometry: EdgeGeometry<T>,
    /// Harmonics and radial functions, and their gradients.
    y: [Tensor<T>; 2],
    basis: [Tensor<T>; 2],
    layers: [Layer<T>; 2],
    mix: Mix<T>,
    skip: Mix<T>,
    read: Mix<T>,
    silu: Activation<T>,
    /// `[atoms, 16]`: read out of the second layer, activated, and gradients of both.
    readout: [Tensor<T>; 4],
    /// Of the first layer, `[9, channels]` of which only degree 0 is not zero; of the second; of pairs.
    rows: [Tensor<T>; 3],
    /// Ones, for atoms and for edges.
    ones: [Tensor<T>; 2],
    receivers: Vec<u32>,
    /// Energy of each atom, eV.
    pub energy: Tensor<T>,
    /// The gradient by the positions, minus the forces, eV / Angstrom.
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
        let (nodes, edges, c) = (atoms.count(), atoms.receivers.len(), channels);
        let plans = Plans::new(ctx, precision);
        let scalar = Couplings::new(&[[0, 0, 0], [0, 1, 1], [0, 2, 2]])?;
        let (all, last) = (
            Couplings::natural(2)?,
            Couplings::new(&[[0, 0, 0], [1, 1, 0], [2, 2, 0]])?,
        );
        let mut layers = [
            Layer::new(&plans, ctx, atoms, c, [&scalar, &all], 100)?,
            Layer::new(&plans, ctx, atoms, c, [&all, &last], 200)?,
        ];
        // Features of a species do not depend on positions: they are mixed here.
        let of_species = random_values::<f64>(SPECIES * c, 300);
        let embedded = |at: &[usize]| T::from_f64(of_species[atoms.species[at[0]] * c + at[2]]);
        layers[0].x[0].write(&Dense::from_fn([nodes, 1, c], embedded)?)?;
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
        // Lower frequencies more than higher: a repulsion that falls without ripples.
        let pairs = |n: usize| REPULSION * (1.0 - (n + 1) as f64 / (RADIAL + 1) as f64);
        let options = GeometryOptions {
            cutoff,
            functions: RADIAL,
            ..Default::default()
        };
        let edge = |width: usize| -> Result<_> {
            Ok([ctx.zeros(&[edges, width])?, ctx.zeros(&[edges, width])?])
        };
        let [r, dr] = [0, 1].map(|_| ctx.zeros(&[nodes, READ]));
        let weights = row(vec![READ], &upto(READ, 0.3))?;
        let mut field = ForceField {
            geometry: EdgeGeometry::new(ctx, atoms.edges(), Some(atoms.periodic()), &options)?,
            y: edge(ROWS)?,
            basis: edge(RADIAL)?,
            layers,
            mix: Mix::new(
                &plans,
                nodes,
                [ROWS; 2],
                &of_degrees(ROWS),
                [c; 2],
                (1.0, 302),
            )?,
            skip: Mix::new(
                &plans,
                nodes,
                [ROWS, 1],
                &vec![[0, 0, 0]],
                [c; 2],
                (1.0, 303),
            )?,
            read: Mix::dense(&plans, nodes, [c, READ], (1.0, 304))?,
            silu: Activation::new(ctx, Gate::Silu, [nodes, READ])?,
            readout: [
                r?,
                dr?,
                ctx.zeros(&[nodes, READ])?,
                ctx.zeros(&[nodes, READ])?,
            ],
            rows: [
                row(vec![ROWS * c], &upto(c, size))?,
                weights,
                row(vec![RADIAL], &pairs)?,
            ],
            ones: [row(vec![nodes], &|_| 1.0)?, row(vec![edges], &|_| 1.0)?],
            receivers: atoms.receivers.clone(),
            energy: ctx.zeros(&[nodes])?,
            gradient: ctx.zeros(&[nodes, 3])?,
            plans,
        };
        // The gradient of what is read out is the same whatever the positions.
        let stream = ctx.stream()?;
        let (ones, rows) = (&field.ones[0], &field.rows[1]);
        field
            .plans
            .add_rows(ones, rows, &mut field.readout[2], &stream)?;
        stream.synchronize()?;
        Ok(field)
    }

    /// Queues energies and their gradient.
    pub fn run(&mut self, positions: &Tensor<f64>, s: &Stream) -> Result<()> {
        let [y, dy] = &mut self.y;
        let [basis, dbasis] = &mut self.basis;
        let [first, second] = &mut self.layers;
        let plans = &mut self.plans;
        self.geometry.forward(positions, y, basis, s)?;
        first.forward(plans, [&mut *y, &mut *basis], s)?;
        self.mix
            .forward(&mut first.h[0], &mut second.x[0], false, s)?;
        second.forward(plans, [&mut *y, &mut *basis], s)?;
        self.skip
            .forward(&mut first.h[0], &mut second.h[0], true, s)?;
        let [z, activated, da, dz] = &mut self.readout;
        self.read.forward(&mut second.h[0], z, false, s)?;
        self.silu.forward(z, activated, s)?;
        let (e, [of_first, of_second, of_pairs]) = (&mut self.energy, &self.rows);
        let text = "Out[n] = Z[n,q] * R[q]";
        plans.run(
            text,
            &[("Z", (&*activated).into()), ("R", of_second.into())],
            e,
            s,
        )?;
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
        plans.run(
            text,
            &[("S", (&self.ones[1]).into()), ("R", of_pairs.into())],
            dbasis,
            s,
        )?;
        self.silu.backward(z, da, dz, s)?;
        self.read.backward(dz, &mut second.h[1], false, s)?;
        second.backward(plans, [&mut *y, &mut *dbasis], true, s)?;
        self.mix
            .backward(&mut second.x[1], &mut first.h[1], false, s)?;
        self.skip
            .backward(&mut second.h[1], &mut first.h[1], true, s)?;
        first.h[1].reshape(&flat)?;
        plans.add_rows(&self.ones[0], of_first, &mut first.h[1], s)?;
        first.h[1].reshape(&shape)?;
        first.backward(plans, [&mut *y, &mut *dbasis], false, s)?;
        // The gradient of Y is the sum of both layers'.
        plans.run("Out[e,j] = A[e,j]", &[("A", (&first.of_y).into())], dy, s)?;
        plans.run("Out[e,j] += A[e,j]", &[("A", (&second.of_y).into())], dy, s)?;
        self.geometry
            .backward(positions, [dy, dbasis], &mut self.gradient, s)
    }
}
