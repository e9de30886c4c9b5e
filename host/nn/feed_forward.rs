//! Feed-forward layer whose hidden activations are mostly zero after a ReLU.

use std::sync::Arc;

use crate::context::Context;
use crate::device::Stream;
use crate::dynamic::{Dynamic, SparsityHint};
use crate::error::Result;
use crate::launch::{Turns, in_turn, shared_turns};
use crate::plan::{Determinism, Options, Plan};
use crate::registry::Scalar;
use crate::tensor::{Operand, Tensor};

/// Options of a [`FeedForward`] layer.
///
/// ```
/// use einsparse::dynamic::SparsityHint;
/// use einsparse::nn::FeedForwardOptions;
/// let options = FeedForwardOptions { expected: SparsityHint::MicroTiles(0.02), ..Default::default() };
/// assert_eq!(options.determinism, einsparse::Determinism::Strict);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct FeedForwardOptions {
    /// Expected share of hidden activations above zero. Kernels are selected for it; results are correct for any share.
    pub expected: SparsityHint,
    /// Whether sums may be accumulated in any order.
    pub determinism: Determinism,
}

impl Default for FeedForwardOptions {
    /// Returns options that expect a tenth of the micro-tiles to be nonzero, with sums in a fixed order.
    fn default() -> Self {
        FeedForwardOptions {
            expected: SparsityHint::MicroTiles(0.1),
            determinism: Determinism::Strict,
        }
    }
}

/// Feed-forward layer `Y[t,o] = relu(X[t,i] * U[i,h]) * W[h,o]` for a fixed number of tokens t (PIT, arXiv 2301.10936,
/// section 5.2, OPT's layers).
///
/// The first product includes its ReLU. If the expected sparsity makes it faster, the second product skips columns of
/// hidden activations that are zero for all tokens of a micro-tile, and the matching rows of W. Up to 64 tokens, one
/// kernel does this. Beyond that, a kernel between the products finds the nonzero columns, and the second product
/// reads only those. Runs allocate nothing and do not synchronize, so they can be captured in a CUDA graph.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::Dense;
/// use einsparse::nn::FeedForward;
/// let ctx = Context::cpu();
/// let x = ctx.upload_dense(&Dense::new([1, 2], vec![1.0f32, 2.0])?)?;
/// let u = ctx.upload_dense(&Dense::new([2, 2], vec![1.0, -1.0, 1.0, 0.0])?)?;
/// let w = ctx.upload_dense(&Dense::new([2, 1], vec![5.0, 7.0])?)?;
/// let mut layer = FeedForward::new(&ctx, [1, 2, 2, 1], &Default::default())?;
/// let mut y = ctx.zeros(&[1, 1])?;
/// layer.forward([&x, &u, &w], &mut y, &ctx.stream()?)?;
/// // The hidden activations are 3 and 0.
/// assert_eq!(y.to_dense()?.values(), [15.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct FeedForward<T: Scalar> {
    hidden: Tensor<T>,
    first: Plan<T>,
    second: Plan<T>,
    expected: SparsityHint,
    turns: Option<Arc<Turns>>,
}

impl<T: Scalar> FeedForward<T> {
    /// Creates a layer of these extents: tokens, inputs, hidden activations, outputs.
    ///
    /// # Errors
    /// [`Error::NoKernel`](einsparse_core::Error::NoKernel) if no kernel of the context supports the type;
    /// [`Error::Overflow`](einsparse_core::Error::Overflow), [`Error::OutOfMemory`](einsparse_core::Error::OutOfMemory).
    pub fn new(
        context: &Context,
        extents: [usize; 4],
        options: &FeedForwardOptions,
    ) -> Result<Self> {
        let [tokens, inputs, hidden, outputs] = extents;
        let shapes = [[tokens, inputs], [inputs, hidden], [hidden, outputs]];
        let [x, u, w] = shapes.each_ref().map(|shape| Operand::Shape(shape));
        let hidden = context.zeros::<T>(&[tokens, hidden])?;
        let planned = Options::default().determinism(options.determinism);
        let operands: [(_, Operand<'_, T>); 2] = [("X", x), ("U", u)];
        let first = context
            .plan("H[t,h] = relu(X[t,i] * U[i,h])")
            .operands(&operands)
            .options(&planned)
            .build()?;
        let skipping = Dynamic::new(&hidden).expecting(options.expected);
        let operands = [("H", skipping.into()), ("W", w)];
        let second = context
            .plan("Y[t,o] = H[t,h] * W[h,o]")
            .operands(&operands)
            .options(&planned)
            .build()?;
        Ok(FeedForward {
            hidden,
            first,
            second,
            expected: options.expected,
            turns: shared_turns(context)?,
        })
    }

    /// Queues the layer with operands `[X, U, W]`. Runs of one layer share the hidden activations, so each run waits
    /// for the previous one, also on another stream.
    ///
    /// # Errors
    /// [`Error::Shape`](einsparse_core::Error::Shape) if an operand has other extents than planned;
    /// [`Error::OtherContext`](einsparse_core::Error::OtherContext) if one belongs to another context;
    /// [`Error::RowStride`](einsparse_core::Error::RowStride) for gaps between rows that were not planned.
    pub fn forward(
        &mut self,
        [x, u, w]: [&Tensor<T>; 3],
        y: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let turns = self.turns.clone();
        in_turn(turns, stream, || self.queue([x, u, w], y, stream))
    }

    fn queue(
        &mut self,
        [x, u, w]: [&Tensor<T>; 3],
        y: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let operands = [("X", x.into()), ("U", u.into())];
        self.first.run(&operands, &mut self.hidden, stream)?;
        let skipping = Dynamic::new(&self.hidden).expecting(self.expected);
        let operands = [("H", skipping.into()), ("W", w.into())];
        self.second.run(&operands, y, stream)
    }

    /// Returns the hidden activations of the last run.
    pub fn hidden(&self) -> &Tensor<T> {
        &self.hidden
    }

    /// Returns the names of the kernels of the first and of the second product.
    pub fn variants(&self) -> [&'static str; 2] {
        [self.first.variant(), self.second.variant()]
    }
}
