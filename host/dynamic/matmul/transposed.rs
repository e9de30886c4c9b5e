//! Product with the transpose of an operand that is sparse for one step, for gradients.

use std::marker::PhantomData;

use super::super::detect::{DetectOptions, Detector, operands};
use super::super::index::{Lists, MicroIndex};
use super::{MatmulOptions, Product, ProductOperands, multiply_on_host};
use crate::context::Context;
use crate::device::Stream;
use crate::error::{Error, Result, check_shape};
use crate::families::discover::DetectLaunch;
use crate::families::gather_gemm::found::{WIDTH, kernels_of};
use crate::families::gather_gemm::{PitLaunch, PitWork};
use crate::kernel::Queue;
use crate::registry::Scalar;
use crate::tensor::AnyTensor;
use crate::values::with_sums;

/// `C[m,n] = A[k,m] * B[k,n]` with a sparse A: two kernels.
#[derive(Debug)]
pub(super) struct TransposedProduct<T> {
    context: Context,
    extents: [usize; 3],
    detector: Detector<()>,
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
        let options = DetectOptions { threshold, ..DetectOptions::default() };
        // Unchecked, so that errors of the options are equal on every context.
        let detector =
            Detector::of((&Context::unchecked_cpu(), T::DTYPE), [k, m], (1, WIDTH), options)?;
        let work = PitWork { turned: true, ..PitWork::single(extents, WIDTH) };
        let how = (threshold, given.determinism);
        let launch = context.on_gpu(|device| kernels_of(device, T::DTYPE, work, how))?;
        let detect = launch.as_ref().map(|(detect, _)| detect);
        Ok(TransposedProduct {
            index: MicroIndex::of(detect, context, [m.div_ceil(WIDTH), k])?,
            context: context.clone(),
            extents,
            detector,
            launch,
            element: PhantomData,
        })
    }

    /// Product on the CPU.
    fn on_host(&mut self, a: &AnyTensor, b: &AnyTensor, c: &mut AnyTensor) -> Result<()> {
        let stream = self.context.stream()?;
        self.detector.detect(a, &mut self.index, &stream)?;
        let Lists::Host(lists) = &self.index.storage else {
            return Err(Error::elsewhere("index"));
        };
        let (lda, ldb) = (a.leading(), b.leading());
        let places = |row: usize, at: usize| [at * lda + row, at * ldb];
        let ([m, ..], lists) = (self.extents, (&lists[..], WIDTH));
        with_sums!(a.dtype(), A => multiply_on_host::<A>([a, b], c, m, lists, &places))
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
    fn run(&mut self, (a, b, c): ProductOperands<'_, T>, stream: &Stream) -> Result<()> {
        let [m, k, n] = self.extents;
        check_shape("A", &[k, m], a.shape())?;
        check_shape("B", &[k, n], b.shape())?;
        check_shape("C", &[m, n], c.shape())?;
        let Some((detect, product)) = &self.launch else {
            return self.on_host(a, b, &mut c.any);
        };
        let [a, b, c] = operands(&self.context, [a, b, c], stream)?;
        let found = self.index.lists()?;
        // All checks precede the first launch.
        let params = product.params(found, Some(a), b, c)?;
        // SAFETY: the operands have the planned shapes and type, and the first kernel fills the lists. The caller keeps
        // all of them until the stream is done, as for every run.
        let queue = unsafe { Queue::new(stream.raw()) };
        found.turns.queue(true, stream.raw(), || {
            detect.run(a, found, queue)?;
            product.start(&params, queue)
        })
    }
}
