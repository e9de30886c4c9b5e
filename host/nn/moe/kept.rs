//! Sums of the first product that a gated layer stores for its gradients.

use super::MoeOptions;
use crate::device::Stream;
use crate::dynamic::{Gate, GroupedOptions, GroupedProduct, GroupedRun, Routes, Routing, operand};
use crate::error::{Error, Result};
use crate::families::discover::GateLaunch;
use crate::kernel::Queue;
use crate::registry::Scalar;
use crate::tensor::{AnyTensor, Tensor};
use crate::values::{Sum, with_sums};

#[derive(Debug)]
pub(super) struct Kept<T> {
    pub(super) gate: Gate,
    pub(super) product: GroupedProduct<T>,
    /// Sums by slots: those of the gates, then those of the other factor. The backward pass replaces them by their
    /// gradients.
    pub(super) sums: Tensor<T>,
    launch: Option<GateLaunch>,
}

impl<T: Scalar> Kept<T> {
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
        let launch = match context.device() {
            None => None,
            Some(device) => {
                let extents = [slots, o.hidden];
                Some(GateLaunch::new(device, T::DTYPE, extents, gate.flags())?)
            }
        };
        Ok(Kept {
            gate,
            product: GroupedProduct::new(routing, options)?,
            sums: context.zeros(&[slots, o.wide()])?,
            launch,
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
        let context = routing.context();
        let (Some(launch), Routes::Device(_)) = (&self.launch, routing.routes()) else {
            return with_sums!(T::DTYPE, A => on_host::<A>(self.gate, &self.sums, &mut hidden.any));
        };
        let sums = operand(context, &self.sums, stream)?;
        let hidden = operand(context, hidden, stream)?;
        // SAFETY: both belong to the layer, and have the planned extents and type.
        let queue = unsafe { Queue::new(stream.raw()) };
        launch.run(sums, hidden, queue)
    }
}

fn on_host<A: Sum>(gate: Gate, sums: &AnyTensor, hidden: &mut AnyTensor) -> Result<()> {
    let (slots, width, leading) = (hidden.shape()[0], hidden.shape()[1], sums.leading());
    let there = || Error::elsewhere("hidden rows");
    let from = sums.host().ok_or_else(there)?.widen::<A>();
    hidden
        .store_rows(slots, width, &|slot, to: &mut [A]| {
            gate.multiply(&from[slot * leading..][..2 * width], to);
        })
        .ok_or_else(there)
}
