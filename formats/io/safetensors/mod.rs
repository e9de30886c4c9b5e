//! `.safetensors`: the length of a header, the header, then the raw arrays of all tensors, lowest byte first.
//! Only the header and the tensors that are asked for are read.

mod header;

use super::limits::{Budget, grow};
use super::{Fault, Limits, in_range, quote};
use crate::{Dense, Element, FormatError, bf16, f16};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;

/// Longest header taken, in bytes.
const HEADER_LIMIT: u64 = 100_000_000;

/// A tensor of a file, as its header has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its name.
    pub name: String,
    /// The element type: `F32`, `F16`, `BF16`, or one that [`Safetensors::read`] refuses.
    pub dtype: String,
    /// Extents, row-major.
    pub shape: Vec<usize>,
    /// Where it lies, in bytes behind the header.
    pub bytes: Range<u64>,
}

/// A file of named tensors whose header has been read and checked.
///
/// ```
/// use einsparse_formats::io::Safetensors;
///
/// let header = br#"{"w": {"dtype": "BF16", "shape": [1, 2], "data_offsets": [0, 4]}}"#;
/// let length = (header.len() as u64).to_le_bytes();
/// let bytes = [&length[..], header, &[0x80, 0x3f, 0, 0]].concat();
/// let mut file = Safetensors::new(std::io::Cursor::new(bytes), "model")?;
/// assert_eq!(file.tensors()[0].shape, [1, 2]);
/// assert_eq!(file.read::<f32>("w")?.values(), [1.0, 0.0]);
/// # Ok::<(), einsparse_formats::FormatError>(())
/// ```
#[derive(Debug)]
pub struct Safetensors<R = File> {
    from: R,
    path: String,
    limits: Limits,
    /// Where the data starts.
    start: u64,
    tensors: Vec<Stored>,
}

impl Safetensors {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// [`FormatError::Io`]: cut off, a header that is too long or no such object, offsets that overlap, leave gaps, pass
    /// the file or do not fit their shape.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, FormatError> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let file = File::open(path).map_err(|error| Fault::from(error).at(&name))?;
        Self::new(file, &name)
    }
}

impl<R: Read + Seek> Safetensors<R> {
    /// [`Safetensors::open`] of anything that can be read; `name` stands for the file in messages.
    ///
    /// # Errors
    /// As [`Safetensors::open`].
    pub fn new(from: R, name: &str) -> Result<Self, FormatError> {
        Self::within(from, name, Limits::default())
    }

    /// [`Safetensors::new`] with another limit of memory; each tensor that is read has a limit of its own, by its
    /// bytes in the file.
    ///
    /// # Errors
    /// As [`Safetensors::open`].
    pub fn within(mut from: R, name: &str, limits: Limits) -> Result<Self, FormatError> {
        let (start, tensors) = read_header(&mut from, limits).map_err(|fault| fault.at(name))?;
        let path = name.to_owned();
        Ok(Safetensors {
            from,
            path,
            limits,
            start,
            tensors,
        })
    }

    /// All tensors, in the order of their data.
    pub fn tensors(&self) -> &[Stored] {
        &self.tensors
    }

    /// Reads a tensor of F64, F32, F16 or BF16, each element rounded once to `T`.
    ///
    /// # Errors
    /// [`FormatError::Io`]: no tensor of this name, another element type, a finite value out of the range of `T`, a file
    /// that is cut off since it was opened, or over the limit of memory.
    pub fn read<T: Element>(&mut self, tensor: &str) -> Result<Dense<T>, FormatError> {
        let at = self.tensors.iter().position(|t| t.name == tensor);
        let Some(at) = at else {
            let reason = match &self.tensors[..] {
                [] => "it holds no tensor".to_owned(),
                [first, ..] => format!(
                    "no such tensor: there are {}, the first is {}",
                    self.tensors.len(),
                    quote(first.name.as_bytes())
                ),
            };
            return Err(Fault::member(quote(tensor.as_bytes()), reason).at(&self.path));
        };
        let stored = &self.tensors[at];
        let wrong = |(position, reason): (Option<usize>, String)| {
            let place = position.map_or(String::new(), |at| format!("[{at}]"));
            let member = quote(stored.name.as_bytes()) + &place;
            Fault::member(member, reason).at(&self.path)
        };
        let values = values(&mut self.from, self.start, stored, self.limits).map_err(wrong)?;
        Dense::new(stored.shape.clone(), values)
    }

