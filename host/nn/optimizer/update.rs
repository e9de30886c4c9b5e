//! Shared implementation of the optimisers: one step of all parameters by one rule.

use einsparse_kernels::families::UpdateState;

use crate::context::{Context, Prepared};
use crate::device::Stream;
use crate::dynamic::operand;
use crate::error::{Elsewhere, Error, Result, elements};
use crate::families::optimizer::{Arrays, Rule, UpdateLaunch, cpu};
use crate::kernel::Queue;
use crate::registry::{Dtype, Scalar};
use crate::tensor::{AnyTensor, Tensor};

/// State of an optimiser: the shape of its parameters, the rule, the moments and the progress.
#[derive(Debug)]
pub(super) struct Update {
    context: Context,
    shape: Vec<usize>,
    rule: Rule,
    /// State on a CPU context. A GPU has its own state in device memory.
    state: UpdateState,
    /// First and second moment; empty if the rule does not use it.
    moments: [Tensor<f32>; 2],
    launch: Prepared<UpdateLaunch>,
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
        let launch = context.prepared(|device| UpdateLaunch::new(device, rule, len, rate))?;
        Ok(Update {
            context: context.clone(),
            shape: shape.to_vec(),
            rule,
            state: rule.start(rate),
            moments,
            launch,
        })
    }

    pub(super) fn variant(&self) -> &'static str {
        self.launch.as_ref().map_or("cpu", UpdateLaunch::variant)
    }

    pub(super) fn set_rate(&mut self, rate: f64) -> Result<()> {
        check_rate(rate)?;
        let device = self.context.planned_on()?;
        self.state.rate = rate as f32;
        self.launch.get().map_or(Ok(()), |launch| launch.set_rate(device, rate))
    }

    pub(super) fn steps(&self) -> Result<u64> {
        let steps = match (self.launch.as_ref(), self.context.device()) {
            (Some(launch), Some(device)) => launch.steps(device)?,
            _ => self.state.steps,
        };
        Ok(u64::from(steps))
    }

    /// Validates that a tensor of the planned shape is stored without gaps.
    fn whole(&self, name: &str, tensor: &AnyTensor) -> Result<()> {
        let columns = self.shape.last().copied().unwrap_or(1);
        if tensor.leading() == columns {
            return Ok(());
        }
        let expected = format!("{columns}, without gaps between rows");
        Err(Error::stride(name, tensor.leading(), expected))
    }

    pub(super) fn step<T: Scalar, G: Scalar>(
        &mut self,
        parameters: &mut Tensor<f32>,
        gradient: &Tensor<G>,
        copy: Option<&mut Tensor<T>>,
        stream: &Stream,
    ) -> Result<()> {
        parameters.check("parameters", &self.context, &self.shape)?;
        gradient.check("gradient", &self.context, &self.shape)?;
        self.whole("parameters", parameters)?;
        self.whole("gradient", gradient)?;
        if let Some(copy) = &copy {
            copy.check("copy", &self.context, &self.shape)?;
            self.whole("copy", copy)?;
            if !matches!(T::DTYPE, Dtype::F16 | Dtype::Bf16) {
                return Err(Error::dtype("copy", "f16 or bf16", T::DTYPE.name()));
            }
        }
        if G::DTYPE != Dtype::F32 && (copy.is_none() || G::DTYPE != T::DTYPE) {
            let expected = "f32, or the type of the copy";
            return Err(Error::dtype("gradient", expected, G::DTYPE.name()));
        }
        if self
            .launch
            .queue(|launch| self.queue(launch, (parameters, gradient), copy.as_deref(), stream))?
        {
            return Ok(());
        }
        self.step_on_host(parameters, gradient, copy)
    }

    fn queue<T: Scalar, G: Scalar>(
        &self,
        launch: &UpdateLaunch,
        (parameters, gradient): (&Tensor<f32>, &Tensor<G>),
        copy: Option<&Tensor<T>>,
        stream: &Stream,
    ) -> Result<()> {
        let place = |tensor: &AnyTensor| {
            operand(&self.context, tensor, stream).map(|matrix| matrix.address)
        };
        let copy = copy.map(|copy| Ok::<_, Error>((place(copy)?, T::DTYPE)));
        let arrays = Arrays {
            parameters: place(parameters)?,
            gradient: place(gradient)?,
            narrow: G::DTYPE != Dtype::F32,
            moments: [0, 1].map(|i| self.moments[i].place()),
            copy: copy.transpose()?,
        };
        // SAFETY: operands have the planned shapes and types; the caller keeps them until the stream is done.
        let queue = unsafe { Queue::new(stream.raw()) };
        launch.run(&arrays, queue)
    }

    fn step_on_host<T: Scalar, G: Scalar>(
        &mut self,
        parameters: &mut Tensor<f32>,
        gradient: &Tensor<G>,
        copy: Option<&mut Tensor<T>>,
    ) -> Result<()> {
        let own = parameters.host_mut().or_elsewhere("parameters")?;
        let gradient = gradient.host().or_elsewhere("gradient")?;
        let [first, second] = &mut self.moments;
        let moments =
            [first.host_mut().or_elsewhere("moments")?, second.host_mut().or_elsewhere("moments")?];
        cpu::update(self.rule, &mut self.state, own, gradient, moments);
        if let Some(copy) = copy {
            let to = copy.host_mut().or_elsewhere("copy")?;
            let all = to.iter_mut().zip(own.iter());
            all.for_each(|(to, x)| *to = T::from_f64(f64::from(*x)));
        }
        Ok(())
    }
}
