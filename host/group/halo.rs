//! Halos: rows of other ranks that a sparse pattern refers to.

use std::ops::Range;
use std::sync::Mutex;

use einsparse_formats::convert::transpose_csr;
use einsparse_formats::{Csr, CsrPattern, Dense, Pattern, allocate};

use super::mesh::lock;
use super::row_sum::RowSum;
use super::{Group, Partition, Sharded};
use crate::device::Stream;
use crate::error::{Error, Result, elements};
use crate::nn::Embedding;
use crate::registry::{Dtype, Scalar};
use crate::tensor::Tensor;

/// Halo of a sharded matrix `[rows, n]`: the rows that a pattern of this rank refers to and other ranks own.
///
/// Halo rows are stored in the order of the whole matrix: rows of lower ranks precede the own rows, rows of higher
/// ranks follow them. [`columns`](Self::columns) renumbers the columns of a pattern to these rows, so any operation of
/// one GPU can use them: a product ([`ShardedSpmm`](super::ShardedSpmm)), an SDDMM
/// ([`ops::SampledTensor`](einsparse_core::ops)), attention of the queries of this rank, messages between atoms. The caller
/// orders calls on several streams.
///
/// ```
/// use einsparse::formats::CsrPattern;
/// use einsparse::group::{Group, Halo, Partition};
/// use einsparse::Context;
/// let groups = Group::local(&[Context::cpu(), Context::cpu()])?;
/// let rows = Partition::even(6, 2);
/// let kept = std::thread::scope(|s| {
///     let rank = |group: Group| {
///         // Rank 0 names row 4, rank 1 rows 0 and 5.
///         let columns = vec![vec![4], vec![0, 5]].swap_remove(group.rank());
///         let pattern = CsrPattern::new(1, 6, vec![0, columns.len() as u32], columns)?;
///         let halo = Halo::<f32>::new(&group, &pattern, &rows, 2)?;
///         let mut x = halo.tensor()?; // 3 own rows, and one beside them
///         let stream = group.context().stream()?;
///         x.local_mut()?.write(&einsparse::formats::Dense::new([3, 2], vec![group.rank() as f32; 6])?)?;
///         halo.exchange(&mut x, &stream)?;
///         Ok((halo.columns(&pattern)?.columns().to_vec(), x.with_halo().to_dense()?.into_values()))
///     };
///     let ranks: Vec<_> = groups.into_iter().map(|group| s.spawn(move || rank(group))).collect();
///     ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<einsparse::Result<Vec<_>>>()
/// })?;
/// assert_eq!(kept[0], (vec![3], vec![0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0]));
/// assert_eq!(kept[1], (vec![0, 3], vec![0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]));
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Debug)]
pub struct Halo<T: Scalar> {
    group: Group,
    rows: Partition,
    n: usize,
    /// Bit mask of stored rows (halo rows and own rows). `ranks`: number of set bits before each word.
    held: Vec<u64>,
    ranks: Vec<u32>,
    /// Rows to send to each rank and to receive from each rank: ranges in the buffers.
    sends: Vec<Range<usize>>,
    takes: Vec<Range<usize>>,
    /// Own rows to send, in the order of receiving ranks.
    named: Vec<u32>,
    pack: Option<Pack<T>>,
    /// Send buffer: packed own rows in the order of ranks. In the reverse exchange, receive buffer of rows from other
    /// ranks.
    sent: Mutex<Tensor<T>>,
    /// Whether [`add`](Self::add) is available. `back`: adds received rows to own rows, if this rank receives any.
    adds: bool,
    back: Option<RowSum<T>>,
}

/// Packs own rows to send into a contiguous buffer.
#[derive(Debug)]
enum Pack<T: Scalar> {
    Copy(Box<Embedding<T>>, Tensor<i32>),
    /// Product with one nonzero per row. No GPU kernel copies rows of f64.
    Sum(Box<RowSum<T>>),
}

