//! The one error type of the library.

use einsparse_formats::FormatError;

/// One kernel (or executor) that could have run an indirect Einsum, and why it was refused. Plans keep these apart from
/// what a user sees, which is name and reason in two strings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Name of the variant.
    pub name: String,
    /// Why it cannot run this.
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

/// Everything that can go wrong on user data or on the machine.
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
        /// Byte offset of the place.
        at: usize,
        /// What the grammar wants there.
        expected: String,
        /// What stands there.
        found: String,
    },
    /// Two extents of one index, or two ranks, disagree.
    #[error("index `{index}`: {left} but {right}")]
    Shape {
        /// The index name (or the operand, for a rank).
        index: String,
        /// One side, with its number.
        left: String,
        /// The other side, with its number.
        right: String,
    },
    /// A value outside its bound in an index array.
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
        /// Its extent: the first value that is too large.
        bound: u64,
    },
    /// No kernel runs this indirect Einsum.
    #[error("no kernel for {indirect}{}", refusals(.tried))]
    NoKernel {
        /// The indirect Einsum, in the paper's notation.
        indirect: String,
        /// The name of every candidate, and why it was refused.
        tried: Vec<(String, String)>,
    },
    /// A size does not fit the index type or the address space.
    #[error("{what} is {value}, over the limit of {limit}")]
    Overflow {
        /// What was counted.
        what: String,
        /// The count.
        value: u128,
        /// The largest that fits.
        limit: u128,
    },
    /// Device memory does not suffice.
    #[error("out of device memory: {wanted} bytes wanted, {free} free")]
    OutOfMemory {
        /// Bytes asked for.
        wanted: u64,
        /// Bytes free at that time.
        free: u64,
    },
    /// The CUDA driver refused a call.
    #[error("CUDA: {call}: {reason}")]
    Cuda {
        /// The driver call or the step.
        call: String,
        /// The driver's words.
        reason: String,
    },
    /// A rank of a [group](crate::group) is gone, silent, or does something else than the others.
    #[error("rank {rank}: {reason}")]
    Rank {
        /// The rank at fault, as far as that is known.
        rank: usize,
        /// What it did.
        reason: String,
    },
    /// A file could not be read or written.
    #[error("{path}{}: {reason}", line.map(|l| format!(":{l}")).unwrap_or_default())]
    Io {
        /// The file.
        path: String,
        /// Line, counted from 1.
        line: Option<u64>,
        /// Why.
        reason: String,
    },
    /// An operand that the expression does not name, or names and was not given.
    #[error("operand `{name}`: {reason}")]
    Operand {
        /// The operand's name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An error of the formats crate, passed on.
    #[error(transparent)]
    Format(#[from] FormatError),
}

impl Error {
    /// No kernel runs this, for these reasons.
    pub(crate) fn no_kernel(
        indirect: impl Into<String>,
        tried: impl IntoIterator<Item = Refusal>,
    ) -> Self {
        Error::NoKernel {
            indirect: indirect.into(),
            tried: tried.into_iter().map(Into::into).collect(),
        }
    }

    /// What is wrong with the operand of this name.
    pub(crate) fn operand(name: impl AsRef<str>, reason: impl Into<String>) -> Self {
        Error::Operand { name: name.as_ref().to_owned(), reason: reason.into() }
    }

    /// An error of the formats crate that arose from this operand names it.
    pub(crate) fn of_operand(self, name: &str) -> Self {
        match self {
            Error::Format(error) => Self::operand(name, error.to_string()),
            other => other,
        }
    }

    /// It is not where the others are.
    pub(crate) fn elsewhere(name: &str) -> Self {
        Self::operand(name, "lies in another context than planned")
    }

    /// It is sparse, and another one than at planning.
    pub(crate) fn other_pattern(name: &str) -> Self {
        let reason = "has not the pattern, the format or the context that was planned";
        Self::operand(name, reason)
    }
}

/// Compares a shape with the one that was planned.
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

/// Elements of a tensor of this shape.
///
/// # Errors
/// [`Error::Overflow`] with the name, the shape and the number of elements, where no memory has so many.
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

/// Result with the library's error.
///
/// ```
/// fn rows(ctx: &einsparse::Context) -> einsparse::Result<usize> {
///     Ok(ctx.zeros::<f32>(&[2, 3])?.shape()[0])
/// }
/// assert_eq!(rows(&einsparse::Context::cpu()), Ok(2));
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Of what is `None` where an operand lies elsewhere.
pub(crate) trait Elsewhere<T> {
    /// # Errors
    /// That the operand of this name lies in another context than planned.
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
