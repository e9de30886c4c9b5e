//! Sparse matrix x dense matrix through a GPU, both dense matrices in the memory of the host.

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

/// Chunks under way: while one is multiplied, the host fills the next and empties the one before.
const CHUNKS: usize = 3;
/// Chunks of a run, where they are wide enough: the first copy and the last have nothing beside them.
const MANY: usize = 8;
/// Columns that a chunk is worth a launch from on.
const COLUMNS: usize = 32;
/// Columns that wider chunks are a multiple of: whole lines of the host's memory.
const LINE: usize = 16;
/// Elements that a thread of the host moves at once.
const PIECE: usize = 1 << 18;

/// `C[m,n] = A[m,k] * B[k,n]` with B and C in the memory of the host: for dense matrices that the GPU has no room for.
/// Chunks of columns go through it, copied in and out under the products of others, by page-locked memory of as many
/// bytes.
///
/// A lies on the GPU, or on the host as well: then each chunk streams it, as [`Options::memory_limit`] says, and
/// [`Context::pin`] makes that quicker. The bits are those of a plan over a chunk's columns.
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
    /// Of copies in, of products, and of copies out.
    streams: [Stream; 3],
}

/// Columns on their way.
#[derive(Debug)]
struct Chunk<T: Scalar> {
    b: Tensor<T>,
    c: Tensor<T>,
    /// What copies run between; nothing on a CPU context.
    staged: Option<Staged>,
}

#[derive(Debug)]
struct Staged {
    b: PinnedMemory,
    c: PinnedMemory,
    /// C's copy is done.
    taken: Event,
}

impl<T: Scalar> HostSpmm<T> {
    /// For products of this A with `n` columns. `limit`: bytes of the device for chunks. What the plan keeps of an A
    /// that lies there comes on top; of an A on the host all that the plan holds has a quarter of the limit.
    ///
    /// # Errors
    /// [`Error::Operand`] for an A that is no matrix; [`Error::Overflow`] for a limit without room for chunks of a
    /// column; as the builder of a [`Plan`]; [`Error::OutOfMemory`], or [`Error::Cuda`] where the driver locks no more
    /// memory of the host.
    pub fn new<'a>(
        context: &Context,
        a: impl Into<Operand<'a, T>>,
        n: usize,
        limit: usize,
    ) -> Result<Self> {
        let a = a.into();
        let &[m, k] = a.shape() else {
            let reason = format!("is {:?}, not a matrix", a.shape());
            return Err(Error::operand("A", reason));
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
                // Three quarters of it, rounded up, have to be enough.
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
            // Where it fits, its values come once for all chunks of a run.
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

    /// Multiplies, and returns when C is there. A has the planned pattern, and lies where the planned one does. All
    /// work on the GPU is waited for first. Not for CUDA graphs.
    ///
    /// # Errors
    /// [`Error::Shape`] if an operand is not of the planned extents; as [`Plan::run`].
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
        // Also for what a run that failed has left in the chunks.
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

    /// Columns of a chunk: as many as any other one, so the last may hold some of the one before.
    fn columns(&self, at: usize) -> Range<usize> {
        let first = (at * self.width).min(self.extents[2] - self.width);
        first..first + self.width
    }

    /// Queues all of a chunk. The chunk that had its place has ended.
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
                // SAFETY: B's chunk has as many bytes as its staging; neither is touched until the chunk has ended.
                unsafe { copy_htod_async(to, staged.b.bytes(), ahead.raw())? };
            }
            _ => gather(chunk.b.host_mut().or_elsewhere("B")?),
        }
        products.wait_for(ahead)?;
        let operands = [("A", a.clone()), ("B", (&chunk.b).into())];
        self.plan.run(&operands, &mut chunk.c, products)?;
        behind.wait_for(products)?;
        if let (Some(staged), Some(from)) = (&mut chunk.staged, chunk.c.address()) {
            // SAFETY: as above, of C's chunk.
            unsafe { copy_dtoh_async(staged.c.bytes_mut(), from, behind.raw())? };
            staged.taken.record(behind.raw())?;
        }
        Ok(())
    }

    /// Waits for a chunk, and puts its columns into C.
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

/// Columns of a chunk, of `n` columns and at most `most`.
fn width(n: usize, most: usize) -> usize {
    match most.min((n / MANY).max(COLUMNS).min(n)) {
        width if width < LINE || width == n => width,
        width => width / LINE * LINE,
    }
}

/// Rows of so many columns that a thread moves at once.
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
