//! The equivariant tensor product: parts of two operands couple by Clebsch-Gordan coefficients, a sparse tensor of
//! order 3.

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
use products::{Lines, Products};

/// Channels of the first operand and of the output; the second operand has one.
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
    /// One, and no weights.
    One,
    /// So many, each for itself, with a weight of each item, path and channel (e3nn's `uvu`).
    Each(usize),
    /// So many of the first operand to so many of the output, with a matrix of weights for each path, the same for all
    /// items (e3nn's fully connected `uvw`).
    Connected(usize, usize),
    /// The same with a matrix of weights for each item and path.
    ConnectedEach(usize, usize),
}

const ONE: Lines = [
    Some("Out[b,k] = CG[i,j,k] * X[b,i] * Y[b,j]"),
    Some("DX[b,i] = CG[i,j,k] * G[b,k] * Y[b,j]"),
    Some("DY[b,j] = CG[i,j,k] * X[b,i] * G[b,k]"),
    None,
];
const EACH: Lines = [
    Some("Out[b,k,u] = CG[i,j,k] * X[b,i,u] * Y[b,j] * W[b,L[k],u]"),
    Some("DX[b,i,u] = CG[i,j,k] * G[b,k,u] * Y[b,j] * W[b,L[k],u]"),
    Some("DY[b,j] = CG[i,j,k] * X[b,i,u] * G[b,k,u] * W[b,L[k],u]"),
    Some("DW[b,L[k],u] = CG[i,j,k] * X[b,i,u] * Y[b,j] * G[b,k,u]"),
];
const CONNECTED: Lines = [
    Some("Out[b,K[p],w] = CG[i,j,p] * X[b,i,u] * Y[b,j] * W[L[p],u,w]"),
    Some("DX[b,i,u] = CG[i,j,p] * G[b,K[p],w] * Y[b,j] * W[L[p],u,w]"),
    Some("DY[b,j] = CG[i,j,p] * X[b,i,u] * G[b,K[p],w] * W[L[p],u,w]"),
    Some("DW[L[p],u,w] = CG[i,j,p] * X[b,i,u] * Y[b,j] * G[b,K[p],w]"),
];
const CONNECTED_EACH: Lines = [
    Some("Out[b,K[p],w] = CG[i,j,p] * X[b,i,u] * Y[b,j] * W[b,L[p],u,w]"),
    Some("DX[b,i,u] = CG[i,j,p] * G[b,K[p],w] * Y[b,j] * W[b,L[p],u,w]"),
    Some("DY[b,j] = CG[i,j,p] * X[b,i,u] * G[b,K[p],w] * W[b,L[p],u,w]"),
    Some("DW[b,L[p],u,w] = CG[i,j,p] * X[b,i,u] * Y[b,j] * G[b,K[p],w]"),
];

impl Channels {
    /// The expressions of the product and of the gradients of X, Y and W, where there are any.
    pub fn lines(self) -> [Option<&'static str>; 4] {
        match self {
            Channels::One => ONE,
            Channels::Each(_) => EACH,
            Channels::Connected(..) => CONNECTED,
            Channels::ConnectedEach(..) => CONNECTED_EACH,
        }
    }
}

/// The operands of a product.
#[derive(Clone, Copy, Debug)]
pub struct Factors<'a, T> {
    /// The first: `[items, components]`, with channels `[items, components, channels]`.
    pub x: &'a Tensor<T>,
    /// The second: `[items, components]`.
    pub y: &'a Tensor<T>,
    /// Weights: none, `[items, paths, channels]`, `[paths, channels of X, channels of the output]`, or the last with
    /// items in front.
    pub w: Option<&'a Tensor<T>>,
}

/// Where gradients go: of X, Y and the weights, of the shapes of these. What is `None` is not computed.
#[derive(Debug)]
pub struct Gradients<'a, T> {
    /// That of X.
    pub x: Option<&'a mut Tensor<T>>,
    /// That of Y.
    pub y: Option<&'a mut Tensor<T>>,
    /// That of the weights.
    pub w: Option<&'a mut Tensor<T>>,
}

