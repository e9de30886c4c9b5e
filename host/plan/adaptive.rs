//! Plans that select a kernel at each run: the dense kernel, or a kernel that skips zero micro-tiles of some height.
//! The selection uses samples of earlier operands.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::any::AnyPlan;
use super::{Determinism, Options};
use crate::context::Context;
use crate::einsum::Einsum;
use crate::error::{Error, Refusal, Result};
use crate::families::convert::DenseMatrix;
use crate::families::discover::{SAMPLED_HEIGHTS, SampleLaunch};
use crate::families::gather_gemm::found::above;
use crate::families::gather_gemm::offers::pit;
use crate::indirect::rewrite_dense;
use crate::launch::Turns;
use crate::machine::TileTimes;
use crate::offer::bind::as_dense;
use crate::offer::{Compiled, Run, Types};
use crate::tensor::{AnyOperand, AnyTensor, SparsityHint};

/// A kernel that can run the expression, with the data that predict its time.
#[derive(Debug)]
struct Alternative {
    plan: AnyPlan,
    /// Rows of its micro-tiles; `None` for the dense kernel, whose predicted time is always `us`.
    height: Option<usize>,
    us: f64,
}

/// The alternatives, with the data for the selection.
#[derive(Debug)]
pub(super) struct Adaptive {
    alternatives: Vec<Alternative>,
    times: TileTimes,
    multiprocessors: u32,
    extents: [usize; 3],
    name: String,
    sample: SampleLaunch,
    /// Serializes samples.
    turns: Turns,
    /// Index of the alternative selected last.
    taken: AtomicUsize,
}

/// Refusal of an adaptive selection.
fn refusal(reason: &str) -> Option<Refusal> {
    Some(Refusal::of("adaptive", reason))
}

impl Adaptive {
    /// Returns the alternatives for an expression with a [`SparsityHint::LastSteps`] operand; otherwise the reason why
    /// the plan is not adaptive, if there is one to report.
    pub(super) fn new(
        (context, types): (&Context, Types),
        einsum: &Einsum,
        operands: &[(&str, AnyOperand<'_>)],
        options: &Options,
    ) -> Result<std::result::Result<Self, Option<Refusal>>> {
        let asks =
            |o: &AnyOperand<'_>| matches!(o, AnyOperand::Dynamic(_, SparsityHint::LastSteps));
        let (true, Some(device)) =
            (operands.iter().any(|(_, o)| asks(o)) && options.variant.is_none(), context.device())
        else {
            return Ok(Err(None));
        };
        let refused = |reason| Ok(Err(refusal(reason)));
        if options.determinism != Determinism::Relaxed {
            return refused(
                "rounds as the kernel does that runs, and which one that is depends on when the GPU has told what it \
                 found: for \
                 Determinism::Relaxed",
            );
        }
        let Some((form, extents)) = pit::adaptable(&rewrite_dense(einsum)?, operands)? else {
            return refused("computes C[m,n] = A[m,k] * B[k,n] with a dynamic A");
        };
        let Some((dense, _)) = as_dense(operands) else {
            return Ok(Err(None));
        };
        let times = context.tile_times();
        let plan = AnyPlan::of((context, types), einsum.clone(), &dense, options)?;
        let predicted = plan.choice().candidates.first().map_or(0.0, |c| c.cost.us);
        let mut alternatives =
            vec![Alternative { plan, height: None, us: predicted * times.dense }];
        alternatives.extend(Self::skipping((context, types), einsum, operands, options)?);
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
            sample: SampleLaunch::new(device, types.operands, [m, k], above(types.operands, 0.0))?,
            turns: Turns::new(device)?,
            taken: AtomicUsize::new(0),
        };
        adaptive.choose();
        Ok(Ok(adaptive))
    }

    /// Returns the kernels that skip micro-tiles and can run the expression.
    fn skipping(
        (context, types): (&Context, Types),
        einsum: &Einsum,
        operands: &[(&str, AnyOperand<'_>)],
        options: &Options,
    ) -> Result<Vec<Alternative>> {
        let skipping = operands.iter().map(|(name, operand)| match operand {
            AnyOperand::Dynamic(d, _) => (*name, AnyOperand::Dynamic(d, SparsityHint::default())),
            other => (*name, *other),
        });
        let skipping: Vec<_> = skipping.collect();
        let mut alternatives = Vec::new();
        for row in pit::rows(types.operands, false) {
            let own = Options { variant: Some(row.name.into()), ..options.clone() };
            match AnyPlan::of((context, types), einsum.clone(), &skipping, &own) {
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

    /// Returns the best alternative for the latest sample. It costs a few multiplications and a load from host memory.
    fn choose(&self) -> usize {
        let unknown = SparsityHint::LastSteps.share(1);
        let shares = self.sample.latest().unwrap_or([unknown; 3]);
        let us = |alternative: &Alternative| match alternative.height {
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

    /// Returns the plan selected last.
    pub(super) fn plan(&self) -> &AnyPlan {
        &self.alternatives[self.taken.load(Ordering::Relaxed)].plan
    }

    /// Returns the names of the alternatives, dense first.
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.alternatives.iter().map(|a| a.plan.variant())
    }
}

impl Compiled for Adaptive {
    fn variant(&self) -> &'static str {
        self.plan().variant()
    }

    fn bytes(&self) -> usize {
        let each = self.alternatives.iter();
        each.map(|a| a.plan.workspace_bytes()).sum()
    }

    /// Runs the best alternative for earlier samples, and samples the operand of this run for later ones.
    fn run(&self, run: &Run<'_>, out: &mut AnyTensor) -> Result<()> {
        let best = self.choose();
        self.alternatives[best].plan.run(run.operands, out, run.stream)?;
        let queue = run.queue(out)?;
        let ((address, leading), [rows, columns, _]) = (run.tensor(&self.name)?, self.extents);
        let source = DenseMatrix { address, rows, columns, leading };
        self.turns.queue(true, queue.stream(), || self.sample.run(source, queue))
    }
}

impl fmt::Display for Adaptive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.names().collect();
        write!(f, "{}, chosen at each run of {}", self.plan(), names.join(", "))
    }
}
