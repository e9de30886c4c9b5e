//! Gradient of the largest message.

use std::sync::Arc;

use crate::context::{Context, Shadow};
use crate::device::{Device, Stream};
use crate::error::{Elsewhere, Error, Result, check_shape};
use crate::families::tensor::cpu::{Largest, Matrix};
use crate::families::tensor::fibres::{Fibres, RowsOf};
use crate::families::tensor::{MessageLaunch, RawMessage};
use crate::kernel::Queue;
use crate::tensor::{AnySparseTensor, AnyTensor};

/// Gradient of a maximum for the pattern of a graph.
#[derive(Debug)]
pub(super) struct LargestGradient {
    shadow: Shadow<LargestGradient>,
    exec: Exec,
    targets: usize,
    sources: usize,
    features: usize,
}

#[derive(Debug)]
enum Exec {
    /// Entries sorted by target and by source.
    Cpu(Box<[Fibres; 2]>),
    Gpu(Box<MessageLaunch>),
}

/// Features of the sources, the output of the forward pass, and its gradient.
pub(super) type Given<'a> = [&'a AnyTensor; 3];

impl LargestGradient {
    /// Plans the gradient for a graph `[targets, sources]` whose format has coordinates.
    pub(super) fn new(
        context: &Context,
        graph: &AnySparseTensor,
        [targets, sources]: [usize; 2],
        features: usize,
    ) -> Result<Self> {
        let pattern = graph.pattern();
        let by = |axis: usize| -> Result<Fibres> {
            let fibres = Fibres::new(pattern, &[axis], &[1 - axis], RowsOf::All)?;
            fibres.ok_or_else(|| Error::not_walked("A", pattern.format()))
        };
        let by_source = by(1)?;
        let exec = match context.device() {
            None => Exec::Cpu(Box::new([by(0)?, by_source])),
            Some(device) => {
                let shape = (targets, features);
                let launch = MessageLaunch::new(device, graph.dtype(), &by_source, shape)?;
                Exec::Gpu(Box::new(launch))
            }
        };
        let shadow = Shadow::new(context, |context| {
            Self::new(context, &graph.shadow()?, [targets, sources], features)
        })?;
        Ok(LargestGradient { shadow, exec, targets, sources, features })
    }

    /// Returns the device memory in bytes, operands excluded.
    pub(super) fn bytes(&self) -> usize {
        match &self.exec {
            Exec::Cpu(_) => 0,
            Exec::Gpu(launch) => launch.bytes(),
        }
    }

    /// Queues the gradients of the features and of the values of the graph.
    pub(super) fn run(
        &self,
        graph: &AnySparseTensor,
        given: Given<'_>,
        dx: &mut AnyTensor,
        dvalues: Option<&mut AnyTensor>,
        stream: &Stream,
    ) -> Result<()> {
        self.shadow.look(stream, |own, stream| {
            let [x, y, dy] = given.map(AnyTensor::shadow);
            let mut dvalues = dvalues.as_ref().map(|dvalues| dvalues.shadow());
            let (graph, dx) = (graph.shadow()?, &mut dx.shadow());
            own.run(&graph, [&x, &y, &dy], dx, dvalues.as_mut(), stream)
        })?;
        let (sources, targets) = ([self.sources, self.features], [self.targets, self.features]);
        for ((name, tensor), shape) in
            ["X", "Y", "dY"].iter().zip(given).zip([sources, targets, targets])
        {
            check_shape(name, &shape, tensor.shape())?;
        }
        check_shape("dX", &sources, dx.shape())?;
        if let Some(dvalues) = &dvalues {
            check_shape("dA", &[graph.pattern().slots()], dvalues.shape())?;
        }
        match &self.exec {
            Exec::Cpu(by) => self.run_cpu(by, graph, given, dx, dvalues),
            Exec::Gpu(launch) => {
                let device = launch.device();
                if !stream.belongs_to(device) {
                    return Err(Error::elsewhere("stream"));
                }
                let on = |name: &str, tensor: &AnyTensor| address(device, name, tensor);
                let raw = RawMessage {
                    values: graph.values_address().unwrap_or(0),
                    x: on("X", given[0])?,
                    y: on("Y", given[1])?,
                    dy: on("dY", given[2])?,
                    dx: on("dX", dx)?,
                    dvalues: match &dvalues {
                        Some(dvalues) => on("dA", dvalues)?.0,
                        None => 0,
                    },
                };
                // SAFETY: shapes and contexts were validated, and the graph is the planned one. The tensors are
                // borrowed for the call, and device memory is freed only after the work queued on the context.
                let queue = unsafe { Queue::new(stream.raw()) };
                launch.run(&raw, queue)
            }
        }
    }

    fn run_cpu(
        &self,
        by: &[Fibres; 2],
        graph: &AnySparseTensor,
        given: Given<'_>,
        dx: &mut AnyTensor,
        dvalues: Option<&mut AnyTensor>,
    ) -> Result<()> {
        let host = graph.host().or_elsewhere("A")?;
        let [x, y, dy] = given;
        let largest = Largest {
            values: host,
            x: matrix("X", x)?,
            y: matrix("Y", y)?,
            dy: matrix("dY", dy)?,
            features: self.features,
        };
        let leading = dx.leading();
        let to = dx.host_mut().or_elsewhere("dX")?;
        let dvalues = match dvalues {
            Some(own) => Some(own.host_mut().or_elsewhere("dA")?),
            None => None,
        };
        largest.gradient((&by[0], &by[1]), (to, leading), dvalues);
        Ok(())
    }
}

fn matrix<'a>(name: &str, tensor: &'a AnyTensor) -> Result<Matrix<'a>> {
    let data = tensor.host().or_elsewhere(name)?;
    Ok((data, tensor.leading()))
}

/// Returns the address and the row stride of a tensor on this GPU.
fn address(device: &Arc<Device>, name: &str, tensor: &AnyTensor) -> Result<(u64, usize)> {
    match (tensor.device(), tensor.address()) {
        (Some(on), Some(address)) if on.is_same(device) => Ok((address, tensor.leading())),
        _ => Err(Error::elsewhere(name)),
    }
}
