//! NumPy's `.npy`: a short header and the raw array. Object arrays (pickles) are refused, never run.
//! (NumPy Enhancement Proposal 1; versions 1, 2 and 3 of the format.)

use super::{Fault, bytes, quote};
use crate::{Dense, Element, FormatError};
use std::{
    fs::File,
    io::{BufWriter, Read, Write},
    path::Path,
};

/// Reads a `.npy` file of floats, integers or booleans, C or Fortran order, either byte order, into row-major.
///
/// # Errors
/// [`FormatError::Io`] with the reason: not an array, cut off, complex, structured, an object array, a finite value
/// out of the range of `T`.
pub fn read_npy<T: Element>(path: impl AsRef<Path>) -> Result<Dense<T>, FormatError> {
    let path = path.as_ref();
    read_npy_from(
        &bytes::read(path, &mut |_, _| {})?,
        &path.display().to_string(),
    )
}

/// [`read_npy`] from memory; `name` stands for the file in messages.
///
/// # Errors
/// As [`read_npy`].
pub fn read_npy_from<T: Element>(bytes: &[u8], name: &str) -> Result<Dense<T>, FormatError> {
    let read = || {
        let array = Array::read(bytes)?;
        let values = array
            .values::<T>()
            .map_err(|(position, reason)| format!("[{position}]: {reason}"))?;
        Ok((array.shape, values))
    };
    let (shape, values) = read().map_err(|reason: String| Fault::whole(reason).at(name))?;
    Dense::new(shape, values)
}

/// Writes a dense array as `.npy`, C order; bf16, which NumPy lacks, as float32.
///
/// # Errors
/// [`FormatError::Io`] when the file cannot be written.
pub fn write_npy<T: Element>(path: impl AsRef<Path>, dense: &Dense<T>) -> Result<(), FormatError> {
    let path = path.as_ref();
    let write = || {
        let mut out = BufWriter::with_capacity(1 << 16, File::create(path)?);
        write_values(&mut out, dense.shape(), dense.values())?;
        out.flush()
    };
    write().map_err(|error: std::io::Error| Fault::from(error).at(&path.display().to_string()))
}

/// Longest header taken. NumPy itself warns from 10,000 bytes.
const HEADER_LIMIT: usize = 1 << 16;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Float,
    Signed,
    Unsigned,
    Bool,
    /// One byte for each character.
    Bytes,
    /// Four bytes for each character.
    Unicode,
}

/// An array with its elements still as bytes, in row-major order.
pub(super) struct Array {
    kind: Kind,
    /// Bytes of one element.
    size: usize,
    big_endian: bool,
    pub(super) shape: Vec<usize>,
    data: Vec<u8>,
}

impl Array {
    /// Takes memory only for bytes that are there.
    pub(super) fn read(mut reader: impl Read) -> Result<Self, String> {
        let header = read_header(&mut reader)?;
        let (kind, size, big_endian) = parse_type(field(&header, "descr")?)?;
        let fortran = match field(&header, "fortran_order")? {
            "True" => true,
            "False" => false,
            other => {
                return Err(format!(
                    "fortran_order is neither True nor False: {}",
                    quote(other.as_bytes())
                ));
            }
        };
        let shape = parse_shape(field(&header, "shape")?)?;
        let length = shape
            .iter()
            .try_fold(size, |product, extent| product.checked_mul(*extent));
        let length = length.ok_or_else(|| format!("shape {shape:?} is too large"))?;
        let mut data = Vec::new();
        reader
            .take(length as u64 + 1)
            .read_to_end(&mut data)
            .map_err(|error| error.to_string())?;
        if data.len() < length {
            return Err(format!("cut off: {} of {length} bytes of data", data.len()));
        }
        if data.len() > length {
            return Err(format!(
                "more data than the {length} bytes of shape {shape:?}"
            ));
        }
        let mut array = Self {
            kind,
            size,
            big_endian,
            shape,
            data,
        };
        if fortran && array.shape.len() > 1 {
            array.reorder_rows();
        }
        Ok(array)
    }

    /// Elements in the array.
    pub(super) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    fn reorder_rows(&mut self) {
        let mut data = vec![0; self.data.len()];
        let mut index = vec![0; self.shape.len()];
        for from in self.data.chunks_exact(self.size) {
            let to = index
                .iter()
                .zip(&self.shape)
                .fold(0, |to, (at, extent)| to * extent + at)
                * self.size;
            data[to..to + self.size].copy_from_slice(from);
            for (at, extent) in index.iter_mut().zip(&self.shape) {
                *at += 1;
                if *at < *extent {
                    break;
                }
                *at = 0;
            }
        }
        self.data = data;
    }

