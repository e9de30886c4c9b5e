//! Layer of the force field: messages along the edges between atoms, the product of the summed messages with
//! themselves, and all gradients.

use einsparse::dynamic::Gate;
use einsparse::formats::Dense;
use einsparse::formats::generate::random_values;
use einsparse::nn::Activation;
use einsparse::ops::{Channels, Couplings, EquivariantMessage, Factors, Gradients, TensorProduct};
use einsparse::{Context, Precision, Result, Scalar, SparseTensor, Stream, Tensor};

use super::atoms::Atoms;
use super::common::{Run, Times, largest_error, wide};
use super::mixing::{Mix, Plans, Wiring};

/// Rows of an atom's features: degrees up to 2.
pub const ROWS: usize = 9;
/// Radial functions of an edge, and the hidden width between them and the edge's weights.
pub const RADIAL: usize = 8;
const HIDDEN: usize = 64;

/// Degree of a row.
fn degree(row: usize) -> usize {
    row.isqrt()
}

/// Maps rows of paths to rows of features, by path.
fn of_paths(couplings: &Couplings) -> Wiring {
    let rows = couplings.component_of_row().into_iter().zip(couplings.path_of_row());
    let rows = rows.enumerate();
    rows.map(|(k, (component, path))| [component as usize, k, path as usize]).collect()
}

/// Maps rows of features to themselves, by degree.
pub fn of_degrees(rows: usize) -> Wiring {
    (0..rows).map(|row| [row, row, degree(row)]).collect()
}

/// Messages along the edges, and the product of their sums with themselves. In each pair the second is the gradient.
pub struct Layer<T: Scalar> {
    /// Maps radial functions to edge weights, `[edges, paths, channels]`.
    radial: [Mix<T>; 2],
    silu: Activation<T>,
    hidden: [Tensor<T>; 2],
    activated: Tensor<T>,
    weights: [Tensor<T>; 2],
    message: EquivariantMessage<T>,
    /// Features of the senders, with atoms of other ranks, and sums of messages, `[atoms, rows, channels]`.
    pub x: [Tensor<T>; 2],
    sums: [Tensor<T>; 2],
    mix_sums: Mix<T>,
    a: [Tensor<T>; 2],
    coefficients: SparseTensor<T>,
    square: [Tensor<T>; 2],
    mix_a: Mix<T>,
    mix_square: Mix<T>,
    pub h: [Tensor<T>; 2],
    pub of_y: Tensor<T>,
}

const PRODUCT: &str = "Out[n,k,u] = CG[i,j,k] * A[n,i,u] * B[n,j,u]";
const BY_FIRST: &str = "Out[n,i,u] += CG[i,j,k] * G[n,k,u] * B[n,j,u]";
const BY_SECOND: &str = "Out[n,j,u] += CG[i,j,k] * G[n,k,u] * A[n,i,u]";

