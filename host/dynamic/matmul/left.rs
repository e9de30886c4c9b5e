//! Product with a left operand that is sparse for one step: the columns of its micro-tiles are found, packed and
//! multiplied.

use std::marker::PhantomData;

use super::super::detect::{DetectOptions, Detector, check_items, operand, operands};
use super::super::index::{Lists, MicroIndex};
use super::{MatmulOptions, Product, ProductOperands, multiply_on_host};
use crate::context::Context;
use crate::device::Stream;
use crate::error::{Elsewhere, Error, Result};
use crate::families::discover::DetectLaunch;
use crate::families::gather_gemm::found::{above, kernels_as};
use crate::families::gather_gemm::{PitFewLaunch, PitLaunch, PitWork};
use crate::kernel::Queue;
use crate::launch::in_turn;
use crate::offer::multiplied_as;
use crate::registry::Scalar;
use crate::tensor::{AnyTensor, Tensor};
use crate::values::with_sums;

/// Checks that the micro-tiles are supported, and that they end where items of `m` rows end.
fn check(options: &MatmulOptions, items: usize, m: usize) -> Result<()> {
    let (height, threshold) = (options.height, options.threshold);
    let refused = |reason| Err(Error::operand("A", reason));
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

/// Max rows of A for which one kernel searches and multiplies.
const FEW_ROWS: usize = 64;

/// Product with a sparse A of `[m, k]`: two kernels, or one kernel for few rows.
#[derive(Debug)]
pub(super) struct LeftProduct<T> {
    context: Context,
    items: usize,
    extents: [usize; 3],
    options: MatmulOptions,
    index: MicroIndex,
    launch: Option<(DetectLaunch, PitLaunch)>,
    /// Kernel that searches and multiplies, for few rows.
    few: Option<PitFewLaunch>,
    element: PhantomData<T>,
}

impl<T: Scalar> LeftProduct<T> {
    /// As [`DynamicMatmul::batched`](super::DynamicMatmul::batched).
    pub(super) fn batched(
        context: &Context,
        items: usize,
        extents: [usize; 3],
        options: MatmulOptions,
    ) -> Result<Self> {
        let [m, k, _] = extents;
        check(&options, items, m)?;
        let panels = items.saturating_mul(m).div_ceil(options.height);
        let (launch, few) = match context.device() {
            None => (None, None),
            Some(device) => {
                let work = PitWork { items, ..PitWork::single(extents, options.height) };
                let threshold = options.threshold;
                let how = (threshold, options.determinism);
                let dtype = multiplied_as(T::DTYPE, options.precision);
                let (detect, product) = kernels_as(device, (T::DTYPE, dtype), work, how)?;
                let halves = T::DTYPE.bytes() == 2;
                let alone =
                    (halves && items == 1 && m <= FEW_ROWS.min(options.height)).then(|| {
                        PitFewLaunch::best(device, T::DTYPE, extents, above(T::DTYPE, threshold))
                    });
                (Some((detect, product)), alone.transpose()?)
            }
        };
        let detect = launch.as_ref().map(|(detect, _)| detect);
        Ok(LeftProduct {
            index: MicroIndex::of(detect, context, [panels, k])?,
            context: context.clone(),
            items,
            extents,
            options,
            launch,
            few,
            element: PhantomData,
        })
    }

    /// Checks the shapes of a run.
    fn check(&self, a: &Tensor<T>, b: &Tensor<T>, c: &Tensor<T>) -> Result<()> {
        let [m, k, n] = self.extents;
        check_items("A", self.items, [m, k], a.shape())?;
        check_items("B", self.items, [k, n], b.shape())?;
        check_items("C", self.items, [m, n], c.shape())
    }

    /// Finds the micro-tiles of A, before a product with `b`.
    fn find(&mut self, a: &Tensor<T>, b: Option<&Tensor<T>>, stream: &Stream) -> Result<()> {
        let Some((launch, _)) = &self.launch else {
            let [m, k, _] = self.extents;
            let options =
                DetectOptions { threshold: self.options.threshold, ..DetectOptions::default() };
            let micro = (self.options.height, 1);
            let rows = [self.items * m, k];
            let on = (&self.context, T::DTYPE);
            let detector = Detector::<()>::of(on, rows, micro, options)?;
            let values = a.any.host().or_elsewhere("A")?;
            let Lists::Host(lists) = &mut self.index.storage else {
                return Err(Error::elsewhere("index"));
            };
            detector.on_host(values, a.leading(), lists);
            return Ok(());
        };
        let source = operand(&self.context, a, stream)?;
        let next = b.filter(|_| self.items == 1);
        let next = next.map(|b| operand(&self.context, b, stream)).transpose()?;
        let lists = self.index.lists()?;
        // SAFETY: the operands are as planned, the lists belong to this product, and the caller keeps all of them until
        // the stream is done.
        let queue = unsafe { Queue::new(stream.raw()) };
        launch.run_ahead_of(next, source, lists, queue)
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
        // SAFETY: the operands are as planned, and the caller keeps them until the stream is done. The lists are filled
        // earlier on the stream.
        let queue = unsafe { Queue::new(stream.raw()) };
        launch.run(self.index.lists()?, None, b, c, queue)
    }

    /// Product on the CPU.
    fn on_host(&self, a: &AnyTensor, b: &AnyTensor, c: &mut AnyTensor) -> Result<()> {
        let Lists::Host(lists) = &self.index.storage else {
            return Err(Error::elsewhere("index"));
        };
        let ([m, k, _], (lda, ldb)) = (self.extents, (a.leading(), b.leading()));
        let places = |row: usize, at: usize| [row * lda + at, (row / m * k + at) * ldb];
        let (rows, lists) = (self.items * m, (&lists[..], self.options.height));
        with_sums!(a.dtype(), A => multiply_on_host::<A>([a, b], c, rows, lists, &places))
    }
}

impl<T: Scalar> Product<T> for LeftProduct<T> {
    fn variants(&self) -> Vec<&'static str> {
        match (&self.few, &self.launch) {
            (Some(few), _) => vec![few.name()],
            (None, Some((detect, product))) => vec![detect.name(), product.name()],
            (None, None) => vec!["cpu"],
        }
    }

    fn index(&self) -> &MicroIndex {
        &self.index
    }

    fn run(&mut self, (a, b, c): ProductOperands<'_, T>, stream: &Stream) -> Result<()> {
        self.check(a, b, c)?;
        let Some(few) = &self.few else {
            return in_turn(self.index.turns(), stream, || {
                self.find(a, Some(b), stream)?;
                self.multiply_found(a, b, c, stream)
            });
        };
        let all = operands(&self.context, [a, b, c], stream)?;
        // SAFETY: the operands have the planned shapes and type, and the caller keeps them until the stream is done.
        let queue = unsafe { Queue::new(stream.raw()) };
        few.run(all, queue)
    }

    fn detect(&mut self, a: &Tensor<T>, stream: &Stream) -> Result<()> {
        let [m, k, _] = self.extents;
        check_items("A", self.items, [m, k], a.shape())?;
        in_turn(self.index.turns(), stream, || self.find(a, None, stream))
    }

    fn multiply(&mut self, (a, b, c): ProductOperands<'_, T>, stream: &Stream) -> Result<()> {
        self.check(a, b, c)?;
        in_turn(self.index.turns(), stream, || self.multiply_found(a, b, c, stream))
    }
}
