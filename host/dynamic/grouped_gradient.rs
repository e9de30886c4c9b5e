//! The gradient of a stack of matrices, of which each row met one.

use std::marker::PhantomData;

use super::detect::{check_shape, elsewhere, operand};
use super::routing::{Routes, Routing};
use crate::context::Context;
use crate::device::Stream;
use crate::error::Result;
use crate::families::gather_gemm::{GradExtents, GradLaunch};
use crate::kernel::Queue;
use crate::launch::in_turn;
use crate::registry::Scalar;
use crate::tensor::{AnyTensor, Tensor};
use crate::values::{Sum, with_sums};

/// A [`GroupedGradient`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupedGradientOptions {
    /// Columns of A, rows of a matrix.
    pub m: usize,
    /// Columns of B and of a matrix.
    pub n: usize,
    /// Rows of A, and of B, are the tokens', `[tokens, ...]`, and gathered; else the slots', `[slots, ...]`.
    pub gather: [bool; 2],
}

/// `W[e,m,n] = A[row(s),m] * B[row'(s),n]` summed over the slots `s` that a [`Routing`] gave expert `e`: the gradient
/// of the matrices of a [`GroupedMatmul`](super::GroupedMatmul). An expert without slots gets zeros. Slots are summed
/// in order, f32 sums rounded once: the same bits at every run. For f16 and bf16 on Hopper, `m` and `n` multiples of 8;
/// the CPU takes every element type.
#[derive(Debug)]
pub struct GroupedGradient<T> {
    context: Context,
    shape: [usize; 2],
    experts: usize,
    options: GroupedGradientOptions,
    launch: Option<GradLaunch>,
    element: PhantomData<T>,
}

impl<T: Scalar> GroupedGradient<T> {
    /// A gradient over the slots of routings like this one.
    ///
    /// # Errors
    /// On a GPU [`Error::NoKernel`](crate::Error::NoKernel) for element types without kernel,
    /// [`Error::Operand`](crate::Error::Operand) for extents that are no multiples of 8;
    /// [`Error::Overflow`](crate::Error::Overflow).
    pub fn new(routing: &Routing, options: GroupedGradientOptions) -> Result<Self> {
        let context = routing.context();
        let shape = routing.shape();
        let extents = GradExtents {
            top: shape[1],
            experts: routing.experts(),
            m: options.m,
            n: options.n,
            tokens: options.gather,
        };
        let launch = match context.device() {
            None => None,
            Some(device) => Some(GradLaunch::new(device, T::DTYPE, extents)?),
        };
        Ok(GroupedGradient {
            context: context.clone(),
            shape,
            experts: routing.experts(),
            options,
            launch,
            element: PhantomData,
        })
    }

    /// The kernel, `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        self.launch.as_ref().map_or("cpu", GradLaunch::name)
    }

    /// Queues the gradient into `w`, `[experts, m, n]`. Nothing is allocated or waited for.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if an operand is not of the planned extents;
    /// [`Error::Operand`](crate::Error::Operand) if one lies in another context, or is not aligned to 16 bytes.
    pub fn run(
        &self,
        routing: &Routing,
        a: &Tensor<T>,
        b: &Tensor<T>,
        w: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        in_turn(routing.turns(), stream, || {
            self.queue(routing, a, b, w, stream)
        })
    }

    /// [`run`](Self::run) in the turn of whoever calls.
    pub(crate) fn queue(
        &self,
        routing: &Routing,
        a: &Tensor<T>,
        b: &Tensor<T>,
        w: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let GroupedGradientOptions { m, n, gather } = self.options;
        let rows = gather.map(|tokens| match tokens {
            true => self.shape[0],
            false => self.shape[0] * self.shape[1],
        });
        check_shape("routing", &self.shape, &routing.shape())?;
        check_shape("routing", &[self.experts], &[routing.experts()])?;
        check_shape("A", &[rows[0], m], a.shape())?;
        check_shape("B", &[rows[1], n], b.shape())?;
        check_shape("W", &[self.experts, m, n], w.shape())?;
        match (&self.launch, routing.routes()) {
            (None, Routes::Host { order, offsets }) => {
                let of = (self.shape[1], self.experts, &self.options);
                let routes = (&order[..], &offsets[..]);
                with_sums!(T::DTYPE, A => on_host::<A>(of, routes, [a, b], &mut w.any))
            }
            (Some(launch), Routes::Device(on)) if self.context.holds(Some(&on.device)) => {
                let there = |tensor: &Tensor<T>| operand(&self.context, tensor, stream);
                let operands = [there(a)?, there(b)?, there(w)?];
                // SAFETY: operands of the planned shapes and type, routes that a run fills ahead on the stream; all are
                // the caller's to keep until the stream is done, as with every run.
                let queue = unsafe { Queue::new(stream.raw()) };
                launch.run(&on.routes, operands, queue)
            }
            _ => Err(elsewhere("routing")),
        }
    }
}

/// The same on the CPU, a row of a matrix at a time.
fn on_host<A: Sum>(
    (top, experts, options): (usize, usize, &GroupedGradientOptions),
    (order, offsets): (&[u32], &[u32]),
    [a, b]: [&AnyTensor; 2],
    w: &mut AnyTensor,
) -> Result<()> {
    let GroupedGradientOptions { m, n, gather } = *options;
    let (lda, ldb) = (a.leading(), b.leading());
    let a = a.host().ok_or_else(|| elsewhere("A"))?.widen::<A>();
    let b = b.host().ok_or_else(|| elsewhere("B"))?.widen::<A>();
    let row = |slot: usize, tokens: bool| match tokens {
        true => order[slot] as usize / top,
        false => slot,
    };
    w.store_rows(experts * m, n, &|line, sums: &mut [A]| {
        let (expert, i) = (line / m, line % m);
        for slot in offsets[expert] as usize..offsets[expert + 1] as usize {
            let x = a[row(slot, gather[0]) * lda + i];
            let from = &b[row(slot, gather[1]) * ldb..][..n];
            sums.iter_mut()
                .zip(from)
                .for_each(|(sum, &y)| *sum += x * y);
        }
    })
    .ok_or_else(|| elsewhere("W"))
}
