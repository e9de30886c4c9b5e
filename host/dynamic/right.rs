//! The product whose right operand is sparse for one step: its pieces of rows are found, and gathered beside the rows
//! of the left one's transpose that they meet.

use std::marker::PhantomData;
use std::sync::Arc;

use super::detect::{DetectOptions, Detector, check_items, elsewhere, operand};
use super::index::{Lists, MicroIndex};
use super::matmul::lists;
use crate::context::Context;
use crate::device::Stream;
use crate::error::Result;
use crate::families::discover::list_stride;
use crate::families::gather_gemm::found::{RightKernels, WIDTH};
use crate::kernel::Queue;
use crate::offer::Determinism;
use crate::registry::{Dtype, Scalar};
use crate::tensor::{AnyTensor, Tensor};
use crate::values::{Sum, with_sums};

/// How a [`RightMatmul`] finds its operands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RightOptions {
    /// A lies as `[k, m]`, as its rows are read; else as `[m, k]`, and each run makes the transpose, in a workspace of
    /// A's size.
    pub by_columns: bool,
    /// Elements of B of at most this magnitude are empty.
    pub threshold: f64,
    /// [`Determinism::Relaxed`]: micro-tiles are multiplied in the order in which they are found, so rounding changes from run to
    /// run.
    pub determinism: Determinism,
}

/// `C[m,n] = A[m,k] * B[k,n]` with a B that is dense in memory and has empty pieces of 64 elements of a row, other ones at each run: masked
/// weights on the right, or activations that are. The micro-tiles are `1 x 64`, and the axis that is gathered is the summed one (PIT, arXiv
/// 2301.10936: k is a PIT axis of either operand). One kernel lists, for every 64 columns of B, the rows that have one; one
/// makes the transpose of A where A does not lie as `[k, m]`; a third gathers the pieces of B and the rows of A's transpose beside them, and stores C
/// transposed. For f16 and bf16 on Hopper, n a multiple of 8; the CPU takes every element type and extent.
///
/// A micro-tile is multiplied whole, so a NaN or Inf in a column of A reaches the 64 columns of C that have such a
/// micro-tile there (`zeros = Dense`), no others. Sums ascend along k, or are taken as found under
/// [`Determinism::Relaxed`].
///
/// ```
/// use einsparse::Context;
/// use einsparse::dynamic::RightMatmul;
/// use einsparse::formats::{Dense, f16};
/// let ctx = Context::cpu();
/// let a = Dense::from_fn(vec![8, 3], |i| f16::from_f32((i[0] + i[1]) as f32))?;
/// let b = Dense::from_fn(vec![3, 8], |i| f16::from_f32(if i[0] == 1 { 2.0 } else { 0.0 }))?;
/// let (a, b) = (ctx.upload_dense(&a)?, ctx.upload_dense(&b)?);
/// let mut product = RightMatmul::<f16>::new(&ctx, [8, 3, 8], Default::default())?;
/// let mut c = ctx.zeros::<f16>(&[8, 8])?;
/// product.run(&a, &b, &mut c, &ctx.stream()?)?;
/// assert_eq!(c.to_dense()?.get(&[4, 5]), Some(f16::from_f32(10.0)));
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct RightMatmul<T> {
    context: Context,
    items: usize,
    extents: [usize; 3],
    options: RightOptions,
    index: MicroIndex,
    kernels: Option<RightKernels>,
    element: PhantomData<T>,
}

impl<T: Scalar> RightMatmul<T> {
    /// A product of these extents, `[m, k, n]`.
    ///
    /// # Errors
    /// [`Error::Operand`](crate::Error::Operand) for a threshold that is no magnitude; on a GPU
    /// [`Error::NoKernel`](crate::Error::NoKernel) for element types without kernel;
    /// [`Error::Overflow`](crate::Error::Overflow), [`Error::OutOfMemory`](crate::Error::OutOfMemory).
    pub fn new(context: &Context, extents: [usize; 3], options: RightOptions) -> Result<Self> {
        Self::batched(context, 1, extents, options)
    }

    /// A batch of `items` products, `C[z,m,n] = A[z,m,k] * B[z,k,n]` for extents `[m, k, n]`, in the same kernels.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn batched(
        context: &Context,
        items: usize,
        extents: [usize; 3],
        options: RightOptions,
    ) -> Result<Self> {
        let [_, k, n] = extents;
        // What is wrong with the options is said the same way on every context.
        detector(T::DTYPE, [k, n], options.threshold)?;
        let panels = items.saturating_mul(n.div_ceil(WIDTH));
        let how = (options.threshold, options.determinism);
        let (kernels, storage) = match context.device() {
            None => (None, Lists::Host(vec![Vec::new(); panels])),
            Some(device) => {
                let by_columns = options.by_columns;
                let kernels = RightKernels::new(device, T::DTYPE, items, extents, by_columns, how)?;
                let lists = Lists::Device(kernels.lists(device)?, Arc::clone(device));
                (Some(kernels), lists)
            }
        };
        Ok(RightMatmul {
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

    /// The kernels of a run in their order, `cpu` on a CPU context.
    pub fn variants(&self) -> Vec<&'static str> {
        let kernels = self.kernels.as_ref();
        kernels.map_or_else(|| vec!["cpu"], RightKernels::names)
    }

    /// What the last run found: for each item a list for every 64 columns of B.
    pub fn index(&self) -> &MicroIndex {
        &self.index
    }

    /// Queues detection, transposition and product: A is `[m, k]`, or `[k, m]` by the [options](RightOptions), B
    /// `[k, n]`, C `[m, n]`, of more than one item behind an axis for these. Nothing is allocated or waited for; runs
    /// of one product wait for each other, on whatever stream.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if an operand is not of the planned extents;
    /// [`Error::Operand`](crate::Error::Operand) if one lies in another context, or on a GPU n is no multiple of 8, or B, or an A of
    /// `[k, m]`, is not aligned to 16 bytes.
    pub fn run(
        &mut self,
        a: &Tensor<T>,
        b: &Tensor<T>,
        c: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let [m, k, n] = self.extents;
        let of_a = match self.options.by_columns {
            true => [k, m],
            false => [m, k],
        };
        check_items("A", self.items, of_a, a.shape())?;
        check_items("B", self.items, [k, n], b.shape())?;
        check_items("C", self.items, [m, n], c.shape())?;
        let Some(kernels) = &self.kernels else {
            let Lists::Host(lists) = &mut self.index.storage else {
                return Err(elsewhere("index"));
            };
            let of = (self.items, self.extents, &self.options);
            return with_sums!(T::DTYPE, A => on_host::<A>(of, lists, [a, b], &mut c.any));
        };
        let all = [
            operand(&self.context, a, stream)?,
            operand(&self.context, b, stream)?,
            operand(&self.context, c, stream)?,
        ];
        let found = lists(&self.index)?;
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
    (items, [m, k, n], options): (usize, [usize; 3], &RightOptions),
    lists: &mut [Vec<u32>],
    [a, b]: [&AnyTensor; 2],
    c: &mut AnyTensor,
) -> Result<()> {
    let (lda, ldb) = (a.leading(), b.leading());
    let found = b.host().ok_or_else(|| elsewhere("B"))?;
    let own = a.host().ok_or_else(|| elsewhere("A"))?.widen::<A>();
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
                let factor = match options.by_columns {
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
    .ok_or_else(|| elsewhere("C"))
}
