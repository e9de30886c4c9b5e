//! The product whose right operand is sparse for one step: its pieces of rows are found, and gathered beside the rows
//! of the left one's transpose that they meet.

use std::marker::PhantomData;
use std::sync::Arc;

use super::super::detect::{DetectOptions, Detector, check_items, operands};
use super::super::index::{Lists, MicroIndex};
use super::{MatmulOptions, Product};
use crate::context::Context;
use crate::device::Stream;
use crate::error::{Error, Result};
use crate::families::discover::list_stride;
use crate::families::gather_gemm::found::{RightKernels, WIDTH};
use crate::kernel::Queue;
use crate::registry::{Dtype, Scalar};
use crate::tensor::{AnyTensor, Tensor};
use crate::values::{Sum, with_sums};

/// A product with a B that is sparse: two kernels, and one for the transpose of an A that lies as `[m, k]`.
#[derive(Debug)]
pub(super) struct RightProduct<T> {
    context: Context,
    items: usize,
    extents: [usize; 3],
    options: MatmulOptions,
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
        options: MatmulOptions,
    ) -> Result<Self> {
        let [_, k, n] = extents;
        // What is wrong with the options is said the same way on every context.
        detector(T::DTYPE, [k, n], options.threshold)?;
        let panels = items.saturating_mul(n.div_ceil(WIDTH));
        let how = (options.threshold, options.determinism);
        let (kernels, storage) = match context.device() {
            None => (None, Lists::Host(vec![Vec::new(); panels])),
            Some(device) => {
                let by_columns = options.transpose_a;
                let kernels = RightKernels::new(device, T::DTYPE, items, extents, by_columns, how)?;
                let lists = Lists::Device(kernels.lists(device)?, Arc::clone(device));
                (Some(kernels), lists)
            }
        };
        Ok(RightProduct {
            context: context.clone(),
            items,
            extents,
            options,
            index: MicroIndex {
                panels,
                stride: list_stride(k),
                storage,
            },
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

    fn run(
        &mut self,
        a: &Tensor<T>,
        b: &Tensor<T>,
        c: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let [m, k, n] = self.extents;
        let of_a = match self.options.transpose_a {
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
            let of = (self.items, self.extents, &self.options);
            return with_sums!(T::DTYPE, A => on_host::<A>(of, lists, [a, b], &mut c.any));
        };
        let all = operands(&self.context, [a, b, c], stream)?;
        let found = self.index.lists()?;
        // SAFETY: operands of the planned shapes and type, lists of these kernels; all are the caller's to keep until
        // the stream is done, as with every run.
        let queue = unsafe { Queue::new(stream.raw()) };
        kernels.run(found, all, queue, |launch| {
            found.turns.queue(true, stream.raw(), launch)
        })
    }
}

/// Detection of an item on the CPU.
fn detector(dtype: Dtype, shape: [usize; 2], threshold: f64) -> Result<Detector<()>> {
    let options = DetectOptions {
        threshold,
        ..DetectOptions::default()
    };
    Detector::of((&Context::cpu(), dtype), shape, (1, WIDTH), options)
}

/// The product of so many items on the CPU, a row of C at a time.
fn on_host<A: Sum>(
    (items, [m, k, n], options): (usize, [usize; 3], &MatmulOptions),
    lists: &mut [Vec<u32>],
    [a, b]: [&AnyTensor; 2],
    c: &mut AnyTensor,
) -> Result<()> {
    let (lda, ldb) = (a.leading(), b.leading());
    let found = b.host().ok_or_else(|| Error::elsewhere("B"))?;
    let own = a.host().ok_or_else(|| Error::elsewhere("A"))?.widen::<A>();
    if n == 0 || m == 0 {
        return Ok(());
    }
    let panels = n.div_ceil(WIDTH);
    let detector = detector(b.dtype(), [k, n], options.threshold)?;
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
                let factor = match options.transpose_a {
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
    .ok_or_else(|| Error::elsewhere("C"))
}
