//! `.safetensors`: the length of a header, the header, and the raw arrays of all tensors, lowest byte first. Only the
//! header and the requested tensors are read.

mod header;

use super::limits::Budget;
use super::npy::{Array, BLOCK, Wrong};
use super::{Fault, Limits, Progress, quote};
use crate::error::*;
use crate::{Dense, Element};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Take};
use std::ops::Range;
use std::path::Path;

/// Maximum length of a header, in bytes.
const HEADER_LIMIT: u64 = 100_000_000;

/// Description of a tensor in the header of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name of the tensor.
    pub name: String,
    /// Element type: `F64`, `F32`, `F16`, `BF16`, or one that [`Safetensors::read`] does not support.
    pub dtype: String,
    /// Extents, row-major.
    pub shape: Vec<usize>,
    /// Range of bytes of the data, counted from the end of the header.
    pub bytes: Range<u64>,
}

/// File of named tensors whose header has been read and validated.
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
    /// Offset of the data in the file.
    start: u64,
    tensors: Vec<TensorInfo>,
}

impl Safetensors {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// Returns [`FormatError::Io`] for a truncated file, a header that is too long or not such an object, and offsets
    /// that overlap, leave gaps, exceed the file or do not match their shape.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_within(path, Limits::default())
    }

    /// [`Safetensors::open`] with another memory limit, like [`Safetensors::within`].
    pub fn open_within(path: impl AsRef<Path>, limits: Limits) -> Result<Self> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let file = File::open(path).map_err(|error| Fault::from(error).at(&name))?;
        Self::within(file, &name, limits)
    }

    /// Splits `model.safetensors:layer.weight` into file and tensor. Returns only the file for `model.safetensors`, and
    /// `None` for other names. The case of the extension is ignored. The first colon after the extension ends the name
    /// of the file.
    ///
    /// ```
    /// use einsparse_formats::io::Safetensors;
    /// use std::path::Path;
    ///
    /// let (file, tensor) = Safetensors::split(Path::new("model.safetensors:w")).unwrap();
    /// assert_eq!((file, tensor), (Path::new("model.safetensors"), Some("w")));
    /// ```
    pub fn split(path: &Path) -> Option<(&Path, Option<&str>)> {
        const END: &str = ".safetensors";
        if let Some(text) = path.to_str()
            && let Some(at) = text.to_ascii_lowercase().find(&format!("{END}:"))
        {
            let (file, tensor) = text.split_at(at + END.len());
            return Some((Path::new(file), Some(&tensor[1..])));
        }
        (super::extension(path) == END[1..]).then_some((path, None))
    }
}

impl<R: Read + Seek> Safetensors<R> {
    /// [`Safetensors::open`] for any reader. Messages use `name` as the file path.
    pub fn new(from: R, name: &str) -> Result<Self> {
        Self::within(from, name, Limits::default())
    }

    /// [`Safetensors::new`] with another memory limit. Each tensor that is read has its own limit, which depends on its
    /// bytes in the file.
    ///
    /// # Errors
    /// See [`Safetensors::open`].
    pub fn within(mut from: R, name: &str, limits: Limits) -> Result<Self> {
        let (start, tensors) = read_header(&mut from, limits).map_err(|fault| fault.at(name))?;
        let path = name.to_owned();
        Ok(Safetensors { from, path, limits, start, tensors })
    }

    /// All tensors, in the order of their data.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Reads a tensor of type F64, F32, F16 or BF16. Each element is rounded once to `T`.
    ///
    /// # Errors
    /// Returns [`FormatError::Io`] for an unknown name, another element type, a finite value out of the range of `T`, a
    /// file that was truncated since it was opened, or a tensor over the memory limit. For i8, i32 and fp8, values out
    /// of range become the nearest representable value.
    pub fn read<T: Element>(&mut self, tensor: &str) -> Result<Dense<T>> {
        let at = self.find(tensor)?;
        self.read_with(at, &mut |_, _| {})
    }

    /// [`Safetensors::read`] for a tensor by its index in [`Safetensors::tensors`].
    ///
    /// # Errors
    /// Returns the errors of [`Safetensors::read`], and an error if `at` is out of range.
    pub fn read_at<T: Element>(&mut self, at: usize) -> Result<Dense<T>> {
        self.read_with(at, &mut |_, _| {})
    }

