//! Sparse matrix x dense matrix over ranks.

use std::fmt;

use einsparse_formats::{AnyPattern, Csr};

use super::{Group, Halo, Partition, Sharded};
use crate::device::Stream;
use crate::error::{Error, Result};
use crate::plan::{Options, Plan};
use crate::registry::Scalar;
use crate::tensor::{SparseTensor, Tensor};

/// Bytes a second that a rank is taken to send, for what a plan predicts: NVLink through NCCL.
pub(super) const LINK: f64 = 250e9;

const PRODUCT: &str = "C[m,n] = A[m,k] * B[k,n]";

/// How a [`ShardedSpmm`] is planned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardedOptions {
    /// Of the product on each rank.
    pub plan: Options,
    /// In how many chunks of columns rows of B are sent, each under the product of the one before; at most four. `None`: one. Products
    /// of narrow chunks are slower: of R-MAT 22 over two GPUs with 128 columns one chunk is the fastest.
    pub chunks: Option<usize>,
}

/// `C[m,n] = A[m,k] * B[k,n]` with rows of A and C, and rows of B, dealt to ranks; or `C[k,n] = A[m,k] * B[m,n]`, its gradient.
///
/// A rank gets the rows of B that its columns name and others own ([`Halo`]), in chunks of columns, each while the chunk before is
/// multiplied. Rows of A are summed in the order of one GPU: where both run the same kernel, the bits are the same.
/// The gradient multiplies first, then rows of C go to the ranks that own them, which add them up in the order of ranks.
/// With B on every rank, an ordinary plan of [`Sharded::local`] is all that is needed.
///
/// The [module](crate::group) has an example.
#[derive(Debug)]
pub struct ShardedSpmm<T: Scalar> {
    group: Group,
    halo: Halo<T>,
    rows: Partition,
    n: usize,
    transposed: bool,
    /// Own rows of A, its columns counted in what is held of B; transposed on the way back.
    a: SparseTensor<T>,
    plan: Plan<T>,
    /// For what is sent under products.
    beside: Stream,
}

impl<T: Scalar> ShardedSpmm<T> {
    /// Plans the product for B of `n` columns, with its rows dealt as `columns` says. All ranks call this.
    ///
    /// # Errors
    /// [`Error::Rank`] if ranks disagree or another one fails; as [`Halo::new`] and [`Context::plan`](crate::Context::plan).
    pub fn new(
        group: &Group,
        a: &Sharded<Csr<T>>,
        columns: &Partition,
        n: usize,
        options: &ShardedOptions,
    ) -> Result<Self> {
        let pattern = a.local().pattern();
        let halo = Halo::in_chunks(group, pattern, columns, n, options.chunks)?;
        Self::over(group, a, halo, n, options, false)
    }

