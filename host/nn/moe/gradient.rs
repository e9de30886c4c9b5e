//! Backward pass of the mixture-of-experts layer.

use super::kept::StoredSums;
use super::{Moe, MoeInputs, MoeOptions};
use crate::device::Stream;
use crate::dynamic::{
    Gate, GroupedOptions, GroupedProduct, GroupedRun, GroupedWeight, WeightOptions,
};
use crate::dynamic::{HostRoutes, Routing};
use crate::einsum::Activation;
use crate::error::{Elsewhere, Error, Result};
use crate::families::discover::WeighLaunch;
use crate::launch::in_turn;
use crate::operator::Operator;
use crate::operator_of;
use crate::parallel;
use crate::registry::Scalar;
use crate::tensor::{AnyTensor, Tensor};
use crate::values::{Sum, with_sums};

/// Outputs of [`Moe::backward`]. Each gradient has the shape of its operand.
#[derive(Debug)]
pub struct MoeGradients<'a, T> {
    /// Gradient of the tokens.
    pub x: &'a mut Tensor<T>,
    /// Gradient of the weights of the choices; 0 if a choice names no expert.
    pub weights: &'a mut Tensor<f32>,
    /// Gradient of the first matrices.
    pub up: &'a mut Tensor<T>,
    /// Gradient of the second matrices.
    pub down: &'a mut Tensor<T>,
}

/// Products and memory that only the backward pass requires.
#[derive(Debug)]
pub(super) struct Backward<T> {
    through_down: GroupedProduct<T>,
    through_up: GroupedProduct<T>,
    up: GroupedWeight<T>,
    down: GroupedWeight<T>,
    weigh: Operator<WeighLaunch>,
    /// Gradient of the hidden rows, by slots.
    hidden: Tensor<T>,
}

impl<T: Scalar> Backward<T> {
    pub(super) fn new(routing: &Routing, o: &MoeOptions) -> Result<Self> {
        if o.activation == Activation::Gelu {
            let allowed =
                "Identity or Relu without a gate: the gradient of Gelu requires the pre-activation";
            return Err(Error::range("activation", "Gelu", allowed));
        }
        if o.model == 0 || o.hidden == 0 {
            let found = format!("{} x {}", o.model, o.hidden);
            return Err(Error::range("model x hidden", found, "at least 1 x 1"));
        }
        let context = routing.context();
        let slots = routing.slots();
        let products = |k, n, inwards: bool| {
            let options = GroupedOptions {
                k,
                n,
                gather: inwards,
                scatter: !inwards,
                transposed: !o.transposed,
                ..GroupedOptions::default()
            };
            GroupedProduct::new(routing, options)
        };
        let gradients = |m, n, gather: [bool; 2]| {
            let options = match o.transposed {
                false => WeightOptions { m, n, gather },
                true => WeightOptions { m: n, n: m, gather: [gather[1], gather[0]] },
            };
            GroupedWeight::new(routing, options)
        };
        let weigh = operator_of(context, |device| {
            let gate = o.gate.map(Gate::flags);
            WeighLaunch::new(device, T::DTYPE, [slots, o.experts, o.hidden], gate)
        })?;
        Ok(Backward {
            through_down: products(o.model, o.hidden, true)?,
            through_up: products(o.wide(), o.model, false)?,
            up: gradients(o.model, o.wide(), [true, false])?,
            down: gradients(o.hidden, o.model, [false, true])?,
            weigh,
            hidden: context.zeros(&[slots, o.hidden])?,
        })
    }
}

impl<T: Scalar> Moe<T> {
    /// Queues the gradients of the layer.
    ///
    /// `out` is the gradient of the layer's output, `[tokens, model]`. The other operands are those of the [`forward`]
    /// run just before; choices are not read. The hidden rows of that run are weighted in place, so
    /// each run supports one `backward`. Results are bitwise reproducible. Allocates nothing and does not synchronize.
    /// The layer must be created with [`for_training`](Moe::for_training).
    ///
    /// The gradient of ReLU uses the sign of the rounded hidden rows. Let `h` be a hidden row, `w` its weight, and
    /// `g = out[t] down[e]^T`, zero where a ReLU set `h` to zero. The gradient of the weight is `h . g`. Those of the
    /// matrices are `x[t]^T (w g)` and `(w h)^T out[t]`, and that of the token is the sum of `w g up[e]^T`. `g`, `w g`,
    /// `w h` and, with several experts per token, the summands are rounded to `T`. With a gate, `g` is propagated
    /// through `h = gate(a) b` to the sums `a` and `b`, which the forward run stored, rounded to `T`.
    ///
    /// # Errors
    /// Returns the errors of [`forward`]; [`Error::NotPlanned`] if the layer was not created for training.
    ///
    /// [`forward`]: Moe::forward
    pub fn backward(
        &mut self,
        inputs: &MoeInputs<'_, T>,
        out: &Tensor<T>,
        gradients: MoeGradients<'_, T>,
        stream: &Stream,
    ) -> Result<()> {
        self.check(inputs, out)?;
        let MoeGradients { x, weights, up, down } = &gradients;
        let (up, down) = ((&**up).into(), (&**down).into());
        self.check(&MoeInputs { x, weights, up, down, ..*inputs }, out)?;
        in_turn(self.routing.turns(), stream, || {
            self.queue_backward(inputs, out, gradients, stream)
        })
    }

