//! Optimisers: stochastic gradient descent and Adam.

mod update;

use crate::context::Context;
use crate::device::Stream;
use crate::error::Result;
use crate::families::optimizer::Rule;
use crate::registry::Scalar;
use crate::tensor::Tensor;
use update::{Update, check};

/// Constants of [`Sgd`].
///
/// ```
/// use einsparse::nn::SgdOptions;
/// let options = SgdOptions { rate: 0.1, momentum: 0.9, ..SgdOptions::default() };
/// assert!(!options.nesterov && options.weight_decay == 0.0);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdOptions {
    /// Learning rate.
    pub rate: f64,
    /// Momentum: the fraction of the previous steps that is kept, at least 0 and below 1. With 0, it uses no memory.
    pub momentum: f64,
    /// Nesterov momentum: the step looks ahead along the momentum.
    pub nesterov: bool,
    /// Weight decay: this fraction of the parameters is added to their gradient.
    pub weight_decay: f64,
}

impl Default for SgdOptions {
    /// Returns a rate of 0.01, without momentum or weight decay.
    fn default() -> Self {
        SgdOptions { rate: 0.01, momentum: 0.0, nesterov: false, weight_decay: 0.0 }
    }
}

/// Constants of [`Adam`].
///
/// ```
/// use einsparse::nn::AdamOptions;
/// let adamw = AdamOptions { weight_decay: 0.01, decoupled: true, ..AdamOptions::default() };
/// assert_eq!(adamw.betas, [0.9, 0.999]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamOptions {
    /// Learning rate.
    pub rate: f64,
    /// Decay factors of the first and of the second moment, at least 0 and below 1.
    pub betas: [f64; 2],
    /// Value added to the square root of the second moment.
    pub epsilon: f64,
    /// Weight decay: this fraction of the parameters is added to their gradient. With [`decoupled`](Self::decoupled),
    /// this fraction times the rate is subtracted from the parameters.
    pub weight_decay: f64,
    /// AdamW: [`weight_decay`](Self::weight_decay) applies to the parameters, not to their gradient.
    pub decoupled: bool,
}

impl Default for AdamOptions {
    /// Returns the constants of the paper: rate 0.001, betas 0.9 and 0.999, epsilon 1e-8; no weight decay.
    fn default() -> Self {
        AdamOptions {
            rate: 1e-3,
            betas: [0.9, 0.999],
            epsilon: 1e-8,
            weight_decay: 0.0,
            decoupled: false,
        }
    }
}

/// Methods of both optimisers.
macro_rules! optimiser {
    ($name:ident) => {
        impl $name {
            /// Queues a step of `parameters` by their `gradient`.
            ///
            /// Both have the planned shape, without gaps between rows. Allocates nothing and does not synchronize. At
            /// each replay, a captured step continues from the state that the previous step stored.
            ///
            /// # Errors
            /// [`Error::Shape`](einsparse_core::Error::Shape) for another shape;
            /// [`Error::OtherContext`](einsparse_core::Error::OtherContext) for another context;
            /// [`Error::RowStride`](einsparse_core::Error::RowStride) for gaps between rows.
            pub fn step(
                &mut self,
                parameters: &mut Tensor<f32>,
                gradient: &Tensor<f32>,
                stream: &Stream,
            ) -> Result<()> {
                self.0.step::<f32, f32>(parameters, gradient, None, stream)
            }

            /// Queues a step that also stores the new parameters to `copy`, in f16 or bf16, for the products of the
            /// next step.
            ///
            /// The gradient is f32, or has the type of the copy, as these products store it.
            ///
            /// # Errors
            /// Returns the errors of [`step`](Self::step); [`Error::ElementType`](einsparse_core::Error::ElementType) for a copy
            /// or a gradient of another type.
            pub fn step_with_copy<T: Scalar, G: Scalar>(
                &mut self,
                parameters: &mut Tensor<f32>,
                gradient: &Tensor<G>,
                copy: &mut Tensor<T>,
                stream: &Stream,
            ) -> Result<()> {
                self.0.step(parameters, gradient, Some(copy), stream)
            }

            /// Sets the rate of all later steps, including replays of captured ones. Waits for all work on the GPU.
            ///
            /// # Errors
            /// [`Error::OutOfRange`](einsparse_core::Error::OutOfRange) if the rate is negative or not a finite f32.
            pub fn set_rate(&mut self, rate: f64) -> Result<()> {
                self.0.set_rate(rate)
            }

            /// Returns the number of completed steps, including replays of captured ones. Waits for all work on the
            /// GPU.
            ///
            /// # Errors
            /// [`Error::Cuda`](einsparse_core::Error::Cuda).
            pub fn steps(&self) -> Result<u64> {
                self.0.steps()
            }

            /// Returns the kernel name, or `cpu` on a CPU context.
            pub fn variant(&self) -> &'static str {
                self.0.variant()
            }
        }
    };
}

