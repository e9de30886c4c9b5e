//! Sparse matrix x dense matrix through a GPU, both dense matrices in the memory of the host.

use std::fmt;
use std::ops::Range;

use einsparse_formats::Dense;

use crate::context::Context;
use crate::device::Stream;
use crate::driver::{Event, PinnedMemory, copy_dtoh_async, copy_htod_async};
use crate::error::{Error, Result, check_shape};
use crate::offer::Options;
use crate::parallel;
use crate::plan::Plan;
use crate::registry::Scalar;
use crate::tensor::{Operand, Tensor};

/// Chunks under way: one is copied in and multiplied while the one before is copied out.
const CHUNKS: usize = 2;
/// Chunks of a run at the least, where they are wide enough: the first copy and the last have nothing beside them.
const LEAST: usize = 8;
/// Columns that a chunk is worth a launch from on, and that wider ones are a multiple of.
const COLUMNS: usize = 32;
/// Bytes that a thread of the host moves at once.
const PIECE: usize = 1 << 20;

/// `C[m,n] = A[m,k] * B[k,n]` with B and C in the memory of the host: for dense matrices that the GPU has no room for.
/// Chunks of columns go through it, copied in and out under the products of others.
///
/// A lies on the GPU, or on the host as well: then each chunk streams it, as [`Options::memory_limit`] says, and
/// [`Context::pin`] makes that quicker. A run takes as long as its copies or its products, whichever is longer. The bits are those of a plan over a chunk's columns.
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
    plan: Plan<T>,
    extents: [usize; 3],
    width: usize,
    chunks: [Chunk<T>; CHUNKS],
    /// Of the products, and of copies in and out.
    streams: [Stream; 3],
}

/// Columns on their way.
#[derive(Debug)]
struct Chunk<T: Scalar> {
    b: Tensor<T>,
    c: Tensor<T>,
    /// Nothing on a CPU context, where B is copied from where it lies.
    staged: Option<Staged>,
}

/// What copies run between, and when they are done.
#[derive(Debug)]
struct Staged {
    b: PinnedMemory,
    c: PinnedMemory,
    brought: Event,
    multiplied: Event,
    taken: Event,
}

impl<T: Scalar> HostSpmm<T> {
    /// For products of this A with `n` columns. `limit`: bytes of the device that all of it may take beside an A that
    /// lies there. Of an A on the host a quarter of them is for its rows.
    ///
    /// # Errors
    /// [`Error::Overflow`] for a limit that has no room for a column; as [`Plan`]'s builder; [`Error::OutOfMemory`].
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
        let streamed = context.is_cuda() && a.lies_on_host();
        let share = if streamed { limit / 4 } else { 0 };
        let column = CHUNKS * (m + k) * size_of::<T>();
        let width = width(n, (limit - share) / column.max(1));
        if width == 0 && n > 0 {
            return Err(Error::Overflow {
                what: format!("bytes on the GPU for {CHUNKS} chunks of a column of B and C"),
                value: (column + share) as u128,
                limit: limit as u128,
            });
        }
        let chunk = || {
            let (b, c) = (context.zeros(&[k, width])?, context.zeros(&[m, width])?);
            let staged = context.device().map(|device| {
                let pinned = |rows: usize| {
                    PinnedMemory::zeros(device.context(), rows * width * size_of::<T>())
                };
                Ok::<_, Error>(Staged {
                    b: pinned(k)?,
                    c: pinned(m)?,
                    brought: Event::for_order()?,
                    multiplied: Event::for_order()?,
                    taken: Event::for_order()?,
                })
            });
            let staged = staged.transpose()?;
            Ok::<_, Error>(Chunk { b, c, staged })
        };
        let chunks = [chunk()?, chunk()?];
        let options = Options {
            memory_limit: streamed.then_some(share),
            ..Options::default()
        };
        let plan = context.plan("C[m,n] = A[m,k] * B[k,n]");
        let plan = plan.operand("A", a).operand("B", &chunks[0].b);
        Ok(HostSpmm {
            plan: plan.options(&options).build()?,
            extents: [m, k, n],
            width,
            chunks,
            streams: [context.stream()?, context.stream()?, context.stream()?],
            context: context.clone(),
        })
    }

    /// Multiplies, and returns when C is there. A has the planned pattern, and lies where the planned one does.
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
        if let Some(device) = self.context.device() {
            device.context().set_current()?;
        }
        let ran = self.through(a, b, c);
        if ran.is_err() {
            // What is under way of it reads and writes chunks that the next run takes.
            for stream in &self.streams {
                stream.synchronize()?;
            }
        }
        ran
    }

    fn through(&mut self, a: Operand<'_, T>, b: &Dense<T>, c: &mut Dense<T>) -> Result<()> {
        let count = self.extents[2].div_ceil(self.width.max(1));
        for at in 0..count {
            self.begin(at, &a, b)?;
            if at > 0 {
                self.end(at - 1, c)?;
            }
        }
        match count {
            0 => Ok(()),
            count => self.end(count - 1, c),
        }
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
        let [products, ahead, behind] = &self.streams;
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
                staged.brought.record(ahead.raw())?;
                products.raw().wait(&staged.brought)?;
            }
            _ => gather(chunk.b.host_mut().ok_or_else(|| Error::elsewhere("B"))?),
        }
        let operands = [("A", a.clone()), ("B", (&chunk.b).into())];
        self.plan.run(&operands, &mut chunk.c, products)?;
        if let (Some(staged), Some(from)) = (&mut chunk.staged, chunk.c.address()) {
            staged.multiplied.record(products.raw())?;
            behind.raw().wait(&staged.multiplied)?;
            // SAFETY: as above, of C's chunk.
            unsafe { copy_dtoh_async(staged.c.bytes_mut(), from, behind.raw())? };
            staged.taken.record(behind.raw())?;
        }
        Ok(())
    }

    /// Waits for a chunk, and puts its columns into C.
    fn end(&mut self, at: usize, c: &mut Dense<T>) -> Result<()> {
        let (columns, n) = (self.columns(at), self.extents[2]);
        let chunk = &self.chunks[at % CHUNKS];
        let from: &[T] = match &chunk.staged {
            Some(staged) => {
                staged.taken.synchronize()?;
                bytemuck::cast_slice(staged.c.bytes())
            }
            None => chunk.c.host().ok_or_else(|| Error::elsewhere("C"))?,
        };
        let rows = rows_of(n);
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
    let enough = n.div_ceil(LEAST).max(COLUMNS).min(n);
    match most.min(enough.next_multiple_of(COLUMNS).min(n)) {
        width if width < COLUMNS => width,
        width if width == n => n,
        width => width / COLUMNS * COLUMNS,
    }
}

/// Rows of so many elements that a thread moves at once.
fn rows_of(columns: usize) -> usize {
    (PIECE / 4 / columns.max(1)).max(1)
}

impl<T: Scalar> fmt::Display for HostSpmm<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [_, _, n] = self.extents;
        let held = self.chunks.iter().flat_map(|chunk| [&chunk.b, &chunk.c]);
        let bytes: usize = held.map(|own| own.shape().iter().product::<usize>()).sum();
        writeln!(
            f,
            "{n} columns in chunks of {}, {} bytes on the device for {CHUNKS} of them",
            self.width,
            bytes * size_of::<T>()
        )?;
        write!(f, "{}", self.plan)
    }
}
