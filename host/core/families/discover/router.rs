//! Choice of the experts of each token from its logits, on a GPU.

use einsparse_kernels::families::{
    ROUTER_CHOICES, ROUTER_EXPERTS, ROUTER_NORMALIZED, RouterParams, STEP_ROUTER_CHOOSE,
    STEP_ROUTER_GRADIENT,
};
use einsparse_kernels::table::rows_of;

use crate::device::Device;
use crate::error::Result;
use crate::kernel::{Grid, Kernel, Queue};
use crate::launch::{row_bytes, small, within};
use crate::registry::{Dtype, of_type};
use crate::tensor::DenseMatrix;

/// Kernels that choose experts, and that compute the gradient of the logits.
#[derive(Debug)]
pub struct RouterLaunch {
    choose: Kernel<RouterParams>,
    gradient: Kernel<RouterParams>,
    params: RouterParams,
}

impl RouterLaunch {
    /// Creates the choice of `top` experts per token. The extents are `[tokens, experts, top]`.
    pub fn new(
        device: &Device,
        dtype: Dtype,
        [tokens, experts, top]: [usize; 3],
        normalized: bool,
    ) -> Result<Self> {
        let kernel = |step: u32| {
            let own = rows_of::<RouterParams>().filter(|row| row.step == step);
            let row = of_type(own, dtype, format!("logits of {}", dtype.name()))?;
            Kernel::load(device, row)
        };
        let chosen = tokens.saturating_mul(top.max(1));
        within("choices", chosen, i32::MAX as usize / 64)?;
        Ok(RouterLaunch {
            choose: kernel(STEP_ROUTER_CHOOSE)?,
            gradient: kernel(STEP_ROUTER_GRADIENT)?,
            params: RouterParams {
                tokens: small("tokens", tokens)?,
                experts: within("experts", experts, ROUTER_EXPERTS as usize)?,
                top: within("choices of a token", top, ROUTER_CHOICES as usize)?,
                flags: if normalized { ROUTER_NORMALIZED } else { 0 },
                ..RouterParams::default()
            },
        })
    }

    fn launch(
        &self,
        kernel: &Kernel<RouterParams>,
        params: RouterParams,
        queue: Queue<'_>,
    ) -> Result<()> {
        let tokens = kernel.row().threads / 32;
        // The kernel waits for the previous launch before it reads or writes.
        let grid = Grid::of([params.tokens.div_ceil(tokens), 1, 1]).early();
        queue.launch(kernel, grid, &params)
    }

    fn of(&self, logits: DenseMatrix, [choices, weights]: [u64; 2]) -> Result<RouterParams> {
        let bytes = self.choose.row().dtype.bytes();
        Ok(RouterParams {
            logits: logits.address,
            choices,
            weights,
            logit_bytes: row_bytes("logits", logits.leading, bytes)?,
            ..self.params
        })
    }

    /// Queues the kernel that writes `words`, the choices and the weights, both contiguous.
    pub fn choose(&self, logits: DenseMatrix, words: [u64; 2], queue: Queue<'_>) -> Result<()> {
        self.launch(&self.choose, self.of(logits, words)?, queue)
    }

    /// Queues the gradient `to` of the logits. Inputs are the results of [`choose`](Self::choose) and the gradient of
    /// the weights.
    pub fn gradient(
        &self,
        [logits, to]: [DenseMatrix; 2],
        words: [u64; 2],
        weight_gradient: u64,
        queue: Queue<'_>,
    ) -> Result<()> {
        let bytes = to.leading.saturating_mul(self.gradient.row().dtype.bytes());
        let params = RouterParams {
            weight_gradient,
            logit_gradient: to.address,
            gradient_bytes: small("bytes of a row of gradients", bytes)?,
            ..self.of(logits, words)?
        };
        self.launch(&self.gradient, params, queue)
    }
}
