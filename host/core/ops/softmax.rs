//! Softmax over the entries of each row of a sparse matrix, and its gradient.

mod heads;

use std::sync::Arc;

use einsparse_formats::Format;

use crate::context::Context;
use crate::device::Stream;
use crate::driver::RawStream;
use crate::error::{Error, Result, check_shape};
use crate::families::softmax::cpu::{SoftmaxRows, gradient, softmax};
use crate::families::softmax::{RawSoftmax, SoftmaxLaunch};
use crate::operator::{Operator, Run};
use crate::registry::Scalar;
use crate::tensor::{SparseTensor, columns_of};
use crate::worklist::Runs;

/// Scale, logarithm and masks of a [`SparseSoftmax`].
///
/// ```
/// use einsparse::ops::SoftmaxOptions;
/// let options = SoftmaxOptions { scale: 0.125, causal: Some(0), ..SoftmaxOptions::default() };
/// assert!(!options.log && options.heads == 1);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SoftmaxOptions {
    /// Factor of the scores.
    pub scale: f64,
    /// Computes the logarithm of the softmax instead of the softmax.
    pub log: bool,
    /// Masks entries whose column is above row + offset. Offset 0 keeps the diagonal and the entries below it.
    pub causal: Option<i64>,
    /// Masks entries whose column is at or above a length. The rows are split into equal contiguous groups, such as the
    /// items of a batch. There is one length per group; a group may be a single row.
    pub lengths: Option<Vec<usize>>,
    /// Number of sets of values that share the pattern, for [`SparseSoftmax::forward_heads`].
    pub heads: usize,
}

impl Default for SoftmaxOptions {
    /// Scale 1, no logarithm, no masks, one head.
    fn default() -> Self {
        SoftmaxOptions { scale: 1.0, log: false, causal: None, lengths: None, heads: 1 }
    }
}

/// Softmax over the stored entries of each row of a sparse matrix, `P = exp(scale S - max) / sum exp(scale S - max)`.
/// Formats: unstructured nonzeros in row order (CSR, COO, ELL, GroupCOO by rows). It is planned once for a pattern and
/// its masks. Each run reads every value once and writes it once. It computes in f32 (f64 on the CPU) and rounds once.
/// Results are bitwise deterministic. It is the sparse softmax of Sputnik (arXiv 2006.10901, section 5) with scale,
/// logarithm, masks and gradient. GPU kernels support f32, f16 and bf16.
///
/// Absent entries count as -Inf: they do not contribute to the sum. Masked entries become 0 (-Inf for the logarithm),
/// whatever the values in the row. If no entry of a row is above -Inf, all its entries become 0 (-Inf) as well.
/// Otherwise a NaN or +Inf makes the entries of the row NaN, as in PyTorch's softmax, and -Inf becomes 0 (-Inf).
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::{Csr, CsrPattern};
/// use einsparse::ops::{SoftmaxOptions, SparseSoftmax};
/// let ctx = Context::cpu();
/// let pattern = CsrPattern::new(2, 3, vec![0, 2, 3], vec![0, 2, 1])?;
/// let scores = Csr::new(pattern, vec![0.0f32, 3f32.ln(), 5.0])?;
/// let (scores, mut p) = (ctx.upload(&scores)?, ctx.upload(&scores)?);
/// let softmax = SparseSoftmax::new(&ctx, &scores, &SoftmaxOptions::default())?;
/// let stream = ctx.stream()?;
/// softmax.forward(&scores, &mut p, &stream)?;
/// stream.synchronize()?;
/// let p = p.to_host()?;
/// assert!(p.values().iter().zip([0.25, 0.75, 1.0]).all(|(p, wanted)| (p - wanted).abs() < 1e-6));
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct SparseSoftmax<T> {
    shape: Vec<usize>,
    format: Format,
    runs: Arc<Runs>,
    /// Number of values of the pattern, padding included.
    slots: usize,
    live: Option<Vec<u32>>,
    options: SoftmaxOptions,
    operator: Operator<SoftmaxLaunch>,
    element: std::marker::PhantomData<T>,
}

