//! Masks of a known structure, whose entries are never listed.

use super::masks::{heads_of, lengths_of, pairs_of_heads};
use super::{AttentionOptions, HeadMask, Masked, SparseAttention};
use einsparse_formats::allocate;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::families::attention::AttentionExtents;
use crate::families::attention::queries::{Bits, Flags};
use crate::registry::Scalar;

/// Visible keys of each query in closed form. The cost of a plan depends on the tiles of the mask, not on its entries.
/// Queries and keys are counted from 0. [`AttentionOptions::causal`] and [`AttentionOptions::lengths`] hide further
/// keys.
///
/// ```
/// use einsparse::Context;
/// use einsparse::formats::{Dense, f16};
/// use einsparse::ops::{AttentionMask, AttentionOptions, SparseAttention};
/// let ctx = Context::cpu();
/// let options = AttentionOptions { heads: 1, dim: 64, ..AttentionOptions::default() };
/// let attention = SparseAttention::structured(&ctx, [2, 2], &[AttentionMask::Causal], &options)?;
/// let ones = ctx.upload_dense(&Dense::from_fn([1, 2, 64], |_| f16::ONE)?)?;
/// let v = ctx.upload_dense(&Dense::from_fn([1, 2, 64], |i| f16::from_f32([2.0, 4.0][i[1]]))?)?;
/// let mut out = ctx.zeros(&[1, 2, 64])?;
/// attention.forward([&ones, &ones, &v], &mut out, None, &ctx.stream()?)?;
/// assert_eq!(out.to_dense()?.get(&[0, 1, 0]), Some(f16::from_f32(3.0)));
/// # Ok::<(), einsparse::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttentionMask {
    /// Keys up to the query itself.
    Causal,
    /// Keys from `query - before` to `query + after`.
    Window {
        /// Keys before the query.
        before: usize,
        /// Keys after the query.
        after: usize,
    },
    /// Window and tokens with global attention: they are visible to every query, and every key is visible to them
    /// (Longformer, arXiv 2004.05150, section 3.1). Longformer's window of w tokens is w / 2 on either side.
    WindowGlobal {
        /// Keys before the query.
        before: usize,
        /// Keys after the query.
        after: usize,
        /// Tokens with global attention.
        globals: Vec<usize>,
    },
    /// Keys that are visible to every query ("vertical"), and distances at which a key is visible to every query
    /// ("slash": key `query - distance`). Both include only keys up to the query itself (MInference, arXiv 2407.02490,
    /// section 3). They are single columns and diagonals, not rounded to blocks. A column costs as much as the 64
    /// adjacent keys that contain it.
    VerticalSlash {
        /// Keys.
        columns: Vec<usize>,
        /// Distances, 0 for the query itself.
        diagonals: Vec<usize>,
    },
    /// Blocks of 64 queries and 64 keys, by their indices `[query block, key block]`.
    Blocks(Vec<[usize; 2]>),
}

impl AttentionMask {
    /// Returns the flags of the mask for `m` queries and `n` keys, without the keys that the options hide.
    pub(super) fn flags(&self, [m, n]: [usize; 2]) -> Result<Flags> {
        let mut flags = Flags { shape: [m, n], length: n, ..Flags::default() };
        let count = (m + n).saturating_sub(1);
        let window = |before: usize, after: usize| {
            let from = (m.max(1) - 1).saturating_sub(before);
            let end = m.saturating_add(after).min(count);
            Bits::of(count, from..end)
        };
        match self {
            AttentionMask::Causal => {
                flags.full = true;
                flags.causal = Some(0);
            }
            AttentionMask::Window { before, after } => flags.diagonals = window(*before, *after),
            AttentionMask::WindowGlobal { before, after, globals } => {
                below("global tokens", globals, m.min(n))?;
                flags.diagonals = window(*before, *after);
                flags.columns = Bits::of(n, globals.iter().copied());
                flags.rows = Bits::of(m, globals.iter().copied());
            }
            AttentionMask::VerticalSlash { columns, diagonals } => {
                below("columns", columns, n)?;
                below("diagonals", diagonals, m)?;
                flags.columns = Bits::of(n, columns.iter().copied());
                flags.diagonals = Bits::of(count, diagonals.iter().map(|d| m - 1 - d));
                flags.causal = Some(0);
            }
            AttentionMask::Blocks(blocks) => {
                let (down, across) = (m.div_ceil(64), n.div_ceil(64));
                let count = down as u128 * across as u128;
                allocate::terms("blocks of a mask", count, 1, 16 * blocks.len() as u64)?;
                flags.blocks = allocate::filled("blocks of a mask", down * across, false)?;
                let axis = |axis: usize| blocks.iter().map(|block| block[axis]).collect::<Vec<_>>();
                below("rows of blocks", &axis(0), down)?;
                below("columns of blocks", &axis(1), across)?;
                for &[row, column] in blocks {
                    flags.blocks[row * across + column] = true;
                }
            }
        }
        Ok(flags)
    }
}