/// Products of features that turn with space, `Out[b,k] = CG[i,j,k] * X[b,i] * Y[b,j]` for many items b, and their
/// gradients (e3nn, arXiv 2207.09453; as an indirect Einsum: Insum, arXiv 2510.17505, section 6). If X and Y turn by a
/// rotation's matrices, each degree by its own, so does Out.
///
/// | channels | X | W | Out |
/// |---|---|---|---|
/// | [`Channels::One`] | `[b,i]` | | `[b,k]`, paths one behind the other |
/// | [`Channels::Each`] | `[b,i,u]` | `[b,path,u]` | `[b,k,u]` |
/// | [`Channels::Connected`] | `[b,i,u]` | `[path,u,w]` | `[b,c,w]`, paths of one degree added up |
/// | [`Channels::ConnectedEach`] | `[b,i,u]` | `[b,path,u,w]` | `[b,c,w]`, likewise |
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
/// On a GPU, [`Channels::Each`] in f32 with degrees up to 3 runs kernels whose coefficients are constants: a launch
/// computes the product, another all its gradients. The product is linear in each operand, so second derivatives are
/// products again: of `<V, dY>` by the output's gradient it is the product with V in place of Y, by X and W they are
/// the gradients with V in place of Y; likewise for the others.
#[derive(Debug)]
pub struct TensorProduct<T: Scalar> {
    products: Products<T>,
}

impl<T: Scalar> TensorProduct<T> {
    /// Plans the product of `items` pairs.
    ///
    /// # Errors
    /// [`crate::Error::NoKernel`] where no kernel of the context takes the type.
    pub fn new(
        context: &Context,
        couplings: &Couplings,
        channels: Channels,
        items: usize,
    ) -> Result<Self> {
        Self::planned(context, couplings, channels, items, false)
    }

    /// The same with the gradients of X, Y and the weights.
    ///
    /// # Errors
    /// As [`TensorProduct::new`].
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
        let lines = (channels, channels.lines());
        let products = Products::new(context, couplings, lines, shapes, None, gradients)?;
        Ok(TensorProduct { products })
    }

    /// The product.
    ///
    /// # Errors
    /// Tensors of other shapes or another context than planned, or that are missing. Rows may lie apart where a kernel
    /// of modules `equivariant` or `tensor_product` runs ([`TensorProduct::variants`] tells), and not where the lists
    /// are too large for it, as with all degrees up to 6.
    pub fn forward(
        &self,
        factors: Factors<'_, T>,
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.products.forward(factors, out, stream)
    }

    /// The gradients that are asked for, given that of the output.
    ///
    /// # Errors
    /// As [`TensorProduct::forward`]; and where gradients were not planned, or the product has no weights.
    pub fn backward(
        &self,
        factors: Factors<'_, T>,
        dout: &Tensor<T>,
        gradients: Gradients<'_, T>,
        stream: &Stream,
    ) -> Result<()> {
        self.products.backward(factors, dout, gradients, stream)
    }

    /// Shape of X.
    pub fn x_shape(&self) -> &[usize] {
        &self.products.shapes[0]
    }

    /// Shape of Y.
    pub fn y_shape(&self) -> &[usize] {
        &self.products.shapes[1]
    }

    /// Shape of the weights; empty without.
    pub fn w_shape(&self) -> &[usize] {
        &self.products.shapes[2]
    }

    /// Shape of the output.
    pub fn out_shape(&self) -> &[usize] {
        &self.products.shapes[3]
    }

    /// Names of the kernels: of the product, and of the gradients of X, Y and W where they were planned; `cpu` on a CPU
    /// context.
    pub fn variants(&self) -> [Option<&'static str>; 4] {
        self.products.variants()
    }

    /// Device bytes held beside the operands: lists, and of a graph its edges by receiver and by sender.
    pub fn workspace_bytes(&self) -> usize {
        self.products.workspace_bytes()
    }
}

/// Shapes of X, Y, W and Out.
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
