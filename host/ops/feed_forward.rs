//! A feed-forward layer whose hidden activations are mostly zeros after their ReLU.

use crate::context::Context;
use crate::device::Stream;
use crate::dynamic::{Expected, dynamic};
use crate::error::Result;
use crate::plan::{Determinism, Options, Plan};
use crate::registry::Scalar;
use crate::tensor::Tensor;

/// What a [`ReluFeedForward`] is planned for.
#[derive(Clone, Debug, PartialEq)]
pub struct FeedForwardOptions {
    /// What of the hidden activations is expected to be above zero: kernels are chosen for it, the result does not depend on it.
    pub expected: Expected,
    /// Whether sums may be taken in any order.
    pub determinism: Determinism,
}

impl Default for FeedForwardOptions {
    /// A tenth of the hidden columns, sums in order.
    fn default() -> Self {
        FeedForwardOptions {
            expected: Expected::MicroTiles(0.1),
            determinism: Determinism::Strict,
        }
    }
}

/// `Y[t,o] = relu(X[t,i] * U[i,h]) * W[h,o]` for a fixed number of tokens t (PIT, arXiv 2301.10936, section 5.2, OPT's layers). The
/// first product ends in its ReLU; the second skips columns of hidden activations that are zero for all tokens of a micro-tile,
/// and with them rows of W, where what is expected makes that worth it: one kernel up to 64 tokens, detection and product beyond.
/// No run allocates, and none tells the host what it found: both can be captured in a CUDA graph.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::Dense;
/// use einsparse::ops::ReluFeedForward;
/// let ctx = Context::cpu();
/// let x = ctx.upload_dense(&Dense::new([1, 2], vec![1.0f32, 2.0])?)?;
/// let u = ctx.upload_dense(&Dense::new([2, 2], vec![1.0, -1.0, 1.0, 0.0])?)?;
/// let w = ctx.upload_dense(&Dense::new([2, 1], vec![5.0, 7.0])?)?;
/// let mut layer = ReluFeedForward::new(&ctx, [1, 2, 2, 1], &Default::default())?;
/// let mut y = ctx.zeros(&[1, 1])?;
/// layer.run([&x, &u, &w], &mut y, &ctx.stream()?)?;
/// // The hidden activations are 3 and 0.
/// assert_eq!(y.to_dense()?.values(), [15.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct ReluFeedForward<T: Scalar> {
    hidden: Tensor<T>,
    first: Plan<T>,
    second: Plan<T>,
    expected: Expected,
}

impl<T: Scalar> ReluFeedForward<T> {
    /// A layer of these extents: tokens, inputs, hidden activations, outputs.
    ///
    /// # Errors
    /// [`Error::NoKernel`](crate::Error::NoKernel) where no kernel of the context takes the type; [`Error::Overflow`], [`Error::OutOfMemory`].
    pub fn new(
        context: &Context,
        [tokens, inputs, hidden, outputs]: [usize; 4],
        options: &FeedForwardOptions,
    ) -> Result<Self> {
        // Only the shapes are planned with.
        let x = context.zeros::<T>(&[tokens, inputs])?;
        let u = context.zeros::<T>(&[inputs, hidden])?;
        let w = context.zeros::<T>(&[hidden, outputs])?;
        let hidden = context.zeros::<T>(&[tokens, hidden])?;
        let planned = Options {
            determinism: options.determinism,
            ..Options::default()
        };
        let operands = [("X", (&x).into()), ("U", (&u).into())];
        let first = context.plan("H[t,h] = relu(X[t,i] * U[i,h])", &operands, &planned)?;
        let skipping = dynamic(&hidden).expecting(options.expected);
        let operands = [("H", skipping.into()), ("W", (&w).into())];
        let second = context.plan("Y[t,o] = H[t,h] * W[h,o]", &operands, &planned)?;
        Ok(ReluFeedForward {
            hidden,
            first,
            second,
            expected: options.expected,
        })
    }

    /// Queues the layer of `[X, U, W]`. Runs of one layer must follow one another: they share the hidden activations.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if an operand is not of the planned extents, [`Error::Operand`] if one lies in another context.
    pub fn run(
        &mut self,
        [x, u, w]: [&Tensor<T>; 3],
        y: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let operands = [("X", x.into()), ("U", u.into())];
        self.first.run(&operands, &mut self.hidden, stream)?;
        let skipping = dynamic(&self.hidden).expecting(self.expected);
        let operands = [("H", skipping.into()), ("W", w.into())];
        self.second.run(&operands, y, stream)
    }

    /// The hidden activations of the last run.
    pub fn hidden(&self) -> &Tensor<T> {
        &self.hidden
    }

    /// Kernels of the first and of the second product.
    pub fn variants(&self) -> [&'static str; 2] {
        [self.first.variant(), self.second.variant()]
    }
}
