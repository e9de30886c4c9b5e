//! Product of each row with its own matrix. The caller orders runs.

use std::borrow::Cow;
use std::marker::PhantomData;

use einsparse_kernels::abi::FLAG_RELU;

use super::super::routing::{HostRoutes, Routing};
use super::quantized::rounded;
use super::{GroupedOptions, Matrices};
use crate::cpu::activate;
use crate::device::Stream;
use crate::einsum::Activation;
use crate::error::{Elsewhere, Error, Result, check_shape, elements};
use crate::families::elementwise::QuantizeLaunch;
use crate::families::gather_gemm::{GroupedExtents, GroupedLaunch, GroupedOperands, GroupedWay};
use crate::launch::Turns;
use crate::operator::Operator;
use crate::registry::Scalar;
use crate::tensor::{AnyTensor, Tensor};
use crate::values::{Sum, with_sums};

/// Operands of a product except C.
#[derive(Debug)]
#[doc(hidden)]
pub struct GroupedRun<'a, T> {
    /// `None` if another product has stored the rows for this one, [`GroupedProduct::queue_for`].
    pub a: Option<&'a Tensor<T>>,
    pub w: Matrices<'a, T>,
    pub weights: Option<&'a Tensor<f32>>,
    /// Rows by slots. C is zero where they are not positive.
    pub gate: Option<&'a Tensor<T>>,
    /// Whether, on a GPU with scatter, rows of C for choices without an expert are left unchanged.
    pub keep: bool,
    /// Whether the previous kernel on the stream wrote neither the routes nor W, and a product or a routing of this
    /// crate preceded that kernel.
    pub early: bool,
}

impl<'a, T> GroupedRun<'a, T> {
    /// Operands of a product without weights or gate.
    #[doc(hidden)]
    pub fn plain(a: &'a Tensor<T>, w: impl Into<Matrices<'a, T>>) -> Self {
        GroupedRun { a: Some(a), w: w.into(), weights: None, gate: None, keep: false, early: false }
    }
}

/// Kernels of a product.
#[derive(Debug)]
struct Launches {
    product: GroupedLaunch,
    /// Stores rows of A as e4m3.
    quantize: Option<Quantize>,
}

/// Rows of A as e4m3. Runs share them.
#[derive(Debug)]
struct Quantize {
    launch: QuantizeLaunch,
    turns: Turns,
}

