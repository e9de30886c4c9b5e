//! The equivariant tensor product: parts of two operands couple by Clebsch-Gordan coefficients, a sparse tensor of
//! order 3.

mod couplings;

pub use couplings::Couplings;

use crate::context::Context;
use crate::device::Stream;
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::registry::Scalar;
use crate::tensor::{Operand, SparseTensor, Tensor};

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

/// The expressions: the product, and the gradients of X, Y and W, given that of the output as G.
type Lines = [Option<&'static str>; 4];

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
#[derive(Debug)]
pub struct TensorProduct<T: Scalar> {
    parts: Parts<T>,
    forward: Plan<T>,
    /// Of X, Y and W.
    gradients: [Option<Plan<T>>; 3],
}

/// What all expressions share.
#[derive(Debug)]
struct Parts<T: Scalar> {
    lines: Lines,
    coefficients: SparseTensor<T>,
    /// L and K of the expressions, and their extent.
    paths: Vec<u32>,
    components: Vec<u32>,
    rows: [usize; 1],
    /// Shapes of X, Y, W and Out.
    shapes: [Vec<usize>; 4],
}

/// A tensor by its name in the expressions.
type Named<'a, T> = (&'static str, &'a Tensor<T>);

/// The tensors an expression writes: of the product, and of the gradients of X, Y and W.
const WRITTEN: [&str; 4] = ["Out", "DX", "DY", "DW"];

impl<T: Scalar> TensorProduct<T> {
    /// Plans the product of `items` pairs.
    ///
    /// # Errors
    /// [`Error::NoKernel`] where no kernel of the context takes the type.
    pub fn new(
        context: &Context,
        couplings: &Couplings,
        channels: Channels,
        items: usize,
    ) -> Result<Self> {
        let parts = Parts {
            lines: channels.lines(),
            coefficients: context.upload(couplings.tensor::<T>()?)?,
            paths: couplings.path_of_row(),
            components: couplings.component_of_row(),
            rows: [couplings.rows()],
            shapes: shapes(couplings, channels, items),
        };
        let forward = parts.plan(context, 0)?.ok_or_else(|| missing("Out"))?;
        let gradients = [None, None, None];
        Ok(TensorProduct {
            parts,
            forward,
            gradients,
        })
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
        let mut product = TensorProduct::new(context, couplings, channels, items)?;
        for (of, plan) in product.gradients.iter_mut().enumerate() {
            *plan = product.parts.plan(context, of + 1)?;
        }
        Ok(product)
    }

    /// The product.
    ///
    /// # Errors
    /// Tensors of other shapes or another context than planned, or that are missing. Rows may lie apart where a kernel
    /// of family `tensor_product` runs ([`TensorProduct::plans`] tells), and not where the lists are too large for it,
    /// as with all degrees up to 6.
    pub fn forward(
        &self,
        factors: Factors<'_, T>,
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let named = factors.named();
        self.forward
            .run(&self.parts.operands(0, &named), out, stream)
    }

    /// The gradient of X, given that of the output.
    ///
    /// # Errors
    /// As [`TensorProduct::forward`]; and where gradients were not planned.
    pub fn backward_x(
        &self,
        factors: Factors<'_, T>,
        dout: &Tensor<T>,
        dx: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.gradient(1, factors, dout, dx, stream)
    }

    /// The gradient of Y, given that of the output.
    ///
    /// # Errors
    /// As [`TensorProduct::backward_x`].
    pub fn backward_y(
        &self,
        factors: Factors<'_, T>,
        dout: &Tensor<T>,
        dy: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.gradient(2, factors, dout, dy, stream)
    }

    /// The gradient of the weights, given that of the output.
    ///
    /// # Errors
    /// As [`TensorProduct::backward_x`]; and where the product has no weights.
    pub fn backward_weight(
        &self,
        factors: Factors<'_, T>,
        dout: &Tensor<T>,
        dw: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.gradient(3, factors, dout, dw, stream)
    }

    fn gradient(
        &self,
        of: usize,
        factors: Factors<'_, T>,
        dout: &Tensor<T>,
        out: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let plan = self.gradients[of - 1].as_ref();
        let plan = plan.ok_or_else(|| missing(WRITTEN[of]))?;
        let mut named = factors.named();
        named.push(("G", dout));
        plan.run(&self.parts.operands(of, &named), out, stream)
    }

    /// Shape of X.
    pub fn x_shape(&self) -> &[usize] {
        &self.parts.shapes[0]
    }

    /// Shape of Y.
    pub fn y_shape(&self) -> &[usize] {
        &self.parts.shapes[1]
    }

    /// Shape of the weights; empty without.
    pub fn w_shape(&self) -> &[usize] {
        &self.parts.shapes[2]
    }

    /// Shape of the output.
    pub fn out_shape(&self) -> &[usize] {
        &self.parts.shapes[3]
    }

    /// The plans: of the product, and of the gradients of X, Y and W where they were planned.
    pub fn plans(&self) -> [Option<&Plan<T>>; 4] {
        let [x, y, w] = &self.gradients;
        [Some(&self.forward), x.as_ref(), y.as_ref(), w.as_ref()]
    }
}

impl<'a, T> Factors<'a, T> {
    fn named(&self) -> Vec<Named<'a, T>> {
        let mut all = vec![("X", self.x), ("Y", self.y)];
        all.extend(self.w.map(|w| ("W", w)));
        all
    }
}

