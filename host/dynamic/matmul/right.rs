//! Product with a right operand that is sparse for one step: its micro-tiles are found, and gathered together with the
//! matching rows of the left operand's transpose.

use std::marker::PhantomData;

use super::super::detect::{DetectOptions, Detector, check_items, operands};
use super::super::index::{Lists, MicroIndex};
use super::{MatmulOptions, Product, ProductOperands};
use crate::context::Context;
use crate::device::Stream;
use crate::error::{Elsewhere, Error, Result};
use crate::families::gather_gemm::found::{RightKernels, WIDTH};
use crate::kernel::Queue;
use crate::registry::Scalar;
use crate::tensor::AnyTensor;
use crate::values::{Sum, with_sums};

/// Product with a sparse B: two kernels, and one that transposes an A of `[m, k]`.
#[derive(Debug)]
pub(super) struct RightProduct<T> {
    context: Context,
    items: usize,
    extents: [usize; 3],
    transpose_a: bool,
    detector: Detector<()>,
    index: MicroIndex,
    kernels: Option<RightKernels>,
    element: PhantomData<T>,
}

impl<T: Scalar> RightProduct<T> {
    /// As [`DynamicMatmul::batched`](super::DynamicMatmul::batched).
    pub(super) fn batched(
        context: &Context,
        items: usize,
        extents: [usize; 3],
        given: &MatmulOptions,
    ) -> Result<Self> {
        let ([_, k, n], transpose_a) = (extents, given.transpose_a);
        let options = DetectOptions { threshold: given.threshold, ..DetectOptions::default() };
        // Unchecked, so that errors of the options are equal on every context.
        let detector =
            Detector::of((&Context::unchecked_cpu(), T::DTYPE), [k, n], (1, WIDTH), options)?;
        let panels = items.saturating_mul(n.div_ceil(WIDTH));
        let how = (given.threshold, given.determinism);
        let kernels = context.on_gpu(|device| {
            RightKernels::new(device, T::DTYPE, items, extents, transpose_a, how)
        })?;
        let detect = kernels.as_ref().map(|own| &own.detect);
        Ok(RightProduct {
            index: MicroIndex::of(detect, context, [panels, k])?,
            context: context.clone(),
            items,
            extents,
            transpose_a,
            detector,
            kernels,
            element: PhantomData,
        })
    }
}

impl<T: Scalar> Product<T> for RightProduct<T> {
    fn variants(&self) -> Vec<&'static str> {
        let kernels = self.kernels.as_ref();
        kernels.map_or_else(|| vec!["cpu"], RightKernels::names)
    }

    fn index(&self) -> &MicroIndex {
        &self.index
    }

    fn run(&mut self, (a, b, c): ProductOperands<'_, T>, stream: &Stream) -> Result<()> {
        let [m, k, n] = self.extents;
        let of_a = match self.transpose_a {
            true => [k, m],
            false => [m, k],
        };
        check_items("A", self.items, of_a, a.shape())?;
        check_items("B", self.items, [k, n], b.shape())?;
        check_items("C", self.items, [m, n], c.shape())?;
        let Some(kernels) = &self.kernels else {
            let Lists::Host(lists) = &mut self.index.storage else {
                return Err(Error::elsewhere("index"));
            };
            let of = (self.items, self.extents, self.transpose_a, &self.detector);
            return with_sums!(T::DTYPE, A => on_host::<A>(of, lists, [a, b], &mut c.any));
        };
        let all = operands(&self.context, [a, b, c], stream)?;
        let found = self.index.lists()?;
        // SAFETY: the operands have the planned shapes and type, and the lists belong to these kernels. The caller
        // keeps all of them until the stream is done, as for every run.
        let queue = unsafe { Queue::new(stream.raw()) };
        kernels.run(found, all, queue, |launch| found.turns.queue(true, stream.raw(), launch))
    }
}

/// Product of `items` items on the CPU, one row of C at a time.
fn on_host<A: Sum>(
    (items, [m, k, n], transpose_a, detector): (usize, [usize; 3], bool, &Detector<()>),
    lists: &mut [Vec<u32>],
    [a, b]: [&AnyTensor; 2],
    c: &mut AnyTensor,
) -> Result<()> {
    let (lda, ldb) = (a.leading(), b.leading());
    let found = b.host().or_elsewhere("B")?;
    let own = a.host().or_elsewhere("A")?.widen::<A>();
    if n == 0 || m == 0 {
        return Ok(());
    }
    let panels = n.div_ceil(WIDTH);
    for (item, lists) in lists.chunks_mut(panels).enumerate() {
        detector.on_host(found.from(item * k * ldb), ldb, lists);
    }
    let b = found.widen::<A>();
    c.store_rows(items * m, n, &|row, sums: &mut [A]| {
        let (item, i) = (row / m, row % m);
        let pieces = sums.chunks_mut(WIDTH).zip(&lists[item * panels..]);
        for (panel, (sums, list)) in pieces.enumerate() {
            for &position in list {
                let at = position as usize;
                let factor = match transpose_a {
                    true => own[(item * k + at) * lda + i],
                    false => own[row * lda + at],
                };
                let piece = &b[(item * k + at) * ldb + panel * WIDTH..];
                for (sum, &x) in sums.iter_mut().zip(piece) {
                    *sum += factor * x;
                }
            }
        }
    })
    .or_elsewhere("C")
}