/// Output C.
enum Out<'a, T> {
    Rows(&'a mut Tensor<T>),
    /// C is stored as the quantized rows of A of another product.
    Quantized(&'a QuantizeLaunch),
}

/// Implementation of [`GroupedGemm`](super::GroupedGemm).
#[derive(Debug)]
#[doc(hidden)]
pub struct GroupedProduct<T> {
    /// Names of A, W and C in errors.
    names: [&'static str; 3],
    extents: GroupedExtents,
    options: GroupedOptions,
    operator: Operator<Launches>,
    element: PhantomData<T>,
}

impl<T: Scalar> GroupedProduct<T> {
    /// As [`GroupedGemm::new`](super::GroupedGemm::new).
    #[doc(hidden)]
    pub fn new(routing: &Routing, options: GroupedOptions) -> Result<Self> {
        Self::with_variant(routing, options, None)
    }

    /// As [`new`](Self::new), with the kernel of this name, on a GPU.
    pub(super) fn with_variant(
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
            gated: options.gate.is_some(),
            scaled: options.scaled,
            quantized: options.quantize,
        };
        extents.order()?;
        elements("A", &[tokens, top, options.k])?;
        elements("C", &[tokens, top, options.n, 2])?;
        elements("W", &[extents.experts, options.k, options.n, 2])?;
        if options.gate.is_some() && options.activation != Activation::Identity {
            let allowed = "Identity in a product with a gate";
            let found = format!("{:?}", options.activation);
            return Err(Error::range("activation", found, allowed));
        }
        let operator = Operator::new(routing.context(), |device| {
            if options.activation == Activation::Gelu {
                return Err(Error::range("activation", "Gelu", "Identity or Relu on a GPU"));
            }
            let product = GroupedLaunch::new(device, T::DTYPE, extents, variant)?;
            let rows = if options.gather { tokens } else { extents.slots() };
            let quantize = || {
                Ok::<_, Error>(Quantize {
                    launch: QuantizeLaunch::new(device, T::DTYPE, [rows, options.k])?,
                    turns: Turns::new(device)?,
                })
            };
            Ok(Launches { product, quantize: options.quantize.then(quantize).transpose()? })
        })?;
        let names = ["A", "W", "C"];
        Ok(GroupedProduct { names, extents, options, operator, element: PhantomData })
    }

    /// Sets the names of A, W and C in errors.
    pub(super) fn named(self, names: [&'static str; 3]) -> Self {
        GroupedProduct { names, ..self }
    }

    /// Name of the kernel; `cpu` on a CPU context.
    #[doc(hidden)]
    pub fn variant(&self) -> &'static str {
        self.operator.variant(|own| own.product.name())
    }

    /// Whether another product may store rows for this one.
    #[doc(hidden)]
    pub fn takes_quantized(&self) -> bool {
        self.quantize().is_some() && !self.options.gather
    }

    fn quantize(&self) -> Option<&Quantize> {
        self.operator.on_gpu().and_then(|own| own.quantize.as_ref())
    }

    /// Queues the product. The caller orders it with other uses of the routing.
    #[doc(hidden)]
    pub fn queue(
        &self,
        routing: &Routing,
        run: &GroupedRun<'_, T>,
        c: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.queue_to(routing, run, Out::Rows(c), stream)
    }

    /// Calls `launch` in the workspace order of the quantized rows, if rows are quantized.
    pub(crate) fn in_turn(
        &self,
        stream: &Stream,
        launch: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        match self.quantize() {
            Some(own) => own.turns.queue(true, stream.raw(), launch),
            None => launch(),
        }
    }

    /// Queues the product as A of `next`, which must [accept it](Self::takes_quantized). The caller orders both
    /// products.
    #[doc(hidden)]
    pub fn queue_for(
        &self,
        next: &Self,
        routing: &Routing,
        run: &GroupedRun<'_, T>,
        stream: &Stream,
    ) -> Result<()> {
        let rows = [self.extents.slots(), self.options.n];
        check_shape(self.names[2], &[next.extents.slots(), next.options.k], &rows)?;
        let to = match next.quantize() {
            Some(to) if next.takes_quantized() && !self.options.scatter => to,
            _ => return Err(Error::elsewhere(self.names[2])),
        };
        self.queue_to(routing, run, Out::Quantized(&to.launch), stream)
    }

    fn queue_to(
        &self,
        routing: &Routing,
        run: &GroupedRun<'_, T>,
        out: Out<'_, T>,
        stream: &Stream,
    ) -> Result<()> {
        let GroupedOptions { gather, scatter, k, n, transposed, quantize, .. } = self.options;
        let GroupedExtents { tokens, top, experts, scaled, .. } = self.extents;
        let (names, slots, wide) = (self.names, self.extents.slots(), self.extents.columns());
        let matrix = if transposed { [experts, wide, k] } else { [experts, k, wide] };
        let rows = if gather { tokens } else { slots };
        check_shape("routing", &[tokens, top], &routing.shape())?;
        check_shape("routing", &[experts], &[routing.experts()])?;
        routing.check(self.operator.context())?;
        let own = self.operator.start(stream)?;
        let given = own.optional(names[0], run.a.map(|a| &a.any), &[rows, k])?;
        let (w, scales) = run.w.of_run(&own, names[1], matrix, scaled)?;
        let (c, c_scales) = match &out {
            Out::Rows(c) => (own.matrix(names[2], c.any(), &[slots, n])?, 0),
            Out::Quantized(next) => next.quantized(),
        };
        let weights = match run.weights {
            Some(weights) => own.contiguous("weights", weights.any(), &[tokens, top])?,
            None => 0,
        };
        let gate = own.optional("gate", run.gate.map(|gate| &gate.any), &[slots, n])?;
        let flags = match (self.options.gate, self.options.activation) {
            (Some(gate), _) => gate.flags(),
            (None, Activation::Relu) => FLAG_RELU,
            _ => 0,
        };
        own.queue(
            |launch, queue| {
                let (a, a_scales) = match (&launch.quantize, given) {
                    (Some(own), _) => own.launch.quantized(),
                    (None, Some(a)) => (a, 0),
                    (None, None) => return Err(Error::elsewhere(names[0])),
                };
                let routes = routing.on_device()?;
                let operands = GroupedOperands {
                    names,
                    routes,
                    a,
                    a_scales,
                    w,
                    scales,
                    weights,
                    gate,
                    c,
                    c_scales,
                };
                let way = GroupedWay { gather, scatter, keep: run.keep, flags, early: run.early };
                // A run of the routing, earlier on the stream, fills the routes.
                let params = launch.product.params(way, &operands)?;
                if let (Some(own), Some(a)) = (&launch.quantize, given) {
                    own.launch.check(names[0], a)?;
                    own.launch.run(a, queue)?;
                }
                launch.product.run(&params, queue)
            },
            || {
                let (Some(a), Out::Rows(c)) = (run.a, out) else {
                    return Err(Error::elsewhere(names[0]));
                };
                let context = self.operator.context();
                run.w.on_host(context, |w| {
                    let rounded = match quantize {
                        true => Some(rounded(context, a)?),
                        false => None,
                    };
                    let own = OnHost {
                        names,
                        extents: self.extents,
                        options: &self.options,
                        routes: routing.on_host(),
                        a: rounded.as_ref().map_or(&a.any, |rounded| &rounded.any),
                        w: w.any(),
                        weights: run.weights,
                        gate: run.gate.map(|gate| &gate.any),
                    };
                    with_sums!(T::DTYPE, A => own.run::<A>(&mut c.any))
                })
            },
        )
    }
}

/// A product on the CPU, one slot at a time.
struct OnHost<'a> {
    names: [&'static str; 3],
    extents: GroupedExtents,
    options: &'a GroupedOptions,
    routes: &'a HostRoutes,
    a: &'a AnyTensor,
    w: &'a AnyTensor,
    weights: Option<&'a Tensor<f32>>,
    gate: Option<&'a AnyTensor>,
}

/// Elements of a matrix in host memory, and its row stride.
type Wide<'a, A> = (Cow<'a, [A]>, usize);