impl<T: Scalar> Parts<T> {
    /// Plans one of the expressions, if there is such a one. Only shapes are planned with.
    fn plan(&self, context: &Context, of: usize) -> Result<Option<Plan<T>>> {
        let Some(line) = self.lines[of] else {
            return Ok(None);
        };
        let zeros = |of: usize| context.zeros::<T>(&self.shapes[of]);
        let [x, y, w, g] = [zeros(0)?, zeros(1)?, zeros(2)?, zeros(3)?];
        let mut named = vec![("X", &x), ("Y", &y), ("W", &w), ("G", &g)];
        let written = [&g, &x, &y, &w][of];
        named.push((WRITTEN[of], written));
        let mut operands = self.operands(of, &named);
        for (name, array) in [("L", &self.paths), ("K", &self.components)] {
            if is_named(line, name) {
                operands.push((name, (&self.rows[..], &array[..]).into()));
            }
        }
        context.plan(line).operands(&operands).build().map(Some)
    }

    /// What the expression names: of these tensors, and of what is its own; index arrays are part of the plan.
    fn operands<'a>(
        &'a self,
        of: usize,
        named: &[Named<'a, T>],
    ) -> Vec<(&'static str, Operand<'a, T>)> {
        let line = self.lines[of].unwrap_or_default();
        let mut all: Vec<(&'static str, Operand<'a, T>)> =
            vec![("CG", (&self.coefficients).into())];
        let tensors = named.iter().filter(|(name, _)| is_named(line, name));
        all.extend(tensors.map(|&(name, tensor)| (name, tensor.into())));
        all
    }
}

/// Whether an expression names a tensor: not as the end of another name.
fn is_named(line: &str, name: &str) -> bool {
    line.split(|c: char| !c.is_alphanumeric())
        .any(|word| word == name)
}

fn missing(name: &str) -> Error {
    Error::operand(
        name,
        "is not planned: the product has no such gradient, or was made without gradients",
    )
}

/// Shapes of X, Y, W and Out.
fn shapes(couplings: &Couplings, channels: Channels, items: usize) -> [Vec<usize>; 4] {
    let [i, j, c] = [0, 1, 2].map(|of| couplings.components(of));
    let (k, paths) = (couplings.rows(), couplings.paths().len());
    let y = vec![items, j];
    match channels {
        Channels::One => [vec![items, i], y, vec![], vec![items, k]],
        Channels::Each(u) => [
            vec![items, i, u],
            y,
            vec![items, paths, u],
            vec![items, k, u],
        ],
        Channels::Connected(u, w) => [vec![items, i, u], y, vec![paths, u, w], vec![items, c, w]],
        Channels::ConnectedEach(u, w) => [
            vec![items, i, u],
            y,
            vec![items, paths, u, w],
            vec![items, c, w],
        ],
    }
}
