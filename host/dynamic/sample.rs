//! Share of nonempty micro-tiles, estimated from a sample without making the host wait.

use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};

use super::detect::operand;
use crate::context::{Context, Shadow};
use crate::device::Stream;
use crate::error::{Elsewhere, Error, Result, check_shape, elements};
use crate::families::discover::{SAMPLED_HEIGHTS, SampleLaunch};
use crate::families::gather_gemm::found::above;
use crate::kernel::Queue;
use crate::launch::Turns;
use crate::registry::Scalar;
use crate::tensor::{AnyTensor, Tensor};

/// Counts the nonempty micro-tiles of 32, 64 and 128 rows by one column, in some boxes of a matrix of f16 or bf16 (PIT,
/// arXiv 2301.10936, section 3.2: the cover of each micro-tile, on a sample of the pattern). On a GPU, these are at
/// most 264 boxes of 128 x 64 elements, which differ in each run. The kernel stores the result in host memory, so
/// [`latest`](Self::latest) is a load. On the CPU, the whole matrix is counted.
///
/// ```
/// use einsparse::Context;
/// use einsparse::dynamic::ShareSample;
/// use einsparse::formats::{Dense, f16};
/// let ctx = Context::cpu();
/// let sample = ShareSample::<f16>::new(&ctx, [128, 4], 0.0)?;
/// assert_eq!(sample.latest(), None);
/// let one = Dense::from_fn(vec![128, 4], |i| f16::from_f32(if i == [40, 1] { 2.0 } else { 0.0 }))?;
/// sample.run(&ctx.upload_dense(&one)?, &ctx.stream()?)?;
/// assert_eq!(sample.latest(), Some([1.0 / 16.0, 1.0 / 8.0, 1.0 / 4.0]));
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct ShareSample<T> {
    context: Context,
    shape: [usize; 2],
    threshold: f64,
    kind: Kind,
    shadow: Shadow<ShareSample<T>>,
    element: PhantomData<T>,
}

#[derive(Debug)]
enum Kind {
    Host(Mutex<Option<[f64; 3]>>),
    Device(Box<SampleLaunch>, Turns),
}

impl<T: Scalar> ShareSample<T> {
    /// Creates a sample for matrices of this shape. Elements with a magnitude of at most `threshold` are empty.
    ///
    /// # Errors
    /// [`Error::Operand`] if the threshold is negative or NaN; [`Error::NoKernel`] if elements do not have 16 bits;
    /// [`Error::Overflow`] for extents past 2^31.
    pub fn new(context: &Context, shape: [usize; 2], threshold: f64) -> Result<Self> {
        if threshold.is_nan() || threshold < 0.0 {
            return Err(Error::operand("threshold", format!("is {threshold}, not a magnitude")));
        }
        SampleLaunch::takes(T::DTYPE)?;
        elements("matrix", &shape)?;
        let kind = match context.device() {
            None => Kind::Host(Mutex::new(None)),
            Some(device) => {
                let launch =
                    SampleLaunch::new(device, T::DTYPE, shape, above(T::DTYPE, threshold))?;
                Kind::Device(Box::new(launch), Turns::new(device)?)
            }
        };
        Ok(ShareSample {
            context: context.clone(),
            shape,
            threshold,
            kind,
            shadow: Shadow::new(context, |context| Self::new(context, shape, threshold))?,
            element: PhantomData,
        })
    }

    /// Queues the count. It does not allocate and does not wait, and can be captured in a CUDA graph.
    ///
    /// # Errors
    /// [`Error::Shape`] if the shape differs from the planned one; [`Error::Operand`] for a matrix of another context.
    pub fn run(&self, matrix: &Tensor<T>, stream: &Stream) -> Result<()> {
        self.shadow.look(stream, |own, stream| own.run(&matrix.shadow(), stream))?;
        check_shape("matrix", &self.shape, matrix.shape())?;
        match &self.kind {
            Kind::Host(latest) => {
                let found = self.on_host(matrix)?;
                *latest.lock().unwrap_or_else(PoisonError::into_inner) = found;
                Ok(())
            }
            Kind::Device(launch, turns) => {
                let source = operand(&self.context, matrix, stream)?;
                // SAFETY: shape and context were checked, and launches are ordered.
                let queue = unsafe { Queue::new(stream.raw()) };
                turns.queue(true, stream.raw(), || launch.run(source, queue))
            }
        }
    }

    /// Shares of nonempty micro-tiles of 32, 64 and 128 rows, 0 to 1, from the last run that has ended. `None` before
    /// the first run has ended.
    pub fn latest(&self) -> Option<[f64; 3]> {
        match &self.kind {
            Kind::Host(latest) => *latest.lock().unwrap_or_else(PoisonError::into_inner),
            Kind::Device(launch, _) => launch.latest(),
        }
    }

    fn on_host(&self, matrix: &AnyTensor) -> Result<Option<[f64; 3]>> {
        let values = matrix.host().or_elsewhere("matrix")?.widen::<f64>();
        let ([rows, columns], leading) = (self.shape, matrix.leading());
        if rows == 0 || columns == 0 {
            return Ok(None);
        }
        let counts = |row: usize, column: usize| {
            let magnitude = values[row * leading + column].abs();
            magnitude.is_nan() || magnitude > self.threshold
        };
        Ok(Some(SAMPLED_HEIGHTS.map(|height| {
            let tops = (0..rows).step_by(height);
            let full = |top: usize, column: usize| {
                (top..rows.min(top + height)).any(|row| counts(row, column))
            };
            let found: usize =
                tops.map(|top| (0..columns).filter(|&column| full(top, column)).count()).sum();
            found as f64 / (rows.div_ceil(height) * columns) as f64
        })))
    }
}