/// Stochastic gradient descent with momentum, as in PyTorch.
///
/// A step computes `m = momentum m + g + decay x`, then `x -= rate m`. With Nesterov momentum, the update is
/// `x -= rate (g + decay x + momentum m)`. One kernel reads and writes each array once. Parameters and momentum are
/// f32. The gradient is f32, unless it has the type of a copy. On a GPU the rate and the number of steps are stored in
/// device memory, so a CUDA graph continues from them.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::Dense;
/// use einsparse::nn::{Sgd, SgdOptions};
/// let ctx = Context::cpu();
/// let mut x = ctx.upload_dense(&Dense::new([2], vec![1.0f32, 2.0])?)?;
/// let gradient = ctx.upload_dense(&Dense::new([2], vec![4.0f32, -4.0])?)?;
/// let options = SgdOptions { rate: 0.25, momentum: 0.5, ..SgdOptions::default() };
/// let mut sgd = Sgd::new(&ctx, &[2], &options)?;
/// let stream = ctx.stream()?;
/// sgd.step(&mut x, &gradient, &stream)?;
/// sgd.step(&mut x, &gradient, &stream)?;
/// assert_eq!(x.to_dense()?.values(), [-1.5, 4.5]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct Sgd(Update);

impl Sgd {
    /// Creates an optimiser for parameters of this shape.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](einsparse_core::Error::OutOfRange) for constants that are negative or not a finite f32, and for a
    /// momentum of 1 or more; [`Error::OutOfMemory`](einsparse_core::Error::OutOfMemory).
    pub fn new(context: &Context, shape: &[usize], options: &SgdOptions) -> Result<Self> {
        let SgdOptions { rate, momentum, nesterov, weight_decay: decay } = *options;
        check("momentum", momentum, 1.0)?;
        check("weight decay", decay, f64::from(f32::MAX))?;
        let rule = Rule::Sgd { momentum, nesterov, decay };
        let kept = [momentum > 0.0, false];
        Update::new(context, shape, rate, rule, kept).map(Sgd)
    }
}

optimiser!(Sgd);

/// Adam (Kingma and Ba, arXiv 1412.6980), or AdamW with [`AdamOptions::decoupled`] (Loshchilov and Hutter, arXiv
/// 1711.05101), as in PyTorch.
///
/// The moments `m` and `v` of the gradient are corrected for the number of steps, then
/// `x -= rate m / (sqrt(v) + epsilon)`. One kernel reads and writes each array once. Parameters and moments are f32.
/// The gradient is f32, unless it has the type of a copy. On a GPU the rate, the number of steps and the corrections
/// are stored in device memory, and each step advances them. Each replay of a CUDA graph of one step is therefore the
/// next step.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::Dense;
/// use einsparse::nn::{Adam, AdamOptions};
/// let ctx = Context::cpu();
/// let mut x = ctx.upload_dense(&Dense::new([2], vec![1.0f32, 2.0])?)?;
/// let gradient = ctx.upload_dense(&Dense::new([2], vec![4.0f32, -0.5])?)?;
/// let mut adam = Adam::new(&ctx, &[2], &AdamOptions::default())?;
/// adam.step(&mut x, &gradient, &ctx.stream()?)?;
/// // The first step is as long as the rate, whatever the gradient.
/// let x = x.to_dense()?;
/// assert!((x.values()[0] - 0.999).abs() < 1e-6 && (x.values()[1] - 2.001).abs() < 1e-6);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct Adam(Update);

impl Adam {
    /// Creates an optimiser for parameters of this shape.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](einsparse_core::Error::OutOfRange) for constants that are negative or not a finite f32, and for
    /// betas of 1 or more; [`Error::OutOfMemory`](einsparse_core::Error::OutOfMemory).
    pub fn new(context: &Context, shape: &[usize], options: &AdamOptions) -> Result<Self> {
        let AdamOptions { rate, betas, epsilon, weight_decay: decay, decoupled } = *options;
        check("first beta", betas[0], 1.0)?;
        check("second beta", betas[1], 1.0)?;
        check("epsilon", epsilon, f64::from(f32::MAX))?;
        check("weight decay", decay, f64::from(f32::MAX))?;
        let rule = Rule::Adam { betas, epsilon, decay, decoupled };
        Update::new(context, shape, rate, rule, [true, true]).map(Adam)
    }
}

optimiser!(Adam);
