//! Sparse matrix x dense matrix on a GPU, with both dense matrices in host memory.

use std::fmt;
use std::ops::Range;

use einsparse_formats::Dense;

use crate::context::{Context, Shadow};
use crate::device::Stream;
use crate::driver::{Event, PinnedMemory, copy_dtoh_async, copy_htod_async};
use crate::error::{Elsewhere, Error, Result, check_shape};
use crate::offer::{Options, Weights};
use crate::parallel;
use crate::plan::Plan;
use crate::registry::Scalar;
use crate::tensor::{Operand, Tensor};

/// Chunks in flight: while one is multiplied, the host fills the next one and stores the previous one.
const CHUNKS: usize = 3;
/// Target number of chunks per run. The first copy in and the last copy out overlap with no product.
const MANY: usize = 8;
/// Minimum number of columns of a chunk, unless B has fewer or the limit of memory allows fewer.
const COLUMNS: usize = 32;
/// Larger widths are rounded down to a multiple of this, so that chunks cover whole cache lines of host memory.
const LINE: usize = 16;
/// Elements that a host thread copies at once.
const PIECE: usize = 1 << 18;

/// `C[m,n] = A[m,k] * B[k,n]` with B and C in host memory, for dense matrices that do not fit into device memory. B and
/// C are processed in chunks of columns. Copies of a chunk overlap with the products of other chunks. They use as many
/// bytes of page-locked memory as the chunks occupy on the GPU.
///
/// A is stored on the GPU or in host memory. If A is in host memory, each chunk streams A as [`Options::memory_limit`]
/// describes, and [`Context::pin`] makes these copies faster. The results are bitwise equal to those of a plan over the
/// columns of a chunk.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::{Csr, CsrPattern, Dense};
/// use einsparse::ops::HostSpmm;
/// let ctx = Context::new();
/// let a = ctx.upload(&Csr::new(CsrPattern::new(2, 3, vec![0, 1, 3], vec![2, 0, 1])?, vec![2.0f32, 3.0, 4.0])?)?;
/// let b = Dense::new([3, 2], vec![1.0, 5.0, 10.0, 6.0, 100.0, 7.0])?;
/// let mut c = Dense::zeros([2, 2])?;
/// HostSpmm::new(&ctx, &a, 2, 1 << 20)?.run(&a, &b, &mut c)?;
/// assert_eq!(c.values(), [200.0, 14.0, 43.0, 39.0]);
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct HostSpmm<T: Scalar> {
    context: Context,
    shadow: Shadow<HostSpmm<T>>,
    plan: Plan<T>,
    extents: [usize; 3],
    width: usize,
    chunks: Vec<Chunk<T>>,
    /// Streams of copies to the GPU, of products, and of copies to the host.
    streams: [Stream; 3],
}

/// Buffers of a chunk of columns.
#[derive(Debug)]
struct Chunk<T: Scalar> {
    b: Tensor<T>,
    c: Tensor<T>,
    /// Page-locked memory for the copies; `None` on a CPU context.
    staged: Option<Staged>,
}

#[derive(Debug)]
struct Staged {
    b: PinnedMemory,
    c: PinnedMemory,
    /// Completes when C is copied to the host.
    taken: Event,
}