impl<T: Scalar> SparseSoftmax<T> {
    /// Plans a softmax over the rows of `tensor`'s pattern. The values are not read.
    ///
    /// # Errors
    /// [`Error::StorageFormat`] or [`Error::OtherContext`] for another format or context; [`Error::OutOfRange`] for
    /// lengths that do not divide the rows into equal groups; [`Error::NoKernel`] for f64.
    pub fn new(
        context: &Context,
        tensor: &SparseTensor<T>,
        options: &SoftmaxOptions,
    ) -> Result<Self> {
        let format = tensor.format();
        let single = matches!(
            format,
            Format::Csr | Format::Coo | Format::Ell | Format::GroupCoo { axis: 0, .. }
        );
        let (Some(runs), Some(columns), true) =
            (tensor.runs(), columns_of(tensor.pattern()), single)
        else {
            let found = format!("{format} {:?}", tensor.shape());
            return Err(Error::format("scores", "a matrix of single entries in row order", found));
        };
        let live = live(runs, columns, options)?;
        let operator = Operator::new(context, |device| {
            SoftmaxLaunch::new(device, T::DTYPE, runs, live.as_deref(), options.heads)
        })?;
        if !context.holds(tensor.device().map(|arrays| &arrays.device)) {
            return Err(Error::elsewhere("scores"));
        }
        Ok(SparseSoftmax {
            shape: tensor.shape().to_vec(),
            format,
            runs: Arc::clone(runs),
            slots: tensor.pattern().slots(),
            live,
            options: options.clone(),
            operator,
            element: std::marker::PhantomData,
        })
    }

    /// Returns the scale, the logarithm and the masks.
    pub fn options(&self) -> &SoftmaxOptions {
        &self.options
    }

    /// Returns the names of the kernels of the softmax and of its gradient; `cpu` on a CPU context.
    pub fn variants(&self) -> [&'static str; 2] {
        self.operator.variants(SoftmaxLaunch::variants)
    }

    /// Returns the device memory in bytes, operands excluded.
    pub fn workspace_bytes(&self) -> usize {
        self.operator.bytes(SoftmaxLaunch::bytes)
    }

    /// Computes the softmax of `scores` into `output`, which has the same rows. On a GPU, the call neither allocates
    /// nor waits, and it can be captured in a CUDA graph.
    ///
    /// # Errors
    /// Fails for tensors of another shape, format or context than planned, or with other rows. The output is then
    /// unchanged.
    pub fn forward(
        &self,
        scores: &SparseTensor<T>,
        output: &mut SparseTensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let run = self.operator.start(stream)?;
        let raw = RawSoftmax {
            input: self.check(&run, "scores", scores)?,
            output: self.check(&run, "output", output)?,
            ..RawSoftmax::default()
        };
        self.queue(run, &raw, || {
            if let (Some(from), Some(to)) = (scores.any.host(), output.any.host_mut()) {
                softmax(self.rows(), Some(from), to);
            }
        })
    }

    /// Computes the softmax in place.
    ///
    /// # Errors
    /// See [`SparseSoftmax::forward`].
    pub fn forward_in_place(&self, scores: &mut SparseTensor<T>, stream: &Stream) -> Result<()> {
        let run = self.operator.start(stream)?;
        let input = self.check(&run, "scores", scores)?;
        let raw = RawSoftmax { input, output: input, ..RawSoftmax::default() };
        self.queue(run, &raw, || {
            if let Some(to) = scores.any.host_mut() {
                softmax(self.rows(), None, to);
            }
        })
    }

    /// Computes the gradient of the scores. `given` is the output P of the softmax, and `dy` is its gradient dP:
    /// `dS = P (dP - sum P dP) scale`. For the logarithm Y: `dS = (dY - exp(Y) sum dY) scale`. Sums are over the row.
    /// The gradient of masked entries is zero, and they do not contribute to the sums.
    ///
    /// # Errors
    /// See [`SparseSoftmax::forward`].
    pub fn backward(
        &self,
        given: &SparseTensor<T>,
        dy: &SparseTensor<T>,
        output: &mut SparseTensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let run = self.operator.start(stream)?;
        let raw = RawSoftmax {
            input: self.check(&run, "given", given)?,
            upstream: self.check(&run, "dy", dy)?,
            output: self.check(&run, "output", output)?,
            stride: 0,
        };
        self.queue(run, &raw, || {
            let (own, from) = (given.any.host(), dy.any.host());
            if let (Some(own), Some(from), Some(to)) = (own, from, output.any.host_mut()) {
                gradient(self.rows(), own, Some(from), to);
            }
        })
    }

