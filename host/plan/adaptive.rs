//! Plans that choose anew at each run: the dense kernel, or one that skips micro-tiles of some height, by what was found in the steps
//! before.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::bind::{as_dense, find, wrong};
use super::{Determinism, Options, Plan, pit};
use crate::context::Context;
use crate::device::Stream;
use crate::dynamic::{Expected, SAMPLED_HEIGHTS, ShareSample, TileTimes, dynamic};
use crate::einsum::Einsum;
use crate::error::{Error, Refusal, Result};
use crate::indirect::rewrite_dense;
use crate::registry::Scalar;
use crate::tensor::{Operand, Tensor};

/// A kernel that may run this, and what tells its time.
#[derive(Debug)]
struct Alternative<T: Scalar, Out: Scalar> {
    plan: Plan<T, Out>,
    /// Rows of its micro-tiles; the dense kernel has none, and always takes `us`.
    height: Option<usize>,
    us: f64,
}

/// The kernels, and what they are chosen by.
#[derive(Debug)]
pub(super) struct Adaptive<T: Scalar, Out: Scalar> {
    alternatives: Vec<Alternative<T, Out>>,
    times: TileTimes,
    multiprocessors: u32,
    extents: [usize; 3],
    name: String,
    sample: ShareSample<T>,
    /// The one taken last.
    taken: AtomicUsize,
}

/// The reason why a choice may not change.
fn refusal(reason: &str) -> Option<Refusal> {
    Some(Refusal {
        name: "adaptive".into(),
        reason: reason.into(),
    })
}

impl<T: Scalar, Out: Scalar> Adaptive<T, Out> {
    /// The alternatives for an expression with an operand that is [`Expected::LastSteps`]; `None` where there is nothing to choose from, or
    /// the reason why the choice may not change.
    pub(super) fn new(
        context: &Context,
        einsum: &Einsum,
        operands: &[(&str, Operand<'_, T>)],
        options: &Options,
    ) -> Result<std::result::Result<Self, Option<Refusal>>> {
        let asks = |o: &Operand<'_, T>| matches!(o, Operand::Dynamic(d) if d.expected == Expected::LastSteps);
        let (true, Some(device)) = (
            operands.iter().any(|(_, o)| asks(o)) && options.variant.is_none(),
            context.device(),
        ) else {
            return Ok(Err(None));
        };
        let refused = |reason| Ok(Err(refusal(reason)));
        if options.determinism != Determinism::Relaxed {
            return refused(
                "rounds as the kernel does that runs, and which one that is depends on when the GPU has told what it found: for \
                 Determinism::Relaxed",
            );
        }
        let Some((form, extents)) = pit::adaptable(&rewrite_dense(einsum)?, operands)? else {
            return refused("computes C[m,n] = A[m,k] * B[k,n] with a dynamic A");
        };
        let Some((dense, _)) = as_dense(operands) else {
            return Ok(Err(None));
        };
        let (times, text) = (context.tile_times(), einsum.text.as_str());
        let plan: Plan<T, Out> = Plan::new(context, text, &dense, options)?;
        let predicted = plan.choice().candidates.first().map_or(0.0, |c| c.cost.us);
        let mut alternatives = vec![Alternative {
            plan,
            height: None,
            us: predicted * times.dense,
        }];
        alternatives.extend(Self::skipping(context, text, operands, options)?);
        if alternatives.len() < 2 {
            return refused("has no kernel to choose from that skips micro-tiles");
        }
        let [m, k, _] = extents;
        let adaptive = Adaptive {
            alternatives,
            times,
            multiprocessors: device.machine().multiprocessors,
            extents,
            name: form,
            sample: ShareSample::new(context, [m, k], 0.0)?,
            taken: AtomicUsize::new(0),
        };
        adaptive.choose();
        Ok(Ok(adaptive))
    }

    /// The kernels that skip micro-tiles and can run this.
    fn skipping(
        context: &Context,
        text: &str,
        operands: &[(&str, Operand<'_, T>)],
        options: &Options,
    ) -> Result<Vec<Alternative<T, Out>>> {
        let skipping = operands.iter().map(|(name, operand)| match operand {
            Operand::Dynamic(d) => (*name, dynamic(d.tensor).into()),
            other => (*name, other.clone()),
        });
        let skipping: Vec<_> = skipping.collect();
        let mut alternatives = Vec::new();
        for row in pit::rows(T::DTYPE, false) {
            let own = Options {
                variant: Some(row.name.into()),
                ..options.clone()
            };
            match Plan::new(context, text, &skipping, &own) {
                Ok(plan) => alternatives.push(Alternative {
                    plan,
                    height: Some(row.block.0 as usize),
                    us: 0.0,
                }),
                Err(Error::NoKernel { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(alternatives)
    }

    /// The alternative for what is known now: of so many a few multiplications, and a load from the host's own memory.
    fn choose(&self) -> usize {
        let unknown = Expected::LastSteps.share(1);
        let shares = self.sample.latest().unwrap_or([unknown; 3]);
        let us = |alternative: &Alternative<T, Out>| match alternative.height {
            None => alternative.us,
            Some(height) => {
                let of = SAMPLED_HEIGHTS.iter().position(|&own| own == height);
                let share = of.map_or(1.0, |i| shares[i]);
                self.times
                    .product_us(height, self.extents, share, self.multiprocessors)
                    .unwrap_or(f64::INFINITY)
            }
        };
        let best = (0..self.alternatives.len())
            .min_by(|&a, &b| us(&self.alternatives[a]).total_cmp(&us(&self.alternatives[b])))
            .unwrap_or(0);
        self.taken.store(best, Ordering::Relaxed);
        best
    }

    /// The plan that was chosen last.
    pub(super) fn plan(&self) -> &Plan<T, Out> {
        &self.alternatives[self.taken.load(Ordering::Relaxed)].plan
    }

    /// Device bytes of all alternatives.
    pub(super) fn bytes(&self) -> usize {
        let each = self.alternatives.iter();
        each.map(|a| a.plan.workspace_bytes()).sum()
    }

    /// The alternatives' names, dense first.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.alternatives.iter().map(|a| a.plan.variant())
    }

    /// Runs what is best by the steps before, and looks at a sample of this one's operand for the steps to come.
    pub(super) fn run(
        &self,
        operands: &[(&str, Operand<'_, T>)],
        out: &mut Tensor<Out>,
        stream: &Stream,
    ) -> Result<()> {
        let best = self.choose();
        self.alternatives[best].plan.run(operands, out, stream)?;
        match find(operands, &self.name)? {
            Operand::Dense(tensor) => self.sample.run(tensor, stream),
            other => Err(wrong(&self.name, "an uploaded dense tensor", other)),
        }
    }
}

impl<T: Scalar, Out: Scalar> fmt::Display for Adaptive<T, Out> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.names().collect();
        write!(
            f,
            "{}, chosen at each run of {}",
            self.plan(),
            names.join(", ")
        )
    }
}