    /// One element's bytes, lowest first.
    fn word(&self, position: usize) -> [u8; 8] {
        let mut word = [0; 8];
        let bytes = &self.data[position * self.size..][..self.size];
        word[..self.size].copy_from_slice(bytes);
        if self.big_endian {
            word[..self.size].reverse();
        }
        word
    }

    fn integer(&self, position: usize) -> i128 {
        let word = u64::from_le_bytes(self.word(position));
        let unused = 64 - 8 * self.size as u32;
        if self.kind == Kind::Signed {
            ((word << unused) as i64 >> unused).into()
        } else {
            word.into()
        }
    }

    /// Every element as `T`, rounded once; or the position and the reason.
    pub(super) fn values<T: Element>(&self) -> Result<Vec<T>, (usize, String)> {
        let wide = |position: usize| match (self.kind, self.size) {
            (Kind::Float, 2) => {
                half::f16::from_bits(u64::from_le_bytes(self.word(position)) as u16).to_f64()
            }
            (Kind::Float, 4) => f64::from(f32::from_bits(
                u64::from_le_bytes(self.word(position)) as u32
            )),
            (Kind::Float, _) => f64::from_le_bytes(self.word(position)),
            _ => self.integer(position) as f64,
        };
        if matches!(self.kind, Kind::Bytes | Kind::Unicode) {
            return Err((0, "numbers expected, text found".to_owned()));
        }
        let narrow = |position| {
            let (value, number) = (T::from_f64(wide(position)), wide(position));
            let fits = value.to_f64().is_finite() || !number.is_finite();
            if fits {
                Ok(value)
            } else {
                Err((
                    position,
                    format!("value {number:e} is out of the range of {}", T::NAME),
                ))
            }
        };
        (0..self.len()).map(narrow).collect()
    }

    /// Every element as an index; the bound is checked by the caller.
    pub(super) fn indices(&self) -> Result<Vec<i128>, String> {
        if !matches!(self.kind, Kind::Signed | Kind::Unsigned) {
            let found = match self.kind {
                Kind::Float => format!("float{}", 8 * self.size),
                Kind::Bool => "bool".to_owned(),
                _ => "text".to_owned(),
            };
            return Err(format!("integer type expected, {found} found"));
        }
        Ok((0..self.len())
            .map(|position| self.integer(position))
            .collect())
    }

    /// A scalar of text.
    pub(super) fn text(&self) -> Result<String, String> {
        let step = match self.kind {
            Kind::Bytes => 1,
            Kind::Unicode => 4,
            _ => return Err("text expected".to_owned()),
        };
        let at = if self.big_endian { step - 1 } else { 0 };
        let text: String = self
            .data
            .chunks_exact(step)
            .map(|character| char::from(character[at]))
            .collect();
        Ok(text.trim_end_matches('\0').to_owned())
    }
}

fn read_header(reader: &mut impl Read) -> Result<String, String> {
    let mut start = [0; 8];
    reader
        .read_exact(&mut start)
        .map_err(|_| "not an .npy array: shorter than its header".to_owned())?;
    if !start.starts_with(b"\x93NUMPY") {
        return Err("not an .npy array: the magic bytes are missing".to_owned());
    }
    let width = match start[6] {
        1 => 2,
        2 | 3 => 4,
        version => return Err(format!(".npy version {version} is not supported")),
    };
    let mut length = [0; 4];
    reader
        .read_exact(&mut length[..width])
        .map_err(|_| "cut off in the header".to_owned())?;
    let length = u32::from_le_bytes(length) as usize;
    if length > HEADER_LIMIT {
        return Err(format!("header of {length} bytes, {HEADER_LIMIT} at most"));
    }
    let mut header = vec![0; length];
    reader
        .read_exact(&mut header)
        .map_err(|_| "cut off in the header".to_owned())?;
    String::from_utf8(header).map_err(|_| "the header is not text".to_owned())
}