impl<T: Scalar> Halo<T> {
    /// Creates the halo of a matrix of `n` columns, whose rows are distributed by `rows`, for the columns of `pattern`.
    /// All ranks call this.
    ///
    /// # Errors
    /// [`Error::Rank`] if ranks do not agree on the partition or on `n`; [`Error::Shape`] if the number of columns of
    /// the pattern differs from the number of rows of the partition; [`Error::NoKernel`] on a GPU for element types
    /// other than f32, f64, f16 and bf16.
    pub fn new(group: &Group, pattern: &CsrPattern, rows: &Partition, n: usize) -> Result<Self> {
        let columns = pattern.shape()[1];
        rows.agree(group, "the partition of columns", columns)?;
        group.same("columns of a halo", Ok(vec![n as u64]))?;
        let (rank, size) = (group.rank(), group.size());
        let own = rows.range(rank);
        let held = allocate::zeroed("columns of a halo", columns.div_ceil(64));
        let mut held: Vec<u64> = group.all_ok(held.map_err(Error::from))?;
        for &column in pattern.columns() {
            held[column as usize / 64] |= 1 << (column % 64);
        }
        let taken: Vec<Vec<u32>> = (0..size)
            .map(|peer| match peer == rank {
                true => Vec::new(),
                false => bits(&held, rows.range(peer)),
            })
            .collect();
        for row in own.clone() {
            held[row / 64] |= 1 << (row % 64);
        }
        let mut before = 0;
        let count = |word: &u64| {
            let here = before;
            before += word.count_ones();
            here
        };
        let ranks = held.iter().map(count).collect();
        let asked = group.ask(&taken)?;
        let wrong = |row: &&u32| !own.contains(&(**row as usize));
        if let Some((peer, row)) = (0..size).find_map(|p| Some((p, *asked[p].iter().find(wrong)?)))
        {
            let reason = format!("requests row {row} of rank {rank}, which has rows {own:?}");
            return Err(Error::Rank { rank: peer, reason });
        }
        let named: Vec<u32> = asked.iter().flatten().map(|&row| row - own.start as u32).collect();
        let (sends, takes) = (ranges(&asked), ranges(&taken));
        let made = || {
            let (context, sent) = (group.context(), named.len());
            let mut halo = Halo {
                group: group.clone(),
                rows: rows.clone(),
                n,
                pack: None,
                sent: Mutex::new(context.zeros(&[elements("sent rows", &[sent, n])?])?),
                held,
                ranks,
                sends,
                takes,
                named,
                adds: false,
                back: None,
            };
            halo.pack = halo.make_pack()?;
            Ok(halo)
        };
        group.all_ok(made())
    }

    fn make_pack(&self) -> Result<Option<Pack<T>>> {
        let (context, sent) = (self.group.context(), self.named.len());
        let own = self.own().len();
        if sent == 0 {
            return Ok(None);
        }
        if context.is_cuda() && T::DTYPE == Dtype::F64 {
            let offsets = (0..=sent as u32).collect();
            let pattern = CsrPattern::new(sent, own, offsets, self.named.clone())?;
            let ones = Csr::new(pattern, vec![T::ONE; sent])?;
            let (from, packed) = (self.tensor()?, lock(&self.sent));
            let to = packed.part(0, &[sent, self.n])?;
            let sum = RowSum::new(context, ones, (&*from.local()?, &to), false)?;
            return Ok(Some(Pack::Sum(Box::new(sum))));
        }
        let rows = self.named.iter().map(|&row| row as i32).collect();
        let rows = context.upload_dense(&Dense::new([sent], rows)?)?;
        let look_up = Embedding::new(context, [own, self.n], sent, false)?;
        Ok(Some(Pack::Copy(Box::new(look_up), rows)))
    }

