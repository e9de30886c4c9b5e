//! Which tokens and experts are whose, and what of them is sent.

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

/// Tokens and experts dealt to ranks.
#[derive(Debug)]
pub(super) struct Deal {
    pub group: Group,
    /// Of the whole layer.
    pub options: MoeOptions,
    pub tokens: Partition,
    /// Experts of each share. A rank has as many shares as any other one.
    pub shares: Partition,
}

impl Deal {
    /// Shares of this rank.
    pub fn mine(&self) -> Range<usize> {
        let (rank, each) = (self.group.rank(), self.shares.ranks() / self.group.size());
        rank * each..(rank + 1) * each
    }

    /// How many tokens this rank has.
    pub fn own(&self) -> usize {
        self.tokens.range(self.group.rank()).len()
    }

    /// Experts of this rank.
    pub fn experts(&self) -> Range<usize> {
        let mine = self.mine();
        self.shares.range(mine.start).start..self.shares.range(mine.end - 1).end
    }

    /// Extents of the part of the layer that has these experts, for so many tokens.
    pub fn part(&self, experts: Range<usize>, tokens: usize) -> MoeOptions {
        MoeOptions {
            tokens,
            experts: experts.len(),
            first: self.options.first + experts.start,
            ..self.options
        }
    }

    /// Of both stacks of this rank's matrices, the first element of a share's and their shape.
    pub fn places(&self, share: usize) -> [(usize, [usize; 3]); 2] {
        let experts = self.shares.range(share);
        let before = experts.start - self.experts().start;
        let shapes = self.part(experts, 0).shapes();
        shapes.map(|shape| (before * shape[1] * shape[2], shape))
    }

    /// A share's matrices.
    pub fn matrices<'a, T: Scalar>(
        &self,
        share: usize,
        (up, down): (&'a Tensor<T>, &'a Tensor<T>),
    ) -> Result<[TensorView<'a, T>; 2]> {
        let [first, second] = self.places(share);
        Ok([up.part(first.0, &first.1)?, down.part(second.0, &second.1)?])
    }

    /// Elements of rows of this rank's tokens: what every rank gets.
    pub fn to_all(&self, width: usize) -> Vec<Range<usize>> {
        vec![0..self.own() * width; self.group.size()]
    }

    /// Elements of rows of all tokens: where those of each rank lie.
    pub fn in_all(&self, width: usize) -> Vec<Range<usize>> {
        let place = |rank: usize| {
            let own = self.tokens.range(rank);
            own.start * width..own.end * width
        };
        (0..self.group.size()).map(place).collect()
    }

    /// Queues the way back: rows of all tokens, by own share, to the ranks of the tokens, where they lie by share.
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

/// Adds rows of tokens, `[shares tokens, n]`, over the shares, in their order; none without tokens.
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
    // For each token its row of each share.
    let offsets = (0..=tokens).map(|token| (token * shares) as u32).collect();
    let row = |at: usize| (at % shares * tokens + at / shares) as u32;
    let pattern = CsrPattern::new(tokens, rows, offsets, (0..rows).map(row).collect())?;
    let ones = Csr::new(pattern, vec![T::ONE; rows])?;
    let sums = context.zeros(&[tokens, n])?;
    RowSum::new(context, ones, (parts, &sums), false).map(Some)
}

/// Refuses shares that ranks cannot have the same number of, or that some have no experts of.
pub(super) fn check_shares(shares: usize, ranks: usize, experts: usize) -> Result<()> {
    if shares > 0 && shares.is_multiple_of(ranks) && shares <= experts {
        return Ok(());
    }
    let reason = format!("are {shares}, of {experts} experts on {ranks} ranks");
    Err(Error::operand("shares", reason))
}
