//! Which rows belong to which rank, and what a rank holds of a matrix.

use std::ops::Range;
use std::path::Path;

use einsparse_formats::io::RowFile;
use einsparse_formats::{Csr, CsrPattern, Dense, Pattern};

use super::Group;
use crate::error::{Error, Result};
use crate::registry::Scalar;
use crate::tensor::{Tensor, TensorView, TensorViewMut};

/// Rows dealt to ranks: the first ones to rank 0, the next to rank 1, and so on. A rank may have none.
///
/// ```
/// use einsparse::group::Partition;
/// let rows = Partition::even(5, 2);
/// assert_eq!((rows.range(0), rows.range(1), rows.owner(3)), (0..3, 3..5, 1));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition(Vec<usize>);

impl Partition {
    /// The same number of rows for every rank, one more for the first ones.
    pub fn even(rows: usize, ranks: usize) -> Self {
        let (each, more) = (rows / ranks.max(1), rows % ranks.max(1));
        Partition((0..=ranks).map(|r| r * each + r.min(more)).collect())
    }

    /// The same predicted cost for every rank: a product with `n` columns reads a row of B for every entry, and writes a row
    /// of C for every row.
    pub fn balanced(pattern: &CsrPattern, n: usize, ranks: usize) -> Self {
        let counts: Vec<u32> = pattern.offsets().windows(2).map(|w| w[1] - w[0]).collect();
        Self::of_counts(&counts, n, ranks)
    }

    /// As [`balanced`](Self::balanced), of the entries of each row.
    pub fn of_counts(counts: &[u32], n: usize, ranks: usize) -> Self {
        // In words of 32 bits: a row of B, the entry itself; a row of C and where it starts.
        let (entry, row) = (n as u64 + 2, n as u64 + 1);
        let costs = counts.iter().map(|&count| u64::from(count) * entry + row);
        Self::of_costs(costs, ranks)
    }

    /// The same cost for every rank, of the cost of each row in any unit: where dense products follow a sparse one, a row costs
    /// more than its entries say.
    pub fn of_costs(costs: impl Iterator<Item = u64> + Clone, ranks: usize) -> Self {
        let all: u128 = costs.clone().map(u128::from).sum();
        let (mut starts, mut rows, mut before) = (vec![0], 0, 0u128);
        for cost in costs {
            // A row belongs to the rank in whose share its middle lies.
            let middle = before + u128::from(cost / 2);
            while starts.len() < ranks && middle * ranks as u128 >= all * starts.len() as u128 {
                starts.push(rows);
            }
            before += u128::from(cost);
            rows += 1;
        }
        starts.resize(ranks + 1, rows);
        Partition(starts)
    }

    /// Rows of a rank.
    ///
    /// # Panics
    /// If there is no such rank.
    pub fn range(&self, rank: usize) -> Range<usize> {
        self.0[rank]..self.0[rank + 1]
    }

    /// The rank of a row.
    pub fn owner(&self, row: usize) -> usize {
        self.0[1..].partition_point(|&end| end <= row)
    }

    /// Rows of all ranks.
    pub fn rows(&self) -> usize {
        self.0.last().copied().unwrap_or(0)
    }

    /// How many ranks.
    pub fn ranks(&self) -> usize {
        self.0.len() - 1
    }

    /// Checks that it deals so many rows to the ranks of a group, and that all of them have this one.
    pub(super) fn agree(&self, group: &Group, what: &str, rows: usize) -> Result<()> {
        let differs =
            |left: String, right: String| Error::Shape { index: what.into(), left, right };
        let own = match (self.ranks(), self.rows()) {
            (ranks, _) if ranks != group.size() => Err(differs(
                format!("dealt to {ranks} ranks"),
                format!("the group has {}", group.size()),
            )),
            (_, dealt) if dealt != rows => {
                Err(differs(format!("{dealt} of them are dealt"), format!("the matrix has {rows}")))
            }
            _ => Ok(self.0.iter().map(|&start| start as u64).collect()),
        };
        group.same(what, own)
    }
}

/// The rows of a matrix that this rank holds: of a sparse one ([`Csr`], on the host), or of a dense one ([`Tensor`], in the
/// context of the group), which may have room for rows of other ranks beside them.
#[derive(Debug)]
pub struct Sharded<X> {
    pub(super) whole: X,
    /// Rows of this rank in what is held.
    pub(super) own: Range<usize>,
    pub(super) rows: Partition,
}

/// Some rows of a matrix.
pub(super) fn rows_of<T: Scalar>(whole: &Csr<T>, rows: Range<usize>) -> Result<Csr<T>> {
    let pattern = whole.pattern();
    let offsets = &pattern.offsets()[rows.start..=rows.end];
    let entries = offsets[0] as usize..offsets[rows.len()] as usize;
    let starts = offsets.iter().map(|&at| at - offsets[0]).collect();
    let columns = pattern.columns()[entries.clone()].to_vec();
    let pattern = CsrPattern::new(rows.len(), pattern.shape()[1], starts, columns)?;
    Ok(Csr::new(pattern, whole.values()[entries].to_vec())?)
}