impl<T: Scalar> HostSpmm<T> {
    /// Plans products of this A with `n` columns. `limit` is the device memory for chunks in bytes. If A is on the GPU,
    /// the limit does not include the memory that the plan holds for A. If A is in host memory, a quarter of the limit
    /// is the memory limit of the plan.
    ///
    /// # Errors
    /// [`Error::Shape`] if A is not a matrix; [`Error::Overflow`] if the limit is too small for chunks of one column;
    /// any error of building a [`Plan`]; [`Error::OutOfMemory`], or [`Error::Cuda`] if the driver cannot lock more host
    /// memory.
    pub fn new<'a>(
        context: &Context,
        a: impl Into<Operand<'a, T>>,
        n: usize,
        limit: usize,
    ) -> Result<Self> {
        let a = a.into();
        let &[m, k] = a.shape() else {
            return Err(Error::shape(
                "A",
                format!("shape {:?}", a.shape()),
                "a matrix is expected",
            ));
        };
        // The plan checks operands that belong to the context.
        let shadow = match &a {
            Operand::HostSparse(_) => {
                Shadow::new(context, |context| Self::new(context, a.clone(), n, limit))?
            }
            _ => Shadow::none(),
        };
        let streamed = context.is_cuda() && a.any().lies_on_host();
        let share = if streamed { limit / 4 } else { 0 };
        let column = m.saturating_add(k).saturating_mul(CHUNKS * size_of::<T>());
        let width = width(n, (limit - share) / column.max(1));
        if width == 0 && n > 0 {
            let least = column as u128;
            return Err(Error::Overflow {
                what: format!("bytes on the GPU for {CHUNKS} chunks of a column of B and C"),
                // Three quarters of the reported limit, rounded up, must suffice for the chunks.
                value: match streamed {
                    true => 4 * least.saturating_sub(1) / 3 + 1,
                    false => least,
                },
                limit: limit as u128,
            });
        }
        let chunk = |_| {
            let (b, c) = (context.zeros(&[k, width])?, context.zeros(&[m, width])?);
            let staged = context.device().map(|device| {
                let bytes = |rows: usize| rows * width * size_of::<T>();
                let pinned = |rows| PinnedMemory::zeros(device.context(), bytes(rows));
                let (b, c) = (pinned(k)?, pinned(m)?);
                let taken = Event::of(device.context())?;
                Ok::<_, Error>(Staged { b, c, taken })
            });
            let staged = staged.transpose()?;
            Ok(Chunk { b, c, staged })
        };
        let chunks: Vec<Chunk<T>> = (0..CHUNKS).map(chunk).collect::<Result<_>>()?;
        let mut options = Options::default();
        if streamed {
            // If A fits into this share, its values are copied once per run, for all chunks.
            (options.memory_limit, options.weights) = (Some(share), Weights::Static);
        }
        let plan = context.plan("C[m,n] = A[m,k] * B[k,n]");
        let plan = plan.operand("A", a).operand("B", &chunks[0].b);
        Ok(HostSpmm {
            plan: plan.options(&options).build()?,
            extents: [m, k, n],
            width,
            chunks,
            streams: [context.stream()?, context.stream()?, context.stream()?],
            context: context.clone(),
            shadow,
        })
    }

    /// Computes C and returns when it is complete. A has the planned pattern and is stored where the planned A is. The
    /// call first waits for all work on the GPU. It cannot be captured in a CUDA graph.
    ///
    /// # Errors
    /// [`Error::Shape`] if an operand does not have the planned extents; any error of [`Plan::run`].
    pub fn run<'a>(
        &mut self,
        a: impl Into<Operand<'a, T>>,
        b: &Dense<T>,
        c: &mut Dense<T>,
    ) -> Result<()> {
        let (a, [m, k, n]) = (a.into(), self.extents);
        check_shape("B", &[k, n], b.shape())?;
        check_shape("C", &[m, n], c.shape())?;
        if let Some(shadow) = self.shadow.get() {
            let operands = [("A", a.clone()), ("B", (&shadow.chunks[0].b).into())];
            shadow.plan.update_values(&operands, &shadow.streams[1])?;
        }
        // Also waits for copies that a failed run may have left in flight.
        self.context.synchronize()?;
        let operands = [("A", a.clone()), ("B", (&self.chunks[0].b).into())];
        self.plan.update_values(&operands, &self.streams[1])?;
        let count = n.div_ceil(self.width.max(1));
        for at in 0..count + CHUNKS - 1 {
            if at < count {
                self.begin(at, &a, b)?;
            }
            if let Some(done) = (at + 1).checked_sub(CHUNKS).filter(|done| *done < count) {
                self.end(done, c)?;
            }
        }
        Ok(())
    }

    /// Columns of a chunk. All chunks have the same width, so the last chunk may overlap the previous one.
    fn columns(&self, at: usize) -> Range<usize> {
        let first = (at * self.width).min(self.extents[2] - self.width);
        first..first + self.width
    }

    /// Queues the copies and the product of a chunk. The chunk that used these buffers before has ended.
    fn begin(&mut self, at: usize, a: &Operand<'_, T>, b: &Dense<T>) -> Result<()> {
        let (columns, n) = (self.columns(at), self.extents[2]);
        let chunk = &mut self.chunks[at % CHUNKS];
        let [ahead, products, behind] = &self.streams;
        let gather = |to: &mut [T]| {
            let rows = rows_of(columns.len());
            parallel::chunks(to, rows * columns.len(), &|piece, to| {
                let from = b.values()[piece * rows * n..].chunks(n);
                for (to, from) in to.chunks_mut(columns.len()).zip(from) {
                    to.copy_from_slice(&from[columns.clone()]);
                }
            });
        };
        match (&mut chunk.staged, chunk.b.address()) {
            (Some(staged), Some(to)) => {
                gather(bytemuck::cast_slice_mut(staged.b.bytes_mut()));
                // SAFETY: B's chunk and its staging buffer have the same size; neither is accessed until the chunk has
                // ended.
                unsafe { copy_htod_async(to, staged.b.bytes(), ahead.raw())? };
            }
            _ => gather(chunk.b.host_mut().or_elsewhere("B")?),
        }
        products.wait_for(ahead)?;
        let operands = [("A", a.clone()), ("B", (&chunk.b).into())];
        self.plan.run(&operands, &mut chunk.c, products)?;
        behind.wait_for(products)?;
        if let (Some(staged), Some(from)) = (&mut chunk.staged, chunk.c.address()) {
            // SAFETY: C's chunk and its staging buffer have the same size; neither is accessed until the chunk has
            // ended.
            unsafe { copy_dtoh_async(staged.c.bytes_mut(), from, behind.raw())? };
            staged.taken.record(behind.raw())?;
        }
        Ok(())
    }

    /// Waits for a chunk and copies its columns into C.
    fn end(&self, at: usize, c: &mut Dense<T>) -> Result<()> {
        let (columns, n) = (self.columns(at), self.extents[2]);
        let chunk = &self.chunks[at % CHUNKS];
        let from: &[T] = match &chunk.staged {
            Some(staged) => {
                staged.taken.synchronize()?;
                bytemuck::cast_slice(staged.c.bytes())
            }
            None => chunk.c.host().or_elsewhere("C")?,
        };
        let rows = rows_of(columns.len());
        parallel::chunks(c.values_mut(), rows * n, &|piece, to| {
            let from = from[piece * rows * columns.len()..].chunks(columns.len());
            for (to, from) in to.chunks_mut(n).zip(from) {
                to[columns.clone()].copy_from_slice(from);
            }
        });
        Ok(())
    }
}

/// Number of columns of a chunk: at most `n` and at most `most`.
fn width(n: usize, most: usize) -> usize {
    match most.min((n / MANY).max(COLUMNS).min(n)) {
        width if width < LINE || width == n => width,
        width => width / LINE * LINE,
    }
}

/// Number of rows with `columns` columns that a thread copies at once.
fn rows_of(columns: usize) -> usize {
    (PIECE / columns.max(1)).max(1)
}

impl<T: Scalar> fmt::Display for HostSpmm<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([m, k, n], width) = (self.extents, self.width);
        let bytes = CHUNKS * (m + k) * width * size_of::<T>();
        writeln!(
            f,
            "{n} columns in chunks of {width}, {bytes} bytes on the device for {CHUNKS} of them"
        )?;
        write!(f, "{}", self.plan)
    }
}
