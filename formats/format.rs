//! The name of a format with its parameters, as text (`bsr:32x32`, `groupcoo:8@1`) and back.

use std::fmt;
use std::str::FromStr;

use crate::FormatError;
use crate::nm::check_ratio;

/// A storage format. `group: None` asks for the group size with the least cost; patterns report `Some`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Coordinates of every entry.
    Coo,
    /// Compressed sparse rows.
    Csr,
    /// Compressed sparse columns.
    Csc,
    /// Compressed block rows of dense blocks.
    Bsr {
        /// Rows and columns of a block.
        block: (usize, usize),
    },
    /// Every row padded to the longest.
    Ell,
    /// Groups of `group` entries that share their coordinate on `axis`.
    GroupCoo {
        /// The grouped axis.
        axis: usize,
        /// Entries in a group.
        group: Option<usize>,
    },
    /// Groups of entries of a row, of one size for each class of rows. The classes are chosen by exact count.
    HybridGroupCoo,
    /// Coordinates of dense blocks.
    BlockCoo {
        /// Rows and columns of a block.
        block: (usize, usize),
    },
    /// Groups of `group` dense blocks of one block row.
    BlockGroupCoo {
        /// Rows and columns of a block.
        block: (usize, usize),
        /// Blocks in a group.
        group: Option<usize>,
    },
    /// A bit for each place, by tiles, and the values of the bits that are set.
    Bitmap,
    /// A byte for the place of each value, by tiles and by banks of shared memory.
    Bytemap,
    /// At most `n` of every `m` neighbours of a row, at fixed places in memory. 2 of 4 is the one ratio that is stored.
    Nm {
        /// Stored slots of a group.
        n: usize,
        /// Columns of a group.
        m: usize,
    },
    /// Rows of about the same length in slices of 32, stored column by column, with 16-bit columns.
    SlicedEll,
}

impl Format {
    /// Whether zeros fill the blocks or groups of this format: a stored zero is not an entry then.
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

    fn from_str(text: &str) -> Result<Self, FormatError> {
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

fn number(text: &str, digits: &str, least: usize) -> Result<usize, FormatError> {
    match digits.parse::<usize>() {
        Ok(n) if n >= least && n <= u32::MAX as usize => Ok(n),
        _ => Err(refuse(text, &format!("`{digits}` is not a whole number from {least}"))),
    }
}

fn block(text: &str, size: &str) -> Result<(usize, usize), FormatError> {
    match size.split_once('x') {
        Some((m, k)) => Ok((number(text, m, 1)?, number(text, k, 1)?)),
        None => Err(refuse(text, &format!("`{size}` is not a block size such as 32x32"))),
    }
}
