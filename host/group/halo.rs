//! Rows of other ranks that a sparse pattern names.

use std::ops::Range;
use std::sync::Mutex;

use einsparse_formats::convert::transpose_csr;
use einsparse_formats::{Csr, CsrPattern, Dense, Pattern};

use super::mesh::lock;
use super::row_sum::RowSum;
use super::{Group, Partition, Sharded};
use crate::device::Stream;
use crate::error::{Error, Result};
use crate::nn::Embedding;
use crate::registry::Scalar;
use crate::tensor::Tensor;

/// The rows of a sharded matrix `[rows, n]` that a pattern of this rank names and other ranks own, and their sending.
///
/// They lie beside the own ones, in the order of the whole matrix: those of lower ranks in front of them, those of higher ones
/// behind. [`columns`](Self::columns) gives a pattern whose columns count these rows, so any operation of one GPU works on
/// them: a product ([`ShardedSpmm`](super::ShardedSpmm)), products at places ([`ops::SampledTensor`](crate::ops)), attention of
/// the queries of this rank, messages between atoms.
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
    /// Columns of a chunk.
    width: usize,
    pack: Option<(Embedding<T>, Tensor<i32>)>,
    unpack: [Option<(Embedding<T>, Tensor<i32>)>; 2],
    buffers: Mutex<Buffers<T>>,
    /// Whether there is a way back, and, if anything comes on it: own rows plus what came from each rank, in their order.
    adds: bool,
    back: Option<RowSum<T>>,
}

/// Rows on their way, a chunk of columns behind the other: `[chunks, rows, width]`.
#[derive(Debug)]
struct Buffers<T> {
    sent: Tensor<T>,
    taken: Tensor<T>,
}

/// Columns that a chunk is a multiple of; chunks at most.
const VECTOR: usize = 8;
const MOST_CHUNKS: usize = 4;

impl<T: Scalar> Halo<T> {
    /// Finds what the columns of a pattern of this rank name of a matrix of `n` columns whose rows are dealt so. All ranks call
    /// this.
    ///
    /// # Errors
    /// [`Error::Rank`] if ranks do not agree on partition or `n`; [`Error::Shape`] if the pattern has other columns than the
    /// partition rows; on a GPU [`Error::NoKernel`] for other element types than f32, f16 and bf16.
    pub fn new(group: &Group, pattern: &CsrPattern, rows: &Partition, n: usize) -> Result<Self> {
        Self::in_chunks(group, pattern, rows, n, Some(1))
    }

