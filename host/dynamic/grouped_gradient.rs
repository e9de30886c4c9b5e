//! The gradient of a stack of matrices, of which each row met one.

use std::marker::PhantomData;

use einsparse_formats::Element;
use rayon::prelude::*;

use super::detect::{check_shape, elsewhere, operand};
use super::routing::{Routes, Routing};
use crate::context::Context;
use crate::device::Stream;
use crate::error::Result;
use crate::launch::{GradExtents, GradLaunch};
use crate::registry::Scalar;
use crate::tensor::Tensor;

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

/// `W[e,m,n] = A[row(s),m] * B[row'(s),n]` summed over the slots `s` that a [`Routing`] gave expert `e`: the gradient of the
/// matrices of a [`GroupedMatmul`](super::GroupedMatmul). An expert without slots gets zeros. Slots are summed in order, f32 sums
/// rounded once: the same bits at every run. For f16 and bf16 on Hopper, `m` and `n` multiples of 8; the CPU takes every element
/// type.
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
            (None, Routes::Host { order, offsets }) => self.on_host((order, offsets), [a, b], w),
            (Some(launch), Routes::Device(on)) if self.context.holds(Some(&on.device)) => {
                let there = |tensor| operand(&self.context, tensor, stream);
                let operands = [there(a)?, there(b)?, there(w)?];
                // SAFETY: operands of the planned shapes and type, routes that a run fills ahead on the stream; all are the
                // caller's to keep until the stream is done, as with every run.
                unsafe { launch.run(&on.routes, operands, stream.raw()) }
            }
            _ => Err(elsewhere("routing")),
        }
    }

    /// The same on the CPU, a row of a matrix at a time.
    fn on_host(
        &self,
        (order, offsets): (&[u32], &[u32]),
        [a, b]: [&Tensor<T>; 2],
        w: &mut Tensor<T>,
    ) -> Result<()> {
        let GroupedGradientOptions { m, n, gather } = self.options;
        let (lda, ldb, ldw) = (a.leading(), b.leading(), w.leading());
        let a = a.host().ok_or_else(|| elsewhere("A"))?;
        let b = b.host().ok_or_else(|| elsewhere("B"))?;
        let w = w.host_mut().ok_or_else(|| elsewhere("W"))?;
        let row = |slot: usize, tokens: bool| match tokens {
            true => order[slot] as usize / self.shape[1],
            false => slot,
        };
        let lines = w.par_chunks_mut(ldw.max(1)).take(self.experts * m);
        lines.enumerate().for_each(|(line, to)| {
            let (expert, i) = (line / m, line % m);
            let mut sums = vec![<T as Element>::Acc::default(); n];
            for slot in offsets[expert] as usize..offsets[expert + 1] as usize {
                let x = a[row(slot, gather[0]) * lda + i].to_acc();
                let from = &b[row(slot, gather[1]) * ldb..][..n];
                for (sum, y) in sums.iter_mut().zip(from) {
                    *sum += x * y.to_acc();
                }
            }
            for (to, sum) in to.iter_mut().zip(sums) {
                *to = T::from_acc(sum);
            }
        });
        Ok(())
    }
}