    /// The tensor of this name; without one, the only one there is.
    pub(super) fn read_one<T: Element>(
        &mut self,
        tensor: Option<&str>,
    ) -> Result<Dense<T>, FormatError> {
        match (tensor, &self.tensors[..]) {
            (Some(tensor), _) => self.read(tensor),
            (None, [only]) => {
                let name = only.name.clone();
                self.read(&name)
            }
            (None, all) => {
                let reason = format!("{} tensors: name one behind a colon", all.len());
                Err(Fault::whole(reason).at(&self.path))
            }
        }
    }
}

/// Where the data starts, and what it holds.
fn read_header<R: Read + Seek>(from: &mut R, limits: Limits) -> Result<(u64, Vec<Stored>), Fault> {
    let length = from.seek(SeekFrom::End(0))?;
    from.rewind()?;
    if length < 8 {
        return Err(Fault::whole(format!(
            "{length} bytes: shorter than the 8 of the header's length"
        )));
    }
    let mut word = [0; 8];
    from.read_exact(&mut word)?;
    let (header, left) = (u64::from_le_bytes(word), length - 8);
    let over =
        |most: u64, what: &str| Fault::member("header", format!("{header} bytes, {most} {what}"));
    if header > left {
        return Err(over(left, "are left in the file"));
    }
    if header > HEADER_LIMIT {
        return Err(over(HEADER_LIMIT, "at most"));
    }
    // The text, and what is made of it.
    let mut budget = Budget::new(limits, header as usize);
    let room = budget.take::<u8>(8 * header as usize);
    room.map_err(|reason| Fault::member("header", reason))?;
    let mut text = Vec::new();
    from.take(header).read_to_end(&mut text)?;
    Ok((8 + header, header::parse(&text, left - header)?))
}

/// The elements in row-major order, or what is wrong with which of them.
fn values<T: Element>(
    from: &mut (impl Read + Seek),
    start: u64,
    stored: &Stored,
    limits: Limits,
) -> Result<Vec<T>, (Option<usize>, String)> {
    let whole = |reason: String| (None, reason);
    let size = match stored.dtype.as_str() {
        "F64" => 8,
        "F32" => 4,
        "F16" | "BF16" => 2,
        other => {
            let other = quote(other.as_bytes());
            return Err(whole(format!(
                "type {other} is not read: F64, F32, F16 and BF16 are"
            )));
        }
    };
    let length = stored.bytes.end - stored.bytes.start;
    let large = |_| whole(format!("{length} bytes are more than can be addressed"));
    let length = usize::try_from(length).map_err(large)?;
    let len = length / size;
    let mut budget = Budget::new(limits, length);
    budget.take::<T>(len).map_err(whole)?;
    let number = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        let word = u64::from_le_bytes(word);
        match (stored.dtype.as_str(), size) {
            ("BF16", _) => bf16::from_bits(word as u16).to_f64(),
            (_, 2) => f16::from_bits(word as u16).to_f64(),
            (_, 4) => f64::from(f32::from_bits(word as u32)),
            _ => f64::from_bits(word),
        }
    };
    let failed = |error: std::io::Error| whole(error.to_string());
    from.seek(SeekFrom::Start(start + stored.bytes.start))
        .map_err(failed)?;
    let mut values = Vec::new();
    let mut block = vec![0; length.min(1 << 16)];
    let mut left = length;
    while left > 0 {
        let part = left.min(block.len());
        let block = &mut block[..part];
        let cut = |error| whole(format!("{left} of {length} bytes are missing: {error}"));
        from.read_exact(block).map_err(cut)?;
        left -= part;
        for bytes in block.chunks_exact(size) {
            grow(&mut values, len).map_err(|fault| whole(fault.reason))?;
            let value = in_range(number(bytes));
            values.push(value.map_err(|reason| (Some(values.len()), reason))?);
        }
    }
    Ok(values)
}

/// File and tensor of `model.safetensors:name`, or the file alone; `None` for other names.
pub(super) fn split(path: &Path) -> Option<(&Path, Option<&str>)> {
    const END: &str = ".safetensors";
    if super::extension(path) == END[1..] {
        return Some((path, None));
    }
    let text = path.to_str()?;
    let end = text.find(&format!("{END}:"))? + END.len();
    Some((Path::new(&text[..end]), Some(&text[end + 1..])))
}
