//! Partitions of rows over ranks, and the part of a matrix that a rank stores.

use std::ops::Range;
use std::path::Path;

use einsparse_formats::io::RowFile;
use einsparse_formats::{Csr, CsrPattern, Dense, Pattern};

use super::Group;
use crate::error::{Error, Result};
use crate::registry::Scalar;
use crate::tensor::{Tensor, TensorView, TensorViewMut};

/// Contiguous distribution of rows over ranks: the first rows belong to rank 0, the next to rank 1, and so on. A rank
/// may have no rows.
///
/// ```
/// use einsparse::group::Partition;
/// let rows = Partition::even(5, 2);
/// assert_eq!((rows.range(0), rows.range(1), rows.owner(3)), (0..3, 3..5, 1));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition(Vec<usize>);

impl Partition {
    /// Distributes rows evenly. The first ranks have one more row if the division has a remainder.
    pub fn even(rows: usize, ranks: usize) -> Self {
        let (each, more) = (rows / ranks.max(1), rows % ranks.max(1));
        Partition((0..=ranks).map(|r| r * each + r.min(more)).collect())
    }

    /// Distributes rows by the predicted cost of a product with `n` columns. The product reads a row of B for every
    /// nonzero, and writes a row of C for every row.
    pub fn balanced(pattern: &CsrPattern, n: usize, ranks: usize) -> Self {
        let counts: Vec<u32> = pattern.offsets().windows(2).map(|w| w[1] - w[0]).collect();
        Self::of_counts(&counts, n, ranks)
    }

    /// [`balanced`](Self::balanced) for given numbers of nonzeros per row.
    pub fn of_counts(counts: &[u32], n: usize, ranks: usize) -> Self {
        // In words of 32 bits. A nonzero costs a row of B, its column and its value; a row costs a row of C and its
        // offset.
        let (entry, row) = (n as u64 + 2, n as u64 + 1);
        let costs = counts.iter().map(|&count| u64::from(count) * entry + row);
        Self::of_costs(costs, ranks)
    }

