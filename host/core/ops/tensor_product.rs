//! Equivariant tensor product: Clebsch-Gordan coefficients, a sparse tensor of order 3, couple parts of two operands.

mod couplings;
mod message;
mod products;

pub use couplings::Couplings;
pub use message::{Edges, EquivariantMessage};

use crate::context::Context;
use crate::device::Stream;
use crate::error::Result;
use crate::registry::Scalar;
use crate::tensor::Tensor;
use products::Products;

/// Channels of the first operand and of the output; the second operand has one channel.
///
/// ```
/// use einsparse::ops::{Channels, Couplings, TensorProduct};
/// let ctx = einsparse::Context::cpu();
/// let couplings = Couplings::new(&[[1, 1, 0]])?;
/// let product = TensorProduct::<f32>::new(&ctx, &couplings, Channels::Each(16), 5)?;
/// assert_eq!(product.out_shape(), [5, 1, 16]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channels {
    /// One channel, without weights.
    One,
    /// Channels that are not mixed, with a weight for each item, path and channel (e3nn's `uvu`).
    Each(usize),
    /// Channels of the first operand and of the output, with a matrix of weights for each path that all items share
    /// (e3nn's fully connected `uvw`).
    Connected(usize, usize),
    /// [`Channels::Connected`] with a matrix of weights for each item and path.
    ConnectedEach(usize, usize),
}

impl Channels {
    /// Returns the expression of the product. Those of the gradients are its gradients by X, Y and W.
    pub fn expression(self) -> &'static str {
        match self {
            Channels::One => "Out[b,k] = CG[i,j,k] * X[b,i] * Y[b,j]",
            Channels::Each(_) => "Out[b,k,u] = CG[i,j,k] * X[b,i,u] * Y[b,j] * W[b,L[k],u]",
            Channels::Connected(..) => {
                "Out[b,K[p],w] = CG[i,j,p] * X[b,i,u] * Y[b,j] * W[L[p],u,w]"
            }
            Channels::ConnectedEach(..) => {
                "Out[b,K[p],w] = CG[i,j,p] * X[b,i,u] * Y[b,j] * W[b,L[p],u,w]"
            }
        }
    }
}

/// Operands of a product.
#[derive(Clone, Copy, Debug)]
pub struct Factors<'a, T> {
    /// First operand: `[items, components]`, with channels `[items, components, channels]`.
    pub x: &'a Tensor<T>,
    /// Second operand: `[items, components]`.
    pub y: &'a Tensor<T>,
    /// Weights: `None`, `[items, paths, channels]`, `[paths, channels of X, channels of the output]`, or
    /// `[items, paths, channels of X, channels of the output]`.
    pub w: Option<&'a Tensor<T>>,
}

/// Outputs for the gradients of X, Y and the weights, with the shapes of these operands. A `None` is not computed.
#[derive(Debug)]
pub struct Gradients<'a, T> {
    /// Gradient of X.
    pub x: Option<&'a mut Tensor<T>>,
    /// Gradient of Y.
    pub y: Option<&'a mut Tensor<T>>,
    /// Gradient of the weights.
    pub w: Option<&'a mut Tensor<T>>,
}

/// Products of rotation-equivariant features, `Out[b,k] = CG[i,j,k] * X[b,i] * Y[b,j]` for many items b, and their
/// gradients (e3nn, arXiv 2207.09453; as an indirect Einsum: Insum, arXiv 2510.17505, section 6). If a rotation is
/// applied to X and Y, each degree with its own matrix, Out is rotated as well.
///
/// | channels | X | W | Out |
/// |---|---|---|---|
/// | [`Channels::One`] | `[b,i]` | | `[b,k]`, paths concatenated |
/// | [`Channels::Each`] | `[b,i,u]` | `[b,path,u]` | `[b,k,u]` |
/// | [`Channels::Connected`] | `[b,i,u]` | `[path,u,w]` | `[b,c,w]`, paths of one degree summed |
/// | [`Channels::ConnectedEach`] | `[b,i,u]` | `[b,path,u,w]` | `[b,c,w]`, paths of one degree summed |
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::Dense;
/// use einsparse::ops::{Channels, Couplings, Factors, TensorProduct};
/// let ctx = Context::cpu();
/// // Two vectors to the scalar of their dot product, over the root of 3.
/// let couplings = Couplings::new(&[[1, 1, 0]])?;
/// let product = TensorProduct::<f64>::new(&ctx, &couplings, Channels::One, 1)?;
/// let x = ctx.upload_dense(&Dense::new([1, 4], vec![0.0, 1.0, 2.0, 3.0])?)?;
/// let mut out = ctx.zeros(product.out_shape())?;
/// let stream = ctx.stream()?;
/// product.forward(Factors { x: &x, y: &x, w: None }, &mut out, &stream)?;
/// stream.synchronize()?;
/// assert!((out.to_dense()?.values()[0].abs() - 14.0 / 3f64.sqrt()).abs() < 1e-12);
/// # Ok::<(), einsparse::Error>(())
/// ```
///
/// On a GPU, [`Channels::Each`] in f32 with degrees up to 3 runs kernels whose coefficients are constants: one launch
/// computes the product, another one all its gradients. The product is linear in each operand, so second derivatives
/// are products as well. The derivative of `<V, dY>` with respect to the output's gradient is the product with V in
/// place of Y. The derivatives with respect to X and W are the gradients with V in place of Y. The other operands
/// are analogous.
#[derive(Debug)]
pub struct TensorProduct<T: Scalar> {
    products: Products<T>,
}