    /// Computes the gradient of the scores in place: it overwrites `dy`, the gradient of the output.
    ///
    /// # Errors
    /// See [`SparseSoftmax::forward`].
    pub fn backward_in_place(
        &self,
        given: &SparseTensor<T>,
        dy: &mut SparseTensor<T>,
        stream: &Stream,
    ) -> Result<()> {
        let run = self.operator.start(stream)?;
        let input = self.check(&run, "given", given)?;
        let upstream = self.check(&run, "dy", dy)?;
        self.queue(run, &RawSoftmax { input, upstream, output: upstream, stride: 0 }, || {
            if let (Some(own), Some(to)) = (given.any.host(), dy.any.host_mut()) {
                gradient(self.rows(), own, None, to);
            }
        })
    }

    /// Runs on raw device addresses and a raw stream, for users of other CUDA crates. Computes the softmax, or its
    /// gradient if [`RawSoftmax::upstream`] is set.
    ///
    /// # Safety
    /// Until the work is complete, the addresses hold values of the planned pattern and element type in the primary
    /// context of the GPU. `stream` is a stream of that context, which this call makes current on the thread.
    ///
    /// # Errors
    /// [`Error::Alignment`] for addresses that are not multiples of 16 bytes; [`Error::Cuda`] on a CPU context.
    pub unsafe fn run_raw(&self, raw: &RawSoftmax, stream: RawStream<'_>) -> Result<()> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.operator.run_raw(stream, |launch, queue| launch.run(raw, self.how(), queue)) }
    }

    /// Scale, and whether the logarithm is computed.
    fn how(&self) -> (f64, bool) {
        (self.options.scale, self.options.log)
    }

    /// Queues a run, or calls `host` on the CPU.
    fn queue(
        &self,
        run: Run<'_, SoftmaxLaunch>,
        raw: &RawSoftmax,
        host: impl FnOnce(),
    ) -> Result<()> {
        run.queue(
            |launch, queue| launch.run(raw, self.how(), queue),
            || {
                host();
                Ok(())
            },
        )
    }

    fn rows(&self) -> SoftmaxRows<'_> {
        SoftmaxRows {
            runs: &self.runs.rows,
            live: self.live.as_deref(),
            scale: self.options.scale,
            log: self.options.log,
        }
    }

    /// Validates a tensor and returns the address of its values. Columns are not compared: the masks are those of the
    /// planned pattern.
    fn check(
        &self,
        run: &Run<'_, SoftmaxLaunch>,
        name: &str,
        tensor: &SparseTensor<T>,
    ) -> Result<u64> {
        if self.options.heads != 1 {
            let heads = self.options.heads;
            let found = "a sparse tensor with one set of values";
            return Err(Error::kind(name, format!("a dense tensor of {heads} heads"), found));
        }
        check_shape(name, &self.shape, tensor.shape())?;
        if tensor.format() != self.format {
            return Err(Error::other_pattern(name, self.format, tensor.format()));
        }
        let same = |runs: &Arc<Runs>| Arc::ptr_eq(runs, &self.runs) || **runs == *self.runs;
        if !tensor.runs().is_some_and(same) {
            let entries = tensor.runs().map_or(0, |runs| runs.total);
            let [planned, found] = [self.runs.total, entries].map(|n| format!("{n} entries"));
            return Err(Error::other_pattern(name, planned, found));
        }
        run.values(name, tensor)
    }
}

/// Returns the number of entries of each row before those that a mask hides, or `None` without masks. Columns ascend
/// within a row, so both masks hide the end of a row.
fn live(runs: &Runs, columns: &[u32], options: &SoftmaxOptions) -> Result<Option<Vec<u32>>> {
    if options.causal.is_none() && options.lengths.is_none() {
        return Ok(None);
    }
    let rows = runs.rows.len();
    if let Some(lengths) = &options.lengths
        && (lengths.is_empty() || !rows.is_multiple_of(lengths.len()))
        && rows > 0
    {
        let allowed = format!("a number of lengths that divides {rows} rows");
        return Err(Error::range("lengths", lengths.len(), allowed));
    }
    let limit = |row: usize| {
        let causal = options
            .causal
            .map_or(i64::MAX, |offset| (row as i64).saturating_add(offset).saturating_add(1));
        let length = options.lengths.as_ref().map_or(i64::MAX, |lengths| {
            let length = lengths[row / (rows / lengths.len())];
            i64::try_from(length).unwrap_or(i64::MAX)
        });
        causal.min(length)
    };
    let count = |(row, &(start, len)): (usize, &(u32, u32))| {
        let limit = limit(row);
        let columns = &columns[start as usize..(start + len) as usize];
        columns.partition_point(|&c| i64::from(c) < limit) as u32
    };
    Ok(Some(runs.rows.iter().enumerate().map(count).collect()))
}
