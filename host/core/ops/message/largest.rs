//! Gradient of the largest message.

use crate::context::Context;
use crate::device::Stream;
use crate::error::{Elsewhere, Error, Result};
use crate::families::tensor::cpu::{Largest, Matrix};
use crate::families::tensor::fibres::{Fibres, RowsOf};
use crate::families::tensor::{MessageLaunch, RawMessage};
use crate::operator::Operator;
use crate::tensor::{AnySparseTensor, AnyTensor};

/// Gradient of a maximum for the pattern of a graph.
#[derive(Debug)]
pub(super) struct LargestGradient {
    operator: Operator<MessageLaunch>,
    /// Entries sorted by target and by source; `None` on a GPU.
    sorted: Option<Box<[Fibres; 2]>>,
    targets: usize,
    sources: usize,
    features: usize,
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
        let operator = Operator::new(context, |device| {
            MessageLaunch::new(device, graph.dtype(), &by_source, (targets, features))
        })?;
        let sorted = match context.is_cuda() {
            true => None,
            false => Some(Box::new([by(0)?, by_source])),
        };
        Ok(LargestGradient { operator, sorted, targets, sources, features })
    }

    /// Returns the device memory in bytes, operands excluded.
    pub(super) fn bytes(&self) -> usize {
        self.operator.bytes(MessageLaunch::bytes)
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
        let (sources, targets) = ([self.sources, self.features], [self.targets, self.features]);
        let run = self.operator.start(stream)?;
        let raw = RawMessage {
            values: run.values("A", graph)?,
            x: run.rows("X", given[0], &sources)?,
            y: run.rows("Y", given[1], &targets)?,
            dy: run.rows("dY", given[2], &targets)?,
            dx: run.rows("dX", dx, &sources)?,
            dvalues: match &dvalues {
                Some(dvalues) => run.rows("dA", dvalues, &[graph.pattern().slots()])?.0,
                None => 0,
            },
        };
        run.queue(
            |launch, queue| launch.run(&raw, queue),
            || match &self.sorted {
                Some(sorted) => self.run_cpu(sorted, graph, given, dx, dvalues),
                None => Err(Error::elsewhere("A")),
            },
        )
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
