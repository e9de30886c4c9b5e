//! A product with an operand that is sparse for one step: its columns of micro-tiles are found, packed and multiplied.

use std::marker::PhantomData;
use std::sync::Arc;

use super::Detector;
use super::detect::{DetectOptions, check_items, elsewhere, operand};
use super::index::{Lists, MicroIndex};
use crate::context::Context;
use crate::device::Stream;
use crate::error::{Error, Result};
use crate::families::discover::{DetectLaunch, DeviceLists, list_stride};
use crate::families::gather_gemm::found::{above, kernels_as};
use crate::families::gather_gemm::{PitFewLaunch, PitLaunch, PitWork};
use crate::kernel::Queue;
use crate::launch::{Turns, in_turn};
use crate::offer::{Determinism, Precision, multiplied_as};
use crate::registry::Scalar;
use crate::tensor::{AnyTensor, Tensor};
use crate::values::{Sum, with_sums};

/// Micro-tiles of a [`DynamicMatmul`].
#[derive(Clone, Debug, PartialEq)]
pub struct MatmulOptions {
    /// Rows of a micro-tile: 128, 64 or 32. Many share a gathered row of B, few have fewer elements beside those that
    /// count.
    pub height: usize,
    /// Elements of at most this magnitude are empty.
    pub threshold: f64,
    /// [`Determinism::Relaxed`]: micro-tiles are multiplied in the order in which they are found, so rounding changes from run to
    /// run.
    pub determinism: Determinism,
    /// [`Precision::Tf32`]: f32 is rounded to TF32 and multiplied on Tensor Cores. On a GPU there is no kernel for f32 in full precision.
    pub precision: Precision,
}

impl Default for MatmulOptions {
    /// 128 rows, exact zeros, sums in order, f32 in full precision.
    fn default() -> Self {
        MatmulOptions {
            height: 128,
            threshold: 0.0,
            determinism: Determinism::Strict,
            precision: Precision::Full,
        }
    }
}

impl MatmulOptions {
    /// Are there such micro-tiles, and do they end where items of `m` rows end?
    fn check(&self, items: usize, m: usize) -> Result<()> {
        let (height, threshold) = (self.height, self.threshold);
        let refused = |reason| {
            Err(Error::Operand {
                name: "A".into(),
                reason,
            })
        };
        if height < 2 {
            return refused(format!(
                "micro-tiles of {height} rows: they are columns of 2 rows or more"
            ));
        }
        if threshold.is_nan() || threshold < 0.0 {
            return refused(format!("no value is above a threshold of {threshold}"));
        }
        if items > 1 && !m.is_multiple_of(height) {
            return refused(format!(
                "has items of {m} rows: micro-tiles of {height} would reach into the next one"
            ));
        }
        Ok(())
    }
}

/// Rows of A that one kernel looks through and multiplies.
pub const FEW_ROWS: usize = 64;

/// `C[m,n] = A[m,k] * B[k,n]` with an A that is dense in memory and has empty micro-tiles of `height x 1`, other ones
/// at each run (PIT, arXiv 2301.10936): one kernel finds those that are not and packs their values, a second gathers
/// the rows of B that they meet. The host learns nothing of it; both can be captured in a CUDA graph. For f16 and bf16
/// on Hopper, and f32 with [`Precision::Tf32`]; the CPU takes every element type, and f32 in full precision.
///
/// A micro-tile is multiplied whole: elements below the threshold in one that counts are multiplied as they are, and a
/// NaN or Inf in a row of B reaches the `height` rows that have such a micro-tile there (`zeros = Dense`), no others.
/// Sums ascend along k by default: the same bits every time.
///
/// Of at most [`FEW_ROWS`] rows of f16 or bf16 that one micro-tile holds, [`run`](Self::run) is a single kernel: each
/// of its thread blocks finds the columns of its part of A itself, and reads no rows of B but those that they meet.
///
/// ```
/// use einsparse::Context;
/// use einsparse::dynamic::DynamicMatmul;
/// use einsparse::formats::{Dense, f16};
/// let ctx = Context::cpu();
/// let a = Dense::from_fn(vec![2, 3], |i| f16::from_f32(if i[1] == 1 { 2.0 } else { 0.0 }))?;
/// let b = Dense::from_fn(vec![3, 8], |i| f16::from_f32((i[0] + i[1]) as f32))?;
/// let (a, b) = (ctx.upload_dense(&a)?, ctx.upload_dense(&b)?);
/// let mut product = DynamicMatmul::<f16>::new(&ctx, [2, 3, 8], Default::default())?;
/// let mut c = ctx.zeros::<f16>(&[2, 8])?;
/// product.run(&a, &b, &mut c, &ctx.stream()?)?;
/// assert_eq!(c.to_dense()?.get(&[1, 4]), Some(f16::from_f32(10.0)));
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct DynamicMatmul<T> {
    context: Context,
    items: usize,
    extents: [usize; 3],
    options: MatmulOptions,
    index: MicroIndex,
    launch: Option<(DetectLaunch, PitLaunch)>,
    /// Both in one kernel, of few rows.
    few: Option<PitFewLaunch>,
    element: PhantomData<T>,
}

