//! A product in which each row has a matrix of its own, chosen while running.

use std::marker::PhantomData;

use einsparse_formats::{Accumulator, Element};
use rayon::prelude::*;

use super::detect::{check_shape, elsewhere, operand};
use super::routing::{Routes, Routing, without_gaps};
use crate::context::Context;
use crate::cpu::activate;
use crate::device::Stream;
use crate::einsum::Activation;
use crate::error::{Error, Result};
use crate::launch::{GroupedExtents, GroupedLaunch, GroupedOperands, GroupedWay};
use crate::registry::Scalar;
use crate::tensor::Tensor;

/// A [`GroupedMatmul`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupedOptions {
    /// Columns of A, rows of a matrix.
    pub k: usize,
    /// Columns of a matrix and of C.
    pub n: usize,
    /// Rows of A are the tokens', `[tokens, k]`, and gathered on the way in (SRead); else the slots', `[slots, k]`.
    pub gather: bool,
    /// Rows of C are the choices', and scattered on the way out (SWrite); else the slots'. `[slots, n]` either way.
    pub scatter: bool,
    /// What becomes of a sum before it is weighted. On a GPU the identity or ReLU.
    pub activation: Activation,
    /// Matrices are `[n, k]` each: rows are multiplied with their transposes.
    pub transposed: bool,
}

/// Operands of a product beside C.
#[derive(Debug)]
pub(crate) struct GroupedRun<'a, T> {
    pub a: &'a Tensor<T>,
    pub w: &'a Tensor<T>,
    pub weights: Option<&'a Tensor<f32>>,
    /// Rows by slots; where they are not positive, C is zero.
    pub gate: Option<&'a Tensor<T>>,
    /// The kernel queued just before neither routed nor wrote W, and a product or a routing of this crate stood before it.
    pub early: bool,
}

/// `C[s,n] = weight(s) act(A[row(s),k] * W[expert(s),k,n])` for each slot `s` of a [`Routing`]: rows gathered and scattered by
/// index while they pass through shared memory (SRead and SWrite of PIT, arXiv 2301.10936, section 3.4, on the m axis). No
/// padding, no capacity: panels of up to 128 rows of one expert, as many as there are. For f16 and bf16 on Hopper, `k` and `n`
/// multiples of 8; the CPU takes every element type.
///
/// With [`scatter`](GroupedOptions::scatter) the row of a choice that names no expert is zero; without it such rows, the last
/// ones, stay as they are. The same bits at every run.
#[derive(Debug)]
pub struct GroupedMatmul<T> {
    context: Context,
    extents: GroupedExtents,
    options: GroupedOptions,
    launch: Option<GroupedLaunch>,
    element: PhantomData<T>,
}

impl<T: Scalar> GroupedMatmul<T> {
    /// A product over the slots of routings like this one.
    ///
    /// # Errors
    /// On a GPU [`Error::NoKernel`] for element types without kernel, [`Error::Operand`] for GELU and for extents that are no
    /// multiples of 8; [`Error::Overflow`].
    pub fn new(routing: &Routing, options: GroupedOptions) -> Result<Self> {
        Self::with_variant(routing, options, None)
    }

    /// The same with the kernel of this name, on a GPU.
    #[doc(hidden)]
    pub fn with_variant(
        routing: &Routing,
        options: GroupedOptions,
        variant: Option<&str>,
    ) -> Result<Self> {
        let [tokens, top] = routing.shape();
        let extents = GroupedExtents {
            tokens,
            top,
            experts: routing.experts(),
            k: options.k,
            n: options.n,
            turned: options.transposed,
        };
        let context = routing.context();
        let launch = match context.device() {
            None => None,
            Some(_) if options.activation == Activation::Gelu => {
                return Err(Error::Operand {
                    name: "activation".into(),
                    reason: "is gelu; products of rows with chosen matrices have ReLU or none"
                        .into(),
                });
            }
            Some(device) => Some(GroupedLaunch::new(device, T::DTYPE, extents, variant)?),
        };
        Ok(GroupedMatmul {
            context: context.clone(),
            extents,
            options,
            launch,
            element: PhantomData,
        })
    }

