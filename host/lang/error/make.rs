//! Constructors of errors, one for each kind.

use std::fmt::Display;

use einsparse_formats::AnyPattern;

use super::{Error, Refusal};

#[doc(hidden)]
impl Error {
    /// Creates [`Error::NoKernel`] from the refusals of the candidates.
    pub fn no_kernel(
        indirect: impl Into<String>,
        tried: impl IntoIterator<Item = Refusal>,
    ) -> Self {
        Error::NoKernel {
            indirect: indirect.into(),
            tried: tried.into_iter().map(Into::into).collect(),
        }
    }

    /// Creates an error of operand `name`.
    pub fn operand(name: impl AsRef<str>, reason: impl Into<String>) -> Self {
        Error::Operand { name: name.as_ref().to_owned(), reason: reason.into() }
    }

    /// Adds the operand's name to an error of the formats crate.
    pub fn of_operand(self, name: &str) -> Self {
        match self {
            Error::Format(error) => Self::operand(name, error.to_string()),
            other => other,
        }
    }

    /// Error of two shapes or extents that differ.
    pub fn shape(
        index: impl Into<String>,
        left: impl Into<String>,
        right: impl Into<String>,
    ) -> Self {
        Error::Shape { index: index.into(), left: left.into(), right: right.into() }
    }

    /// Error of an operand that was not given.
    pub fn missing(name: impl AsRef<str>) -> Self {
        Error::MissingOperand { name: name.as_ref().to_owned(), reason: String::new() }
    }

    /// Error of an operand that was not given, with the reason why it is required.
    pub fn missing_for(name: impl AsRef<str>, reason: impl Into<String>) -> Self {
        Error::MissingOperand { name: name.as_ref().to_owned(), reason: reason.into() }
    }

    /// Error of an operand that was not given, with the part of the expression that reads it.
    pub fn missing_in(name: impl AsRef<str>, reader: impl Display) -> Self {
        Self::missing_for(name, format!("`{reader}` reads it"))
    }

    /// Error of an operand whose raw address is 0 although it is read.
    pub fn at_zero(name: impl AsRef<str>) -> Self {
        Self::missing_for(name, "it is read, and its address is 0")
    }

    /// Error of an index past the extent of the axis that it indexes.
    pub fn index(
        array: impl Into<String>,
        (position, value): (usize, u64),
        of: impl Into<String>,
        bound: usize,
    ) -> Self {
        let (array, of, bound) = (array.into(), of.into(), bound as u64);
        Error::InvalidIndex { array, position, value, of, bound }
    }

    /// Error of an operand that `expression` does not name.
    pub fn unknown(name: impl AsRef<str>, expression: impl Display) -> Self {
        Error::UnknownOperand { name: name.as_ref().to_owned(), expression: expression.to_string() }
    }

    /// Error of an operand of another kind. Both kinds have an article.
    pub fn kind(name: impl AsRef<str>, expected: impl Display, found: impl Display) -> Self {
        Error::OperandKind {
            name: name.as_ref().to_owned(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// Error of elements of an unsupported type.
    pub fn dtype(name: impl AsRef<str>, expected: impl Display, found: impl Display) -> Self {
        Error::ElementType {
            name: name.as_ref().to_owned(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// Error of a sparse operand in an unsupported format.
    pub fn format(name: impl AsRef<str>, expected: impl Display, found: impl Display) -> Self {
        Error::StorageFormat {
            name: name.as_ref().to_owned(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// Error of a tensor in a format without coordinates of its entries.
    pub fn not_walked(name: &str, found: impl Display) -> Self {
        Self::format(name, "coo, group-coo, csr or csc", found)
    }

    /// Error of an address or a stride in bytes that is not a multiple of `required` bytes.
    pub fn alignment(name: impl AsRef<str>, part: &str, found: u64, required: usize) -> Self {
        Error::Alignment {
            name: name.as_ref().to_owned(),
            part: part.to_owned(),
            found,
            required: required as u64,
            fix: String::new(),
        }
    }

    /// Error of a row stride, in elements.
    pub fn stride(name: impl AsRef<str>, found: usize, expected: impl Display) -> Self {
        let expected = expected.to_string();
        Error::RowStride { name: name.as_ref().to_owned(), expected, found }
    }

    /// Error of an option or number outside of its allowed range. Its text is "`name` must be `allowed`, got `value`".
    pub fn range(name: impl AsRef<str>, value: impl Display, allowed: impl Display) -> Self {
        Error::OutOfRange {
            name: name.as_ref().to_owned(),
            value: value.to_string(),
            allowed: allowed.to_string(),
        }
    }

    /// Error of a matrix whose number of columns is not a multiple of the columns that a kernel copies at once.
    pub fn columns(name: &str, columns: usize, multiple: usize) -> Self {
        let allowed = format!("a multiple of {multiple}, which the kernel copies at once");
        Self::range(format!("columns of {name}"), columns, allowed)
    }

    /// Error of an operand in another context or memory.
    pub fn context(name: impl AsRef<str>, expected: impl Display, found: impl Display) -> Self {
        Error::OtherContext {
            name: name.as_ref().to_owned(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }

    /// Error of an operand in another context than that of the plan or operator.
    pub fn elsewhere(name: impl AsRef<str>) -> Self {
        Self::context(name, "the context of the plan or operator", "another context")
    }

    /// Error of an operand in host memory where a plan reads device memory.
    pub fn on_host(name: impl AsRef<str>) -> Self {
        let expected = "the context: upload it with `Context::upload` before planning";
        Self::context(name, expected, "host memory")
    }

    /// Error of a sparse operand whose pattern or format differs from the planned one.
    pub fn pattern(name: &str, planned: AnyPattern<'_>, found: AnyPattern<'_>) -> Self {
        let described =
            |p: AnyPattern<'_>| format!("{} {:?} with {} slots", p.format(), p.shape(), p.slots());
        Error::OtherPattern {
            name: name.to_owned(),
            planned: described(planned),
            found: described(found),
        }
    }

    /// [`Error::pattern`] where the patterns were compared without being kept.
    pub fn other_pattern(name: &str, planned: impl Display, found: impl Display) -> Self {
        Error::OtherPattern {
            name: name.to_owned(),
            planned: planned.to_string(),
            found: found.to_string(),
        }
    }

    /// Error of a call for which the operator was not created, and how to create it.
    pub fn not_planned(name: impl AsRef<str>, fix: impl Into<String>) -> Self {
        Error::NotPlanned { name: name.as_ref().to_owned(), fix: fix.into() }
    }

    /// Error of a call that a CUDA graph cannot capture.
    pub fn capture(name: impl AsRef<str>, reason: impl Into<String>) -> Self {
        Error::Capture { name: name.as_ref().to_owned(), reason: reason.into() }
    }

    /// Error of a GPU step that is not a failed driver call.
    pub fn cuda(call: impl Into<String>, reason: impl Into<String>) -> Self {
        Error::Cuda { call: call.into(), code: None, reason: reason.into() }
    }
}