impl<T: Scalar> TensorProduct<T> {
    /// Plans the product of `items` pairs.
    ///
    /// # Errors
    /// [`crate::Error::NoKernel`] if no kernel of the context supports the type.
    pub fn new(
        context: &Context,
        couplings: &Couplings,
        channels: Channels,
        items: usize,
    ) -> Result<Self> {
        Self::planned(context, couplings, channels, items, false)
    }

    /// Plans the product and the gradients of X, Y and the weights.
    ///
    /// # Errors
    /// See [`TensorProduct::new`].
    pub fn with_gradients(
        context: &Context,
        couplings: &Couplings,
        channels: Channels,
        items: usize,
    ) -> Result<Self> {
        Self::planned(context, couplings, channels, items, true)
    }

    fn planned(
        context: &Context,
        couplings: &Couplings,
        channels: Channels,
        items: usize,
        gradients: bool,
    ) -> Result<Self> {
        let shapes = shapes(couplings, channels, items);
        let text = channels.expression();
        let products = Products::new(context, couplings, channels, text, shapes, None, gradients)?;
        Ok(TensorProduct { products })
    }

    /// Computes the product.
    ///
    /// # Errors
    /// Fails for missing tensors, and for tensors of other shapes or another context than planned. Rows may have gaps
    /// if a kernel of module `equivariant` or `tensor_product` runs (see [`TensorProduct::variants`]). Otherwise they
    /// must not: such a kernel does not run if the lists are too large for it, as with all degrees up to 6.
    pub fn forward(
        &self,
        factors: Factors<'_, T>,
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.products.forward(factors, out, stream)
    }

    /// Computes the requested gradients from the gradient of the output.
    ///
    /// # Errors
    /// See [`TensorProduct::forward`]. Also fails if gradients were not planned, or for a gradient of weights of a
    /// product without weights.
    pub fn backward(
        &self,
        factors: Factors<'_, T>,
        dout: &Tensor<T>,
        gradients: Gradients<'_, T>,
        stream: &Stream,
    ) -> Result<()> {
        self.products.backward(factors, dout, gradients, stream)
    }

    /// Returns the shape of X.
    pub fn x_shape(&self) -> &[usize] {
        &self.products.shapes[0]
    }

    /// Returns the shape of Y.
    pub fn y_shape(&self) -> &[usize] {
        &self.products.shapes[1]
    }

    /// Returns the shape of the weights; empty for a product without weights.
    pub fn w_shape(&self) -> &[usize] {
        &self.products.shapes[2]
    }

    /// Returns the shape of the output.
    pub fn out_shape(&self) -> &[usize] {
        &self.products.shapes[3]
    }

    /// Returns the names of the kernels of the product and of the planned gradients of X, Y and W; `cpu` on a CPU
    /// context.
    pub fn variants(&self) -> [Option<&'static str>; 4] {
        self.products.variants()
    }

    /// Returns the device memory in bytes, operands excluded: lists, and the edges of a graph sorted by receiver and by
    /// sender.
    pub fn workspace_bytes(&self) -> usize {
        self.products.workspace_bytes()
    }
}

/// Returns the shapes of X, Y, W and Out.
fn shapes(couplings: &Couplings, channels: Channels, items: usize) -> [Vec<usize>; 4] {
    let [i, j, c] = [0, 1, 2].map(|of| couplings.components(of));
    let (k, paths) = (couplings.rows(), couplings.paths().len());
    let y = vec![items, j];
    match channels {
        Channels::One => [vec![items, i], y, vec![], vec![items, k]],
        Channels::Each(u) => [vec![items, i, u], y, vec![items, paths, u], vec![items, k, u]],
        Channels::Connected(u, w) => [vec![items, i, u], y, vec![paths, u, w], vec![items, c, w]],
        Channels::ConnectedEach(u, w) => {
            [vec![items, i, u], y, vec![items, paths, u, w], vec![items, c, w]]
        }
    }
}