    /// The kernel, `cpu` on a CPU context.
    pub fn variant(&self) -> &'static str {
        self.launch.as_ref().map_or("cpu", GroupedLaunch::name)
    }

    /// Queues the product. `w`: `[experts, k, n]`, or `[experts, n, k]`; `weights`: one of each choice, `[tokens, top_k]`, or none.
    /// Nothing is allocated or waited for.
    ///
    /// # Errors
    /// [`Error::Shape`] if an operand is not of the planned extents; [`Error::Operand`] if one lies in another context, or is not
    /// aligned to 16 bytes.
    pub fn run(
        &self,
        routing: &Routing,
        a: &Tensor<T>,
        w: &Tensor<T>,
        weights: Option<&Tensor<f32>>,
        c: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let operands = GroupedRun {
            a,
            w,
            weights,
            gate: None,
            early: false,
        };
        self.run_with(routing, &operands, c, stream)
    }

    fn check(&self, routing: &Routing, run: &GroupedRun<'_, T>, c: &Tensor<T>) -> Result<()> {
        let GroupedOptions {
            gather,
            k,
            n,
            transposed,
            ..
        } = self.options;
        let GroupedExtents {
            tokens,
            top,
            experts,
            ..
        } = self.extents;
        let slots = self.extents.slots();
        let matrix = if transposed { [n, k] } else { [k, n] };
        let rows = if gather { tokens } else { slots };
        check_shape("routing", &[tokens, top], &routing.shape())?;
        check_shape("routing", &[experts], &[routing.experts()])?;
        check_shape("A", &[rows, k], run.a.shape())?;
        check_shape("W", &[experts, matrix[0], matrix[1]], run.w.shape())?;
        check_shape("C", &[slots, n], c.shape())?;
        if let Some(weights) = run.weights {
            check_shape("weights", &[tokens, top], weights.shape())?;
        }
        if let Some(gate) = run.gate {
            check_shape("gate", &[slots, n], gate.shape())?;
        }
        Ok(())
    }

    pub(crate) fn run_with(
        &self,
        routing: &Routing,
        run: &GroupedRun<'_, T>,
        c: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.check(routing, run, c)?;
        match (&self.launch, routing.routes()) {
            (None, Routes::Host { order, offsets }) => self.on_host((order, offsets), run, c),
            (Some(launch), Routes::Device(on)) if self.context.holds(Some(&on.device)) => {
                let there = |tensor: &Tensor<T>| operand(&self.context, tensor, stream);
                let weights = match run.weights {
                    None => 0,
                    Some(t) => without_gaps(&self.context, "weights", t, stream)?.address,
                };
                let operands = GroupedOperands {
                    routes: &on.routes,
                    a: there(run.a)?,
                    w: there(run.w)?,
                    weights,
                    gate: run.gate.map(there).transpose()?,
                    c: there(c)?,
                };
                let way = GroupedWay {
                    gather: self.options.gather,
                    scatter: self.options.scatter,
                    relu: self.options.activation == Activation::Relu,
                    early: run.early,
                };
                // SAFETY: operands of the planned shapes and type, routes that a run fills ahead on the stream; all are the
                // caller's to keep until the stream is done, as with every run.
                unsafe { launch.run(way, &operands, stream.raw()) }
            }
            _ => Err(elsewhere("routing")),
        }
    }

    /// The same on the CPU, a slot at a time.
    fn on_host(
        &self,
        (order, offsets): (&[u32], &[u32]),
        run: &GroupedRun<'_, T>,
        c: &mut Tensor<T>,
    ) -> Result<()> {
        let GroupedOptions {
            n,
            scatter,
            activation,
            ..
        } = self.options;
        let GroupedExtents { top, experts, .. } = self.extents;
        let ldc = c.leading();
        let weights = run.weights.map(|t| (t.host(), t.leading()));
        let weight = |choice: usize| match weights {
            None => Some(1.0),
            Some((values, leading)) => Some(values?[choice / top * leading + choice % top]),
        };
        let c = c.host_mut().ok_or_else(|| elsewhere("C"))?;
        let slots = order.len();
        // Which slot each row of C is of.
        let mut slot_of: Vec<usize> = (0..slots).collect();
        if scatter {
            for (slot, &choice) in order.iter().enumerate() {
                slot_of[choice as usize] = slot;
            }
        }
        let rows = c.par_chunks_mut(ldc.max(1)).take(slots).zip(slot_of);
        rows.try_for_each(|(out, slot)| {
            let choice = order[slot] as usize;
            if slot >= offsets[experts] as usize {
                if scatter {
                    out[..n].fill(T::ZERO);
                }
                return Ok(());
            }
            let expert = offsets[..=experts].partition_point(|&first| first as usize <= slot) - 1;
            let sums = self.sums(run, expert, (slot, choice))?;
            let weight = weight(choice).ok_or_else(|| elsewhere("weights"))?;
            let weight = <T as Element>::Acc::from_f64(f64::from(weight));
            for (to, sum) in out.iter_mut().zip(sums) {
                *to = T::from_acc(weight * activate(activation, sum));
            }
            let Some(gate) = run.gate else { return Ok(()) };
            let values = gate.host().ok_or_else(|| elsewhere("gate"))?;
            let gate = &values[slot * gate.leading()..][..n];
            for (to, gate) in out.iter_mut().zip(gate) {
                if gate.to_f64().is_nan() || gate.to_f64() <= 0.0 {
                    *to = T::ZERO;
                }
            }
            Ok(())
        })
    }

    /// The sums of one slot, on the CPU.
    fn sums(
        &self,
        run: &GroupedRun<'_, T>,
        expert: usize,
        (slot, choice): (usize, usize),
    ) -> Result<Vec<<T as Element>::Acc>> {
        let GroupedOptions {
            k,
            n,
            gather,
            transposed,
            ..
        } = self.options;
        let (a, lda) = (run.a.host().ok_or_else(|| elsewhere("A"))?, run.a.leading());
        let (w, ldw) = (run.w.host().ok_or_else(|| elsewhere("W"))?, run.w.leading());
        let row = if gather {
            choice / self.extents.top
        } else {
            slot
        };
        let a = &a[row * lda..][..k];
        let mut sums = vec![<T as Element>::Acc::ZERO; n];
        if transposed {
            for (j, sum) in sums.iter_mut().enumerate() {
                let line = &w[(expert * n + j) * ldw..][..k];
                for (x, y) in a.iter().zip(line) {
                    *sum += x.to_acc() * y.to_acc();
                }
            }
        } else {
            for (i, x) in a.iter().enumerate() {
                let line = &w[(expert * k + i) * ldw..][..n];
                for (sum, y) in sums.iter_mut().zip(line) {
                    *sum += x.to_acc() * y.to_acc();
                }
            }
        }
        Ok(sums)
    }
}