    /// Distributes rows by the cost of each row, in any unit. If dense products follow a sparse one, a row costs more
    /// than its nonzeros indicate.
    pub fn of_costs(costs: impl Iterator<Item = u64> + Clone, ranks: usize) -> Self {
        let all: u128 = costs.clone().map(u128::from).sum();
        let (mut starts, mut rows, mut before) = (vec![0], 0, 0u128);
        for cost in costs {
            // A row belongs to the rank whose share contains the middle of the row's cost.
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

    /// Range of the rows of a rank.
    ///
    /// # Panics
    /// If `rank` is not below [`ranks`](Self::ranks).
    pub fn range(&self, rank: usize) -> Range<usize> {
        self.0[rank]..self.0[rank + 1]
    }

    /// Rank that owns a row.
    pub fn owner(&self, row: usize) -> usize {
        self.0[1..].partition_point(|&end| end <= row)
    }

    /// Number of rows of all ranks.
    pub fn rows(&self) -> usize {
        self.0.last().copied().unwrap_or(0)
    }

    /// Number of ranks.
    pub fn ranks(&self) -> usize {
        self.0.len() - 1
    }

    /// Checks that the partition distributes `rows` rows over the ranks of a group, and that it is equal on all ranks.
    pub(super) fn agree(&self, group: &Group, what: &str, rows: usize) -> Result<()> {
        let differs =
            |left: String, right: String| Error::Shape { index: what.into(), left, right };
        let own = match (self.ranks(), self.rows()) {
            (ranks, _) if ranks != group.size() => Err(differs(
                format!("distributed to {ranks} ranks"),
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

/// Rows of a matrix that this rank stores: of a sparse matrix ([`Csr`], in host memory) or of a dense one ([`Tensor`],
/// in the context of the group). A dense one may include space for rows of other ranks before and after the own rows.
#[derive(Debug)]
pub struct Sharded<X> {
    pub(super) whole: X,
    /// Own rows of this rank within `whole`.
    pub(super) own: Range<usize>,
    pub(super) rows: Partition,
}

/// Copies a range of rows of a matrix.
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
    /// Selects the rows of this rank from a matrix that every rank has.
    ///
    /// # Errors
    /// [`Error::Rank`] if ranks do not agree on the partition; [`Error::Shape`] if the partition has another number of
    /// rows.
    pub fn of(group: &Group, whole: &Csr<T>, rows: &Partition) -> Result<Self> {
        rows.agree(group, "the partition of rows", whole.pattern().shape()[0])?;
        let own = rows.range(group.rank());
        Self::new(group, rows_of(whole, own), rows)
    }

    /// Reads the rows of this rank from a file that every rank can open: Matrix Market, or SciPy's `.npz` of CSR. No
    /// rank stores the whole matrix. Rows are distributed by the cost of a product with `n` columns.
    ///
    /// # Errors
    /// For a file that cannot be read, [`Error::Format`] on the ranks that detect it and [`Error::Rank`] on the others;
    /// [`Error::Rank`] if ranks read different files.
    pub fn read(group: &Group, path: impl AsRef<Path>, n: usize) -> Result<Self> {
        let opened = RowFile::open(path).map_err(Error::from);
        let file = group.all_ok(opened)?;
        let rows = Partition::of_counts(file.row_counts(), n, group.size());
        let own = file.read(rows.range(group.rank()));
        Self::new(group, own.map_err(Error::from), &rows)
    }

    /// Combines rows that this rank has read or computed. If `local` is an error, all ranks return an error. Columns
    /// are those of the whole matrix.
    ///
    /// # Errors
    /// [`Error::Rank`] if ranks do not agree on the partition and the columns, or if another rank has an error;
    /// [`Error::Shape`] if the number of rows differs from that in the partition.
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
    /// Partition of the rows.
    pub fn rows(&self) -> &Partition {
        &self.rows
    }
}

impl<T: Scalar> Sharded<Tensor<T>> {
    /// Allocates zeros, `[rows of this rank, n]`.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Overflow`].
    pub fn zeros(group: &Group, rows: &Partition, n: usize) -> Result<Self> {
        Self::with_room(group, rows, n, [0, 0])
    }

    /// Allocates zeros, with space for `before` rows before and `behind` rows after the own rows.
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
    /// None for a tensor that was created by this crate.
    pub fn local(&self) -> Result<TensorView<'_, T>> {
        let n = self.whole.shape()[1];
        self.whole.part(self.own.start * n, &[self.own.len(), n])
    }

    /// Mutable view of the rows of this rank, `[rows, n]`.
    ///
    /// # Errors
    /// As for [`local`](Self::local).
    pub fn local_mut(&mut self) -> Result<TensorViewMut<'_, T>> {
        let n = self.whole.shape()[1];
        self.whole.part_mut(self.own.start * n, &[self.own.len(), n])
    }

    /// Copies the values of the rows of this rank to the host, after all work of the context has completed.
    ///
    /// # Errors
    /// [`Error::Cuda`]; [`Error::Rank`] if a rank failed before that work completed.
    pub fn to_dense(&self) -> Result<Dense<T>> {
        let n = self.whole.shape()[1];
        // A view of a tensor in device memory cannot be read directly, so the whole tensor is.
        let shape = self.local()?.shape().to_vec();
        let all = self.whole.to_dense()?;
        let own = &all.values()[self.own.start * n..self.own.end * n];
        Ok(Dense::new(shape, own.to_vec())?)
    }

    /// Rows of this rank, together with the halo rows that [`Halo::exchange`](super::Halo::exchange) receives.
    pub fn with_halo(&self) -> &Tensor<T> {
        &self.whole
    }

    /// Mutable access to own rows and halo rows. [`Halo::add`](super::Halo::add) sends halo rows to their owners.
    pub fn with_halo_mut(&mut self) -> &mut Tensor<T> {
        &mut self.whole
    }
}