impl<T: Scalar> Sharded<Csr<T>> {
    /// The rows of this rank of a matrix that every rank has.
    ///
    /// # Errors
    /// [`Error::Rank`] if ranks do not agree on the partition; [`Error::Shape`] if it is of other rows.
    pub fn of(group: &Group, whole: &Csr<T>, rows: &Partition) -> Result<Self> {
        rows.agree(group, "the partition of rows", whole.pattern().shape()[0])?;
        let own = rows.range(group.rank());
        Self::new(group, rows_of(whole, own), rows)
    }

    /// Reads the rows of this rank from a file, Matrix Market or SciPy's `.npz` of CSR, that every rank can open: no rank holds
    /// the whole matrix. Rows are dealt by the cost of a product with `n` columns.
    ///
    /// # Errors
    /// Of a file that cannot be read, [`Error::Format`] on the ranks that see it and [`Error::Rank`] on the others;
    /// [`Error::Rank`] if ranks see different files.
    pub fn read(group: &Group, path: impl AsRef<Path>, n: usize) -> Result<Self> {
        let opened = RowFile::open(path).map_err(Error::from);
        let file = group.all_ok(opened)?;
        let rows = Partition::of_counts(file.row_counts(), n, group.size());
        let own = file.read(rows.range(group.rank()));
        Self::new(group, own.map_err(Error::from), &rows)
    }

    /// Rows that this rank read or made itself, or why it could not: all ranks learn of it. Columns are those of the whole
    /// matrix.
    ///
    /// # Errors
    /// [`Error::Rank`] if ranks do not agree on partition and columns, or another one had an error; [`Error::Shape`] if these
    /// are not as many rows as the partition says.
    pub fn new(group: &Group, local: Result<Csr<T>>, rows: &Partition) -> Result<Self> {
        rows.agree(group, "the partition of rows", rows.rows())?;
        let own = rows.range(group.rank());
        let checked = local.and_then(|local| match local.pattern().shape()[0] {
            found if found == own.len() => Ok(local),
            found => Err(Error::Shape {
                index: "rows".into(),
                left: format!("{found} in the part of this rank"),
                right: format!("{} in the partition", own.len()),
            }),
        });
        let columns = checked.as_ref().map(|local| vec![local.pattern().shape()[1] as u64]);
        group.same("columns", columns.map_err(Error::clone))?;
        Ok(Sharded { whole: checked?, own: 0..own.len(), rows: rows.clone() })
    }

    /// The rows of this rank, with the columns of the whole matrix.
    pub fn local(&self) -> &Csr<T> {
        &self.whole
    }
}

impl<X> Sharded<X> {
    /// Which rows are whose.
    pub fn rows(&self) -> &Partition {
        &self.rows
    }
}

impl<T: Scalar> Sharded<Tensor<T>> {
    /// Zeros `[rows of this rank, n]`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Overflow`].
    pub fn zeros(group: &Group, rows: &Partition, n: usize) -> Result<Self> {
        Self::with_room(group, rows, n, [0, 0])
    }

    /// With room for so many rows in front of the own ones, and behind them.
    pub(super) fn with_room(
        group: &Group,
        rows: &Partition,
        n: usize,
        [before, behind]: [usize; 2],
    ) -> Result<Self> {
        let own = before..before + rows.range(group.rank()).len();
        Ok(Sharded {
            whole: group.context().zeros(&[own.end + behind, n])?,
            own,
            rows: rows.clone(),
        })
    }

    /// The rows of this rank, `[rows, n]`.
    ///
    /// # Errors
    /// None of a tensor that was made here.
    pub fn local(&self) -> Result<TensorView<'_, T>> {
        let n = self.whole.shape()[1];
        self.whole.part(self.own.start * n, &[self.own.len(), n])
    }

    /// The same, to be written.
    ///
    /// # Errors
    /// As [`local`](Self::local).
    pub fn local_mut(&mut self) -> Result<TensorViewMut<'_, T>> {
        let n = self.whole.shape()[1];
        self.whole.part_mut(self.own.start * n, &[self.own.len(), n])
    }

    /// The values of the rows of this rank, once the work of the context is done.
    ///
    /// # Errors
    /// [`Error::Cuda`]; [`Error::Rank`] if a rank failed before that work was done.
    pub fn to_dense(&self) -> Result<Dense<T>> {
        let n = self.whole.shape()[1];
        // A view of a GPU's tensor is not read by itself.
        let shape = self.local()?.shape().to_vec();
        let all = self.whole.to_dense()?;
        let own = &all.values()[self.own.start * n..self.own.end * n];
        Ok(Dense::new(shape, own.to_vec())?)
    }

    /// The rows of this rank and beside them those of others that [`Halo::exchange`](super::Halo::exchange) brings.
    pub fn with_halo(&self) -> &Tensor<T> {
        &self.whole
    }

    /// The same, to be written: what [`Halo::add`](super::Halo::add) takes back to the ranks that own it.
    pub fn with_halo_mut(&mut self) -> &mut Tensor<T> {
        &mut self.whole
    }
}
