//! Gated linear unit.

use std::marker::PhantomData;

use crate::context::Context;
use crate::device::Stream;
use crate::dynamic::Gate;
use crate::error::{Result, elements};
use crate::families::elementwise::{GatedLaunch, Layout, cpu};
use crate::operator::Operator;
use crate::operator_of;
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
    gate: Gate,
    layout: Layout,
    operator: Operator<GatedLaunch>,
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
            gate,
            layout,
            operator: operator_of(context, |device| {
                GatedLaunch::new(device, T::DTYPE, layout, gate.flags())
            })?,
            element: PhantomData,
        })
    }

    /// Returns the kernel name, or `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        self.operator.variant(GatedLaunch::variant)
    }

    /// Queues the operation. `x` has twice as many features as `out`, gates first. Allocates nothing and does not
    /// synchronize.
    ///
    /// # Errors
    /// [`Error::Shape`](einsparse_core::Error::Shape) if an operand has other extents than planned;
    /// [`Error::OtherContext`](einsparse_core::Error::OtherContext) if one belongs to another context.
    pub fn forward(&self, x: &Tensor<T>, out: &mut Tensor<T>, stream: &Stream) -> Result<()> {
        let both = Layout { width: 2 * self.layout.width, ..self.layout };
        let run = self.operator.start(stream)?;
        let matrices = [
            run.matrix("x", x.any(), &both.shape())?,
            run.matrix("out", out.any(), &self.layout.shape())?,
        ];
        run.queue(
            |launch, queue| launch.run(matrices, queue),
            || {
                let multiply = |x, y| self.gate.of(x) * y;
                let to = out.host_rows_mut("out")?;
                cpu::gated(self.layout, &cpu::Host::of("x", x)?, multiply, to);
                Ok(())
            },
        )
    }
}
