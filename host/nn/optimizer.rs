//! Optimisers: steps of stochastic gradient descent and of Adam.

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
    /// What stays of the steps before; 0 keeps nothing, and takes no memory.
    pub momentum: f64,
    /// Looks ahead along the momentum.
    pub nesterov: bool,
    /// This share of the parameters is added to their gradient.
    pub weight_decay: f64,
}

impl Default for SgdOptions {
    /// Rate 0.01, and nothing else.
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
    /// What stays of the first and of the second moment.
    pub betas: [f64; 2],
    /// Added to the root of the second moment.
    pub epsilon: f64,
    /// This share of the parameters is added to their gradient, or with [`decoupled`](Self::decoupled) taken off them.
    pub weight_decay: f64,
    /// AdamW: parameters decay beside the step, by the rate times [`weight_decay`](Self::weight_decay).
    pub decoupled: bool,
}

impl Default for AdamOptions {
    /// The constants of the paper: rate 0.001, betas 0.9 and 0.999, epsilon 1e-8; no decay.
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

/// What both optimisers offer, with the words for each.
macro_rules! optimiser {
    ($name:ident) => {
        impl $name {
            /// Queues a step of `parameters` by their `gradient`, both of the planned shape and without gaps. Nothing
            /// is allocated or waited for; a captured step goes on from where the last one ended, at each replay.
            ///
            /// # Errors
            /// [`Error::Shape`](crate::Error::Shape) for another shape; [`Error::Operand`](crate::Error::Operand) for another context, and for gaps between rows.
            pub fn step(
                &mut self,
                parameters: &mut Tensor<f32>,
                gradient: &Tensor<f32>,
                stream: &Stream,
            ) -> Result<()> {
                self.0.step::<f32, f32>(parameters, gradient, None, stream)
            }

            /// The same, and in the same pass the new parameters in f16 or bf16: what the products of the next step
            /// read. The gradient is f32, or of the copy's type, as these products leave it.
            ///
            /// # Errors
            /// As [`step`](Self::step); [`Error::Operand`](crate::Error::Operand) for a copy or a gradient of another
            /// type.
            pub fn step_with_copy<T: Scalar, G: Scalar>(
                &mut self,
                parameters: &mut Tensor<f32>,
                gradient: &Tensor<G>,
                copy: &mut Tensor<T>,
                stream: &Stream,
            ) -> Result<()> {
                self.0.step(parameters, gradient, Some(copy), stream)
            }

            /// The rate from the next step on, also of steps that were captured. Waits for all work on the GPU.
            ///
            /// # Errors
            /// [`Error::Operand`](crate::Error::Operand) if it is negative or no number.
            pub fn set_rate(&mut self, rate: f64) -> Result<()> {
                self.0.set_rate(rate)
            }

            /// Steps done, replays of captured ones among them. Waits for all work on the GPU.
            ///
            /// # Errors
            /// [`Error::Cuda`](crate::Error::Cuda).
            pub fn steps(&self) -> Result<u64> {
                self.0.steps()
            }

            /// Name of the kernel, `cpu` on a CPU context.
            pub fn variant(&self) -> &'static str {
                self.0.variant()
            }
        }
    };
}

/// Stochastic gradient descent with momentum, as PyTorch has it: `m = momentum m + g + decay x`, then `x -= rate m`, or
/// with Nesterov's momentum `x -= rate (g + decay x + momentum m)`. One kernel, which reads and writes everything once.
/// Parameters and momentum are f32, and so is the gradient unless it has the type of a copy. Rate and number of steps
/// lie where the parameters do, so that a CUDA graph goes on with them.
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
    /// For parameters of this shape.
    ///
    /// # Errors
    /// [`Error::Operand`](crate::Error::Operand) for constants that are negative or no numbers, and for a momentum from 1 on;
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
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
/// 1711.05101), as PyTorch has them: moments `m` and `v` of the gradient, both corrected for the steps done, then
/// `x -= rate m / (sqrt(v) + epsilon)`. One kernel, which reads and writes everything once. Parameters and
/// moments are f32, and so is the gradient unless it has the type of a copy. Rate, number of steps and corrections lie
/// where the parameters do, and each step advances them: a CUDA graph of one step is the next step at each replay.
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
    /// For parameters of this shape.
    ///
    /// # Errors
    /// [`Error::Operand`](crate::Error::Operand) for constants that are negative or no numbers, and for betas from 1 on;
    /// [`Error::OutOfMemory`](crate::Error::OutOfMemory).
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