impl<T: Scalar> DynamicMatmul<T> {
    /// A product of these extents, `[m, k, n]`, with room for an A that is full.
    ///
    /// # Errors
    /// [`Error::Operand`] for a height below 2 or a threshold that is no magnitude; on a GPU [`Error::NoKernel`] for element types
    /// and heights without kernel; [`Error::Overflow`], [`Error::OutOfMemory`].
    pub fn new(context: &Context, extents: [usize; 3], options: MatmulOptions) -> Result<Self> {
        Self::batched(context, 1, extents, options)
    }

    /// A batch of `items` products, `C[z,m,n] = A[z,m,k] * B[z,k,n]` for extents `[m, k, n]`, in the same two kernels.
    /// Where all items share one B, their rows are those of one product.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`Error::Operand`] for more than one item whose `m` is no multiple of the height.
    pub fn batched(
        context: &Context,
        items: usize,
        extents: [usize; 3],
        options: MatmulOptions,
    ) -> Result<Self> {
        let [m, k, _] = extents;
        options.check(items, m)?;
        let panels = items.saturating_mul(m).div_ceil(options.height);
        let stride = list_stride(k);
        let (launch, few, storage) = match context.device() {
            None => (None, None, Lists::Host(vec![Vec::new(); panels])),
            Some(device) => {
                let work = PitWork {
                    items,
                    ..PitWork::single(extents, options.height)
                };
                let threshold = options.threshold;
                let how = (threshold, options.determinism);
                let dtype = multiplied_as(T::DTYPE, options.precision);
                let (detect, product) = kernels_as(device, (T::DTYPE, dtype), work, how)?;
                let lists = detect.lists(device)?;
                let storage = Lists::Device(lists, Arc::clone(device));
                let halves = T::DTYPE.bytes() == 2;
                let alone =
                    (halves && items == 1 && m <= FEW_ROWS.min(options.height)).then(|| {
                        PitFewLaunch::best(device, T::DTYPE, extents, above(T::DTYPE, threshold))
                    });
                (Some((detect, product)), alone.transpose()?, storage)
            }
        };
        Ok(DynamicMatmul {
            context: context.clone(),
            items,
            extents,
            options,
            index: MicroIndex {
                panels,
                stride,
                storage,
            },
            launch,
            few,
            element: PhantomData,
        })
    }

    /// The kernels of a [`run`](Self::run), twice the same where one does both; `cpu` on a CPU context.
    pub fn variants(&self) -> [&'static str; 2] {
        if let Some(few) = &self.few {
            return [few.name(); 2];
        }
        self.launch
            .as_ref()
            .map_or(["cpu"; 2], |(detect, product)| {
                [detect.name(), product.name()]
            })
    }

    /// What the last run found. A run of a single kernel leaves nothing here: [`detect`](Self::detect) does.
    pub fn index(&self) -> &MicroIndex {
        &self.index
    }

    /// Queues detection and product. Nothing is allocated or waited for. Runs of one product share the index and wait
    /// for each other, on whatever stream; what was captured in a graph is the caller's to order.
    ///
    /// # Errors
    /// [`Error::Shape`] if an operand is not of the planned extents; [`Error::Operand`] if one lies in another context, or B is
    /// not aligned to 16 bytes.
    pub fn run(
        &mut self,
        a: &Tensor<T>,
        b: &Tensor<T>,
        c: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let Some(few) = &self.few else {
            self.check(a, b, c)?;
            return in_turn(turns(&self.index), stream, || {
                self.find(a, Some(b), stream)?;
                self.multiply_found(a, b, c, stream)
            });
        };
        self.check(a, b, c)?;
        let all = [
            operand(&self.context, a, stream)?,
            operand(&self.context, b, stream)?,
            operand(&self.context, c, stream)?,
        ];
        // SAFETY: operands of the planned shapes and type; all are the caller's to keep until the stream is done.
        let queue = unsafe { Queue::new(stream.raw()) };
        few.run(all, queue)
    }

    /// The shapes of a run.
    fn check(&self, a: &Tensor<T>, b: &Tensor<T>, c: &Tensor<T>) -> Result<()> {
        let [m, k, n] = self.extents;
        check_items("A", self.items, [m, k], a.shape())?;
        check_items("B", self.items, [k, n], b.shape())?;
        check_items("C", self.items, [m, n], c.shape())
    }

