//! Distribution of tokens and experts over ranks, and the ranges that are exchanged.

use std::ops::Range;

use einsparse_formats::{Csr, CsrPattern};

use super::super::row_sum::RowSum;
use super::super::{Group, Partition};
use crate::context::Context;
use crate::device::Stream;
use crate::error::{Error, Result};
use crate::nn::MoeOptions;
use crate::registry::Scalar;
use crate::tensor::{Tensor, TensorView};

/// Tokens and experts distributed over ranks.
#[derive(Debug)]
pub(super) struct Deal {
    pub group: Group,
    /// Options of the whole layer.
    pub options: MoeOptions,
    pub tokens: Partition,
    /// Experts of each share. Every rank has the same number of shares.
    pub shares: Partition,
}

impl Deal {
    /// Range of the shares of this rank.
    pub fn mine(&self) -> Range<usize> {
        let (rank, each) = (self.group.rank(), self.shares.ranks() / self.group.size());
        rank * each..(rank + 1) * each
    }

    /// Number of tokens of this rank.
    pub fn own(&self) -> usize {
        self.tokens.range(self.group.rank()).len()
    }

    /// Range of the experts of this rank.
    pub fn experts(&self) -> Range<usize> {
        let mine = self.mine();
        self.shares.range(mine.start).start..self.shares.range(mine.end - 1).end
    }

    /// Options of the part of the layer with the given experts, for `tokens` tokens.
    pub fn part(&self, experts: Range<usize>, tokens: usize) -> MoeOptions {
        MoeOptions {
            tokens,
            experts: experts.len(),
            first: self.options.first + experts.start,
            ..self.options
        }
    }

    /// For both stacks of this rank's matrices: offset of a share's first element, and shape of the share.
    pub fn places(&self, share: usize) -> [(usize, [usize; 3]); 2] {
        let experts = self.shares.range(share);
        let before = experts.start - self.experts().start;
        let shapes = self.part(experts, 0).shapes();
        shapes.map(|shape| (before * shape[1] * shape[2], shape))
    }

    /// Matrices of a share.
    pub fn matrices<'a, T: Scalar>(
        &self,
        share: usize,
        [up, down]: [&'a Tensor<T>; 2],
    ) -> Result<[TensorView<'a, T>; 2]> {
        let [first, second] = self.places(share);
        Ok([up.part(first.0, &first.1)?, down.part(second.0, &second.1)?])
    }

    /// Ranges of elements of this rank's tokens, one per receiving rank: all tokens are sent to every rank.
    pub fn to_all(&self, width: usize) -> Vec<Range<usize>> {
        vec![0..self.own() * width; self.group.size()]
    }

    /// Ranges of elements of each rank's tokens within the tokens of all ranks.
    pub fn in_all(&self, width: usize) -> Vec<Range<usize>> {
        let place = |rank: usize| {
            let own = self.tokens.range(rank);
            own.start * width..own.end * width
        };
        (0..self.group.size()).map(place).collect()
    }

    /// Queues the exchange of results. Rows of all tokens, in the order of own shares, are sent to the ranks that own
    /// the tokens. There they are stored in the order of all shares.
    pub fn back<T: Scalar>(
        &self,
        (from, to): (&Tensor<T>, &mut Tensor<T>),
        stream: &Stream,
    ) -> Result<()> {
        let (width, each) = (from.shape()[1], self.mine().len());
        let [all, own] = [self.options.tokens, self.own()].map(|rows| rows * width);
        let moved = |parts: Vec<Range<usize>>, by: &dyn Fn(usize) -> usize| -> Vec<_> {
            let parts = parts.into_iter().enumerate();
            parts.map(|(rank, part)| part.start + by(rank)..part.end + by(rank)).collect()
        };
        for place in 0..each {
            let sends = moved(self.in_all(width), &|_| place * all);
            let takes = moved(self.to_all(width), &|rank| (rank * each + place) * own);
            self.group.exchange((from, &sends), (&mut *to, &takes), stream)?;
        }
        Ok(())
    }
}

/// Creates the sum of `[shares tokens, n]` over shares, in the order of shares; `None` without tokens.
pub(super) fn share_sum<T: Scalar>(
    context: &Context,
    parts: &Tensor<T>,
    tokens: usize,
) -> Result<Option<RowSum<T>>> {
    if tokens == 0 {
        return Ok(None);
    }
    let (rows, n) = (parts.shape()[0], parts.shape()[1]);
    let shares = rows / tokens;
    // Each token has one row per share.
    let offsets = (0..=tokens).map(|token| (token * shares) as u32).collect();
    let row = |at: usize| (at % shares * tokens + at / shares) as u32;
    let pattern = CsrPattern::new(tokens, rows, offsets, (0..rows).map(row).collect())?;
    let ones = Csr::new(pattern, vec![T::ONE; rows])?;
    let sums = context.zeros(&[tokens, n])?;
    RowSum::new(context, ones, (parts, &sums), false).map(Some)
}

/// Rejects a number of shares that is 0, not a multiple of the number of ranks, or above the number of experts.
pub(super) fn check_shares(shares: usize, ranks: usize, experts: usize) -> Result<()> {
    if shares > 0 && shares.is_multiple_of(ranks) && shares <= experts {
        return Ok(());
    }
    let allowed = format!("a multiple of {ranks} ranks, and 1 to {experts} experts");
    Err(Error::range("shares", shares, allowed))
}
