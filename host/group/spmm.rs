//! Sparse matrix x dense matrix over ranks.

use std::fmt;
use std::ops::Range;

use einsparse_formats::convert::transpose_csr;
use einsparse_formats::{AnyPattern, Csr, CsrPattern, Pattern};

use super::partition::rows_of;
use super::{Group, Halo, Partition, Sharded};
use crate::device::Stream;
use crate::error::{Error, Result};
use crate::plan::{Options, Plan};
use crate::registry::Scalar;
use crate::tensor::{SparseTensor, Tensor};

/// Bytes per second that a rank is assumed to send, for predictions: NVLink through NCCL.
pub(super) const LINK: f64 = 250e9;

const PRODUCT: &str = "C[m,n] = A[m,k] * B[k,n]";
const ADDED: &str = "C[m,n] += A[m,k] * B[k,n]";

/// Options of a [`ShardedSpmm`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardedOptions {
    /// Options of the products on each rank.
    pub plan: Options,
    /// Whether products run while rows are sent. A row of `C = A B` is then the sum of two products: one with own rows
    /// of B, one with halo rows. Every run returns the same bits, but not the bits of one GPU. The gradient is split by
    /// rows of C, whose sums do not change.
    pub overlap: bool,
}

/// Product `C[m,n] = A[m,k] * B[k,n]` with rows of A and C, and rows of B, distributed over ranks; or its gradient,
/// `C[k,n] = A[m,k] * B[m,n]`.
///
/// A rank receives the rows of B that its columns refer to and other ranks own ([`Halo`]), then multiplies. With
/// [`ShardedOptions::overlap`] it multiplies own rows of B during the exchange. Without overlap, rows of A are summed
/// in the order of one GPU: the bits are equal if both run the same kernel.
/// The gradient multiplies first. Rows of C are then sent to the ranks that own them, which add them in the order of
/// ranks. With `overlap`, the own rows of this rank are multiplied during the exchange.
/// The caller orders runs on several streams.
/// If every rank has all of B, use an ordinary plan of [`Sharded::local`].
///
/// The [module](crate) has an example.
#[derive(Debug)]
pub struct ShardedSpmm<T: Scalar> {
    group: Group,
    halo: Halo<T>,
    rows: Partition,
    n: usize,
    transposed: bool,
    parts: Vec<Part<T>>,
    /// Stream of the exchange; only with `overlap`.
    beside: Option<Stream>,
}

/// One product of this rank.
#[derive(Debug)]
struct Part<T: Scalar> {
    /// Own rows of A, with columns relative to `rows`; transposed for the gradient.
    a: SparseTensor<T>,
    /// Range of stored rows (own and halo) that the product reads from B, or writes to C for the gradient.
    rows: Range<usize>,
    plan: Plan<T>,
}

impl<T: Scalar> ShardedSpmm<T> {
    /// Plans the product for B of `n` columns, with rows of B distributed by `columns`. All ranks call this.
    ///
    /// # Errors
    /// [`Error::Rank`] if ranks disagree or another rank fails; otherwise as for [`Halo::new`] and
    /// [`Context::plan`](einsparse_core::Context::plan).
    pub fn new(
        group: &Group,
        a: &Sharded<Csr<T>>,
        columns: &Partition,
        n: usize,
        options: &ShardedOptions,
    ) -> Result<Self> {
        let halo = Halo::new(group, a.local().pattern(), columns, n)?;
        Self::over(group, a, halo, n, options, false)
    }