    /// Enables the reverse exchange, [`add`](Self::add).
    ///
    /// # Errors
    /// As [`Context::plan`](einsparse_core::Context::plan).
    pub fn with_add(mut self) -> Result<Self> {
        let group = self.group.clone();
        self.adds = true;
        group.all_ok(self.make_back())?;
        Ok(self)
    }

    fn make_back(&mut self) -> Result<()> {
        if self.named.is_empty() {
            return Ok(());
        }
        // Row i of the pattern has one nonzero: the own row that is sent as row i. The transpose maps each own row to
        // all its copies, in the order of ranks.
        let (own, sent) = (self.rows.range(self.group.rank()).len(), self.named.len());
        let offsets = (0..=sent as u32).collect();
        let pattern = CsrPattern::new(sent, own, offsets, self.named.clone())?;
        let ones = transpose_csr(&Csr::new(pattern, vec![T::ONE; sent])?)?;
        let target = self.tensor()?;
        let came = lock(&self.sent);
        let from = came.part(0, &[sent, self.n])?;
        let local = target.local()?;
        let back = RowSum::new(self.group.context(), ones, (&from, &local), true)?;
        drop(from);
        drop(came);
        self.back = Some(back);
        Ok(())
    }

    /// Renumbers the columns of a pattern to the rows of [`with_halo`](Sharded::with_halo). The order of nonzeros is
    /// kept.
    ///
    /// # Errors
    /// [`Error::InvalidIndex`] for a column that is not in the halo.
    pub fn columns(&self, pattern: &CsrPattern) -> Result<CsrPattern> {
        let place = |(position, &column): (usize, &u32)| {
            let (word, bit) = (column as usize / 64, column % 64);
            let here = self.held.get(word).copied().unwrap_or(0);
            if here >> bit & 1 == 0 {
                return Err(Error::InvalidIndex {
                    array: "columns".into(),
                    position,
                    value: column.into(),
                    of: "the rows of the halo".into(),
                    bound: self.rows.rows() as u64,
                });
            }
            Ok(self.ranks[word] + (here & ((1 << bit) - 1)).count_ones())
        };
        let columns = pattern.columns().iter().enumerate().map(place);
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let offsets = pattern.offsets().to_vec();
        Ok(CsrPattern::new(pattern.shape()[0], self.held_rows(), offsets, columns)?)
    }

    /// Allocates zeros for the rows of this rank and for halo rows.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Overflow`].
    pub fn tensor(&self) -> Result<Sharded<Tensor<T>>> {
        let room = [self.own().start, self.behind()];
        Sharded::with_room(&self.group, &self.rows, self.n, room)
    }

    /// Numbers of rows that this rank sends and receives in an exchange.
    pub fn sent_and_taken(&self) -> [usize; 2] {
        [self.named.len(), self.held_rows() - self.own().len()]
    }

    /// Number of stored rows: own rows and halo rows.
    pub(super) fn held_rows(&self) -> usize {
        self.own().end + self.behind()
    }

    /// Own rows within the stored rows.
    pub(super) fn own(&self) -> Range<usize> {
        let before = self.takes[self.group.rank()].start;
        before..before + self.rows.range(self.group.rank()).len()
    }

    fn behind(&self) -> usize {
        let own = self.takes[self.group.rank()].end;
        self.takes.last().map_or(0, |last| last.end) - own
    }

    /// Queues the exchange: own rows are sent to the ranks that refer to them, and halo rows are received. All ranks
    /// call this.
    ///
    /// # Errors
    /// [`Error::Shape`] for a tensor that was not created by [`tensor`](Self::tensor); [`Error::Rank`] if another rank
    /// fails.
    pub fn exchange(&self, x: &mut Sharded<Tensor<T>>, stream: &Stream) -> Result<()> {
        self.check(x)?;
        if self.group.size() == 1 {
            return Ok(());
        }
        let (n, mut sent) = (self.n, lock(&self.sent));
        if let Some(pack) = &self.pack {
            let mut packed = sent.part_mut(0, &[self.named.len(), n])?;
            let own = x.local()?;
            match pack {
                Pack::Copy(look_up, rows) => look_up.forward(&own, rows, &mut packed, stream)?,
                Pack::Sum(sum) => sum.run(&own, &mut packed, stream)?,
            }
        }
        let (sends, takes) = (self.spans_sent(), self.spans_held());
        self.group.exchange((&sent, &sends), (&mut x.whole, &takes), stream)
    }