/// The text of one value of the header, `{'descr': '<f4', 'fortran_order': False, 'shape': (6,), }`.
fn field<'a>(header: &'a str, name: &str) -> Result<&'a str, String> {
    let missing = || format!("header without {name}: {}", quote(header.as_bytes()));
    let quoted = [format!("'{name}'"), format!("\"{name}\"")];
    let at = quoted
        .iter()
        .find_map(|key| header.find(key.as_str()).map(|at| at + key.len()))
        .ok_or_else(missing)?;
    let value = header[at..]
        .trim_start()
        .strip_prefix(':')
        .ok_or_else(missing)?
        .trim_start();
    let end = match value.as_bytes().first() {
        Some(b'(') => value.find(')').map(|end| end + 1),
        Some(mark @ (b'\'' | b'"')) => value[1..].find(char::from(*mark)).map(|end| end + 2),
        Some(b'[') => return Err("structured arrays are not supported".to_owned()),
        _ => value.find([',', '}']),
    };
    Ok(value[..end.ok_or_else(missing)?].trim())
}

fn parse_type(text: &str) -> Result<(Kind, usize, bool), String> {
    let text = text.trim_matches(['\'', '"']);
    let unknown = || format!("element type {} is not supported", quote(text.as_bytes()));
    let order = text.as_bytes().first().copied().ok_or_else(unknown)?;
    let rest = text.strip_prefix(['<', '>', '|', '=']).unwrap_or(text);
    let kind = match rest.as_bytes().first() {
        Some(b'f') => Kind::Float,
        Some(b'i') => Kind::Signed,
        Some(b'u') => Kind::Unsigned,
        Some(b'b') => Kind::Bool,
        Some(b'S') => Kind::Bytes,
        Some(b'U') => Kind::Unicode,
        Some(b'O') => return Err("object arrays are refused: a pickle is never run".to_owned()),
        Some(b'c') => return Err("complex values are not supported".to_owned()),
        _ => return Err(unknown()),
    };
    let size: usize = rest[1..].parse().map_err(|_| unknown())?;
    let known = match kind {
        Kind::Float => matches!(size, 2 | 4 | 8),
        Kind::Signed | Kind::Unsigned => matches!(size, 1 | 2 | 4 | 8),
        Kind::Bool => size == 1,
        Kind::Bytes | Kind::Unicode => (1..=64).contains(&size),
    };
    let size = if kind == Kind::Unicode {
        4 * size
    } else {
        size
    };
    if known {
        Ok((kind, size, order == b'>'))
    } else {
        Err(unknown())
    }
}

fn parse_shape(text: &str) -> Result<Vec<usize>, String> {
    let wrong = || format!("shape is not a list of extents: {}", quote(text.as_bytes()));
    let inner = text
        .strip_prefix('(')
        .and_then(|text| text.strip_suffix(')'))
        .ok_or_else(wrong)?;
    let extents = inner
        .split(',')
        .map(str::trim)
        .filter(|extent| !extent.is_empty());
    extents
        .map(|extent| extent.trim_end_matches('L').parse().map_err(|_| wrong()))
        .collect()
}

/// Header and values, lowest byte first.
pub(super) fn write_values<T: Element>(
    out: &mut dyn Write,
    shape: &[usize],
    values: &[T],
) -> std::io::Result<()> {
    match T::NAME {
        "f64" => {
            write_header(out, "<f8", shape)?;
            values
                .iter()
                .try_for_each(|value| out.write_all(&value.to_f64().to_le_bytes()))
        }
        "f16" => {
            write_header(out, "<f2", shape)?;
            values.iter().try_for_each(|value| {
                out.write_all(&half::f16::from_f64(value.to_f64()).to_le_bytes())
            })
        }
        _ => {
            write_header(out, "<f4", shape)?;
            values
                .iter()
                .try_for_each(|value| out.write_all(&(value.to_f64() as f32).to_le_bytes()))
        }
    }
}

/// The header, padded so that the data starts at a multiple of 64 bytes.
pub(super) fn write_header(
    out: &mut dyn Write,
    descr: &str,
    shape: &[usize],
) -> std::io::Result<()> {
    let extents: String = shape.iter().map(|extent| format!("{extent},")).collect();
    let extents = if shape.len() > 1 {
        extents.trim_end_matches(',')
    } else {
        &extents
    };
    let mut header =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({extents}), }}");
    let padded = (10 + header.len() + 1).next_multiple_of(64) - 10;
    header.extend(std::iter::repeat_n(' ', padded - 1 - header.len()));
    header.push('\n');
    out.write_all(b"\x93NUMPY\x01\x00")?;
    out.write_all(&(padded as u16).to_le_bytes())?;
    out.write_all(header.as_bytes())
}