    /// Reads the tensor of this name, or the only tensor if there is no name.
    pub(super) fn read_one<T: Element>(
        &mut self,
        tensor: Option<&str>,
        progress: Progress<'_>,
    ) -> Result<Dense<T>> {
        let at = match (tensor, self.tensors.len()) {
            (Some(tensor), _) => self.find(tensor)?,
            (None, 1) => 0,
            (None, count) => {
                let reason = format!("{count} tensors: name one behind a colon");
                return Err(Fault::whole(reason).at(&self.path));
            }
        };
        self.read_with(at, progress)
    }

    fn find(&self, tensor: &str) -> Result<usize> {
        let at = self.tensors.iter().position(|t| t.name == tensor);
        at.ok_or_else(|| self.missing(tensor))
    }

    fn missing(&self, tensor: &str) -> FormatError {
        let reason = match &self.tensors[..] {
            [] => "it holds no tensor".to_owned(),
            [first, ..] => format!(
                "no such tensor: there are {}, the first is {}",
                self.tensors.len(),
                quote(first.name.as_bytes())
            ),
        };
        Fault::member(quote(tensor.as_bytes()), reason).at(&self.path)
    }

    fn read_with<T: Element>(&mut self, at: usize, progress: Progress<'_>) -> Result<Dense<T>> {
        let Some(info) = self.tensors.get(at) else {
            return Err(self.missing(&at.to_string()));
        };
        let values = values(&mut self.from, self.start, info, self.limits, progress);
        let values = values.map_err(|Wrong(position, reason)| {
            let place = position.map_or(String::new(), |at| format!("[{at}]"));
            let member = quote(info.name.as_bytes()) + &place;
            Fault::member(member, reason).at(&self.path)
        })?;
        Dense::new(info.shape.clone(), values)
    }
}

/// Offset of the data, and the tensors.
fn read_header<R: Read + Seek>(
    from: &mut R,
    limits: Limits,
) -> Result<(u64, Vec<TensorInfo>), Fault> {
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
    // Memory of the text and of the parsed header. At most, a shape has one number per two bytes of text, in a list
    // that doubles its capacity while the old list still exists.
    let mut budget = Budget::new(limits, header as usize);
    let room = budget.take::<u8>(12 * header as usize);
    room.map_err(|reason| Fault::member("header", reason))?;
    let mut text = Vec::new();
    from.take(header).read_to_end(&mut text)?;
    if text.len() as u64 != header {
        let reason = format!("cut off: {} of {header} bytes", text.len());
        return Err(Fault::member("header", reason));
    }
    Ok((8 + header, header::parse(&text, left - header)?))
}

/// Reads the elements in row-major order. An error states the index of the invalid element, if there is one.
fn values<T: Element>(
    from: &mut (impl Read + Seek),
    start: u64,
    info: &TensorInfo,
    limits: Limits,
    progress: Progress<'_>,
) -> Result<Vec<T>, Wrong> {
    let Some((Some(kind), size)) = header::element(&info.dtype) else {
        let other = quote(info.dtype.as_bytes());
        return Err(format!("type {other} is not read: F64, F32, F16 and BF16 are").into());
    };
    let total = info.bytes.end - info.bytes.start;
    let large = |_| format!("{total} bytes are more than can be addressed");
    let length = usize::try_from(total).map_err(large)?;
    from.seek(SeekFrom::Start(start + info.bytes.start))?;
    let from = Told { from: from.take(total), total, progress };
    let mut budget = Budget::holding(limits, length, length.min(BLOCK));
    Array::of(kind, size, info.shape.clone(), length, from).values(&mut budget)
}

/// Reader that reports progress.
struct Told<'a, R> {
    from: Take<R>,
    total: u64,
    progress: Progress<'a>,
}

impl<R: Read> Read for Told<'_, R> {
    fn read(&mut self, block: &mut [u8]) -> std::io::Result<usize> {
        let read = self.from.read(block)?;
        (self.progress)(self.total - self.from.limit(), self.total);
        Ok(read)
    }
}