/// Validates that all numbers are below an extent.
fn below(what: &str, numbers: &[usize], extent: usize) -> Result<()> {
    match numbers.iter().position(|&number| number >= extent) {
        None => Ok(()),
        Some(at) => Err(Error::index(what, (at, numbers[at] as u64), "the mask", extent)),
    }
}

/// Returns the extents, the distinct masks of all heads, and the index of the mask of each head.
pub(super) fn flags_of_heads(
    [m, n]: [usize; 2],
    masks: &[AttentionMask],
    options: &AttentionOptions,
) -> Result<(AttentionExtents, Vec<HeadMask>, Vec<usize>)> {
    let (heads, key_heads) = heads_of(options, masks.len())?;
    if m.saturating_add(n) > 1 << 30 {
        return Err(Error::Overflow {
            what: "queries and keys of a mask".into(),
            value: m as u128 + n as u128,
            limit: 1 << 30,
        });
    }
    let extents = AttentionExtents { heads, key_heads, m, n, d: options.dim };
    let (pairs, of_head) = pairs_of_heads(lengths_of(options, n)?, masks.len());
    let held = |(mask, length): (usize, usize)| {
        let mut flags = masks[mask].flags([m, n])?;
        flags.length = length;
        flags.causal = match (flags.causal, options.causal) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        Ok(HeadMask::Flags(flags))
    };
    let all = pairs.into_iter().map(held).collect::<Result<_>>()?;
    Ok((extents, all, of_head))
}

impl<T: Scalar> SparseAttention<T> {
    /// Plans attention of `m` queries and `n` keys at the entries of masks of a known structure: one mask for all
    /// heads, or one per head.
    ///
    /// ```
    /// use einsparse::Context;
    /// use einsparse::formats::{Dense, f16};
    /// use einsparse::ops::{AttentionMask, AttentionOptions, SparseAttention};
    /// let ctx = Context::cpu();
    /// let options = AttentionOptions { heads: 1, dim: 64, ..AttentionOptions::default() };
    /// let window = AttentionMask::Window { before: 1, after: 0 };
    /// let attention = SparseAttention::structured(&ctx, [3, 3], &[window], &options)?;
    /// let ones = ctx.upload_dense(&Dense::from_fn([1, 3, 64], |_| f16::ONE)?)?;
    /// let v = ctx.upload_dense(&Dense::from_fn([1, 3, 64], |i| f16::from_f32([2.0, 4.0, 8.0][i[1]]))?)?;
    /// let mut out = ctx.zeros(&[1, 3, 64])?;
    /// attention.forward([&ones, &ones, &v], &mut out, None, &ctx.stream()?)?;
    /// assert_eq!(out.to_dense()?.get(&[0, 2, 0]), Some(f16::from_f32(6.0)));
    /// # Ok::<(), einsparse::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidIndex`] for masks with an index out of range; [`Error::OutOfRange`] for inconsistent options;
    /// [`Error::NoKernel`] and [`Error::Overflow`] as for [`SparseAttention::new`].
    pub fn structured(
        context: &Context,
        shape: [usize; 2],
        masks: &[AttentionMask],
        options: &AttentionOptions,
    ) -> Result<Self> {
        Self::planned(context, Masked::structured(shape, masks, options)?, None)
    }
}
