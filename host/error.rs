//! The error type of the library.

use std::fmt::Display;
use std::io;

use einsparse_formats::{AnyPattern, FormatError};

/// A kernel (or executor) that was a candidate for an indirect Einsum, and the reason for its refusal. Users see
/// refusals as pairs of strings, name and reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Name of the variant.
    pub name: String,
    /// Reason for the refusal.
    pub reason: String,
}

impl Refusal {
    pub(crate) fn of(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Refusal { name: name.into(), reason: reason.into() }
    }
}

impl From<Refusal> for (String, String) {
    fn from(refusal: Refusal) -> Self {
        (refusal.name, refusal.reason)
    }
}

/// Errors of user data or of the machine.
///
/// ```
/// use einsparse::{Context, Error};
/// let ctx = Context::cpu();
/// let a = ctx.zeros::<f32>(&[2, 3])?;
/// let error = ctx.plan("C[m,n] = A[m,k] * B[k,n]").operand("A", &a).operand("B", &a).build().unwrap_err();
/// assert!(matches!(&error, Error::Shape { index, .. } if index == "k"), "{error}");
/// # Ok::<(), einsparse::Error>(())
/// ```
#[non_exhaustive]
#[derive(Debug, thiserror::Error, Clone, PartialEq)]
pub enum Error {
    /// The expression does not follow the grammar.
    #[error("{expression}\n{caret}\nexpected {expected}, found {found}", caret = caret(.expression, *.at))]
    Parse {
        /// The expression as given.
        expression: String,
        /// Byte offset of the error in the expression.
        at: usize,
        /// Text that the grammar expects at that offset.
        expected: String,
        /// Text found at that offset.
        found: String,
    },
    /// Two extents of one index, or two ranks, differ.
    #[error("index `{index}`: {left} but {right}")]
    Shape {
        /// The index name (or the operand, for a rank).
        index: String,
        /// First extent, with the operand that has it.
        left: String,
        /// Second extent, with the operand that has it.
        right: String,
    },
    /// A value in an index array is out of bounds.
    #[error("{array}[{position}] = {value} is past {of}, which has {bound}")]
    InvalidIndex {
        /// The array.
        array: String,
        /// Position in the array.
        position: usize,
        /// The value found.
        value: u64,
        /// The axis that it indexes.
        of: String,
        /// Extent of the axis: the smallest value that is too large.
        bound: u64,
    },
    /// No kernel supports this indirect Einsum.
    #[error("no kernel for {indirect}{}", refusals(.tried))]
    NoKernel {
        /// The indirect Einsum, in the notation of Insum.
        indirect: String,
        /// Name of each candidate, and the reason for its refusal.
        tried: Vec<(String, String)>,
    },
    /// A size does not fit the index type or the address space.
    #[error("{what} is {value}, over the limit of {limit}")]
    Overflow {
        /// Counted quantity.
        what: String,
        /// Value of the quantity.
        value: u128,
        /// Largest supported value.
        limit: u128,
    },
    /// Device memory is exhausted.
    #[error("out of device memory: {wanted} bytes wanted, {free} free")]
    OutOfMemory {
        /// Bytes requested.
        wanted: u64,
        /// Bytes free at the time of the request.
        free: u64,
    },
    /// The CUDA driver returned an error, or a step that requires a GPU failed.
    #[error("CUDA: {call}: {reason}")]
    Cuda {
        /// Driver call or step.
        call: String,
        /// Result code of the driver (`CUresult`); `None` if no driver call failed.
        code: Option<u32>,
        /// Error message of the driver, or the reason.
        reason: String,
    },
    /// A rank of a [group](crate::group) has exited, does not respond, or runs another operation than the others.
    #[error("rank {rank}: {reason}")]
    Rank {
        /// Rank that caused the error, as far as it can be determined.
        rank: usize,
        /// Description of the failure.
        reason: String,
    },
    /// A file could not be read or written.
    #[error("{path}{}: {reason}", line.map(|l| format!(":{l}")).unwrap_or_default())]
    Io {
        /// The file.
        path: String,
        /// Line, counted from 1.
        line: Option<u64>,
        /// Kind of the failure.
        kind: io::ErrorKind,
        /// Reason.
        reason: String,
    },
    /// An operand that is read was not given.
    #[error("operand `{name}`: was not given{}", after("; ", .reason))]
    MissingOperand {
        /// The operand's name.
        name: String,
        /// What reads the operand; may be empty.
        reason: String,
    },
    /// An operand was given that the expression does not name.
    #[error("operand `{name}`: is given, but `{expression}` does not name it")]
    UnknownOperand {
        /// The operand's name.
        name: String,
        /// The expression.
        expression: String,
    },
    /// An operand is of another kind than expected: a number or a dense, sparse or index array.
    #[error("operand `{name}`: {expected} expected, found {found}")]
    OperandKind {
        /// The operand's name.
        name: String,
        /// Expected kind, with an article.
        expected: String,
        /// Kind that was given, with an article.
        found: String,
    },
    /// The elements of an operand have the wrong type.
    #[error("operand `{name}`: elements must be {expected}, found {found}")]
    ElementType {
        /// The operand's name.
        name: String,
        /// Supported types, such as `f16 or bf16`.
        expected: String,
        /// Type that was given.
        found: String,
    },
    /// A sparse operand is stored in a format that the operation does not support.
    #[error("operand `{name}`: is stored as {found}, expected {expected}")]
    StorageFormat {
        /// The operand's name.
        name: String,
        /// Supported formats.
        expected: String,
        /// Format that was given.
        found: String,
    },
    /// An address or a stride is not a multiple of the number of bytes that a kernel requires.
    #[error(
        "operand `{name}`: {} must be a multiple of {required} bytes{}",
        quantity(.part, *.found),
        after("; ", .fix)
    )]
    Alignment {
        /// The operand's name.
        name: String,
        /// Misaligned quantity: `address`, `row stride` or `head stride`.
        part: String,
        /// The address, or the stride in bytes.
        found: u64,
        /// Number of bytes of which it must be a multiple.
        required: u64,
        /// How to run without this alignment; may be empty.
        fix: String,
    },
    /// Rows of an operand are another number of elements apart than the operation supports.
    #[error("operand `{name}`: row stride is {found} elements, expected {expected}")]
    RowStride {
        /// The operand's name.
        name: String,
        /// Supported row strides, in elements.
        expected: String,
        /// Row stride that was given, in elements.
        found: usize,
    },
    /// An option, an extent or another number is outside of its allowed range.
    #[error("`{name}` must be {allowed}, got {value}")]
    OutOfRange {
        /// Name of the option or number.
        name: String,
        /// Value that was given.
        value: String,
        /// Allowed values, such as `>= 0`.
        allowed: String,
    },
    /// An operand or a stream belongs to another context, GPU or memory than the plan or operator.
    #[error("operand `{name}`: is in {found}, expected {expected}")]
    OtherContext {
        /// Name of the operand, or `stream`.
        name: String,
        /// Expected context or memory.
        expected: String,
        /// Context or memory of the operand.
        found: String,
    },
    /// The pattern or the format of a sparse operand differs from the planned one.
    #[error("operand `{name}`: has another pattern than planned{}", differs(.planned, .found))]
    OtherPattern {
        /// The operand's name.
        name: String,
        /// Format, shape and number of slots as planned.
        planned: String,
        /// Format, shape and number of slots of the operand.
        found: String,
    },
    /// An operand is invalid for a reason that no other variant describes.
    #[error("operand `{name}`: {reason}")]
    Operand {
        /// The operand's name.
        name: String,
        /// Reason.
        reason: String,
    },
    /// Error of the formats crate.
    #[error(transparent)]
    Format(#[from] FormatError),
}