    /// Plans the transposed product, `C[k,n] = A[m,k] * B[m,n]`: B is dealt as the rows of A, C as `columns` says. All ranks call
    /// this.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn transposed(
        group: &Group,
        a: &Sharded<Csr<T>>,
        columns: &Partition,
        n: usize,
        options: &ShardedOptions,
    ) -> Result<Self> {
        let halo = Halo::new(group, a.local().pattern(), columns, n)?.with_add()?;
        Self::over(group, a, halo, n, options, true)
    }

    fn over(
        group: &Group,
        a: &Sharded<Csr<T>>,
        halo: Halo<T>,
        n: usize,
        options: &ShardedOptions,
        transposed: bool,
    ) -> Result<Self> {
        let context = group.context();
        let made = || {
            let a_local = held(&halo, a.local(), transposed)?;
            let a_local = context.upload(a_local)?;
            let chunk = halo.chunk(halo.chunks() - 1);
            let (held, own) = (halo.tensor()?, Sharded::zeros(group, a.rows(), n)?);
            let [b, c] = match transposed {
                false => [&held, &own],
                true => [&own, &held],
            };
            // Of B all rows that are held, of C the own ones; the other way round on the way back.
            let (b, c) = match transposed {
                false => (b.with_halo().columns(chunk.clone())?, c.local()?),
                true => (b.local()?, c.with_halo().columns(0..n)?),
            };
            let c = c.columns(chunk)?;
            let plan = context
                .plan(PRODUCT)
                .operand("A", &a_local)
                .operand("B", &*b);
            let plan = plan.operand("C", &*c).options(&options.plan).build()?;
            drop((b, c));
            Ok(ShardedSpmm {
                group: group.clone(),
                rows: a.rows().clone(),
                n,
                transposed,
                plan,
                beside: context.stream()?,
                a: a_local,
                halo,
            })
        };
        group.all_ok(made())
    }

    /// Zeros for B: [`local_mut`](Sharded::local_mut) is where this rank writes its rows.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Overflow`].
    pub fn operand(&self) -> Result<Sharded<Tensor<T>>> {
        match self.transposed {
            false => self.halo.tensor(),
            true => Sharded::zeros(&self.group, &self.rows, self.n),
        }
    }

    /// Zeros for C.
    ///
    /// # Errors
    /// As [`operand`](Self::operand).
    pub fn output(&self) -> Result<Sharded<Tensor<T>>> {
        match self.transposed {
            false => Sharded::zeros(&self.group, &self.rows, self.n),
            true => self.halo.tensor(),
        }
    }

    /// Name of the kernel of the product.
    pub fn variant(&self) -> &'static str {
        self.plan.variant()
    }

    /// The halo of B; of C on the way back.
    pub fn halo(&self) -> &Halo<T> {
        &self.halo
    }

    /// New values of A, in the pattern that was planned.
    ///
    /// # Errors
    /// [`Error::Operand`] for another pattern.
    pub fn set_values(&mut self, a: &Sharded<Csr<T>>, stream: &Stream) -> Result<()> {
        let a = held(&self.halo, a.local(), self.transposed)?;
        let planned = self.a.pattern();
        if !matches!(planned, AnyPattern::Csr(planned) if **planned == **a.pattern()) {
            return Err(Error::other_pattern("A"));
        }
        self.a.set_values(a.values())?;
        if self.plan.prepacked().is_some() {
            self.plan
                .update_values(&[("A", (&self.a).into())], stream)?;
        }
        Ok(())
    }

    /// Queues the product. What others own of B is written beside the own rows. All ranks call this.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::Operand`] for tensors that are not as [`operand`](Self::operand) and
    /// [`output`](Self::output) make them; [`Error::Rank`] if another rank fails.
    pub fn run(
        &self,
        b: &mut Sharded<Tensor<T>>,
        c: &mut Sharded<Tensor<T>>,
        stream: &Stream,
    ) -> Result<()> {
        if self.transposed {
            self.halo.check(c)?;
            {
                let b = b.local()?;
                let operands = [("A", (&self.a).into()), ("B", (&*b).into())];
                self.plan.run(&operands, c.with_halo_mut(), stream)?;
            }
            return self.halo.add(c, stream);
        }
        let own = [self.rows.range(self.group.rank()).len(), self.n];
        let mut c = c.local_mut()?;
        c.check("C", self.group.context(), &own)?;
        self.halo.check(b)?;
        let chunks = self.halo.chunks();
        if chunks > 1 {
            self.beside.wait_for(stream)?;
        }
        for chunk in 0..chunks {
            let columns = self.halo.chunk(chunk);
            if chunks > 1 {
                self.halo.exchange_chunk(chunk, b, &self.beside)?;
                stream.wait_for(&self.beside)?;
            } else {
                self.halo.exchange_chunk(chunk, b, stream)?;
            }
            let b = b.with_halo().columns(columns.clone())?;
            let operands = [("A", (&self.a).into()), ("B", (&*b).into())];
            self.plan
                .run(&operands, &mut *c.columns_mut(columns)?, stream)?;
        }
        Ok(())
    }
}

/// Rows of A with columns counted in what is held, or their transpose.
fn held<T: Scalar>(halo: &Halo<T>, a: &Csr<T>, transposed: bool) -> Result<Csr<T>> {
    let a = Csr::new(halo.columns(a.pattern())?, a.values().to_vec())?;
    if !transposed {
        return Ok(a);
    }
    Ok(einsparse_formats::convert::transpose_csr(&a)?)
}

impl<T: Scalar> fmt::Display for ShardedSpmm<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rank, size) = (self.group.rank(), self.group.size());
        let [sent, taken] = self.halo.sent_and_taken();
        let row = self.n * size_of::<T>();
        let of = if self.transposed { "C" } else { "B" };
        writeln!(
            f,
            "rank {rank} of {size}: rows {:?} of A's {}",
            self.rows.range(rank),
            self.rows.rows()
        )?;
        writeln!(
            f,
            "  {sent} rows of {of} to others ({:.1} MB), {taken} from them ({:.1} MB), in {} chunks of {} columns",
            (sent * row) as f64 / 1e6,
            (taken * row) as f64 / 1e6,
            self.halo.chunks(),
            self.halo.chunk(0).len()
        )?;
        let chunks = self.halo.chunks() as f64;
        let sending = (sent.max(taken) * row) as f64 / LINK * 1e6;
        match self.plan.choice().microseconds() {
            Some(us) => write!(
                f,
                "  predicted: products {:.0} us ({}), sending {sending:.0} us",
                us * chunks,
                self.variant()
            ),
            None => write!(f, "  products on the CPU"),
        }
    }
}
