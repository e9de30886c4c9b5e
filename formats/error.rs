//! Error type of this crate. Every variant states the location and the numbers.

/// Error in an index array, a size, a file or a request.
#[non_exhaustive]
#[derive(Debug, thiserror::Error, Clone, PartialEq)]
pub enum FormatError {
    /// An index is out of bounds, or a padding slot (value 4294967295) is at the position of an entry.
    #[error("{array}[{position}] = {value} must be below {bound}")]
    InvalidIndex {
        /// Name of the array.
        array: &'static str,
        /// Position in the array.
        position: usize,
        /// Value at this position.
        value: u64,
        /// Exclusive upper bound of the value.
        bound: u64,
    },
    /// Two neighbors do not ascend, or an entry occurs twice.
    #[error("{array}[{position}] = {value} after {previous}: entries must ascend, each once")]
    Order {
        /// Name of the array.
        array: &'static str,
        /// Position of the later value.
        position: usize,
        /// The earlier value.
        previous: u64,
        /// The later value.
        value: u64,
    },
    /// An array has the wrong length.
    #[error("{array} has {found} elements, {expected} wanted")]
    Length {
        /// Name of the array.
        array: &'static str,
        /// Length of the array.
        found: usize,
        /// Required length.
        expected: usize,
    },
    /// A size does not fit its index type.
    #[error("{what} is {value}, over the limit of {limit}")]
    Overflow {
        /// Name of the size.
        what: &'static str,
        /// The size.
        value: u128,
        /// Largest size that fits.
        limit: u128,
    },
    /// The allocation of an array failed.
    #[error("no memory for {bytes} bytes of {what}")]
    Memory {
        /// Name of the array.
        what: &'static str,
        /// Size of the array in bytes.
        bytes: u128,
    },
    /// Arrays whose length follows an extent require more memory than is allowed for the tensor
    /// ([`allocate::limits`](crate::allocate::limits)).
    #[error(
        "arrays for {count} {what} take {bytes} bytes, over the limit of {limit} for a tensor of {held} bytes; \
         `allocate::set_limits`, `--memory` or EINSPARSE_MEMORY=BYTES raises it"
    )]
    Limit {
        /// Counted elements: rows, columns, tiles, slots or terms.
        what: &'static str,
        /// Number of these elements.
        count: u128,
        /// Bytes of the arrays.
        bytes: u128,
        /// Bytes of the tensor.
        held: u64,
        /// Maximum number of bytes of the arrays.
        limit: u64,
    },
    /// A shape, an axis, a block or a group size is invalid here.
    #[error("{what} is {found}, {expected} wanted")]
    Shape {
        /// Name of the extent or rank.
        what: &'static str,
        /// The given value.
        found: String,
        /// The accepted values.
        expected: String,
    },
    /// A group of neighbors has more nonzeros than an N:M format stores.
    #[error(
        "row {row}, group {group} (columns {} to {}) holds {found} non-zeros, {kept} are kept",
        columns.0, columns.1
    )]
    Group {
        /// Row of the group.
        row: usize,
        /// Index of the group in its row, from 0.
        group: usize,
        /// First and last column of the group.
        columns: (usize, usize),
        /// Nonzeros in the group.
        found: usize,
        /// Maximum number of nonzeros.
        kept: usize,
    },
    /// No format or reader supports the request.
    #[error("{what}: {reason}")]
    Unsupported {
        /// The request.
        what: String,
        /// Reason why the request is not supported.
        reason: String,
    },
    /// A file cannot be read or written.
    #[error("{path}{}{}: {reason}",
        line.map(|l| format!(":{l}")).unwrap_or_default(),
        member.as_ref().map(|m| format!(" ({m})")).unwrap_or_default())]
    Io {
        /// Path of the file.
        path: String,
        /// Line, counted from 1.
        line: Option<u64>,
        /// Member of an archive.
        member: Option<String>,
        /// Kind of the failure; `InvalidData` for a file of the wrong content.
        kind: std::io::ErrorKind,
        /// Reason of the error.
        reason: String,
    },
}

/// Result of a function of this crate.
pub type Result<T, E = FormatError> = std::result::Result<T, E>;
