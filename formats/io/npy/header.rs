//! Header of `.npy`: a Python dictionary in a padded line of text.

use super::super::quote;
use std::io::{Read, Write};

/// Maximum length of a header in bytes. NumPy itself warns from 10,000 bytes.
const HEADER_LIMIT: usize = 1 << 16;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Kind {
    Float,
    /// bf16, the upper half of a float32. It does not occur in `.npy` files.
    Bfloat,
    Signed,
    Unsigned,
    Bool,
    /// One byte per character.
    Bytes,
    /// Four bytes per character.
    Unicode,
}

/// Maximum number of characters of a text.
const TEXT_LIMIT: usize = 64;

pub(super) fn read_header(reader: &mut impl Read) -> Result<String, String> {
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
    reader.read_exact(&mut length[..width]).map_err(|_| "cut off in the header".to_owned())?;
    let length = u32::from_le_bytes(length) as usize;
    if length > HEADER_LIMIT {
        return Err(format!("header of {length} bytes, {HEADER_LIMIT} at most"));
    }
    let mut header = vec![0; length];
    reader.read_exact(&mut header).map_err(|_| "cut off in the header".to_owned())?;
    String::from_utf8(header).map_err(|_| "the header is not text".to_owned())
}

/// Text of one value of the header, such as `{'descr': '<f4', 'fortran_order': False, 'shape': (6,), }`.
pub(super) fn field<'a>(header: &'a str, name: &str) -> Result<&'a str, String> {
    let missing = || format!("header without {name}: {}", quote(header.as_bytes()));
    let quoted = [format!("'{name}'"), format!("\"{name}\"")];
    let at = quoted
        .iter()
        .find_map(|key| header.find(key.as_str()).map(|at| at + key.len()))
        .ok_or_else(missing)?;
    let value = header[at..].trim_start().strip_prefix(':').ok_or_else(missing)?.trim_start();
    let end = match value.as_bytes().first() {
        Some(b'(') => value.find(')').map(|end| end + 1),
        Some(mark @ (b'\'' | b'"')) => value[1..].find(char::from(*mark)).map(|end| end + 2),
        Some(b'[') => return Err("structured arrays are not supported".to_owned()),
        _ => value.find([',', '}']),
    };
    Ok(value[..end.ok_or_else(missing)?].trim())
}

pub(super) fn parse_type(text: &str) -> Result<(Kind, usize, bool), String> {
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
        Kind::Bfloat => size == 2,
        Kind::Bool => size == 1,
        Kind::Bytes | Kind::Unicode => (1..=TEXT_LIMIT).contains(&size),
    };
    let size = if kind == Kind::Unicode { 4 * size } else { size };
    if known { Ok((kind, size, order == b'>')) } else { Err(unknown()) }
}

pub(super) fn parse_shape(text: &str) -> Result<Vec<usize>, String> {
    let wrong = || format!("shape is not a list of extents: {}", quote(text.as_bytes()));
    let inner = text.strip_prefix('(').and_then(|text| text.strip_suffix(')')).ok_or_else(wrong)?;
    let extents = inner.split(',').map(str::trim).filter(|extent| !extent.is_empty());
    extents.map(|extent| extent.trim_end_matches('L').parse().map_err(|_| wrong())).collect()
}

/// Writes the header, padded so that the data starts at a multiple of 64 bytes.
pub(in super::super) fn write_header(
    out: &mut dyn Write,
    descr: &str,
    shape: &[usize],
) -> std::io::Result<()> {
    let extents: String = shape.iter().map(|extent| format!("{extent},")).collect();
    let extents = if shape.len() > 1 { extents.trim_end_matches(',') } else { &extents };
    let mut header =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({extents}), }}");
    let padded = (10 + header.len() + 1).next_multiple_of(64) - 10;
    header.extend(std::iter::repeat_n(' ', padded - 1 - header.len()));
    header.push('\n');
    out.write_all(b"\x93NUMPY\x01\x00")?;
    out.write_all(&(padded as u16).to_le_bytes())?;
    out.write_all(header.as_bytes())
}
