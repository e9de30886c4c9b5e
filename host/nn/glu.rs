//! Gated linear unit.

use std::marker::PhantomData;

use crate::context::{Context, Prepared};
use crate::device::Stream;
use crate::dynamic::{Gate, operand};
use crate::error::{Elsewhere, Result, elements};
use crate::families::elementwise::{GatedLaunch, Layout, cpu};
use crate::kernel::Queue;
use crate::registry::Scalar;
use crate::tensor::Tensor;

/// Gated linear unit (arXiv 2002.05202): `out[t,f] = gate(x[t,f]) * x[t, width + f]`. One product computes both parts
/// of `x`: the gates and, after them, the features that they multiply. GPU kernels exist for f32, f16 and bf16.
///
/// ```
/// use einsparse::Context;
/// use einsparse::dynamic::Gate;
/// use einsparse::formats::Dense;
/// use einsparse::nn::Glu;
/// let ctx = Context::cpu();
/// let glu = Glu::<f32>::new(&ctx, Gate::Relu, [1, 2], false)?;
/// let x = ctx.upload_dense(&Dense::new([1, 4], vec![3.0, -1.0, 2.0, 5.0])?)?;
/// let mut out = ctx.zeros(&[1, 2])?;
/// glu.forward(&x, &mut out, &ctx.stream()?)?;
/// assert_eq!(out.to_dense()?.values(), [6.0, 0.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct Glu<T> {
    context: Context,
    gate: Gate,
    layout: Layout,
    launch: Prepared<GatedLaunch>,
    element: PhantomData<T>,
}

impl<T: Scalar> Glu<T> {
    /// Creates the operation for outputs `[tokens, width]`, or `[width, tokens]` with `tokens_in_columns`.
    ///
    /// # Errors
    /// [`Error::NoKernel`](einsparse_core::Error::NoKernel) for other element types.
    pub fn new(
        context: &Context,
        gate: Gate,
        [tokens, width]: [usize; 2],
        tokens_in_columns: bool,
    ) -> Result<Self> {
        let layout = Layout::new("out", [tokens, width], tokens_in_columns)?;
        elements("x", &[tokens, width, 2])?;
        Ok(Glu {
            context: context.clone(),
            gate,
            layout,
            launch: context
                .prepared(|device| GatedLaunch::new(device, T::DTYPE, layout, gate.flags()))?,
            element: PhantomData,
        })
    }

    /// Returns the kernel name, or `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        self.launch.as_ref().map_or("cpu", GatedLaunch::variant)
    }

    /// Queues the operation. `x` has twice as many features as `out`, gates first. Allocates nothing and does not
    /// synchronize.
    ///
    /// # Errors
    /// [`Error::Shape`](einsparse_core::Error::Shape) if an operand has other extents than planned;
    /// [`Error::OtherContext`](einsparse_core::Error::OtherContext) if one belongs to another context.
    pub fn forward(&self, x: &Tensor<T>, out: &mut Tensor<T>, stream: &Stream) -> Result<()> {
        let both = Layout { width: 2 * self.layout.width, ..self.layout };
        x.check("x", &self.context, &both.shape())?;
        out.check("out", &self.context, &self.layout.shape())?;
        let runs = self.launch.queue(|launch| {
            let matrices =
                [operand(&self.context, x, stream)?, operand(&self.context, out, stream)?];
            // SAFETY: operands have the planned shapes and types; the caller keeps them until the stream is done.
            let queue = unsafe { Queue::new(stream.raw()) };
            launch.run(matrices, queue)
        })?;
        if runs {
            return Ok(());
        }
        let leading = out.leading();
        let to = out.host_mut().or_elsewhere("out")?;
        let multiply = |x, y| self.gate.of(x) * y;
        cpu::gated(self.layout, &cpu::Host::of("x", x)?, multiply, (to, leading));
        Ok(())
    }
}
