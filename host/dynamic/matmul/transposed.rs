//! The product with the transpose of an operand that is sparse for one step: what gradients want.

use std::marker::PhantomData;
use std::sync::Arc;

use super::super::detect::{DetectOptions, Detector, operand};
use super::super::index::{Lists, MicroIndex};
use super::{MatmulOptions, Product, multiply_on_host};
use crate::context::Context;
use crate::device::Stream;
use crate::error::{Error, Result, check_shape};
use crate::families::discover::{DetectLaunch, list_stride};
use crate::families::gather_gemm::found::{WIDTH, kernels_of};
use crate::families::gather_gemm::{PitLaunch, PitWork};
use crate::kernel::Queue;
use crate::registry::Scalar;
use crate::tensor::{AnyTensor, Tensor};
use crate::values::{Sum, with_sums};

/// `C[m,n] = A[k,m] * B[k,n]` with an A that is sparse: two kernels.
#[derive(Debug)]
pub(super) struct TransposedProduct<T> {
    context: Context,
    extents: [usize; 3],
    threshold: f64,
    index: MicroIndex,
    launch: Option<(DetectLaunch, PitLaunch)>,
    element: PhantomData<T>,
}

impl<T: Scalar> TransposedProduct<T> {
    /// As [`DynamicMatmul::new`](super::DynamicMatmul::new).
    pub(super) fn new(
        context: &Context,
        extents: [usize; 3],
        given: &MatmulOptions,
    ) -> Result<Self> {
        let ([m, k, _], threshold) = (extents, given.threshold);
        let options = DetectOptions {
            threshold,
            ..DetectOptions::default()
        };
        // What is wrong with the options is said the same way on every context.
        Detector::<()>::of((&Context::cpu(), T::DTYPE), [k, m], (1, WIDTH), options)?;
        let panels = m.div_ceil(WIDTH);
        let (launch, storage) = match context.device() {
            None => (None, Lists::Host(vec![Vec::new(); panels])),
            Some(device) => {
                let work = PitWork {
                    turned: true,
                    ..PitWork::single(extents, WIDTH)
                };
                let (detect, product) =
                    kernels_of(device, T::DTYPE, work, (threshold, given.determinism))?;
                let lists = detect.lists(device)?;
                let storage = Lists::Device(lists, Arc::clone(device));
                (Some((detect, product)), storage)
            }
        };
        Ok(TransposedProduct {
            context: context.clone(),
            extents,
            threshold,
            index: MicroIndex {
                panels,
                stride: list_stride(k),
                storage,
            },
            launch,
            element: PhantomData,
        })
    }

    /// The same on the CPU.
    fn on_host(&mut self, a: &AnyTensor, b: &AnyTensor, c: &mut AnyTensor) -> Result<()> {
        let [m, k, _] = self.extents;
        let options = DetectOptions {
            threshold: self.threshold,
            ..DetectOptions::default()
        };
        let on = (&self.context, a.dtype());
        let detector = Detector::<()>::of(on, [k, m], (1, WIDTH), options)?;
        detector.detect(a, &mut self.index, &self.context.stream()?)?;
        let Lists::Host(lists) = &self.index.storage else {
            return Err(Error::elsewhere("index"));
        };
        with_sums!(a.dtype(), A => on_host::<A>(self.extents, lists, a, b, c))
    }
}

impl<T: Scalar> Product<T> for TransposedProduct<T> {
    fn variants(&self) -> Vec<&'static str> {
        match &self.launch {
            Some((detect, product)) => vec![detect.name(), product.name()],
            None => vec!["cpu"],
        }
    }

    fn index(&self) -> &MicroIndex {
        &self.index
    }

    /// Queues detection and product: A is `[k, m]`, B `[k, n]`, C `[m, n]`.
    fn run(
        &mut self,
        a: &Tensor<T>,
        b: &Tensor<T>,
        c: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let [m, k, n] = self.extents;
        check_shape("A", &[k, m], a.shape())?;
        check_shape("B", &[k, n], b.shape())?;
        check_shape("C", &[m, n], c.shape())?;
        let Some((detect, product)) = &self.launch else {
            return self.on_host(a, b, &mut c.any);
        };
        let [a, b] = [a, b].map(|matrix| operand(&self.context, matrix, stream));
        let (a, b, c) = (a?, b?, operand(&self.context, c, stream)?);
        let found = self.index.lists()?;
        // What is refused is refused before anything is queued.
        let params = product.params(found, Some(a), b, c)?;
        // SAFETY: operands of the planned shapes and type, lists that the first kernel fills; all are the caller's to
        // keep until the stream is done, as with every run.
        let queue = unsafe { Queue::new(stream.raw()) };
        found.turns.queue(true, stream.raw(), || {
            detect.run(a, found, queue)?;
            product.start(&params, queue)
        })
    }
}

fn on_host<A: Sum>(
    [m, _, n]: [usize; 3],
    lists: &[Vec<u32>],
    a: &AnyTensor,
    b: &AnyTensor,
    c: &mut AnyTensor,
) -> Result<()> {
    let (lda, ldb) = (a.leading(), b.leading());
    let a = a.host().ok_or_else(|| Error::elsewhere("A"))?.widen::<A>();
    let b = b.host().ok_or_else(|| Error::elsewhere("B"))?.widen::<A>();
    let factor = |row: usize, position: usize| a[position * lda + row];
    let line = |_: usize, position: usize| &b[position * ldb..][..n];
    multiply_on_host(c, m, (lists, WIDTH), &factor, &line)
}
