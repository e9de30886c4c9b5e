//! Products of [`Transformer`](super::transformer_net::Transformer), and its parameters. All matrices are stored in one
//! vector, all biases and norms in another, so an optimizer updates each vector in one step.

use einsparse::formats::{Dense, generate};
use einsparse::{Context, Plan, Result, Scalar, Tensor, TensorView, TensorViewMut};

use super::block_masks::plan;

/// Product of a layer; the last one follows all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Qkv,
    Out,
    Up,
    Down,
    Head,
}

impl Role {
    /// All roles in order.
    pub const ALL: [Role; 5] = [Role::Qkv, Role::Out, Role::Up, Role::Down, Role::Head];
}

/// Extents of the network.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub layers: usize,
    pub tokens: usize,
    pub width: usize,
    pub heads: usize,
    pub hidden: usize,
    pub classes: usize,
}

impl Shape {
    /// Inputs and outputs of a product.
    pub fn matrix(&self, role: Role) -> [usize; 2] {
        let (w, h) = (self.width, self.hidden);
        match role {
            Role::Qkv => [w, 3 * w],
            Role::Out => [w, w],
            Role::Up => [w, h],
            Role::Down => [h, w],
            Role::Head => [w, self.classes],
        }
    }

    /// Offset of a product's matrix.
    fn first(&self, layer: usize, role: Role) -> usize {
        let (w, h) = (self.width, self.hidden);
        let ahead = match role {
            Role::Qkv | Role::Head => 0,
            Role::Out => 3 * w * w,
            Role::Up => 4 * w * w,
            Role::Down => 4 * w * w + w * h,
        };
        layer * (4 * w * w + 2 * w * h) + ahead
    }

    /// Offset of a product's bias; only products of the feed-forward network have one.
    fn bias(&self, layer: usize, role: Role) -> usize {
        let ahead = if role == Role::Up { 0 } else { self.hidden };
        layer * (self.hidden + 5 * self.width) + ahead
    }

    /// Offset of the factors and summands of a norm: 0 after attention, 1 after the feed-forward network.
    fn norm(&self, layer: usize, which: usize) -> usize {
        self.bias(layer, Role::Down) + (1 + 2 * which) * self.width
    }
}

/// Plans of a product, and of its gradients by inputs and weights if it is trained.
pub struct Product<T: Scalar> {
    pub forward: Plan<T>,
    pub back: Option<[Plan<T>; 2]>,
}

impl<T: Scalar> Product<T> {
    pub fn new(ctx: &Context, shape: &Shape, role: Role, trains: bool) -> Result<Self> {
        let w @ [inputs, outputs] = shape.matrix(role);
        let (x, y) = ([shape.tokens, inputs], [shape.tokens, outputs]);
        let all = [("X", &x[..]), ("W", &w), ("b", &w[1..]), ("D", &y)];
        let made = |text: &str| {
            let named = |name: &str| text.contains(&format!("{name}["));
            let own: Vec<_> = all.into_iter().filter(|(name, _)| named(name)).collect();
            plan(ctx, text, &own)
        };
        let forward = match role {
            Role::Up => "Y[t,o] = relu(X[t,i] * W[i,o] + b[o])",
            Role::Down => "Y[t,o] = X[t,i] * W[i,o] + b[o]",
            _ => "Y[t,o] = X[t,i] * W[i,o]",
        };
        // The gradient of the residual path is already in the buffer, so these products add to it.
        let input = match role {
            Role::Down => "E[t,i] = relu_grad(D[t,o] * W[i,o], X[t,i])",
            Role::Qkv | Role::Up => "E[t,i] += D[t,o] * W[i,o]",
            _ => "E[t,i] = D[t,o] * W[i,o]",
        };
        let back = || -> Result<_> { Ok([made(input)?, made("G[i,o] = X[t,i] * D[t,o]")?]) };
        Ok(Product { forward: made(forward)?, back: trains.then(back).transpose()? })
    }
}

/// Intermediate results of a layer, which the gradients read again.
pub struct Kept<T: Scalar> {
    pub qkv: Tensor<T>,
    pub seen: Tensor<T>,
    pub sums: [Tensor<T>; 2],
    pub between: Tensor<T>,
    pub hidden: Tensor<T>,
}