fn wide<'a, A: Sum>(name: &str, tensor: &'a AnyTensor) -> Result<Wide<'a, A>> {
    let values = tensor.host().or_elsewhere(name)?;
    Ok((values.widen(), tensor.leading()))
}

impl OnHost<'_> {
    fn run<A: Sum>(&self, c: &mut AnyTensor) -> Result<()> {
        let GroupedOptions { n, scatter, activation, gate: own_gate, .. } = *self.options;
        let GroupedExtents { top, experts, .. } = self.extents;
        let (a, w) = (wide::<A>(self.names[0], self.a)?, wide::<A>(self.names[1], self.w)?);
        let weights = self.weights.map(|t| wide::<A>("weights", t.any())).transpose()?;
        let gate = self.gate.map(|t| wide::<A>("gate", t)).transpose()?;
        let HostRoutes { order, offsets } = self.routes;
        let slots = order.len();
        // Slot of each row of C.
        let mut slot_of: Vec<usize> = (0..slots).collect();
        if scatter {
            for (slot, &choice) in order.iter().enumerate() {
                slot_of[choice as usize] = slot;
            }
        }
        // Slots without an expert are last. Without a scatter, their rows are not written.
        let known = offsets[experts] as usize;
        let rows = if scatter { slots } else { known };
        c.store_rows(rows, n, &|row, sums: &mut [A]| {
            let slot = slot_of[row];
            if slot >= known {
                return;
            }
            let choice = order[slot] as usize;
            let starts = &offsets[..=experts];
            let expert = starts.partition_point(|&first| first as usize <= slot) - 1;
            let of = (expert, slot, choice);
            match own_gate {
                None => self.sum((&a, &w), of, sums),
                Some(gate) => {
                    let mut both = vec![A::ZERO; 2 * n];
                    self.sum((&a, &w), of, &mut both);
                    gate.multiply(&both, sums);
                }
            }
            let weight = weights
                .as_ref()
                .map_or(A::ONE, |(values, leading)| values[choice / top * leading + choice % top]);
            for sum in sums.iter_mut() {
                *sum = weight * activate(activation, *sum);
            }
            let Some((values, leading)) = &gate else {
                return;
            };
            for (sum, &gate) in sums.iter_mut().zip(&values[slot * leading..]) {
                if gate.to_f64().is_nan() || gate <= A::ZERO {
                    *sum = A::ZERO;
                }
            }
        })
        .or_elsewhere(self.names[2])
    }

    /// Sums of one slot.
    fn sum<A: Sum>(
        &self,
        ((a, lda), (w, ldw)): (&Wide<'_, A>, &Wide<'_, A>),
        (expert, slot, choice): (usize, usize, usize),
        sums: &mut [A],
    ) {
        let n = sums.len();
        let GroupedOptions { k, gather, transposed, .. } = *self.options;
        let row = if gather { choice / self.extents.top } else { slot };
        let a = &a[row * lda..][..k];
        if transposed {
            for (j, sum) in sums.iter_mut().enumerate() {
                let line = &w[(expert * n + j) * ldw..][..k];
                a.iter().zip(line).for_each(|(&x, &y)| *sum += x * y);
            }
        } else {
            for (i, &x) in a.iter().enumerate() {
                let line = &w[(expert * k + i) * ldw..][..n];
                sums.iter_mut().zip(line).for_each(|(sum, &y)| *sum += x * y);
            }
        }
    }
}
