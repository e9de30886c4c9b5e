//! The kernels `optimizer`: a step of stochastic gradient descent, or of Adam, over contiguous parameters.

use crate::abi::tiles;

/// Threads of a thread block.
pub const UPDATE_THREADS: u32 = 256;
/// Parameters that a thread updates at once.
pub const UPDATE_ELEMENTS: u32 = 4;

/// Adam: weight decay is applied to the parameter, not to the gradient (AdamW).
pub const UPDATE_DECOUPLED: u32 = 1;
/// Descent: Nesterov momentum.
pub const UPDATE_NESTEROV: u32 = 2;
/// The gradient has the element type of the copy.
pub const UPDATE_NARROW: u32 = 4;

tiles! {
    { THREADS: UPDATE_THREADS, MIN_BLOCKS: 4, COLUMNS: UPDATE_ELEMENTS, ACCESS: 1 }
    /// A step of descent. The element type is that of the 16-bit copy; f32 means no copy.
    SgdStep = STEP_SGD 1;
    /// A step of Adam. The element type is that of the 16-bit copy; f32 means no copy.
    AdamStep = STEP_ADAM 2;
}

/// State carried from step to step, in device memory, so that a replayed graph continues from it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UpdateState {
    /// Learning rate.
    pub rate: f32,
    /// Thread blocks of this step that are done; zero between steps.
    pub arrived: u32,
    /// Number of completed steps.
    pub steps: u32,
    /// Padding.
    pub pad: u32,
    /// 1 - beta^t of both moments, where t is the number of the next step.
    pub corrections: [f64; 2],
}

/// Parameters of the `optimizer` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct UpdateParams {
    /// In and out: parameters, f32.
    pub parameters: u64,
    /// Gradient, f32, or with `UPDATE_NARROW` of the copy's type.
    pub gradient: u64,
    /// In and out: momentum, or the first moment of Adam, f32; 0 without.
    pub first: u64,
    /// In and out: the second moment of Adam, f32.
    pub second: u64,
    /// Out: 16-bit copy of the parameters.
    pub copy: u64,
    /// An [`UpdateState`].
    pub state: u64,
    /// Number of parameters.
    pub len: u64,
    /// Momentum, or the betas of Adam.
    pub betas: [f64; 2],
    /// 1 - beta of each moment, rounded from the exact value.
    pub rest: [f32; 2],
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// Weight decay.
    pub decay: f32,
    /// `UPDATE_*`.
    pub flags: u32,
    /// Padding.
    pub pad: u32,
}

const _: () = assert!(size_of::<UpdateState>() == 32);
const _: () = assert!(size_of::<UpdateParams>() == 96);
