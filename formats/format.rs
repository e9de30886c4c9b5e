//! Names of formats and their parameters: conversion to text (`bsr:32x32`, `groupcoo:8@1`) and parsing.

use std::fmt;
use std::str::FromStr;

use crate::error::*;
use crate::nm::check_ratio;

/// Storage format. In a request, `group: None` selects the group size with the lowest cost. Patterns report `Some`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// COO: coordinates of every entry.
    Coo,
    /// CSR: compressed sparse rows.
    Csr,
    /// CSC: compressed sparse columns.
    Csc,
    /// BSR: compressed block rows of dense blocks.
    Bsr {
        /// Rows and columns of a block.
        block: (usize, usize),
    },
    /// ELL: every row is padded to the length of the longest row.
    Ell,
    /// GroupCOO: groups of `group` entries that share their coordinate on `axis`.
    GroupCoo {
        /// The grouped axis.
        axis: usize,
        /// Entries per group.
        group: Option<usize>,
    },
    /// Hybrid GroupCOO: groups of entries of one row. Each class of rows has its own group size. The classes are chosen
    /// by exact count.
    HybridGroupCoo,
    /// BlockCOO: coordinates of dense blocks.
    BlockCoo {
        /// Rows and columns of a block.
        block: (usize, usize),
    },
    /// BlockGroupCOO: groups of `group` dense blocks of one block row.
    BlockGroupCoo {
        /// Rows and columns of a block.
        block: (usize, usize),
        /// Blocks per group.
        group: Option<usize>,
    },
    /// Bitmap: one bit per element, by tiles, and the values of the bits that are set.
    Bitmap,
    /// Bytemap: one byte for the position of each value, by tiles and by banks of shared memory.
    Bytemap,
    /// N:M: at most `n` of every `m` neighbors of a row, in slots at fixed offsets. Only 2:4 is supported.
    Nm {
        /// Stored slots per group.
        n: usize,
        /// Columns per group.
        m: usize,
    },
    /// Sliced ELL: rows of similar length in slices of 32, stored column by column, with 16-bit columns.
    SlicedEll,
}

impl Format {
    /// Whether blocks or groups of this format are filled with zeros. If so, a stored zero is not an entry.
    pub fn holds_fill(&self) -> bool {
        matches!(
            self,
            Format::Bsr { .. }
                | Format::BlockCoo { .. }
                | Format::BlockGroupCoo { .. }
                | Format::Nm { .. }
        )
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Format::Coo => f.write_str("coo"),
            Format::Csr => f.write_str("csr"),
            Format::Csc => f.write_str("csc"),
            Format::Ell => f.write_str("ell"),
            Format::HybridGroupCoo => f.write_str("groupcoo:hybrid"),
            Format::Bitmap => f.write_str("bitmap"),
            Format::Bytemap => f.write_str("bytemap"),
            Format::SlicedEll => f.write_str("sell"),
            Format::Bsr { block: (m, k) } => write!(f, "bsr:{m}x{k}"),
            Format::BlockCoo { block: (m, k) } => write!(f, "blockcoo:{m}x{k}"),
            Format::Nm { n, m } => write!(f, "nm:{n}:{m}"),
            Format::GroupCoo { axis, group } => {
                f.write_str("groupcoo")?;
                if let Some(g) = group {
                    write!(f, ":{g}")?;
                }
                if axis != 0 {
                    write!(f, "@{axis}")?;
                }
                Ok(())
            }
            Format::BlockGroupCoo { block: (m, k), group } => {
                write!(f, "blockgroupcoo:{m}x{k}")?;
                match group {
                    Some(g) => write!(f, ":{g}"),
                    None => Ok(()),
                }
            }
        }
    }
}

impl FromStr for Format {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Self> {
        let (body, axis) = match text.split_once('@') {
            Some((body, axis)) => (body, Some(number(text, axis, 0)?)),
            None => (text, None),
        };
        let parts: Vec<&str> = body.split(':').collect();
        let format = match *parts.as_slice() {
            ["coo"] => Format::Coo,
            ["csr"] => Format::Csr,
            ["csc"] => Format::Csc,
            ["ell"] => Format::Ell,
            ["bitmap"] => Format::Bitmap,
            ["bytemap"] => Format::Bytemap,
            ["sell"] => Format::SlicedEll,
            ["bsr", b] => Format::Bsr { block: block(text, b)? },
            ["blockcoo", b] => Format::BlockCoo { block: block(text, b)? },
            ["blockgroupcoo", b] => Format::BlockGroupCoo { block: block(text, b)?, group: None },
            ["blockgroupcoo", b, g] => {
                Format::BlockGroupCoo { block: block(text, b)?, group: Some(number(text, g, 1)?) }
            }
            ["groupcoo"] => Format::GroupCoo { axis: axis.unwrap_or(0), group: None },
            ["groupcoo", "hybrid"] => Format::HybridGroupCoo,
            ["groupcoo", g] => {
                Format::GroupCoo { axis: axis.unwrap_or(0), group: Some(number(text, g, 1)?) }
            }
            ["nm", n, m] => {
                let (n, m) = (number(text, n, 1)?, number(text, m, 1)?);
                check_ratio(n, m)
                    .map_err(|_| refuse(text, "2:4 is the one ratio that is stored"))?;
                Format::Nm { n, m }
            }
            ["nm", ..] => return Err(refuse(text, "wants a ratio, as in nm:2:4")),
            ["bsr" | "blockcoo", ..] | ["blockgroupcoo"] => {
                return Err(refuse(text, "wants a block size, as in bsr:32x32"));
            }
            _ => return Err(refuse(text, FORMS)),
        };
        match (axis, format) {
            (Some(_), Format::GroupCoo { .. }) | (None, _) => Ok(format),
            (Some(_), _) => Err(refuse(text, "only groupcoo takes an axis")),
        }
    }
}

const FORMS: &str = "not a format: coo, csr, csc, ell, sell, bitmap, bytemap, bsr:RxC, blockcoo:RxC, \
    groupcoo[:G][@AXIS], groupcoo:hybrid, blockgroupcoo:RxC[:G] or nm:2:4 wanted";

fn refuse(text: &str, reason: &str) -> FormatError {
    FormatError::Unsupported { what: format!("format `{text}`"), reason: reason.to_owned() }
}

fn number(text: &str, digits: &str, least: usize) -> Result<usize> {
    match digits.parse::<usize>() {
        Ok(n) if n >= least && n <= u32::MAX as usize => Ok(n),
        _ => Err(refuse(text, &format!("`{digits}` is not a whole number from {least}"))),
    }
}

fn block(text: &str, size: &str) -> Result<(usize, usize)> {
    match size.split_once('x') {
        Some((m, k)) => Ok((number(text, m, 1)?, number(text, k, 1)?)),
        None => Err(refuse(text, &format!("`{size}` is not a block size such as 32x32"))),
    }
}
