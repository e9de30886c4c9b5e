//! The module `optimizer`: a step of stochastic gradient descent, or of Adam, over parameters that lie without gaps.

use crate::abi::tiles;

/// Threads of a thread block.
pub const UPDATE_THREADS: u32 = 256;
/// Parameters that a thread takes at once.
pub const UPDATE_ELEMENTS: u32 = 4;

/// Adam: weights decay beside the step, not in the gradient (AdamW).
pub const UPDATE_DECOUPLED: u32 = 1;
/// Descent: the step looks ahead along its momentum (Nesterov).
pub const UPDATE_NESTEROV: u32 = 2;
/// The gradient has the element type of the copy.
pub const UPDATE_NARROW: u32 = 4;

tiles! {
    { THREADS: UPDATE_THREADS, MIN_BLOCKS: 4, COLUMNS: UPDATE_ELEMENTS, ACCESS: 1 }
    /// A step of descent; the element type is that of the copy, f32 for none.
    SgdStep = STEP_SGD 1;
    /// A step of Adam, likewise.
    AdamStep = STEP_ADAM 2;
}

/// What steps leave for each other: on the device, so that a captured graph goes on where it was.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct UpdateState {
    /// Learning rate.
    pub rate: f32,
    /// Thread blocks of this step that are done; zero between steps.
    pub arrived: u32,
    /// Steps done.
    pub steps: u32,
    /// Nothing.
    pub pad: u32,
    /// 1 - beta^t of both moments, t the number of the coming step.
    pub corrections: [f64; 2],
}

/// Parameters of the `optimizer` kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct UpdateParams {
    /// In and out: parameters, f32.
    pub parameters: u64,
    /// Their gradient, f32, or with `UPDATE_NARROW` of the copy's type.
    pub gradient: u64,
    /// In and out: momentum, of Adam the first moment, f32; 0 without.
    pub first: u64,
    /// In and out: the second moment of Adam, f32.
    pub second: u64,
    /// Out: the parameters in 16 bits.
    pub copy: u64,
    /// An [`UpdateState`].
    pub state: u64,
    /// Parameters.
    pub len: u64,
    /// Momentum, or the betas of Adam.
    pub betas: [f64; 2],
    /// 1 less these, rounded from what they are exactly.
    pub rest: [f32; 2],
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// Weight decay.
    pub decay: f32,
    /// `UPDATE_*`.
    pub flags: u32,
    /// Nothing.
    pub pad: u32,
}

const _: () = assert!(size_of::<UpdateState>() == 32);
const _: () = assert!(size_of::<UpdateParams>() == 96);
