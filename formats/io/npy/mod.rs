//! NumPy's `.npy`: a short header and the raw array. Object arrays (pickles) are an error and are never executed.
//! (NumPy Enhancement Proposal 1; versions 1, 2 and 3 of the format.)

mod header;

pub(super) use header::{Kind, write_header};
use header::{field, parse_shape, parse_type, read_header};

use super::limits::{Budget, Limits, grow};
use super::{Fault, bytes, in_range, quote, write_file};
use crate::error::*;
use crate::{Dense, Element};
use std::{
    io::{Read, Write},
    ops::Range,
    path::Path,
};

/// Reads a `.npy` file of floats, integers or booleans in C or Fortran order and either byte order. The result is
/// row-major.
///
/// # Errors
/// Returns [`FormatError::Io`] with the reason: not an array, truncated, complex, structured, an object array, or a
/// finite value out of the range of `T`. For i8, i32 and fp8, values out of range become the nearest representable
/// value.
pub fn read_npy<T: Element>(path: impl AsRef<Path>) -> Result<Dense<T>> {
    bytes::read_as(path.as_ref(), Limits::default(), read_npy_from)
}

/// [`read_npy`] from memory. Messages use `name` as the file path.
pub fn read_npy_from<T: Element>(bytes: &[u8], name: &str) -> Result<Dense<T>> {
    let read = || {
        let mut array = Array::open(bytes)?;
        // An element has at least one byte, so the memory of an array is bounded by the size of its file.
        let mut budget = Budget::new(Limits::default(), bytes.len());
        let values = array.values::<T>(&mut budget).map_err(|wrong| match wrong {
            Wrong(Some(position), reason) => format!("[{position}]: {reason}"),
            Wrong(None, reason) => reason,
        })?;
        Ok((array.shape, values))
    };
    let (shape, values) = read().map_err(|reason: String| Fault::whole(reason).at(name))?;
    Dense::new(shape, values)
}

/// Writes a dense array as `.npy` in C order. bf16, which NumPy lacks, is written as float32.
///
/// # Errors
/// Returns [`FormatError::Io`] if the file cannot be written.
pub fn write_npy<T: Element>(path: impl AsRef<Path>, dense: &Dense<T>) -> Result<()> {
    write_file(path.as_ref(), |out| write_values(out, dense.shape(), dense.values()))
}

/// Name of the element type if it is a floating-point type.
pub(super) fn float_type(reader: impl Read) -> Option<&'static str> {
    Array::open(reader).ok()?.float_type()
}

/// Bytes of elements in memory at once while an array is read.
pub(super) const BLOCK: usize = 1 << 14;

/// Array whose header has been read and whose elements follow.
pub(super) struct Array<R> {
    kind: Kind,
    /// Bytes per element.
    size: usize,
    big_endian: bool,
    fortran: bool,
    pub(super) shape: Vec<usize>,
    /// Number of elements to read.
    len: usize,
    /// Number of elements after those to read.
    behind: usize,
    reader: R,
}

/// Index of an invalid element, if the error is about one, and the reason.
pub(super) struct Wrong(pub(super) Option<usize>, pub(super) String);

impl From<String> for Wrong {
    fn from(reason: String) -> Self {
        Wrong(None, reason)
    }
}

impl From<std::io::Error> for Wrong {
    fn from(error: std::io::Error) -> Self {
        error.to_string().into()
    }
}

impl From<Fault> for Wrong {
    fn from(fault: Fault) -> Self {
        fault.reason.into()
    }
}

impl<R: Read> Array<R> {
    /// Array of this shape, whose elements are `length` bytes of `reader`, lowest byte first and row-major.
    pub(super) fn of(kind: Kind, size: usize, shape: Vec<usize>, length: usize, reader: R) -> Self {
        Self {
            kind,
            size,
            big_endian: false,
            fortran: false,
            shape,
            len: length / size,
            behind: 0,
            reader,
        }
    }

    pub(super) fn open(mut reader: R) -> Result<Self, String> {
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
        let product = |n: usize, extent: &usize| n.checked_mul(*extent);
        let empty = shape.contains(&0);
        let length = shape.iter().try_fold(size, product);
        let length = if empty { Some(0) } else { length };
        let length = length.ok_or_else(|| format!("shape {shape:?} is too large"))?;
        Ok(Self {
            kind,
            size,
            big_endian,
            fortran: fortran && shape.len() > 1,
            shape,
            len: length / size,
            behind: 0,
            reader,
        })
    }

