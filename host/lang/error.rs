//! The error type of the library.

mod make;

use std::io;

use einsparse_formats::FormatError;

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
    /// Creates the refusal of a kernel by its name.
    pub fn of(name: impl Into<String>, reason: impl Into<String>) -> Self {
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
    /// A rank of a group (`einsparse::group`) has exited, does not respond, or runs another operation than the others.
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
        /// Why the operand is required; may be empty.
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
    /// The operator was not created for this call, such as a gradient of a layer that was created for inference.
    #[error("operand `{name}`: was not planned for this call; {fix}")]
    NotPlanned {
        /// Name of the operator or operand.
        name: String,
        /// How to create the operator for this call.
        fix: String,
    },
    /// A CUDA graph cannot capture the call, or a captured graph prevents it.
    #[error("operand `{name}`: {reason}")]
    Capture {
        /// Name of the operand or stream.
        name: String,
        /// Reason.
        reason: String,
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

/// Pattern of the errors that name an operand.
macro_rules! of_operand {
    ($name:ident) => {
        Error::MissingOperand { $name, .. }
            | Error::UnknownOperand { $name, .. }
            | Error::OperandKind { $name, .. }
            | Error::ElementType { $name, .. }
            | Error::StorageFormat { $name, .. }
            | Error::Alignment { $name, .. }
            | Error::RowStride { $name, .. }
            | Error::OtherContext { $name, .. }
            | Error::OtherPattern { $name, .. }
            | Error::NotPlanned { $name, .. }
            | Error::Capture { $name, .. }
            | Error::Operand { $name, .. }
    };
}

impl Error {
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
            | Error::OutOfRange { name, .. }
            | of_operand!(name) => Some(name),
            _ => None,
        }
    }

    /// Replaces the name of the operand, for callers that use another name for it. Errors of indices, options and
    /// machines are returned unchanged.
    pub fn with_name(mut self, new: &str) -> Self {
        if let of_operand!(name) = &mut self {
            new.clone_into(name);
        }
        self
    }
}

/// Compares a shape with the planned one.
pub fn check_shape(name: &str, planned: &[usize], found: &[usize]) -> Result<()> {
    if planned == found {
        return Ok(());
    }
    Err(Error::shape(name, format!("planned with {planned:?}"), format!("run with {found:?}")))
}

/// Number of elements of a tensor of this shape.
///
/// # Errors
/// [`Error::Overflow`] with the name, the shape and the number of elements, if they exceed the address space.
pub fn elements(name: &str, shape: &[usize]) -> Result<usize> {
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
pub trait Elsewhere<T> {
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
