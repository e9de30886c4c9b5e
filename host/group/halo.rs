//! Rows of other ranks that a sparse pattern names.

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

/// The rows of a sharded matrix `[rows, n]` that a pattern of this rank names and other ranks own, and their sending.
///
/// They lie beside the own ones, in the order of the whole matrix: those of lower ranks in front of them, those of higher ones
/// behind. [`columns`](Self::columns) gives a pattern whose columns count these rows, so any operation of one GPU works on
/// them: a product ([`ShardedSpmm`](super::ShardedSpmm)), products at places ([`ops::SampledTensor`](crate::ops)), attention of
/// the queries of this rank, messages between atoms. Calls on several streams are the caller's to order.
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
    /// Rows that are named, and all own ones: a bit each, and how many bits lie in front of each word.
    held: Vec<u64>,
    ranks: Vec<u32>,
    /// Rows to send to, and to take from, each rank: ranges in the buffers.
    sends: Vec<Range<usize>>,
    takes: Vec<Range<usize>>,
    /// Own rows to send, by rank.
    named: Vec<u32>,
    pack: Option<Pack<T>>,
    /// Own rows on their way, one behind the other by rank; on the way back, those that came.
    sent: Mutex<Tensor<T>>,
    /// Whether there is a way back, and, if anything comes on it: own rows plus what came from each rank, in their order.
    adds: bool,
    back: Option<RowSum<T>>,
}

/// How own rows to send are laid one behind the other.
#[derive(Debug)]
enum Pack<T: Scalar> {
    Copy(Box<Embedding<T>>, Tensor<i32>),
    /// Each a sum of one: on a GPU no kernel copies rows of f64.
    Sum(Box<RowSum<T>>),
}

impl<T: Scalar> Halo<T> {
    /// Finds what the columns of a pattern of this rank name of a matrix of `n` columns whose rows are dealt so. All ranks call
    /// this.
    ///
    /// # Errors
    /// [`Error::Rank`] if ranks do not agree on partition or `n`; [`Error::Shape`] if the pattern has other columns than the
    /// partition rows; on a GPU [`Error::NoKernel`] for other element types than f32, f64, f16 and bf16.
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
            let reason = format!("asks for row {row} of rank {rank}, which has {own:?}");
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

    /// With the way back, [`add`](Self::add).
    ///
    /// # Errors
    /// As [`Context::plan`](crate::Context::plan).
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
        // Each row that is sent has one own row; transposed, an own row has all its places, by rank.
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

    /// The pattern with columns counted in [`with_halo`](Sharded::with_halo): the order of entries stays.
    ///
    /// # Errors
    /// [`Error::InvalidIndex`] for a column that the halo was not made of.
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

    /// Zeros for the rows of this rank, with room beside them.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Overflow`].
    pub fn tensor(&self) -> Result<Sharded<Tensor<T>>> {
        let room = [self.own().start, self.behind()];
        Sharded::with_room(&self.group, &self.rows, self.n, room)
    }

    /// Rows that this rank sends, and takes, in an exchange.
    pub fn sent_and_taken(&self) -> [usize; 2] {
        [self.named.len(), self.held_rows() - self.own().len()]
    }

    /// How many rows are held, own and others'.
    pub(super) fn held_rows(&self) -> usize {
        self.own().end + self.behind()
    }

    /// The own rows in what is held.
    pub(super) fn own(&self) -> Range<usize> {
        let before = self.takes[self.group.rank()].start;
        before..before + self.rows.range(self.group.rank()).len()
    }

    fn behind(&self) -> usize {
        let own = self.takes[self.group.rank()].end;
        self.takes.last().map_or(0, |last| last.end) - own
    }

    /// Queues the sending of own rows to the ranks that name them, and the taking of theirs. All ranks call this.
    ///
    /// # Errors
    /// [`Error::Shape`] for a tensor that [`tensor`](Self::tensor) did not make; [`Error::Rank`] if another rank fails.
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

    /// Elements to send to each rank, in the buffer.
    fn spans_sent(&self) -> Vec<Range<usize>> {
        let of = |rows: &Range<usize>| rows.start * self.n..rows.end * self.n;
        self.sends.iter().map(of).collect()
    }

    /// Elements of each other rank, in what is held.
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

    /// Queues the way back: the rows of others that this rank holds are sent to them, and each rank adds what it gets to its own
    /// rows, in the order of ranks. Gradients of what [`exchange`](Self::exchange) brought. All ranks call this, with a halo of
    /// [`with_add`](Self::with_add).
    ///
    /// # Errors
    /// As [`exchange`](Self::exchange).
    pub fn add(&self, x: &mut Sharded<Tensor<T>>, stream: &Stream) -> Result<()> {
        if !self.adds {
            let reason = "was made without a way back: `Halo::with_add`";
            return Err(Error::operand("the halo", reason));
        }
        self.check(x)?;
        self.send_back(x, stream)?;
        self.add_what_came(x, stream)
    }

    /// The first half of [`add`](Self::add): own rows are not touched.
    pub(super) fn send_back(&self, x: &Sharded<Tensor<T>>, stream: &Stream) -> Result<()> {
        if self.group.size() == 1 {
            return Ok(());
        }
        let mut came = lock(&self.sent);
        let (held, spans) = (self.spans_held(), self.spans_sent());
        self.group.exchange((&x.whole, &held), (&mut came, &spans), stream)
    }

    /// The second half.
    pub(super) fn add_what_came(&self, x: &mut Sharded<Tensor<T>>, stream: &Stream) -> Result<()> {
        let Some(back) = &self.back else {
            return Ok(());
        };
        let came = lock(&self.sent);
        let came = came.part(0, &[self.named.len(), self.n])?;
        back.run(&came, &mut *x.local_mut()?, stream)
    }
}

/// The numbers of bits that are set in a range.
fn bits(words: &[u64], range: Range<usize>) -> Vec<u32> {
    let set = |&row: &usize| words[row / 64] >> (row % 64) & 1 == 1;
    range.filter(set).map(|row| row as u32).collect()
}

/// Where the elements of each list lie when they lie one behind the other.
fn ranges(lists: &[Vec<u32>]) -> Vec<Range<usize>> {
    let mut at = 0;
    let place = |list: &Vec<u32>| {
        at += list.len();
        at - list.len()..at
    };
    lists.iter().map(place).collect()
}
