//! Plan of an attention: extents, masks with their hidden keys, and the kernel.

use std::sync::Arc;

use einsparse_kernels::families::DecodeParams;
use einsparse_kernels::table::{Row, rows_of};

use super::AttentionOptions;
use einsparse_formats::allocate;

use crate::context::Context;
use crate::error::{Error, Refusal, Result, elements};
use crate::families::attention::AttentionExtents;
use crate::machine::Machine;
use crate::registry::{Operation, Scalar, block_of, kernels};
use crate::tensor::SparseTensor;
use crate::worklist::Runs;

/// Given mask, and the keys that are hidden from it.
#[derive(Debug)]
pub(super) struct OwnMask {
    pub runs: Arc<Runs>,
    pub columns: Arc<Vec<u32>>,
    pub block: (usize, usize),
    pub causal: Option<i64>,
    pub length: usize,
}

/// Validates that all masks belong to this context.
pub(super) fn check_places<T: Scalar>(context: &Context, masks: &[&SparseTensor<T>]) -> Result<()> {
    for mask in masks {
        if !context.holds(mask.device().map(|arrays| &arrays.device)) {
            return Err(Error::elsewhere("mask"));
        }
    }
    Ok(())
}

/// Returns the heads of queries and of keys, and validates them for `masks` masks.
pub(super) fn heads_of(options: &AttentionOptions, masks: usize) -> Result<(usize, usize)> {
    let heads = options.heads;
    let key_heads = options.key_heads.unwrap_or(heads);
    if masks == 0 || (masks != 1 && masks != heads) {
        let allowed = format!("1 for all heads, or {heads}: one for each");
        return Err(Error::range("masks", masks, allowed));
    }
    if heads != key_heads && (heads == 0 || key_heads == 0 || !heads.is_multiple_of(key_heads)) {
        return Err(Error::range("key_heads", key_heads, format!("a divisor of {heads} heads")));
    }
    elements("heads", &[heads, options.dim])?;
    elements("key_heads", &[key_heads, options.dim])?;
    Ok((heads, key_heads))
}

pub(super) fn extents<T: Scalar>(
    masks: &[&SparseTensor<T>],
    options: &AttentionOptions,
) -> Result<AttentionExtents> {
    let (heads, key_heads) = heads_of(options, masks.len())?;
    let shape = masks[0].shape();
    if let Some(other) = masks.iter().find(|mask| mask.shape() != shape) {
        return Err(Error::Shape {
            index: "masks".into(),
            left: format!("one is {shape:?}"),
            right: format!("another {:?}", other.shape()),
        });
    }
    let &[m, n] = shape else {
        let found = format!("shape {shape:?}");
        return Err(Error::shape("mask", found, "a matrix of queries and keys is expected"));
    };
    Ok(AttentionExtents { heads, key_heads, m, n, d: options.dim })
}

/// Returns the number of visible keys of each head.
pub(super) fn lengths_of(options: &AttentionOptions, n: usize) -> Result<Vec<usize>> {
    let heads = options.heads;
    allocate::extent("heads", heads as u128, 8, 0)?;
    let Some(lengths) = &options.lengths else {
        return Ok(allocate::filled("lengths of heads", heads, n)?);
    };
    if lengths.is_empty() || !heads.is_multiple_of(lengths.len()) {
        let allowed = format!("a number of lengths that divides {heads} heads");
        return Err(Error::range("lengths", lengths.len(), allowed));
    }
    let each = heads / lengths.len();
    Ok((0..heads).map(|head| lengths[head / each.max(1)].min(n)).collect())
}

/// Returns the distinct pairs of mask and length that heads have, and the index of the pair of each head. Heads cycle
/// through the masks.
pub(super) fn pairs_of_heads(
    lengths: Vec<usize>,
    masks: usize,
) -> (Vec<(usize, usize)>, Vec<usize>) {
    let mut pairs: Vec<(usize, usize)> = Vec::new();
    let heads = lengths.into_iter().enumerate();
    let of_head = heads.map(|(head, length)| {
        let own = (head % masks, length);
        let known = pairs.iter().position(|&pair| pair == own);
        known.unwrap_or_else(|| {
            pairs.push(own);
            pairs.len() - 1
        })
    });
    let of_head = of_head.collect();
    (pairs, of_head)
}

/// Returns each mask with each length that some head combines with it, and the index of the result for each head.
pub(super) fn hidden<T: Scalar>(
    masks: &[&SparseTensor<T>],
    options: &AttentionOptions,
    extents: AttentionExtents,
) -> Result<(Vec<OwnMask>, Vec<usize>)> {
    let lengths = lengths_of(options, extents.n)?;
    let mut given = Vec::new();
    for mask in masks {
        let Some((runs, columns)) = mask.row_order() else {
            return Err(Error::format("mask", "a format in row order", mask.format()));
        };
        given.push((Arc::clone(runs), Arc::new(columns.to_vec()), block_of(&mask.format())));
    }
    let (pairs, of_head) = pairs_of_heads(lengths, given.len());
    let own = |(mask, length): (usize, usize)| {
        let (runs, columns, block) = &given[mask];
        OwnMask {
            runs: Arc::clone(runs),
            columns: Arc::clone(columns),
            block: *block,
            causal: options.causal,
            length,
        }
    };
    Ok((pairs.into_iter().map(own).collect(), of_head))
}

/// Selects the kernel for an element type and `dim` elements per query.
#[doc(hidden)]
pub fn choose<T: Scalar>(
    machine: &Machine,
    dim: usize,
    variant: Option<&str>,
) -> Result<&'static Row> {
    let own = |row: &&Row| row.operation == Operation::Attention;
    let what = "attention at the entries of a mask";
    fitting::<T>(machine, kernels().iter().filter(own), what, dim, variant)
}

/// Selects the kernel of attention over a cache.
pub(super) fn choose_cached<T: Scalar>(machine: &Machine, dim: usize) -> Result<&'static Row> {
    let what = "attention over a cache";
    fitting::<T>(machine, rows_of::<DecodeParams>(), what, dim, None)
}

/// Returns the first row that supports the problem and this GPU.
fn fitting<T: Scalar>(
    machine: &Machine,
    rows: impl Iterator<Item = &'static Row> + Clone,
    what: &str,
    dim: usize,
    variant: Option<&str>,
) -> Result<&'static Row> {
    let fault = |row: &Row| {
        if row.dtype != T::DTYPE {
            Some(format!("is for {}, not {}", row.dtype.name(), T::NAME))
        } else if row.columns as usize != dim {
            Some(format!("is for queries of {}, not {dim}", row.columns))
        } else if variant.is_some_and(|name| name != row.name) {
            Some("is not the one asked for".into())
        } else {
            machine.lacks(row)
        }
    };
    let tried = rows.clone().filter_map(|row| Some(Refusal::of(row.name, fault(row)?)));
    rows.clone().find(|row| fault(row).is_none()).ok_or_else(|| Error::no_kernel(what, tried))
}