impl Error {
    /// Creates [`Error::NoKernel`] from the refusals of the candidates.
    pub(crate) fn no_kernel(
        indirect: impl Into<String>,
        tried: impl IntoIterator<Item = Refusal>,
    ) -> Self {
        Error::NoKernel {
            indirect: indirect.into(),
            tried: tried.into_iter().map(Into::into).collect(),
        }
    }

    /// Creates an error of operand `name`.
    pub(crate) fn operand(name: impl AsRef<str>, reason: impl Into<String>) -> Self {
        Error::Operand { name: name.as_ref().to_owned(), reason: reason.into() }
    }

    /// Adds the operand's name to an error of the formats crate.
    pub(crate) fn of_operand(self, name: &str) -> Self {
        match self {
            Error::Format(error) => Self::operand(name, error.to_string()),
            other => other,
        }
    }

    /// Error of two shapes or extents that differ.
    pub(crate) fn shape(
        index: impl Into<String>,
        left: impl Into<String>,
        right: impl Into<String>,
    ) -> Self {
        Error::Shape { index: index.into(), left: left.into(), right: right.into() }
    }

    /// Error of an operand that was not given.
    pub(crate) fn missing(name: impl AsRef<str>) -> Self {
        Error::MissingOperand { name: name.as_ref().to_owned(), reason: String::new() }
    }

    /// Error of an operand that was not given, with the reason why it is required.
    pub(crate) fn missing_for(name: impl AsRef<str>, reason: impl Into<String>) -> Self {
        Error::MissingOperand { name: name.as_ref().to_owned(), reason: reason.into() }
    }

    /// Error of an operand that was not given, with the part of the expression that reads it.
    pub(crate) fn missing_in(name: impl AsRef<str>, reader: impl Display) -> Self {
        Self::missing_for(name, format!("`{reader}` reads it"))
    }

