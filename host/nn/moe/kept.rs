//! Sums of the first product that a gated layer stores for its gradients.

use super::MoeOptions;
use crate::device::Stream;
use crate::dynamic::{Gate, GroupedOptions, GroupedProduct, GroupedRun, Routing};
use crate::error::{Elsewhere, Result};
use crate::families::discover::GateLaunch;
use crate::operator::Operator;
use crate::operator_of;
use crate::registry::Scalar;
use crate::tensor::{AnyTensor, Tensor};
use crate::values::{Sum, with_sums};

#[derive(Debug)]
pub(super) struct StoredSums<T> {
    pub(super) gate: Gate,
    pub(super) product: GroupedProduct<T>,
    /// Sums by slots: those of the gates, then those of the other factor. The backward pass replaces them by their
    /// gradients.
    pub(super) sums: Tensor<T>,
    operator: Operator<GateLaunch>,
}

impl<T: Scalar> StoredSums<T> {
    pub(super) fn new(routing: &Routing, o: &MoeOptions, gate: Gate) -> Result<Self> {
        let options = GroupedOptions {
            k: o.model,
            n: o.wide(),
            gather: true,
            transposed: o.transposed,
            ..GroupedOptions::default()
        };
        let context = routing.context();
        let slots = routing.slots();
        let operator = operator_of(context, |device| {
            GateLaunch::new(device, T::DTYPE, [slots, o.hidden], gate.flags())
        })?;
        Ok(StoredSums {
            gate,
            product: GroupedProduct::new(routing, options)?,
            sums: context.zeros(&[slots, o.wide()])?,
            operator,
        })
    }

    /// Queues the first product, and the hidden rows computed from it.
    pub(super) fn queue(
        &mut self,
        routing: &Routing,
        operands: &GroupedRun<'_, T>,
        hidden: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.product.queue(routing, operands, &mut self.sums, stream)?;
        let run = self.operator.start(stream)?;
        let sums = run.matrix("sums", self.sums.any(), self.sums.shape())?;
        let to = run.matrix("hidden rows", hidden.any(), hidden.shape())?;
        run.queue(
            |launch, queue| launch.run(sums, to, queue),
            || {
                // SAFETY: only values are stored.
                let hidden = unsafe { hidden.any_mut() };
                with_sums!(T::DTYPE, A => on_host::<A>(self.gate, self.sums.any(), hidden))
            },
        )
    }
}

fn on_host<A: Sum>(gate: Gate, sums: &AnyTensor, hidden: &mut AnyTensor) -> Result<()> {
    let (slots, width, leading) = (hidden.shape()[0], hidden.shape()[1], sums.leading());
    let from = sums.host().or_elsewhere("hidden rows")?.widen::<A>();
    hidden
        .store_rows(slots, width, &|slot, to: &mut [A]| {
            gate.multiply(&from[slot * leading..][..2 * width], to);
        })
        .or_elsewhere("hidden rows")
}