impl<T: Scalar> Kept<T> {
    pub fn new(ctx: &Context, shape: &Shape) -> Result<Self> {
        let rows = |columns: usize| ctx.zeros::<T>(&[shape.tokens, columns]);
        let width = shape.width;
        Ok(Kept {
            qkv: rows(3 * width)?,
            seen: rows(width)?,
            sums: [rows(width)?, rows(width)?],
            between: rows(width)?,
            hidden: rows(shape.hidden)?,
        })
    }
}

/// Matrices in T, vectors in V.
pub struct Parameters<T: Scalar, V: Scalar> {
    shape: Shape,
    pub matrices: Tensor<T>,
    pub vectors: Tensor<V>,
}

impl<T: Scalar, V: Scalar> Parameters<T, V> {
    pub fn zeros(ctx: &Context, shape: Shape) -> Result<Self> {
        let head = shape.width * shape.classes;
        Ok(Parameters {
            matrices: ctx.zeros(&[shape.first(shape.layers, Role::Head) + head])?,
            vectors: ctx.zeros(&[shape.bias(shape.layers, Role::Up)])?,
            shape,
        })
    }

    /// Creates seeded parameters: sums of products keep the size of their inputs, factors of norms are near one.
    pub fn seeded(ctx: &Context, shape: Shape) -> Result<Self> {
        let mut own = Self::zeros(ctx, shape)?;
        let mut matrices: Vec<f32> = generate::random_values(own.matrices.shape()[0], 1);
        let roles = Role::ALL.iter().take(4);
        let layers = (0..shape.layers).flat_map(|l| roles.clone().map(move |role| (l, *role)));
        for (layer, role) in layers.chain([(shape.layers, Role::Head)]) {
            let [inputs, outputs] = shape.matrix(role);
            let scale = 1.0 / (inputs as f32).sqrt();
            let own = &mut matrices[shape.first(layer, role)..][..inputs * outputs];
            own.iter_mut().for_each(|x| *x *= scale);
        }
        let mut vectors: Vec<f32> = generate::random_values(own.vectors.shape()[0], 2);
        vectors.iter_mut().for_each(|x| *x *= 0.1);
        for (layer, which) in (0..shape.layers).flat_map(|layer| [(layer, 0), (layer, 1)]) {
            let factors = &mut vectors[shape.norm(layer, which)..][..shape.width];
            factors.iter_mut().for_each(|x| *x += 1.0);
        }
        fn of<U: Scalar>(values: &[f32]) -> Result<Dense<U>> {
            let own = values.iter().map(|x| U::from_f64(f64::from(*x)));
            Ok(Dense::new([values.len()], own.collect())?)
        }
        own.matrices.write(&of(&matrices)?)?;
        own.vectors.write(&of(&vectors)?)?;
        Ok(own)
    }

    pub fn matrix(&self, layer: usize, role: Role) -> Result<TensorView<'_, T>> {
        let (first, shape) = (self.shape.first(layer, role), self.shape.matrix(role));
        self.matrices.part(first, &shape)
    }

    pub fn matrix_mut(&mut self, layer: usize, role: Role) -> Result<TensorViewMut<'_, T>> {
        let (first, shape) = (self.shape.first(layer, role), self.shape.matrix(role));
        self.matrices.part_mut(first, &shape)
    }

    pub fn bias(&self, layer: usize, role: Role) -> Result<TensorView<'_, V>> {
        let (first, [_, outputs]) = (self.shape.bias(layer, role), self.shape.matrix(role));
        self.vectors.part(first, &[outputs])
    }

    pub fn bias_mut(&mut self, layer: usize, role: Role) -> Result<TensorViewMut<'_, V>> {
        let (first, [_, outputs]) = (self.shape.bias(layer, role), self.shape.matrix(role));
        self.vectors.part_mut(first, &[outputs])
    }

    /// Returns the factors and summands of a norm.
    pub fn norm(&self, layer: usize, which: usize) -> Result<[TensorView<'_, V>; 2]> {
        let (first, width) = (self.shape.norm(layer, which), self.shape.width);
        let part = |first| self.vectors.part(first, &[width]);
        Ok([part(first)?, part(first + width)?])
    }

    /// Returns the factors and summands of a norm as two rows.
    pub fn norm_mut(&mut self, layer: usize, which: usize) -> Result<TensorViewMut<'_, V>> {
        let first = self.shape.norm(layer, which);
        self.vectors.part_mut(first, &[2, self.shape.width])
    }
}