    /// Selects the elements to read, in the order of the file. `skip` skips a number of bytes.
    pub(super) fn keep(
        &mut self,
        elements: Range<usize>,
        skip: impl FnOnce(&mut R, u64) -> std::io::Result<()>,
    ) -> Result<(), Wrong> {
        let Some(behind) = self.len.checked_sub(elements.end) else {
            return Err(format!("{} elements, {} expected", self.len, elements.end).into());
        };
        let before = (elements.start * self.size) as u64;
        skip(&mut self.reader, before)?;
        (self.len, self.behind) = (elements.len(), behind);
        Ok(())
    }

    /// Name of the element type if it is a floating-point type.
    pub(super) fn float_type(&self) -> Option<&'static str> {
        match (self.kind, self.size) {
            (Kind::Float, 2) => Some("f16"),
            (Kind::Float, 4) => Some("f32"),
            (Kind::Float, _) => Some("f64"),
            _ => None,
        }
    }

    /// Whether elements along the first axis are adjacent.
    pub(super) fn is_fortran(&self) -> bool {
        self.fortran
    }

    /// Number of elements to read.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Passes the bytes of every element to `take` in the order of the file. At most one block is in memory.
    fn each(&mut self, mut take: impl FnMut(&[u8]) -> Result<(), Wrong>) -> Result<(), Wrong> {
        let mut block = [0; BLOCK];
        let length = self.len * self.size;
        let (mut read, mut held) = (0, 0);
        while read < length {
            let room = (block.len() - held).min(length - read);
            let more = match self.reader.read(&mut block[held..held + room]) {
                Ok(0) => return Err(format!("cut off: {read} of {length} bytes of data").into()),
                Ok(more) => more,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            (read, held) = (read + more, held + more);
            let whole = held - held % self.size;
            block[..whole].chunks_exact(self.size).try_for_each(&mut take)?;
            block.copy_within(whole..held, 0);
            held -= whole;
        }
        if self.behind > 0 {
            return Ok(());
        }
        // The read past the end makes an archive compare its checksum.
        match self.reader.read(&mut [0])? {
            0 => Ok(()),
            _ => Err(format!("more data than the {length} bytes of shape {:?}", self.shape).into()),
        }
    }

    /// Converts the bytes of one element to a word.
    fn word(bytes: &[u8], big_endian: bool) -> u64 {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        if big_endian {
            word[..bytes.len()].reverse();
        }
        u64::from_le_bytes(word)
    }

    fn integer(word: u64, kind: Kind, size: usize) -> i128 {
        let unused = 64 - 8 * size as u32;
        match kind {
            Kind::Signed => ((word << unused) as i64 >> unused).into(),
            // NumPy interprets every byte except 0 as True.
            Kind::Bool => (word != 0).into(),
            _ => word.into(),
        }
    }

    /// Reads every element as `T`, rounded once, in row-major order.
    pub(super) fn values<T: Element>(&mut self, budget: &mut Budget) -> Result<Vec<T>, Wrong> {
        if matches!(self.kind, Kind::Bytes | Kind::Unicode) {
            return Err(Wrong(Some(0), "numbers expected, text found".to_owned()));
        }
        budget.take::<T>(self.len)?;
        let (kind, size, big_endian) = (self.kind, self.size, self.big_endian);
        let number = |bytes: &[u8]| {
            let word = Self::word(bytes, big_endian);
            let wide = match (kind, size) {
                (Kind::Float, 2) => half::f16::from_bits(word as u16).to_f64(),
                (Kind::Float, 4) => f64::from(f32::from_bits(word as u32)),
                (Kind::Float, _) => f64::from_bits(word),
                (Kind::Bfloat, _) => half::bf16::from_bits(word as u16).to_f64(),
                _ => Self::integer(word, kind, size) as f64,
            };
            in_range::<T>(wide)
        };
        let mut values = Vec::new();
        let len = self.len;
        if self.fortran {
            let data = self.raw(budget)?;
            for at in row_major(&self.shape) {
                grow(&mut values, len)?;
                let value = number(&data[at * size..][..size]);
                values.push(value.map_err(|reason| Wrong(Some(values.len()), reason))?);
            }
            budget.give::<u8>(data.len());
            return Ok(values);
        }
        self.each(|bytes| {
            grow(&mut values, len)?;
            let value = number(bytes).map_err(|reason| Wrong(Some(values.len()), reason))?;
            values.push(value);
            Ok(())
        })?;
        Ok(values)
    }

    /// Reads all bytes in the order of the file.
    fn raw(&mut self, budget: &mut Budget) -> Result<Vec<u8>, Wrong> {
        let length = self.len * self.size;
        budget.take::<u8>(length)?;
        let mut data = Vec::new();
        self.each(|bytes| {
            for byte in bytes {
                grow(&mut data, length)?;
                data.push(*byte);
            }
            Ok(())
        })?;
        Ok(data)
    }

    /// Reads every element as an index. `check` validates each index before it is narrowed.
    pub(super) fn indices(
        &mut self,
        budget: &mut Budget,
        mut check: impl FnMut(i128) -> Result<(), String>,
    ) -> Result<Vec<u32>, Wrong> {
        if !matches!(self.kind, Kind::Signed | Kind::Unsigned) {
            let found = match self.kind {
                Kind::Float => format!("float{}", 8 * self.size),
                Kind::Bool => "bool".to_owned(),
                _ => "text".to_owned(),
            };
            return Err(format!("integer type expected, {found} found").into());
        }
        budget.take::<u32>(self.len)?;
        let (kind, size, big_endian) = (self.kind, self.size, self.big_endian);
        let (mut indices, len) = (Vec::new(), self.len);
        self.each(|bytes| {
            grow(&mut indices, len)?;
            let index = Self::integer(Self::word(bytes, big_endian), kind, size);
            check(index).map_err(|reason| Wrong(Some(indices.len()), reason))?;
            indices.push(index as u32);
            Ok(())
        })?;
        Ok(indices)
    }

    /// Reads a text scalar.
    pub(super) fn text(&mut self) -> Result<String, String> {
        let step = match self.kind {
            Kind::Bytes => 1,
            Kind::Unicode => 4,
            _ => return Err("text expected".to_owned()),
        };
        if self.len != 1 {
            return Err(format!("one text expected, shape {:?} found", self.shape));
        }
        let at = if self.big_endian { step - 1 } else { 0 };
        let mut text = String::new();
        let read = self.each(|bytes| {
            let characters = bytes.chunks_exact(step);
            text.extend(characters.map(|character| char::from(character[at])));
            Ok(())
        });
        read.map_err(|wrong| wrong.1)?;
        Ok(text.trim_end_matches('\0').to_owned())
    }
}

