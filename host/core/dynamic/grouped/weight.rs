//! Gradient of the matrices of a grouped product. The caller orders runs.

use std::marker::PhantomData;

use super::super::routing::{HostRoutes, Routing};
use crate::device::Stream;
use crate::error::{Elsewhere, Result, check_shape, elements};
use crate::families::gather_gemm::{GradExtents, GradLaunch};
use crate::operator::Operator;
use crate::registry::Scalar;
use crate::tensor::{AnyTensor, Tensor};
use crate::values::{Sum, with_sums};

/// Options of a [`GroupedWeight`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(hidden)]
pub struct WeightOptions {
    /// Columns of A, rows of a matrix.
    #[doc(hidden)]
    pub m: usize,
    /// Columns of B and of a matrix.
    #[doc(hidden)]
    pub n: usize,
    /// Whether rows of A, and of B, are those of the tokens, `[tokens, ...]`, and are gathered. Otherwise they are
    /// those of the slots, `[slots, ...]`.
    #[doc(hidden)]
    pub gather: [bool; 2],
}

/// `W[e,m,n] = A[row(s),m] * B[row'(s),n]`, summed over the slots `s` of expert `e`. Implementation of
/// [`GroupedGemm::backward_weight`](super::GroupedGemm::backward_weight).
#[derive(Debug)]
#[doc(hidden)]
pub struct GroupedWeight<T> {
    /// Names of A, B and W in errors.
    names: [&'static str; 3],
    shape: [usize; 2],
    experts: usize,
    options: WeightOptions,
    operator: Operator<GradLaunch>,
    element: PhantomData<T>,
}

impl<T: Scalar> GroupedWeight<T> {
    /// As [`GroupedGemm::new`](super::GroupedGemm::new).
    #[doc(hidden)]
    pub fn new(routing: &Routing, options: WeightOptions) -> Result<Self> {
        let shape = routing.shape();
        let extents = GradExtents {
            top: shape[1],
            experts: routing.experts(),
            m: options.m,
            n: options.n,
            tokens: options.gather,
        };
        elements("W", &[extents.experts, options.m, options.n])?;
        let operator =
            Operator::new(routing.context(), |device| GradLaunch::new(device, T::DTYPE, extents))?;
        let (names, experts) = (["A", "B", "W"], extents.experts);
        Ok(GroupedWeight { names, shape, experts, options, operator, element: PhantomData })
    }

    /// Name of the kernel; `cpu` on a CPU context.
    pub(super) fn variant(&self) -> &'static str {
        self.operator.variant(GradLaunch::name)
    }

    /// Sets the names of A, B and W in errors.
    pub(super) fn named(self, names: [&'static str; 3]) -> Self {
        GroupedWeight { names, ..self }
    }

    /// Queues the gradient. The caller orders it with other uses of the routing.
    #[doc(hidden)]
    pub fn queue(
        &self,
        routing: &Routing,
        a: &Tensor<T>,
        b: &Tensor<T>,
        w: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let WeightOptions { m, n, gather } = self.options;
        let rows = gather.map(|tokens| match tokens {
            true => self.shape[0],
            false => self.shape[0] * self.shape[1],
        });
        let names = self.names;
        check_shape("routing", &self.shape, &routing.shape())?;
        check_shape("routing", &[self.experts], &[routing.experts()])?;
        routing.check(self.operator.context())?;
        let run = self.operator.start(stream)?;
        let operands = [
            run.matrix(names[0], a.any(), &[rows[0], m])?,
            run.matrix(names[1], b.any(), &[rows[1], n])?,
            run.matrix(names[2], w.any(), &[self.experts, m, n])?,
        ];
        run.queue(
            // A run of the routing, earlier on the stream, fills the routes.
            |launch, queue| launch.run(routing.on_device()?, names, operands, queue),
            || with_sums!(T::DTYPE, A => self.on_host::<A>(routing.on_host(), [a.any(), b.any()], &mut w.any)),
        )
    }

    /// Gradient on the CPU, one row of a matrix at a time.
    fn on_host<A: Sum>(
        &self,
        HostRoutes { order, offsets }: &HostRoutes,
        [a, b]: [&AnyTensor; 2],
        w: &mut AnyTensor,
    ) -> Result<()> {
        let (WeightOptions { m, n, gather }, names) = (self.options, self.names);
        let (top, experts) = (self.shape[1], self.experts);
        let (lda, ldb) = (a.leading(), b.leading());
        let a = a.host().or_elsewhere(names[0])?.widen::<A>();
        let b = b.host().or_elsewhere(names[1])?.widen::<A>();
        let row = |slot: usize, tokens: bool| match tokens {
            true => order[slot] as usize / top,
            false => slot,
        };
        w.store_rows(experts * m, n, &|line, sums: &mut [A]| {
            let (expert, i) = (line / m, line % m);
            for slot in offsets[expert] as usize..offsets[expert + 1] as usize {
                let x = a[row(slot, gather[0]) * lda + i];
                let from = &b[row(slot, gather[1]) * ldb..][..n];
                sums.iter_mut().zip(from).for_each(|(sum, &y)| *sum += x * y);
            }
        })
        .or_elsewhere(names[2])
    }
}
