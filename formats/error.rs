//! The one error type of this crate: every variant names the place and the numbers.

/// What is wrong with an index array, a size, a file or a request.
#[non_exhaustive]
#[derive(Debug, thiserror::Error, Clone, PartialEq)]
pub enum FormatError {
    /// An index outside its bound, or a padding slot where an entry must stand (value 4294967295).
    #[error("{array}[{position}] = {value} must be below {bound}")]
    InvalidIndex {
        /// The array.
        array: &'static str,
        /// Position in the array.
        position: usize,
        /// The value found there.
        value: u64,
        /// The first value that is too large.
        bound: u64,
    },
    /// Two neighbours that do not ascend, or an entry given twice.
    #[error("{array}[{position}] = {value} after {previous}: entries must ascend, each once")]
    Order {
        /// The array.
        array: &'static str,
        /// Position of the later one.
        position: usize,
        /// The earlier value.
        previous: u64,
        /// The later value.
        value: u64,
    },
    /// An array of the wrong length.
    #[error("{array} has {found} elements, {expected} wanted")]
    Length {
        /// The array.
        array: &'static str,
        /// Its length.
        found: usize,
        /// The length it must have.
        expected: usize,
    },
    /// A size that does not fit its index type.
    #[error("{what} is {value}, over the limit of {limit}")]
    Overflow {
        /// What was counted.
        what: &'static str,
        /// The count.
        value: u128,
        /// The largest that fits.
        limit: u128,
    },
    /// The machine has no memory for an array.
    #[error("no memory for {bytes} bytes of {what}")]
    Memory {
        /// The array.
        what: &'static str,
        /// Its size.
        bytes: u128,
    },
    /// Arrays whose length follows an extent take more memory than is allowed for the tensor
    /// ([`allocate::limits`](crate::allocate::limits)).
    #[error(
        "arrays for {count} {what} take {bytes} bytes, over the limit of {limit} for a tensor of {held} bytes; \
         `allocate::set_limits`, `--memory` or EINSPARSE_MEMORY=BYTES raises it"
    )]
    Limit {
        /// Rows, columns, tiles, slots or terms.
        what: &'static str,
        /// Their number.
        count: u128,
        /// Bytes of the arrays.
        bytes: u128,
        /// Bytes of the tensor.
        held: u64,
        /// The most bytes that the arrays may take.
        limit: u64,
    },
    /// A shape, an axis, a block or a group size that makes no sense here.
    #[error("{what} is {found}, {expected} wanted")]
    Shape {
        /// Which extent or rank.
        what: &'static str,
        /// What was given.
        found: String,
        /// What is possible.
        expected: String,
    },
    /// A group of neighbours with more non-zeros than an N:M format stores.
    #[error(
        "row {row}, group {group} (columns {} to {}) holds {found} non-zeros, {kept} are kept",
        columns.0, columns.1
    )]
    Group {
        /// The row.
        row: usize,
        /// The group, counted from 0 in its row.
        group: usize,
        /// First and last column of the group.
        columns: (usize, usize),
        /// Non-zeros in it.
        found: usize,
        /// The most there may be.
        kept: usize,
    },
    /// Something no format or reader here does.
    #[error("{what}: {reason}")]
    Unsupported {
        /// What was asked for.
        what: String,
        /// Why it cannot be had.
        reason: String,
    },
    /// A file that cannot be read or written.
    #[error("{path}{}{}: {reason}",
        line.map(|l| format!(":{l}")).unwrap_or_default(),
        member.as_ref().map(|m| format!(" ({m})")).unwrap_or_default())]
    Io {
        /// The file.
        path: String,
        /// Line, counted from 1.
        line: Option<u64>,
        /// Member of an archive.
        member: Option<String>,
        /// Why.
        reason: String,
    },
}