    /// The first half of [`run`](Self::run): the micro-tiles of A.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn detect(&mut self, a: &Tensor<T>, stream: &Stream) -> Result<()> {
        in_turn(turns(&self.index), stream, || self.find(a, None, stream))
    }

    /// The micro-tiles of A, in front of a product with `b`.
    fn find(&mut self, a: &Tensor<T>, b: Option<&Tensor<T>>, stream: &Stream) -> Result<()> {
        let [m, k, _] = self.extents;
        check_items("A", self.items, [m, k], a.shape())?;
        let Some((launch, _)) = &self.launch else {
            let options = DetectOptions {
                threshold: self.options.threshold,
                ..DetectOptions::default()
            };
            let micro = (self.options.height, 1);
            let rows = [self.items * m, k];
            let on = (&self.context, T::DTYPE);
            let detector = Detector::<()>::of(on, rows, micro, options)?;
            let values = a.any.host().ok_or_else(|| elsewhere("A"))?;
            let Lists::Host(lists) = &mut self.index.storage else {
                return Err(elsewhere("index"));
            };
            detector.on_host(values, a.leading(), lists);
            return Ok(());
        };
        let source = operand(&self.context, a, stream)?;
        let next = b.filter(|_| self.items == 1);
        let next = next
            .map(|b| operand(&self.context, b, stream))
            .transpose()?;
        let lists = lists(&self.index)?;
        // SAFETY: operands as planned, which the caller keeps until the stream is done, and lists of this product.
        let queue = unsafe { Queue::new(stream.raw()) };
        launch.run_ahead_of(next, source, lists, queue)
    }

    /// The second half: the product, of the micro-tiles that [`detect`](Self::detect) found in this A.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn multiply(
        &self,
        a: &Tensor<T>,
        b: &Tensor<T>,
        c: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        self.check(a, b, c)?;
        in_turn(turns(&self.index), stream, || {
            self.multiply_found(a, b, c, stream)
        })
    }

    fn multiply_found(
        &self,
        a: &Tensor<T>,
        b: &Tensor<T>,
        c: &mut Tensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let Some((_, launch)) = &self.launch else {
            return self.on_host(a, b, &mut c.any);
        };
        let b = operand(&self.context, b, stream)?;
        let c = operand(&self.context, c, stream)?;
        // SAFETY: operands as planned, which the caller keeps until the stream is done, and lists filled ahead on it.
        let queue = unsafe { Queue::new(stream.raw()) };
        launch.run(lists(&self.index)?, None, b, c, queue)
    }

    /// The same on the CPU.
    fn on_host(&self, a: &AnyTensor, b: &AnyTensor, c: &mut AnyTensor) -> Result<()> {
        let Lists::Host(lists) = &self.index.storage else {
            return Err(elsewhere("index"));
        };
        let of = (self.items, self.extents, self.options.height);
        with_sums!(a.dtype(), A => on_host::<A>(of, lists, a, b, c))
    }
}

fn on_host<A: Sum>(
    (items, [m, k, n], height): (usize, [usize; 3], usize),
    lists: &[Vec<u32>],
    a: &AnyTensor,
    b: &AnyTensor,
    c: &mut AnyTensor,
) -> Result<()> {
    let (lda, ldb) = (a.leading(), b.leading());
    let a = a.host().ok_or_else(|| elsewhere("A"))?.widen::<A>();
    let b = b.host().ok_or_else(|| elsewhere("B"))?.widen::<A>();
    let factor = |row: usize, position: usize| a[row * lda + position];
    let line = |row: usize, position: usize| &b[(row / m * k + position) * ldb..][..n];
    multiply_on_host(c, items * m, (lists, height), &factor, &line)
}

/// A product on the CPU, a row of C at a time: `factor` and `line` are A's element and B's row of a row of C and a
/// place of its list, which `height` rows share.
pub(super) fn multiply_on_host<'b, A: Sum>(
    c: &mut AnyTensor,
    rows: usize,
    (lists, height): (&[Vec<u32>], usize),
    factor: &(dyn Fn(usize, usize) -> A + Sync),
    line: &(dyn Fn(usize, usize) -> &'b [A] + Sync),
) -> Result<()> {
    let n = c.shape().last().copied().unwrap_or(0);
    c.store_rows(rows, n, &|row, sums: &mut [A]| {
        for &position in &lists[row / height] {
            let factor = factor(row, position as usize);
            for (sum, &x) in sums.iter_mut().zip(line(row, position as usize)) {
                *sum += factor * x;
            }
        }
    })
    .ok_or_else(|| elsewhere("C"))
}

/// The turns of lists on a device.
pub(super) fn turns(index: &MicroIndex) -> Option<Arc<Turns>> {
    match &index.storage {
        Lists::Device(lists, _) => Some(Arc::clone(&lists.turns)),
        Lists::Host(_) => None,
    }
}

/// Lists on a device.
pub(super) fn lists(index: &MicroIndex) -> Result<&DeviceLists> {
    match &index.storage {
        Lists::Device(lists, _) => Ok(lists),
        Lists::Host(_) => Err(elsewhere("index")),
    }
}
