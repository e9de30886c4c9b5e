//! File formats: Matrix Market (`.mtx`), DLMC patterns (`.smtx`), SciPy archives (`.npz`), NumPy arrays (`.npy`) and
//! named tensors (`.safetensors`, read-only).
//!
//! A reader returns [`FormatError::Io`] with file, line or member, and reason for input that it does not support. No
//! allocation is proportional to a number that a file merely states: the memory for reading stays below [`Limits`].
//! A writer replaces a file completely or leaves the old file.

mod bytes;
mod entries;
mod limits;
mod loaded;
mod matrix_market;
mod npy;
mod npz;
mod replace;
mod rows;
mod safetensors;
mod smtx;
mod source;

pub use limits::Limits;
pub use loaded::Loaded;
pub use matrix_market::{
    Field, Header, Layout, MatrixMarket, Symmetry, read_matrix_market, read_matrix_market_from,
    read_matrix_market_with, write_matrix_market, write_matrix_market_pattern,
    write_matrix_market_to,
};
pub use npy::{read_npy, read_npy_from, write_npy};
pub use npz::{
    read_npz, read_npz_from, read_npz_from_within, read_npz_within, write_npz, write_npz_compressed,
};
pub use replace::replace_file;
use replace::write_file;
pub use rows::RowFile;
pub use safetensors::{Safetensors, TensorInfo};
pub use smtx::{read_smtx, read_smtx_from, write_smtx};
pub use source::Source;

use crate::error::*;
use crate::{AnySparse, Csr, Element};
use std::path::Path;

/// Callback for the progress of reading a large file: `(done, total)`, ascending. The last call has `done == total`.
/// Each byte of the file counts once when it is read and once when it is parsed, so `total` is twice the length of the
/// file. For a tensor of `.safetensors`, `total` is the number of bytes of the tensor.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// Reads a file by its extension: `.mtx`, `.smtx` (all values are one), `.npz` or `.npy`.
/// `model.safetensors:layer.weight` reads one tensor of a file.
///
/// ```
/// use einsparse_formats::{generate, io};
///
/// let path = std::env::temp_dir().join("einsparse-read-any.npz");
/// let poisson = generate::poisson2d::<f32>(8, 8)?;
/// io::write_npz(&path, &poisson)?;
/// assert_eq!(io::read_any::<f32>(&path)?.to_csr()?, poisson);
/// # std::fs::remove_file(&path).ok();
/// # Ok::<(), einsparse_formats::FormatError>(())
/// ```
///
/// # Errors
/// Returns [`FormatError::Io`] if the file cannot be opened, its content does not match its extension, or the extension
/// is unknown.
pub fn read_any<T: Element>(path: impl AsRef<Path>) -> Result<Loaded<T>> {
    read_any_with(path, &mut |_, _| {})
}

/// [`read_any`] with a progress callback.
pub fn read_any_with<T: Element>(
    path: impl AsRef<Path>,
    progress: Progress<'_>,
) -> Result<Loaded<T>> {
    read_any_within(path, Limits::default(), progress)
}

/// [`read_any_with`] with another memory limit, for archives that inflate to much more than their size.
///
/// # Errors
/// See [`read_any`].
pub fn read_any_within<T: Element>(
    path: impl AsRef<Path>,
    limits: Limits,
    progress: Progress<'_>,
) -> Result<Loaded<T>> {
    let path = path.as_ref();
    let name = path.display().to_string();
    if let Some((file, tensor)) = Safetensors::split(path) {
        let mut file = Safetensors::open_within(file, limits)?;
        return Ok(Loaded::Dense(file.read_one(tensor, progress)?));
    }
    let kind = extension(path);
    if kind == "mtx" {
        return Ok(matrix_market::read_within(path, limits, progress)?.matrix);
    }
    if !["smtx", "npz", "npy"].contains(&kind.as_str()) {
        let known = ".mtx, .smtx, .npz, .npy or .safetensors[:TENSOR]";
        return Err(unknown_extension(path, known));
    }
    let bytes = bytes::read(path, limits, progress)?;
    let loaded = match kind.as_str() {
        "smtx" => {
            let pattern = read_smtx_from(&bytes, &name)?;
            let ones = vec![T::ONE; pattern.columns().len()];
            Loaded::Sparse(AnySparse::Csr(Csr::new(pattern, ones)?))
        }
        "npz" => Loaded::Sparse(read_npz_from_within(&bytes, &name, limits)?),
        _ => Loaded::Dense(read_npy_from(&bytes, &name)?),
    };
    let total = 2 * bytes.len() as u64;
    progress(total, total);
    Ok(loaded)
}

/// Name of the floating-point type of the values of a file, as in [`Element::NAME`]. It is read from `.npz`, `.npy` and
/// a tensor of `.safetensors`. `None` for text, integers, booleans and unreadable files.
pub fn float_type(path: impl AsRef<Path>) -> Option<&'static str> {
    let path = path.as_ref();
    if let Some((file, tensor)) = Safetensors::split(path) {
        let file = Safetensors::open(file).ok()?;
        let mut tensors = file.tensors().iter();
        let own = tensors.find(|info| tensor.is_none_or(|name| info.name == name))?;
        return match own.dtype.as_str() {
            "F16" => Some("f16"),
            "BF16" => Some("bf16"),
            "F32" => Some("f32"),
            "F64" => Some("f64"),
            _ => None,
        };
    }
    let file = std::fs::File::open(path).ok()?;
    match extension(path).as_str() {
        "npy" => npy::float_type(file),
        "npz" => npz::float_type(&file),
        _ => None,
    }
}

