//! Matrix Market: coordinate and array; real, integer, unsigned integer and pattern; general, symmetric and
//! skew-symmetric. (Boisvert, Pozo, Remington: The Matrix Market Exchange Formats, NISTIR 5935, 1996.)

mod array;
mod coordinate;
mod header;
mod line;
mod rows;
mod write;

pub use header::{Field, Header, Layout, Symmetry};
pub(super) use rows::{count_rows, read_rows};
pub use write::{write_matrix_market, write_matrix_market_pattern, write_matrix_market_to};

use super::{Fault, Limits, Loaded, Progress, bytes, entries::coo_from_entries};
use crate::error::*;
use crate::{AnySparse, Dense, Element};
use std::path::Path;

/// Contents of a Matrix Market file: its header and the matrix. The matrix includes mirrored entries if the header
/// states a symmetry.
#[derive(Clone, Debug, PartialEq)]
pub struct MatrixMarket<T> {
    /// Banner and size line.
    pub header: Header,
    /// COO for the coordinate layout, dense for the array layout.
    pub matrix: Loaded<T>,
}

/// Reads a Matrix Market file.
///
/// In addition to the specification, these are accepted: CR LF, a UTF-8 byte order mark, blank lines anywhere, comments
/// between entries, entries in any order, capitals in the banner, and Fortran exponents (`1D+3`, `1.0-100`).
///
/// Policies:
/// - Duplicate entries are **summed** in file order, in the accumulator of `T`. In a pattern file they are merged.
/// - A symmetric file may store either half. An entry together with its mirror is an error.
/// - Entries of pattern files have value one. Explicit zeros, NaN and infinities are kept.
/// - A finite number too large for `T` is an error; it does not become infinite.
/// - Numbers are rounded to nearest even, once (to f16 and bf16: through f64).
/// - Complex and Hermitian files are errors, and more than 2^32 - 1 rows, columns or entries.
///
/// # Errors
/// Returns [`FormatError::Io`] with the line, counted from 1, including comments and blank lines.
pub fn read_matrix_market<T: Element>(path: impl AsRef<Path>) -> Result<MatrixMarket<T>> {
    read_matrix_market_with(path, &mut |_, _| {})
}

/// [`read_matrix_market`] with a progress callback.
pub fn read_matrix_market_with<T: Element>(
    path: impl AsRef<Path>,
    progress: Progress<'_>,
) -> Result<MatrixMarket<T>> {
    read_within(path.as_ref(), Limits::default(), progress)
}

/// Reads a file within memory limits. The text is dropped before its entries are sorted.
pub(super) fn read_within<T: Element>(
    path: &Path,
    limits: Limits,
    progress: Progress<'_>,
) -> Result<MatrixMarket<T>> {
    let text = bytes::read(path, limits, progress)?;
    let name = path.display().to_string();
    let length = text.len() as u64;
    let parsed = parse(&text, &mut |done| progress(length + done, 2 * length));
    drop(text);
    let read = finish(parsed.map_err(|fault| fault.at(&name))?, length)?;
    progress(2 * length, 2 * length);
    Ok(read)
}

/// [`read_matrix_market`] from memory. Messages use `name` as the file path.
///
/// ```
/// use einsparse_formats::io::read_matrix_market_from;
///
/// let text = "%%MatrixMarket matrix coordinate real symmetric\n2 2 2\n1 1 4\n2 1 -1\n";
/// let read = read_matrix_market_from::<f32>(text.as_bytes(), "here")?;
/// assert_eq!(read.matrix.into_dense()?.values(), [4.0, -1.0, -1.0, 0.0]);
///
/// let error = read_matrix_market_from::<f32>(&text.as_bytes()[..60], "here").unwrap_err();
/// assert_eq!(error.to_string(), "here:3: end of the file after 1 of 2 entries");
/// # Ok::<(), einsparse_formats::FormatError>(())
/// ```
pub fn read_matrix_market_from<T: Element>(text: &[u8], name: &str) -> Result<MatrixMarket<T>> {
    let parsed = parse(text, &mut |_| {}).map_err(|fault| fault.at(name))?;
    finish(parsed, text.len() as u64)
}

/// Contents of the text after the header.
enum Parsed<T> {
    Entries(Vec<(u64, T)>),
    Dense(Dense<T>),
}

fn parse<T: Element>(
    text: &[u8],
    progress: &mut dyn FnMut(u64),
) -> Result<(Header, Parsed<T>), Fault> {
    let (header, body) = header::read(text)?;
    let parsed = match header.layout {
        Layout::Coordinate => Parsed::Entries(coordinate::read(&header, &body, progress)?),
        Layout::Array => Parsed::Dense(array::read(&header, &body)?),
    };
    Ok((header, parsed))
}

/// Builds the matrix from the parsed contents of `length` bytes of text.
fn finish<T: Element>(
    (header, parsed): (Header, Parsed<T>),
    length: u64,
) -> Result<MatrixMarket<T>> {
    let matrix = match parsed {
        Parsed::Entries(entries) => {
            let merge = header.field == Field::Pattern;
            let held = (entries.len() * size_of::<(u64, T)>()) as u64 + length;
            let room = Limits::default().of(length).saturating_sub(held);
            let coo = coo_from_entries(header.rows, header.cols, entries, merge, room)?;
            Loaded::Sparse(AnySparse::Coo(coo))
        }
        Parsed::Dense(dense) => Loaded::Dense(dense),
    };
    Ok(MatrixMarket { header, matrix })
}