    /// Plans the transposed product, `C[k,n] = A[m,k] * B[m,n]`. Rows of B are distributed like rows of A, rows of C by
    /// `columns`. All ranks call this.
    ///
    /// # Errors
    /// As for [`new`](Self::new).
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
        group.same("overlap", Ok(vec![options.overlap.into()]))?;
        let made = || {
            let (held, own) = (halo.tensor()?, Sharded::zeros(group, a.rows(), n)?);
            let own = own.local()?;
            let mut parts = Vec::new();
            for (rows, a) in cut(&halo, a.local(), (transposed, options.overlap))? {
                let a = context.upload(&a)?;
                let held = held.with_halo().part(rows.start * n, &[rows.len(), n])?;
                let ([b, c], first) = match transposed {
                    false => ([&held, &own], parts.is_empty()),
                    true => ([&own, &held], true),
                };
                let plan = context.plan(if first { PRODUCT } else { ADDED });
                let plan = plan.operand("A", &a).operand("B", &**b);
                let plan = plan.operand("C", &**c).options(&options.plan).build()?;
                parts.push(Part { a, rows, plan });
            }
            Ok(ShardedSpmm {
                group: group.clone(),
                rows: a.rows().clone(),
                n,
                transposed,
                parts,
                beside: match options.overlap {
                    true => Some(Stream::ahead(context.device())?),
                    false => None,
                },
                halo,
            })
        };
        group.all_ok(made())
    }

    /// Allocates zeros for B. Write the rows of this rank to [`local_mut`](Sharded::local_mut).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Overflow`].
    pub fn operand(&self) -> Result<Sharded<Tensor<T>>> {
        match self.transposed {
            false => self.halo.tensor(),
            true => Sharded::zeros(&self.group, &self.rows, self.n),
        }
    }

    /// Allocates zeros for C.
    ///
    /// # Errors
    /// As for [`operand`](Self::operand).
    pub fn output(&self) -> Result<Sharded<Tensor<T>>> {
        match self.transposed {
            false => Sharded::zeros(&self.group, &self.rows, self.n),
            true => self.halo.tensor(),
        }
    }

    /// Name of the kernel of the product; with overlap, of the first product.
    pub fn variant(&self) -> &'static str {
        self.parts.first().map_or("", |part| part.plan.variant())
    }

    /// Halo of B; for the gradient, of C.
    pub fn halo(&self) -> &Halo<T> {
        &self.halo
    }

    /// Replaces the values of A. The pattern must be the planned one.
    ///
    /// # Errors
    /// [`Error::OtherPattern`] for a different pattern.
    pub fn set_values(&mut self, a: &Sharded<Csr<T>>, stream: &Stream) -> Result<()> {
        let parts = cut(&self.halo, a.local(), (self.transposed, self.beside.is_some()))?;
        let same = |(part, (rows, a)): (&Part<T>, &(Range<usize>, Csr<T>))| {
            let pattern = part.a.pattern();
            part.rows == *rows
                && matches!(pattern, AnyPattern::Csr(planned) if **planned == **a.pattern())
        };
        if parts.len() != self.parts.len() || !self.parts.iter().zip(&parts).all(same) {
            return Err(Error::other_pattern("A", "", format_args!("csr {:?}", a.local().shape())));
        }
        for (part, (_, a)) in self.parts.iter_mut().zip(&parts) {
            part.a.set_values(a.values())?;
            if part.plan.prepacked().is_some() {
                part.plan.update_values(&[("A", (&part.a).into())], stream)?;
            }
        }
        Ok(())
    }

    /// Queues the product. Halo rows of B are written next to the own rows. All ranks call this.
    ///
    /// # Errors
    /// [`Error::Shape`] or [`Error::Operand`] for tensors that were not created by [`operand`](Self::operand) and
    /// [`output`](Self::output); [`Error::Rank`] if another rank fails.
    pub fn run(
        &self,
        b: &mut Sharded<Tensor<T>>,
        c: &mut Sharded<Tensor<T>>,
        stream: &Stream,
    ) -> Result<()> {
        if self.group.context().is_cuda() {
            self.group.context().check_stream(stream)?;
        }
        match self.transposed {
            true => self.run_back(b, c, stream),
            false => self.run_forth(b, c, stream),
        }
    }

    fn run_forth(
        &self,
        b: &mut Sharded<Tensor<T>>,
        c: &mut Sharded<Tensor<T>>,
        stream: &Stream,
    ) -> Result<()> {
        let own = [self.rows.range(self.group.rank()).len(), self.n];
        let mut c = c.local_mut()?;
        c.check("C", self.group.context(), &own)?;
        self.halo.check(b)?;
        let n = self.n;
        let run = |part: &Part<T>, b: &Tensor<T>, c: &mut Tensor<T>| {
            let b = b.part(part.rows.start * n, &[part.rows.len(), n])?;
            let operands = [("A", (&part.a).into()), ("B", (&*b).into())];
            part.plan.run(&operands, c, stream)
        };
        let Some((beside, (own, others))) = self.beside.as_ref().zip(self.parts.split_first())
        else {
            self.halo.exchange(b, stream)?;
            let mut parts = self.parts.iter();
            return parts.try_for_each(|part| run(part, b.with_halo(), &mut c));
        };
        beside.wait_for(stream)?;
        self.halo.exchange(b, beside)?;
        // Safe during the exchange: this product reads own rows only, and the exchange writes halo rows only.
        run(own, b.with_halo(), &mut c)?;
        stream.wait_for(beside)?;
        others.iter().try_for_each(|part| run(part, b.with_halo(), &mut c))
    }

    fn run_back(
        &self,
        b: &Sharded<Tensor<T>>,
        c: &mut Sharded<Tensor<T>>,
        stream: &Stream,
    ) -> Result<()> {
        self.halo.check(c)?;
        let (b, n) = (b.local()?, self.n);
        let run = |part: &Part<T>, c: &mut Sharded<Tensor<T>>| {
            let operands = [("A", (&part.a).into()), ("B", (&*b).into())];
            let whole = c.with_halo_mut();
            let mut rows = whole.part_mut(part.rows.start * n, &[part.rows.len(), n])?;
            part.plan.run(&operands, &mut *rows, stream)
        };
        let Some((beside, (own, others))) = self.beside.as_ref().zip(self.parts.split_last())
        else {
            self.parts.iter().try_for_each(|part| run(part, c))?;
            return self.halo.add(c, stream);
        };
        others.iter().try_for_each(|part| run(part, c))?;
        beside.wait_for(stream)?;
        self.halo.send_back(c, beside)?;
        run(own, c)?;
        stream.wait_for(beside)?;
        self.halo.add_what_came(c, stream)
    }
}