/// Offset in Fortran order of each element of a row-major traversal.
fn row_major(shape: &[usize]) -> impl Iterator<Item = usize> {
    let mut strides = Vec::with_capacity(shape.len());
    let mut elements = 1_usize;
    for extent in shape {
        strides.push(elements);
        elements = elements.saturating_mul(*extent);
    }
    let mut index = vec![0; shape.len()];
    let mut at = 0;
    let left = if shape.contains(&0) { 0 } else { elements };
    (0..left).map(move |_| {
        let here = at;
        for axis in (0..shape.len()).rev() {
            (index[axis], at) = (index[axis] + 1, at + strides[axis]);
            if index[axis] < shape[axis] {
                break;
            }
            at -= shape[axis] * strides[axis];
            index[axis] = 0;
        }
        here
    })
}

/// Writes header and values, lowest byte first.
pub(super) fn write_values<T: Element>(
    out: &mut dyn Write,
    shape: &[usize],
    values: &[T],
) -> std::io::Result<()> {
    let size = match T::NAME {
        "f64" => 8,
        "f16" => 2,
        _ => 4,
    };
    write_header(out, &format!("<f{size}"), shape)?;
    values.iter().map(|value| value.to_f64()).try_for_each(|value| match size {
        8 => out.write_all(&value.to_le_bytes()),
        2 => out.write_all(&half::f16::from_f64(value).to_le_bytes()),
        _ => out.write_all(&(value as f32).to_le_bytes()),
    })
}