    /// Error of an operand whose raw address is 0 although it is read.
    pub(crate) fn at_zero(name: impl AsRef<str>) -> Self {
        Self::missing_for(name, "it is read, and its address is 0")
    }

    /// Error of an index past the extent of the axis that it indexes.
    pub(crate) fn index(
        array: impl Into<String>,
        (position, value): (usize, u64),
        of: impl Into<String>,
        bound: usize,
    ) -> Self {
        let (array, of, bound) = (array.into(), of.into(), bound as u64);
        Error::InvalidIndex { array, position, value, of, bound }
    }

    /// Error of an operand that `expression` does not name.
    pub(crate) fn unknown(name: impl AsRef<str>, expression: impl Display) -> Self {
        Error::UnknownOperand { name: name.as_ref().to_owned(), expression: expression.to_string() }
    }

    /// Error of an operand of another kind. Both kinds have an article.
    pub(crate) fn kind(name: impl AsRef<str>, expected: impl Display, found: impl Display) -> Self {
        Error::OperandKind {
            name: name.as_ref().to_owned(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// Error of elements of an unsupported type.
    pub(crate) fn dtype(
        name: impl AsRef<str>,
        expected: impl Display,
        found: impl Display,
    ) -> Self {
        Error::ElementType {
            name: name.as_ref().to_owned(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// Error of a sparse operand in an unsupported format.
    pub(crate) fn format(
        name: impl AsRef<str>,
        expected: impl Display,
        found: impl Display,
    ) -> Self {
        Error::StorageFormat {
            name: name.as_ref().to_owned(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// Error of a tensor whose format has no coordinates that can be walked.
    pub(crate) fn not_walked(name: &str, found: impl Display) -> Self {
        Self::format(name, "coo, group-coo, csr or csc", found)
    }

    /// Error of an address or a stride in bytes that is not a multiple of `required` bytes.
    pub(crate) fn alignment(
        name: impl AsRef<str>,
        part: &str,
        found: u64,
        required: usize,
    ) -> Self {
        Error::Alignment {
            name: name.as_ref().to_owned(),
            part: part.to_owned(),
            found,
            required: required as u64,
            fix: String::new(),
        }
    }

    /// Error of a row stride, in elements.
    pub(crate) fn stride(name: impl AsRef<str>, found: usize, expected: impl Display) -> Self {
        let expected = expected.to_string();
        Error::RowStride { name: name.as_ref().to_owned(), expected, found }
    }

    /// Error of an option or number outside of its allowed range. Its text is "`name` must be `allowed`, got `value`".
    pub(crate) fn range(name: impl AsRef<str>, value: impl Display, allowed: impl Display) -> Self {
        Error::OutOfRange {
            name: name.as_ref().to_owned(),
            value: value.to_string(),
            allowed: allowed.to_string(),
        }
    }

    /// Error of a matrix whose number of columns is not a multiple of what a kernel copies at once.
    pub(crate) fn columns(name: &str, columns: usize, multiple: usize) -> Self {
        let allowed = format!("a multiple of {multiple}, which the kernel copies at once");
        Self::range(format!("columns of {name}"), columns, allowed)
    }

    /// Error of an operand in another context or memory.
    pub(crate) fn context(
        name: impl AsRef<str>,
        expected: impl Display,
        found: impl Display,
    ) -> Self {
        Error::OtherContext {
            name: name.as_ref().to_owned(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// Error of an operand in another context than that of the plan or operator.
    pub(crate) fn elsewhere(name: impl AsRef<str>) -> Self {
        Self::context(name, "the context of the plan or operator", "another context")
    }

    /// Error of an operand in host memory where a plan reads device memory.
    pub(crate) fn on_host(name: impl AsRef<str>) -> Self {
        let expected = "the context: upload it with `Context::upload` before planning";
        Self::context(name, expected, "host memory")
    }

    /// Error of a sparse operand whose pattern or format differs from the planned one.
    pub(crate) fn pattern(name: &str, planned: AnyPattern<'_>, found: AnyPattern<'_>) -> Self {
        let described =
            |p: AnyPattern<'_>| format!("{} {:?} with {} slots", p.format(), p.shape(), p.slots());
        Error::OtherPattern {
            name: name.to_owned(),
            planned: described(planned),
            found: described(found),
        }
    }

    /// [`Error::pattern`] where the patterns were compared without being kept.
    pub(crate) fn other_pattern(name: &str, planned: impl Display, found: impl Display) -> Self {
        Error::OtherPattern {
            name: name.to_owned(),
            planned: planned.to_string(),
            found: found.to_string(),
        }
    }

    /// Error of a GPU step that is not a failed driver call.
    pub(crate) fn cuda(call: impl Into<String>, reason: impl Into<String>) -> Self {
        Error::Cuda { call: call.into(), code: None, reason: reason.into() }
    }

    /// Returns the name of the operand, option or index that the error is about.
    ///
    /// ```
    /// use einsparse::{Context, Error};
    /// let ctx = Context::cpu();
    /// let a = ctx.zeros::<f32>(&[2, 3])?;
    /// let error = ctx.plan("C[m,n] = A[m,k] * B[k,n]").operand("A", &a).build().unwrap_err();
    /// assert!(matches!(error, Error::MissingOperand { .. }));
    /// assert_eq!(error.name(), Some("B"));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn name(&self) -> Option<&str> {
        match self {
            Error::Shape { index: name, .. }
            | Error::InvalidIndex { array: name, .. }
            | Error::MissingOperand { name, .. }
            | Error::UnknownOperand { name, .. }
            | Error::OperandKind { name, .. }
            | Error::ElementType { name, .. }
            | Error::StorageFormat { name, .. }
            | Error::Alignment { name, .. }
            | Error::RowStride { name, .. }
            | Error::OutOfRange { name, .. }
            | Error::OtherContext { name, .. }
            | Error::OtherPattern { name, .. }
            | Error::Operand { name, .. } => Some(name),
            _ => None,
        }
    }

    /// Replaces the name that [`name`](Self::name) returns, for callers that know the operand by another name. Other
    /// errors are returned unchanged.
    pub fn with_name(mut self, new: &str) -> Self {
        if let Error::Shape { index: name, .. }
        | Error::InvalidIndex { array: name, .. }
        | Error::MissingOperand { name, .. }
        | Error::UnknownOperand { name, .. }
        | Error::OperandKind { name, .. }
        | Error::ElementType { name, .. }
        | Error::StorageFormat { name, .. }
        | Error::Alignment { name, .. }
        | Error::RowStride { name, .. }
        | Error::OutOfRange { name, .. }
        | Error::OtherContext { name, .. }
        | Error::OtherPattern { name, .. }
        | Error::Operand { name, .. } = &mut self
        {
            new.clone_into(name);
        }
        self
    }
}

/// Compares a shape with the planned one.
pub(crate) fn check_shape(name: &str, planned: &[usize], found: &[usize]) -> Result<()> {
    if planned == found {
        return Ok(());
    }
    Err(Error::shape(name, format!("planned with {planned:?}"), format!("run with {found:?}")))
}

/// Number of elements of a tensor of this shape.
///
/// # Errors
/// [`Error::Overflow`] with the name, the shape and the number of elements, if they exceed the address space.
pub(crate) fn elements(name: &str, shape: &[usize]) -> Result<usize> {
    const LIMIT: usize = isize::MAX as usize / 8;
    let product = |n: u128, &extent: &usize| n.saturating_mul(extent as u128);
    let value = shape.iter().fold(1, product);
    if value <= LIMIT as u128 {
        return Ok(value as usize);
    }
    Err(Error::Overflow {
        what: format!("elements of `{name}` of shape {shape:?}"),
        value,
        limit: LIMIT as u128,
    })
}

/// Result with the library's error type.
///
/// ```
/// fn rows(ctx: &einsparse::Context) -> einsparse::Result<usize> {
///     Ok(ctx.zeros::<f32>(&[2, 3])?.shape()[0])
/// }
/// assert_eq!(rows(&einsparse::Context::cpu()), Ok(2));
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Option that is `None` if an operand is in another context.
pub(crate) trait Elsewhere<T> {
    /// # Errors
    /// An operand of this name is in another context than planned.
    fn or_elsewhere(self, name: &str) -> Result<T>;
}

impl<T> Elsewhere<T> for Option<T> {
    fn or_elsewhere(self, name: &str) -> Result<T> {
        self.ok_or_else(|| Error::elsewhere(name))
    }
}

fn caret(expression: &str, at: usize) -> String {
    let before = expression.get(..at).map_or(at, |s| s.chars().count());
    format!("{}^", " ".repeat(before))
}

fn refusals(tried: &[(String, String)]) -> String {
    tried.iter().map(|(name, reason)| format!("\n  {name}: {reason}")).collect()
}

/// Returns a part of a message with its separator; nothing for an empty part.
fn after(separator: &str, part: &str) -> String {
    if part.is_empty() { String::new() } else { format!("{separator}{part}") }
}

fn quantity(part: &str, found: u64) -> String {
    if part == "address" {
        format!("address {found:#x}")
    } else {
        format!("{part} of {found} bytes")
    }
}

fn differs(planned: &str, found: &str) -> String {
    if planned.is_empty() {
        format!(", found {found}")
    } else if planned == found {
        format!(": both are {planned}, but their indices differ")
    } else {
        format!(": expected {planned}, found {found}")
    }
}