/// Renumbers the columns of A to stored rows, and transposes A for the gradient. Returns A as one part, or split for an
/// overlap, with the range of stored rows that each part reads or writes. The part of own rows is first; for the
/// gradient it is last.
fn cut<T: Scalar>(
    halo: &Halo<T>,
    a: &Csr<T>,
    (transposed, overlap): (bool, bool),
) -> Result<Vec<(Range<usize>, Csr<T>)>> {
    let mut a = Csr::new(halo.columns(a.pattern())?, a.values().to_vec())?;
    if transposed {
        a = transpose_csr(&a)?;
    }
    let (own, held) = (halo.own(), halo.held_rows());
    if !overlap {
        return Ok(vec![(0..held, a)]);
    }
    if transposed {
        let others = [0..own.start, own.end..held];
        let others = others.into_iter().filter(|rows| !rows.is_empty());
        let part = |rows: Range<usize>| Ok((rows.clone(), rows_of(&a, rows)?));
        return others.chain([own]).map(part).collect();
    }
    let of_own = columns_where(&a, |column| own.contains(&column), &own)?;
    let of_others = columns_where(&a, |column| !own.contains(&column), &(0..held))?;
    let mut parts = vec![(own, of_own)];
    if !of_others.values().is_empty() {
        parts.push((0..held, of_others));
    }
    Ok(parts)
}

/// Nonzeros in the selected columns. Columns are relative to `within`, which contains all of them.
fn columns_where<T: Scalar>(
    a: &Csr<T>,
    wanted: impl Fn(usize) -> bool,
    within: &Range<usize>,
) -> Result<Csr<T>> {
    let pattern = a.pattern();
    let rows = pattern.shape()[0];
    let (mut offsets, mut columns, mut values) = (vec![0], Vec::new(), Vec::new());
    for row in 0..rows {
        for entry in pattern.row(row) {
            let column = pattern.columns()[entry] as usize;
            if wanted(column) {
                columns.push((column - within.start) as u32);
                values.push(a.values()[entry]);
            }
        }
        offsets.push(columns.len() as u32);
    }
    let pattern = CsrPattern::new(rows, within.len(), offsets, columns)?;
    Ok(Csr::new(pattern, values)?)
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
            "  {sent} rows of {of} to others ({:.1} MB), {taken} from them ({:.1} MB){}",
            (sent * row) as f64 / 1e6,
            (taken * row) as f64 / 1e6,
            match self.beside {
                Some(_) => ", under products",
                None => "",
            }
        )?;
        let sending = (sent.max(taken) * row) as f64 / LINK * 1e6;
        let parts = self.parts.iter();
        let predicted: Option<Vec<f64>> = parts.map(|p| p.plan.choice().microseconds()).collect();
        match predicted {
            Some(us) => {
                let us: Vec<_> = us.iter().map(|us| format!("{us:.0}")).collect();
                let (us, variant) = (us.join(" + "), self.variant());
                write!(f, "  predicted: products {us} us ({variant}), sending {sending:.0} us")
            }
            None => write!(f, "  products on the CPU"),
        }
    }
}