/// Writes a matrix by the extension of the path: `.mtx`, `.smtx` (only the pattern), `.npz` or `.npy`. Formats that the
/// file cannot store are written as CSR. A dense matrix in `.smtx` or `.npz` is written as its nonzeros.
///
/// # Errors
/// Returns [`FormatError::Io`] if the file cannot be written or the extension is unknown, and the errors of the
/// conversion.
pub fn write_any<T: Element>(path: impl AsRef<Path>, matrix: &Loaded<T>) -> Result<()> {
    let path = path.as_ref();
    match extension(path).as_str() {
        "mtx" => match matrix {
            Loaded::Dense(dense) => write_matrix_market(path, dense),
            Loaded::Sparse(AnySparse::Coo(coo)) => write_matrix_market(path, coo),
            Loaded::Sparse(sparse) => write_matrix_market(path, &sparse.to_csr()?),
        },
        "smtx" => write_smtx(path, matrix.to_csr()?.pattern()),
        "npz" => match matrix {
            Loaded::Sparse(AnySparse::Coo(coo)) => write_npz(path, coo),
            Loaded::Sparse(AnySparse::Csc(csc)) => write_npz(path, csc),
            Loaded::Sparse(AnySparse::Bsr(bsr)) => write_npz(path, bsr),
            _ => write_npz(path, &matrix.to_csr()?),
        },
        "npy" => match matrix {
            Loaded::Dense(dense) => write_npy(path, dense),
            Loaded::Sparse(sparse) => write_npy(path, &sparse.to_dense()?),
        },
        _ => Err(unknown_extension(path, ".mtx, .smtx, .npz or .npy")),
    }
}

fn extension(path: &Path) -> String {
    path.extension().map(|e| e.to_string_lossy().to_ascii_lowercase()).unwrap_or_default()
}

fn unknown_extension(path: &Path, known: &str) -> FormatError {
    Fault::whole(format!("extension {known} expected")).at(&path.display().to_string())
}

/// Reason and location of an error, before the name of the file is known.
#[derive(Debug)]
pub(crate) struct Fault {
    line: Option<u64>,
    member: Option<String>,
    kind: std::io::ErrorKind,
    reason: String,
}

impl Fault {
    fn line(line: u64, reason: impl Into<String>) -> Self {
        Self { line: Some(line), ..Self::whole(reason) }
    }

    fn member(member: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { member: Some(member.into()), ..Self::whole(reason) }
    }

    fn whole(reason: impl Into<String>) -> Self {
        let kind = std::io::ErrorKind::InvalidData;
        Self { line: None, member: None, kind, reason: reason.into() }
    }

    fn at(self, path: &str) -> FormatError {
        FormatError::Io {
            path: path.to_owned(),
            line: self.line,
            member: self.member,
            kind: self.kind,
            reason: self.reason,
        }
    }
}

impl From<std::io::Error> for Fault {
    fn from(error: std::io::Error) -> Self {
        Self { kind: error.kind(), ..Self::whole(error.to_string()) }
    }
}

/// Quotes part of a file in a message: printable, and cut to 40 characters.
fn quote(text: &[u8]) -> String {
    let shown: String =
        String::from_utf8_lossy(&text[..text.len().min(120)]).chars().take(40).collect();
    let dots = if shown.len() < text.len() { "..." } else { "" };
    format!("`{}{dots}`", shown.escape_debug())
}

/// Parses an integer from 0 to `most`. Messages refer to it as `name`.
fn whole_number(word: &[u8], name: &str, most: u64) -> Result<u64, String> {
    let digits = word.strip_prefix(b"-").unwrap_or(word);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(format!("{name} is not an integer: {}", quote(word)));
    }
    if digits.len() < word.len() {
        return Err(format!("{name} is negative: {}", quote(word)));
    }
    let value = digits.iter().try_fold(0_u64, |value, digit| {
        value.checked_mul(10)?.checked_add(u64::from(digit - b'0')).filter(|value| *value <= most)
    });
    value.ok_or_else(|| format!("{name} out of range: {}", quote(word)))
}

/// Converts a number to `T`, rounded once. Returns an error if a finite number becomes infinite. Types that saturate
/// (i8, i32, fp8) get the nearest value that they represent.
fn in_range<T: Element>(wide: f64) -> Result<T, String> {
    let value = T::from_f64(wide);
    if value.to_f64().is_finite() || !wide.is_finite() {
        Ok(value)
    } else {
        Err(format!("value {wide:e} is out of the range of {}", T::NAME))
    }
}

/// Returns an error if a count exceeds the index type.
fn fits_index(name: &str, count: u64) -> Result<(), String> {
    if count <= u64::from(u32::MAX) {
        return Ok(());
    }
    Err(format!("{name} count {count} is over the index type, {} at most", u32::MAX))
}
