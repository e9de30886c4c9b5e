//! Gradient of the matrices of a grouped product. The caller orders runs.

use std::marker::PhantomData;

use super::super::detect::operand;
use super::super::routing::{Routes, Routing};
use crate::context::Context;
use crate::device::Stream;
use crate::error::{Error, Result, check_shape, elements};
use crate::families::gather_gemm::{GradExtents, GradLaunch};
use crate::kernel::Queue;
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
    context: Context,
    shape: [usize; 2],
    experts: usize,
    options: WeightOptions,
    launch: Option<GradLaunch>,
    element: PhantomData<T>,
}

impl<T: Scalar> GroupedWeight<T> {
    /// As [`GroupedGemm::new`](super::GroupedGemm::new).
    #[doc(hidden)]
    pub fn new(routing: &Routing, options: WeightOptions) -> Result<Self> {
        let context = routing.context();
        let shape = routing.shape();
        let extents = GradExtents {
            top: shape[1],
            experts: routing.experts(),
            m: options.m,
            n: options.n,
            tokens: options.gather,
        };
        elements("W", &[extents.experts, options.m, options.n])?;
        let launch = match context.device() {
            None => None,
            Some(device) => Some(GradLaunch::new(device, T::DTYPE, extents)?),
        };
        Ok(GroupedWeight {
            names: ["A", "B", "W"],
            context: context.clone(),
            shape,
            experts: routing.experts(),
            options,
            launch,
            element: PhantomData,
        })
    }

    /// Name of the kernel; `cpu` on a CPU context.
    pub(super) fn variant(&self) -> &'static str {
        self.launch.as_ref().map_or("cpu", GradLaunch::name)
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
        check_shape(names[0], &[rows[0], m], a.shape())?;
        check_shape(names[1], &[rows[1], n], b.shape())?;
        check_shape(names[2], &[self.experts, m, n], w.shape())?;
        match (&self.launch, routing.routes()) {
            (None, Routes::Host { order, offsets }) => {
                let of = (self.shape[1], self.experts, &self.options);
                let routes = (&order[..], &offsets[..]);
                with_sums!(T::DTYPE, A => on_host::<A>((of, names), routes, [a, b], &mut w.any))
            }
            (Some(launch), Routes::Device(on)) if self.context.holds(Some(&on.device)) => {
                let there = |tensor: &Tensor<T>| operand(&self.context, tensor, stream);
                let operands = [there(a)?, there(b)?, there(w)?];
                // SAFETY: the operands have the planned shapes and type. A run of the routing, earlier on the stream,
                // fills the routes. The caller keeps all of them until the stream is done, as for every run.
                let queue = unsafe { Queue::new(stream.raw()) };
                launch.run(&on.routes, names, operands, queue)
            }
            _ => Err(Error::elsewhere("routing")),
        }
    }
}

/// Gradient on the CPU, one row of a matrix at a time.
fn on_host<A: Sum>(
    ((top, experts, options), names): ((usize, usize, &WeightOptions), [&str; 3]),
    (order, offsets): (&[u32], &[u32]),
    [a, b]: [&AnyTensor; 2],
    w: &mut AnyTensor,
) -> Result<()> {
    let WeightOptions { m, n, gather } = *options;
    let (lda, ldb) = (a.leading(), b.leading());
    let a = a.host().ok_or_else(|| Error::elsewhere(names[0]))?.widen::<A>();
    let b = b.host().ok_or_else(|| Error::elsewhere(names[1]))?.widen::<A>();
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
    .ok_or_else(|| Error::elsewhere(names[2]))
}
