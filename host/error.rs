//! The error type of the library.

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
    /// The CUDA driver returned an error.
    #[error("CUDA: {call}: {reason}")]
    Cuda {
        /// Driver call or step.
        call: String,
        /// Error message of the driver.
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
        /// Reason.
        reason: String,
    },
    /// An operand is not in the expression, is missing, or is invalid.
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

    /// Error of an operand in another context than planned.
    pub(crate) fn elsewhere(name: &str) -> Self {
        Self::operand(name, "is in another context than planned")
    }

    /// Error of a sparse operand whose pattern, format or context differs from the planned one.
    pub(crate) fn other_pattern(name: &str) -> Self {
        let reason = "has not the pattern, the format or the context that was planned";
        Self::operand(name, reason)
    }
}

/// Compares a shape with the planned one.
pub(crate) fn check_shape(name: &str, planned: &[usize], found: &[usize]) -> Result<()> {
    if planned == found {
        return Ok(());
    }
    Err(Error::Shape {
        index: name.into(),
        left: format!("planned with {planned:?}"),
        right: format!("run with {found:?}"),
    })
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