    fn queue_backward(
        &mut self,
        &MoeInputs { x, weights, up, down, .. }: &MoeInputs<'_, T>,
        out: &Tensor<T>,
        gradients: MoeGradients<'_, T>,
        stream: &Stream,
    ) -> Result<()> {
        let relu = self.options.activation == Activation::Relu;
        let Some(backward) = &mut self.backward else {
            return Err(Error::not_planned("layer", "create it with `Moe::for_training`"));
        };
        let routing = &self.routing;
        let operands = GroupedRun {
            a: Some(out),
            w: down,
            weights: None,
            gate: relu.then_some(&self.hidden),
            keep: false,
            early: false,
        };
        let hidden = &mut backward.hidden;
        backward.through_down.queue(routing, &operands, hidden, stream)?;
        let rows = [&mut self.hidden, hidden];
        let (kept, operator) = (self.kept.as_mut(), &backward.weigh);
        weigh(operator, routing, rows, kept, weights, gradients.weights, stream)?;
        let h = &self.hidden;
        let g = self.kept.as_ref().map_or(&backward.hidden, |kept| &kept.sums);
        let sides = |of: [_; 2]| match self.options.transposed {
            false => of,
            true => [of[1], of[0]],
        };
        let [a, b] = sides([h, out]);
        backward.down.queue(routing, a, b, gradients.down, stream)?;
        let [a, b] = sides([x, g]);
        backward.up.queue(routing, a, b, gradients.up, stream)?;
        let parts = match &mut self.parts {
            None => &mut *gradients.x,
            Some(parts) => parts,
        };
        backward.through_up.queue(routing, &GroupedRun::plain(g, up), parts, stream)?;
        match &self.parts {
            None => Ok(()),
            Some(parts) => self.add_up(None, parts, gradients.x, stream),
        }
    }
}

/// Computes the dot products of the hidden rows with their gradients, and multiplies both by the weights. In a gated
/// layer, the sums in `kept` are replaced by their weighted gradients.
fn weigh<T: Scalar>(
    operator: &Operator<WeighLaunch>,
    routing: &Routing,
    [h, g]: [&mut Tensor<T>; 2],
    kept: Option<&mut StoredSums<T>>,
    weights: &Tensor<f32>,
    gradient: &mut Tensor<f32>,
    stream: &Stream,
) -> Result<()> {
    let run = operator.start(stream)?;
    let rows = [
        run.matrix("hidden rows", h.any(), h.shape())?,
        run.matrix("hidden rows", g.any(), g.shape())?,
    ];
    let words = [
        run.contiguous("weights", weights.any(), &routing.shape())?,
        run.contiguous("gradient of weights", gradient.any(), &routing.shape())?,
    ];
    let sums = kept.as_ref().map(|kept| run.matrix("sums", kept.sums.any(), kept.sums.shape()));
    let sums = sums.transpose()?;
    run.queue(
        |launch, queue| launch.run(routing.on_device()?, rows, sums, words, queue),
        || {
            // SAFETY: only values are stored.
            let hidden = unsafe { [h.any_mut(), g.any_mut()] };
            // SAFETY: only values are stored.
            let kept = kept.map(|kept| (kept.gate, unsafe { kept.sums.any_mut() }));
            with_sums!(T::DTYPE, A => weigh_on_host::<A>(routing, hidden, kept, weights, gradient))
        },
    )
}

fn weigh_on_host<A: Sum>(
    routing: &Routing,
    [h, g]: [&mut AnyTensor; 2],
    kept: Option<(Gate, &mut AnyTensor)>,
    weights: &Tensor<f32>,
    gradient: &mut Tensor<f32>,
) -> Result<()> {
    let HostRoutes { order, offsets } = routing.on_host();
    let (routed, top) = (offsets[routing.experts()] as usize, routing.shape()[1]);
    let (width, ldh, ldg) = (h.shape()[1], h.leading(), g.leading());
    let (weights, ldw) = weights.host_rows("weights")?;
    let (to, ldd) = gradient.host_rows_mut("gradient of weights")?;
    let x = h.host().or_elsewhere("hidden rows")?.widen::<A>().into_owned();
    let y = g.host().or_elsewhere("hidden rows")?.widen::<A>().into_owned();
    let weight = |slot: usize| {
        let choice = order[slot] as usize;
        A::from_f64(f64::from(weights[choice / top * ldw + choice % top]))
    };
    let dots = parallel::collect(routed, 1, &|slot| {
        let mut sum = A::ZERO;
        let pair = x[slot * ldh..][..width].iter().zip(&y[slot * ldg..]);
        pair.for_each(|(&x, &y)| sum += x * y);
        sum.to_f64() as f32
    });
    for (tensor, values, leading) in [(h, &x, ldh), (g, &y, ldg)] {
        tensor.store_rows(routed, width, &|slot, sums: &mut [A]| {
            let (weight, own) = (weight(slot), &values[slot * leading..]);
            let each = sums.iter_mut().zip(own);
            each.for_each(|(to, &x)| *to = weight * x);
        });
    }
    if let Some((gate, sums)) = kept {
        let leading = sums.leading();
        let old = sums.host().or_elsewhere("hidden rows")?.widen::<A>().into_owned();
        sums.store_rows(routed, 2 * width, &|slot, to: &mut [A]| {
            let (weight, own) = (weight(slot), &y[slot * ldg..][..width]);
            let (gates, others) = old[slot * leading..][..2 * width].split_at(width);
            let (of_gates, of_others) = to.split_at_mut(width);
            for i in 0..width {
                let (g, x) = (weight * own[i], gates[i].to_f64());
                of_gates[i] = match gate.masks(x) {
                    true => A::ZERO,
                    false => g * A::from_f64(gate.slope(x)) * others[i],
                };
                of_others[i] = g * A::from_f64(gate.of(x));
            }
        });
    }
    for (slot, &choice) in order.iter().enumerate() {
        let choice = choice as usize;
        to[choice / top * ldd + choice % top] = dots.get(slot).copied().unwrap_or(0.0);
    }
    Ok(())
}