impl<T: Scalar> Layer<T> {
    /// `messages`: paths of features and harmonics; `products`: paths of features with themselves.
    pub fn new(
        plans: &Plans<T>,
        ctx: &Context,
        atoms: &Atoms,
        channels: usize,
        [messages, products]: [&Couplings; 2],
        seed: u64,
    ) -> Result<Self> {
        let (nodes, edges, c) = (atoms.own.len(), atoms.receivers.len(), channels);
        let neighbours = atoms.neighbours;
        let message = EquivariantMessage::new(ctx, messages, c, atoms.edges())?;
        let both =
            |shape: [usize; 3]| -> Result<_> { Ok([ctx.zeros(&shape)?, ctx.zeros(&shape)?]) };
        let of_atoms = |rows: usize| both([nodes, rows, c]);
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
            x: both([atoms.count(), messages.components(0), c])?,
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

    /// Computes `h` from `x`.
    pub fn forward(
        &mut self,
        plans: &mut Plans<T>,
        [y, basis]: [&mut Tensor<T>; 2],
        s: &Stream,
    ) -> Result<()> {
        let [first, second] = &mut self.radial;
        first.forward(basis, &mut self.hidden[0], false, s)?;
        self.silu.forward(&self.hidden[0], &mut self.activated, s)?;
        second.forward(&mut self.activated, &mut self.weights[0], false, s)?;
        let factors = Factors { x: &self.x[0], y, w: Some(&self.weights[0]) };
        self.message.forward(factors, &mut self.sums[0], s)?;
        self.mix_sums.forward(&mut self.sums[0], &mut self.a[0], false, s)?;
        let a = &self.a[0];
        let factors = [("CG", (&self.coefficients).into()), ("A", a.into()), ("B", a.into())];
        plans.run(PRODUCT, &factors, &mut self.square[0], s)?;
        self.mix_a.forward(&mut self.a[0], &mut self.h[0], false, s)?;
        self.mix_square.forward(&mut self.square[0], &mut self.h[0], true, s)
    }

    /// Computes gradients from that of `h`: of the harmonics, in `of_y`; of the radial functions, which is added; and
    /// of `x` if `of_x`.
    pub fn backward(
        &mut self,
        plans: &mut Plans<T>,
        [y, dbasis]: [&mut Tensor<T>; 2],
        of_x: bool,
        s: &Stream,
    ) -> Result<()> {
        self.mix_square.backward(&mut self.h[1], &mut self.square[1], false, s)?;
        self.mix_a.backward(&mut self.h[1], &mut self.a[1], false, s)?;
        let [a, da] = &mut self.a;
        for (text, other) in [(BY_FIRST, "B"), (BY_SECOND, "A")] {
            let (cg, g) = (&self.coefficients, &self.square[1]);
            let factors = [("CG", cg.into()), ("G", g.into()), (other, (&*a).into())];
            plans.run(text, &factors, da, s)?;
        }
        self.mix_sums.backward(da, &mut self.sums[1], false, s)?;
        let [x, dx] = &mut self.x;
        let [w, dw] = &mut self.weights;
        let gradients =
            Gradients { x: of_x.then_some(dx), y: Some(&mut self.of_y), w: Some(&mut *dw) };
        let factors = Factors { x, y, w: Some(w) };
        self.message.backward(factors, &self.sums[1], gradients, s)?;
        let [first, second] = &mut self.radial;
        // The activated values are no longer needed, so the gradient overwrites them.
        second.backward(dw, &mut self.activated, false, s)?;
        let [hidden, dhidden] = &mut self.hidden;
        self.silu.backward(hidden, &self.activated, dhidden, s)?;
        first.backward(dhidden, dbasis, true, s)
    }
}

/// Times messages of degrees up to 2 in one kernel, and in three steps: features gathered for the edges, their products
/// with harmonics and weights, sums at the receivers. Also returns their largest difference.
pub fn messages(run: &Run<'_>, atoms: &Atoms, channels: usize) -> Result<([Times; 2], f64)> {
    let (ctx, couplings) = (&run.context, Couplings::natural(2)?);
    let edges = atoms.receivers.len();
    let message = EquivariantMessage::<f32>::new(ctx, &couplings, channels, atoms.edges())?;
    let each = Channels::Each(channels);
    let product = TensorProduct::<f32>::new(ctx, &couplings, each, edges)?;
    let random = |shape: &[usize], seed: u64| {
        let values = random_values(shape.iter().product(), seed);
        ctx.upload_dense(&Dense::new(shape, values)?)
    };
    let x = random(message.x_shape(), 1)?;
    let (y, w) = (random(message.y_shape(), 2)?, random(message.w_shape(), 3)?);
    let out = || ctx.zeros::<f32>(message.out_shape());
    let (mut fused, mut summed) = (out()?, out()?);
    let w = Some(&w);
    let first = run.time(|s| message.forward(Factors { x: &x, y: &y, w }, &mut fused, s))?;
    let mut plans = Plans::<f32>::new(ctx, Precision::Full);
    let mut gathered = ctx.zeros(product.x_shape())?;
    let mut products = ctx.zeros(product.out_shape())?;
    let length = [edges];
    let (from, to) = ((&length[..], &atoms.senders[..]), (&length[..], &atoms.receivers[..]));
    let second = run.time(|s| {
        let factors = [("X", (&x).into()), ("S", from.into())];
        plans.run("Out[e,i,u] = X[S[e],i,u]", &factors, &mut gathered, s)?;
        let own = Factors { x: &gathered, y: &y, w };
        product.forward(own, &mut products, s)?;
        let factors = [("P", (&products).into()), ("R", to.into())];
        plans.run("Out[R[e],k,u] = P[e,k,u]", &factors, &mut summed, s)
    })?;
    let error = largest_error(&wide(&fused)?, &wide(&summed)?);
    Ok(([first, second], error))
}
