//! Shared implementation of the optimisers: one step of all parameters by one rule.

use einsparse_kernels::families::UpdateState;

use crate::context::Context;
use crate::device::Stream;
use crate::error::{Elsewhere, Error, Result, elements};
use crate::families::optimizer::{Arrays, Rule, UpdateLaunch, cpu};
use crate::operator::Operator;
use crate::operator_of;
use crate::registry::{Dtype, Scalar};
use crate::tensor::Tensor;

/// State of an optimiser: the shape of its parameters, the rule, the moments and the progress.
#[derive(Debug)]
pub(super) struct Update {
    shape: Vec<usize>,
    rule: Rule,
    /// State on a CPU context. A GPU has its own state in device memory.
    state: UpdateState,
    /// First and second moment; empty if the rule does not use it.
    moments: [Tensor<f32>; 2],
    operator: Operator<UpdateLaunch>,
}

/// Validates that a constant is at least 0 and below `end`.
pub(super) fn check(name: &str, value: f64, end: f64) -> Result<()> {
    if (0.0..end).contains(&value) {
        return Ok(());
    }
    Err(Error::range(name, value, format!(">= 0 and < {end}")))
}

fn check_rate(rate: f64) -> Result<()> {
    check("rate", rate, f64::from(f32::MAX))
}

impl Update {
    pub(super) fn new(
        context: &Context,
        shape: &[usize],
        rate: f64,
        rule: Rule,
        kept: [bool; 2],
    ) -> Result<Self> {
        check_rate(rate)?;
        let len = elements("parameters", shape)?;
        let moment = |kept: bool| context.zeros::<f32>(if kept { shape } else { &[0] });
        let moments = [moment(kept[0])?, moment(kept[1])?];
        let operator = operator_of(context, |device| UpdateLaunch::new(device, rule, len, rate))?;
        let (shape, state) = (shape.to_vec(), rule.start(rate));
        Ok(Update { shape, rule, state, moments, operator })
    }

    pub(super) fn variant(&self) -> &'static str {
        self.operator.variant(UpdateLaunch::variant)
    }

    pub(super) fn set_rate(&mut self, rate: f64) -> Result<()> {
        check_rate(rate)?;
        let device = self.operator.context().planned_on()?;
        self.state.rate = rate as f32;
        self.operator.launch().map_or(Ok(()), |launch| launch.set_rate(device, rate))
    }

    pub(super) fn steps(&self) -> Result<u64> {
        let steps = match (self.operator.on_gpu(), self.operator.context().device()) {
            (Some(launch), Some(device)) => launch.steps(device)?,
            _ => self.state.steps,
        };
        Ok(u64::from(steps))
    }

    pub(super) fn step<T: Scalar, G: Scalar>(
        &mut self,
        parameters: &mut Tensor<f32>,
        gradient: &Tensor<G>,
        copy: Option<&mut Tensor<T>>,
        stream: &Stream,
    ) -> Result<()> {
        let run = self.operator.start(stream)?;
        let arrays = Arrays {
            parameters: run.whole("parameters", parameters.any(), &self.shape)?,
            gradient: run.whole("gradient", gradient.any(), &self.shape)?,
            narrow: G::DTYPE != Dtype::F32,
            moments: self.moments.each_ref().map(|moment| moment.place()),
            copy: match &copy {
                Some(copy) => Some((run.whole("copy", copy.any(), &self.shape)?, T::DTYPE)),
                None => None,
            },
        };
        if copy.is_some() && !matches!(T::DTYPE, Dtype::F16 | Dtype::Bf16) {
            return Err(Error::dtype("copy", "f16 or bf16", T::DTYPE.name()));
        }
        if G::DTYPE != Dtype::F32 && (copy.is_none() || G::DTYPE != T::DTYPE) {
            let expected = "f32, or the type of the copy";
            return Err(Error::dtype("gradient", expected, G::DTYPE.name()));
        }
        run.queue(
            |launch, queue| launch.run(&arrays, queue),
            || {
                let own = parameters.host_mut().or_elsewhere("parameters")?;
                let gradient = gradient.host().or_elsewhere("gradient")?;
                let [first, second] =
                    self.moments.each_mut().map(|own| own.host_mut().or_elsewhere("moments"));
                cpu::update(self.rule, &mut self.state, own, gradient, [first?, second?]);
                if let Some(copy) = copy {
                    let to = copy.host_mut().or_elsewhere("copy")?;
                    let all = to.iter_mut().zip(own.iter());
                    all.for_each(|(to, x)| *to = T::from_f64(f64::from(*x)));
                }
                Ok(())
            },
        )
    }
}