    /// Ranges of elements in the send buffer, one per receiving rank.
    fn spans_sent(&self) -> Vec<Range<usize>> {
        let of = |rows: &Range<usize>| rows.start * self.n..rows.end * self.n;
        self.sends.iter().map(of).collect()
    }

    /// Ranges of elements in the stored rows, one per other rank.
    fn spans_held(&self) -> Vec<Range<usize>> {
        let (rank, own) = (self.group.rank(), self.own().len());
        let of = |(peer, rows): (usize, &Range<usize>)| {
            let behind = if peer > rank { own } else { 0 };
            (behind + rows.start) * self.n..(behind + rows.end) * self.n
        };
        self.takes.iter().enumerate().map(of).collect()
    }

    pub(super) fn check(&self, x: &Sharded<Tensor<T>>) -> Result<()> {
        let planned = [self.held_rows(), self.n];
        x.whole.check("the sharded tensor", self.group.context(), &planned)?;
        if x.own != self.own() || x.rows != self.rows {
            let reason = "has other rows than the halo: `Halo::tensor` makes one";
            return Err(Error::operand("the sharded tensor", reason));
        }
        Ok(())
    }

    /// Queues the reverse exchange: halo rows are sent to their owners, and each rank adds the rows that it receives to
    /// its own rows, in the order of ranks. It computes the gradient of [`exchange`](Self::exchange). All ranks call
    /// this. The halo must have been created by [`with_add`](Self::with_add).
    ///
    /// # Errors
    /// As [`exchange`](Self::exchange).
    pub fn add(&self, x: &mut Sharded<Tensor<T>>, stream: &Stream) -> Result<()> {
        if !self.adds {
            return Err(Error::not_planned("the halo", "create it with `Halo::with_add`"));
        }
        self.check(x)?;
        self.send_back(x, stream)?;
        self.add_what_came(x, stream)
    }

    /// Sends halo rows to their owners, the first half of [`add`](Self::add). Own rows are not modified.
    pub(super) fn send_back(&self, x: &Sharded<Tensor<T>>, stream: &Stream) -> Result<()> {
        if self.group.size() == 1 {
            return Ok(());
        }
        let mut came = lock(&self.sent);
        let (held, spans) = (self.spans_held(), self.spans_sent());
        self.group.exchange((&x.whole, &held), (&mut came, &spans), stream)
    }

    /// Adds received rows to own rows, the second half of [`add`](Self::add).
    pub(super) fn add_what_came(&self, x: &mut Sharded<Tensor<T>>, stream: &Stream) -> Result<()> {
        let Some(back) = &self.back else {
            return Ok(());
        };
        let came = lock(&self.sent);
        let came = came.part(0, &[self.named.len(), self.n])?;
        back.run(&came, &mut *x.local_mut()?, stream)
    }
}

/// Indices of the bits that are set in a range.
fn bits(words: &[u64], range: Range<usize>) -> Vec<u32> {
    let set = |&row: &usize| words[row / 64] >> (row % 64) & 1 == 1;
    range.filter(set).map(|row| row as u32).collect()
}

/// Ranges of the lists in their concatenation.
fn ranges(lists: &[Vec<u32>]) -> Vec<Range<usize>> {
    let mut at = 0;
    let place = |list: &Vec<u32>| {
        at += list.len();
        at - list.len()..at
    };
    lists.iter().map(place).collect()
}
