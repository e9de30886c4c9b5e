//! The product with the transpose of an operand that is sparse for one step: what gradients want.

use std::marker::PhantomData;
use std::sync::Arc;

use super::detect::{DetectOptions, Detector, check_shape, elsewhere, operand};
use super::index::{Lists, MicroIndex};
use super::matmul::{lists, multiply_on_host};
use crate::context::Context;
use crate::device::Stream;
use crate::error::Result;
use crate::families::discover::{DetectLaunch, list_stride};
use crate::families::gather_gemm::found::{WIDTH, kernels_of};
use crate::families::gather_gemm::{PitLaunch, PitWork};
use crate::kernel::Queue;
use crate::offer::Determinism;
use crate::registry::Scalar;
use crate::tensor::{AnyTensor, Tensor};
use crate::values::{Sum, with_sums};

/// `C[m,n] = A[k,m] * B[k,n]` with an A that is dense in memory and has empty pieces of 64 elements of a row, other
/// ones at each run: the gradient of B in `C = A B`, `B' = A^T C'`, and of the input of a layer with masked weights.
/// The micro-tiles are `1 x 64` along the axis that is summed (PIT, arXiv 2301.10936): one kernel lists, for every 64
/// columns of A, the rows that have one, a second gathers these pieces and the rows of B beside them into dense tiles.
/// No copy of A is made. For f16 and bf16 on Hopper; the CPU takes every element type.
///
/// A micro-tile is multiplied whole (`zeros = Dense`); sums ascend along k, or are taken as found under
/// [`Determinism::Relaxed`].
///
/// ```
/// use einsparse::Context;
/// use einsparse::dynamic::TurnedMatmul;
/// use einsparse::formats::{Dense, f16};
/// let ctx = Context::cpu();
/// let a = Dense::from_fn(vec![3, 8], |i| f16::from_f32(if i[0] == 1 { 2.0 } else { 0.0 }))?;
/// let b = Dense::from_fn(vec![3, 8], |i| f16::from_f32((i[0] + i[1]) as f32))?;
/// let (a, b) = (ctx.upload_dense(&a)?, ctx.upload_dense(&b)?);
/// let mut product = TurnedMatmul::<f16>::new(&ctx, [8, 3, 8], 0.0, Default::default())?;
/// let mut c = ctx.zeros::<f16>(&[8, 8])?;
/// product.run(&a, &b, &mut c, &ctx.stream()?)?;
/// assert_eq!(c.to_dense()?.get(&[5, 4]), Some(f16::from_f32(10.0)));
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct TurnedMatmul<T> {
    context: Context,
    extents: [usize; 3],
    threshold: f64,
    index: MicroIndex,
    launch: Option<(DetectLaunch, PitLaunch)>,
    element: PhantomData<T>,
}

impl<T: Scalar> TurnedMatmul<T> {
    /// A product of these extents, `[m, k, n]`. Elements of at most the magnitude `threshold` are empty.
    ///
    /// # Errors
    /// [`Error::Operand`](crate::Error::Operand) for a threshold that is no magnitude; on a GPU
    /// [`Error::NoKernel`](crate::Error::NoKernel) for element types without kernel;
    /// [`Error::Overflow`](crate::Error::Overflow), [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn new(
        context: &Context,
        extents: [usize; 3],
        threshold: f64,
        determinism: Determinism,
    ) -> Result<Self> {
        let [m, k, _] = extents;
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
                    kernels_of(device, T::DTYPE, work, (threshold, determinism))?;
                let lists = detect.lists(device)?;
                let storage = Lists::Device(lists, Arc::clone(device));
                (Some((detect, product)), storage)
            }
        };
        Ok(TurnedMatmul {
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

    /// The kernels, `cpu` on a CPU context.
    pub fn variants(&self) -> [&'static str; 2] {
        self.launch
            .as_ref()
            .map_or(["cpu"; 2], |(detect, product)| {
                [detect.name(), product.name()]
            })
    }

    /// What the last run found: a list for every 64 columns of A.
    pub fn index(&self) -> &MicroIndex {
        &self.index
    }

    /// Queues detection and product: A is `[k, m]`, B `[k, n]`, C `[m, n]`. Nothing is allocated or waited for; runs of
    /// one product wait for each other, on whatever stream.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if an operand is not of the planned extents;
    /// [`Error::Operand`](crate::Error::Operand) if one lies in another context, or if A or B is not aligned to 16 bytes.
    pub fn run(
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
        let found = lists(&self.index)?;
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
            return Err(elsewhere("index"));
        };
        with_sums!(a.dtype(), A => on_host::<A>(self.extents, lists, a, b, c))
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
    let a = a.host().ok_or_else(|| elsewhere("A"))?.widen::<A>();
    let b = b.host().ok_or_else(|| elsewhere("B"))?.widen::<A>();
    let factor = |row: usize, position: usize| a[position * lda + row];
    let line = |_: usize, position: usize| &b[position * ldb..][..n];
    multiply_on_host(c, m, (lists, WIDTH), &factor, &line)
}