    /// Sends columns in so many chunks, one by one.
    pub(super) fn in_chunks(
        group: &Group,
        pattern: &CsrPattern,
        rows: &Partition,
        n: usize,
        chunks: Option<usize>,
    ) -> Result<Self> {
        let columns = pattern.shape()[1];
        rows.agree(group, "the partition of columns", columns)?;
        let asked = vec![n as u64, chunks.unwrap_or(0) as u64];
        group.same("columns and chunks of a halo", Ok(asked))?;
        let (rank, size) = (group.rank(), group.size());
        let own = rows.range(rank);
        let mut held = vec![0u64; columns.div_ceil(64)];
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
        let named: Vec<u32> = asked
            .iter()
            .flatten()
            .map(|&row| row - own.start as u32)
            .collect();
        let (sends, takes) = (ranges(&asked), ranges(&taken));
        let [sent, received] = [&sends, &takes].map(|all| all.last().map_or(0, |r| r.end));
        let wanted = chunks.unwrap_or(1);
        // Chunks are of one width, of whole vectors.
        let whole =
            |chunks: &usize| n.is_multiple_of(*chunks) && (n / chunks).is_multiple_of(VECTOR);
        let chunks = (2..=wanted.min(MOST_CHUNKS)).rev().find(whole).unwrap_or(1);
        let made = || {
            let (context, width) = (group.context(), n / chunks);
            let (before, behind) = (takes[rank].start, received - takes[rank].end);
            let index = |rows: Vec<i32>| context.upload_dense(&Dense::new([rows.len()], rows)?);
            let list = |from: usize, rows: Vec<i32>| -> Result<_> {
                let look_up = Embedding::new(context, [from, width], rows.len(), false)?;
                Ok(Some((look_up, index(rows)?)))
            };
            let unpack = |taken: Range<usize>| match taken.is_empty() || chunks == 1 {
                true => Ok(None),
                false => list(received, taken.map(|row| row as i32).collect()),
            };
            Ok(Halo {
                group: group.clone(),
                rows: rows.clone(),
                n,
                pack: match sent {
                    0 => None,
                    _ => list(own.len(), named.iter().map(|&row| row as i32).collect())?,
                },
                unpack: [unpack(0..before)?, unpack(before..before + behind)?],
                buffers: Mutex::new(Buffers {
                    sent: context.zeros(&[sent * n])?,
                    // One chunk comes to where it belongs.
                    taken: context.zeros(&[if chunks == 1 { 0 } else { received * n }])?,
                }),
                held,
                ranks,
                sends,
                takes,
                named,
                width,
                adds: false,
                back: None,
            })
        };
        group.all_ok(made())
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
        let buffers = lock(&self.buffers);
        let from = buffers.sent.part(0, &[sent, self.n])?;
        let local = target.local()?;
        let back = RowSum::new(self.group.context(), ones, (&from, &local), true)?;
        drop(from);
        drop(buffers);
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
        Ok(CsrPattern::new(
            pattern.shape()[0],
            self.held_rows(),
            offsets,
            columns,
        )?)
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

    fn own(&self) -> Range<usize> {
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
        (0..self.chunks()).try_for_each(|chunk| self.exchange_chunk(chunk, x, stream))
    }

    pub(super) fn chunks(&self) -> usize {
        self.n.checked_div(self.width).unwrap_or(1).max(1)
    }

    /// Columns of a chunk.
    pub(super) fn chunk(&self, chunk: usize) -> Range<usize> {
        chunk * self.width..((chunk + 1) * self.width).min(self.n)
    }

    pub(super) fn check(&self, x: &Sharded<Tensor<T>>) -> Result<()> {
        let planned = [self.held_rows(), self.n];
        x.whole
            .check("the sharded tensor", self.group.context(), &planned)?;
        if x.own != self.own() || x.rows != self.rows {
            let reason = "has other rows than the halo: `Halo::tensor` makes one";
            return Err(Error::operand("the sharded tensor", reason));
        }
        Ok(())
    }

    pub(super) fn exchange_chunk(
        &self,
        chunk: usize,
        x: &mut Sharded<Tensor<T>>,
        stream: &Stream,
    ) -> Result<()> {
        self.check(x)?;
        if self.group.size() == 1 {
            return Ok(());
        }
        let (columns, rank, width) = (self.chunk(chunk), self.group.rank(), self.width);
        let mut buffers = lock(&self.buffers);
        let Buffers { sent, taken } = &mut *buffers;
        let [to_send, to_take] = self.sent_and_taken();
        let first = chunk * to_send * width;
        if let Some((pack, rows)) = &self.pack {
            let local = x.local()?;
            let mut packed = sent.part_mut(first, &[to_send, width])?;
            pack.forward(&*local.columns(columns.clone())?, rows, &mut packed, stream)?;
        }
        let elements = |at: usize, width: usize| {
            move |rows: &Range<usize>| at + rows.start * width..at + rows.end * width
        };
        let sends: Vec<_> = self.sends.iter().map(elements(first, width)).collect();
        if self.chunks() == 1 {
            // Where they belong, without a stop.
            let own = x.own.len();
            let place = |(peer, rows): (usize, &Range<usize>)| {
                let behind = if peer > rank { own } else { 0 };
                elements(behind * width, width)(rows)
            };
            let takes: Vec<_> = self.takes.iter().enumerate().map(place).collect();
            return self
                .group
                .exchange((sent, &sends), (&mut x.whole, &takes), stream);
        }
        let first = chunk * to_take * width;
        let takes: Vec<_> = self.takes.iter().map(elements(first, width)).collect();
        self.group
            .exchange((sent, &sends), (&mut *taken, &takes), stream)?;
        let sides = [0..x.own.start, x.own.end..self.held_rows()];
        for (unpack, side) in self.unpack.iter().zip(sides) {
            let Some((unpack, rows)) = unpack else {
                continue;
            };
            let taken = taken.part(first, &[to_take, width])?;
            let mut side = x
                .whole
                .part_mut(side.start * self.n, &[side.len(), self.n])?;
            let mut to = side.columns_mut(columns.clone())?;
            unpack.forward(&taken, rows, &mut to, stream)?;
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
        if self.group.size() == 1 {
            return Ok(());
        }
        let mut buffers = lock(&self.buffers);
        let (rank, own, n) = (self.group.rank(), x.own.len(), self.n);
        let held = self.takes.iter().enumerate().map(|(peer, rows)| {
            let behind = if peer > rank { own } else { 0 };
            (behind + rows.start) * n..(behind + rows.end) * n
        });
        let held: Vec<_> = held.collect();
        let came: Vec<_> = self.sends.iter().map(|r| r.start * n..r.end * n).collect();
        let sent = &mut buffers.sent;
        self.group
            .exchange((&x.whole, &held), (&mut *sent, &came), stream)?;
        let Some(back) = &self.back else {
            return Ok(());
        };
        let came = sent.part(0, &[self.named.len(), n])?;
        let mut local = x.local_mut()?;
        back.run(&came, &mut local, stream)
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
