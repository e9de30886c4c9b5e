//! Files from which parts of the rows are read.

use super::{Fault, Limits, extension, limits::Budget, matrix_market, npz, unknown_extension};
use crate::error::*;
use crate::{Csr, Element, check};
use std::fs::{File, Metadata};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Matrix in a file from which parts of the rows are read, for matrices larger than the memory of one process.
/// Supported are Matrix Market (`.mtx`, coordinate layout) and SciPy's CSR (`.npz`).
///
/// ```
/// use einsparse_formats::{Csr, generate, io};
///
/// let path = std::env::temp_dir().join("einsparse-rows.npz");
/// let poisson = generate::poisson2d::<f32>(8, 8)?;
/// io::write_npz(&path, &poisson)?;
///
/// let file = io::RowFile::open(&path)?;
/// assert_eq!(file.shape(), [64, 64]);
/// assert_eq!(file.row_counts()[..3], [3, 4, 4]);
/// let half: Csr<f32> = file.read(32..64)?;
/// assert_eq!(half.shape(), [32, 64]);
/// assert_eq!(half.pattern().columns()[..2], [24, 32]);
/// # std::fs::remove_file(&path).ok();
/// # Ok::<(), einsparse_formats::FormatError>(())
/// ```
///
/// The rows are bitwise equal to those of [`read_any`](super::read_any) and `to_csr` for the whole file, with the same
/// policies.
///
/// # Memory
/// While the file is open, it needs 4 bytes per row of the file. Reading a part needs at most 32 bytes per entry and 8
/// bytes per row of the part. Text is read in pieces of 4 MiB, which need about 40 MB with their contents. No memory is
/// allocated because of a number that only a header states. A line of text longer than [`Limits::bytes`] is an error.
///
/// # Work
/// Matrix Market: opening the file and reading a part both read and validate the whole text, so that all processes of a
/// group find the same error. One error is an exception: an entry of a symmetric matrix that is stored together with
/// its mirror is found only by processes that read its rows. Files that store both halves are read once more for this.
///
/// Archive: opening reads the row offsets, and a part reads its own entries. Stored members are read with a seek; of
/// deflated members, all preceding data is inflated. The checksum of a member is compared only if all rows are read at
/// once.
#[derive(Debug)]
pub struct RowFile {
    path: PathBuf,
    limits: Limits,
    /// Whether the file is `.npz` rather than `.mtx`.
    archive: bool,
    /// Length and modification time.
    facts: Metadata,
    counted: Counted,
}

/// Row counts and checksum, which opening a file determines.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) shape: [usize; 2],
    /// Number of entries of each row.
    pub(super) counts: Vec<u32>,
    /// Checksum of the text, or of the checksums of the members of an archive.
    pub(super) checksum: u32,
}

impl Counted {
    /// Range of the positions of the entries of these rows.
    pub(super) fn entries(&self, rows: &Range<usize>) -> Range<usize> {
        let sum = |rows: &[u32]| rows.iter().map(|count| *count as usize).sum::<usize>();
        let first = sum(&self.counts[..rows.start]);
        first..first + sum(&self.counts[rows.clone()])
    }

    /// Range of the positions of all entries.
    pub(super) fn all(&self) -> Range<usize> {
        self.entries(&(0..self.counts.len()))
    }

    pub(super) fn is_still(&self, checksum: u32) -> Result<(), Fault> {
        if checksum == self.checksum {
            return Ok(());
        }
        let before = self.checksum;
        Err(changed(format!("its checksum was {before:08x}, now {checksum:08x}")))
    }
}

pub(super) fn changed(how: String) -> Fault {
    Fault::whole(format!("the file changed since it was opened: {how}"))
}

impl RowFile {
    /// Opens a file by its extension, `.mtx` or `.npz`, and counts the entries of its rows.
    ///
    /// # Errors
    /// Returns [`FormatError::Io`] like [`read_any`](super::read_any). It is also returned for the array layout, for
    /// archives that are not CSR, and if the counts of the rows exceed 64 MB plus 16 bytes per byte of the file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_within(path, Limits::default())
    }

    /// [`RowFile::open`] with another memory limit, for opening and for each part.
    pub fn open_within(path: impl AsRef<Path>, limits: Limits) -> Result<Self> {
        let path = path.as_ref();
        let kind = extension(path);
        if !["mtx", "npz"].contains(&kind.as_str()) {
            return Err(unknown_extension(path, ".mtx or .npz"));
        }
        let archive = kind == "npz";
        let open = || {
            let (file, facts) = start(path)?;
            let (length, budget) = (facts.len(), budget(limits, &facts));
            let counted = if archive {
                npz::count_rows(&file, budget)?
            } else {
                matrix_market::count_rows(&file, length, limits, budget)?
            };
            is_still(&facts, &file.metadata()?)?;
            Ok((facts, counted))
        };
        let (facts, counted) =
            open().map_err(|fault: Fault| fault.at(&path.display().to_string()))?;
        Ok(Self { path: path.to_owned(), limits, archive, facts, counted })
    }

    /// Rows and columns of the matrix.
    pub fn shape(&self) -> [usize; 2] {
        self.counted.shape
    }

    /// Number of entries of each row, including mirrored ones. It can be used to split rows by cost. Each duplicate
    /// entry counts, although duplicates are summed when they are read.
    pub fn row_counts(&self) -> &[u32] {
        &self.counted.counts
    }

    /// Reads a range of rows as a matrix of shape `[rows.len(), columns]`. Its row 0 is row `rows.start` of the file.
    ///
    /// # Errors
    /// Returns [`FormatError::Shape`] for a range that is out of bounds, and [`FormatError::Overflow`] for more than
    /// 2^32 - 1 entries. Returns [`FormatError::Io`] for a value that is not a number or out of the range of `T`, a
    /// column index out of range, or a file that is truncated, exceeds the memory limit, or changed since it was
    /// opened.
    pub fn read<T: Element>(&self, rows: Range<usize>) -> Result<Csr<T>> {
        let count = self.counted.counts.len();
        if rows.start > rows.end || rows.end > count {
            let (found, expected) = (format!("{rows:?}"), format!("one within 0..{count}"));
            return Err(check::shape("range of rows", found, expected));
        }
        let name = self.path.display().to_string();
        let open = || {
            let (file, facts) = start(&self.path)?;
            is_still(&self.facts, &facts)?;
            Ok(file)
        };
        let file = open().map_err(|fault: Fault| fault.at(&name))?;
        let (limits, counted) = (self.limits, &self.counted);
        let (length, budget) = (self.facts.len(), budget(limits, &self.facts));
        let read = if self.archive {
            npz::read_rows(&file, budget, &name, counted, rows)?
        } else {
            matrix_market::read_rows(&file, length, limits, budget, &name, counted, rows)?
        };
        let facts = file.metadata().map_err(Fault::from);
        let still = facts.and_then(|facts| is_still(&self.facts, &facts));
        still.map_err(|fault| fault.at(&name))?;
        Ok(read)
    }
}

fn start(path: &Path) -> Result<(File, Metadata), Fault> {
    let file = File::open(path)?;
    let facts = file.metadata()?;
    if !facts.is_file() {
        return Err(Fault::whole("not a file, which can be read more than once"));
    }
    Ok((file, facts))
}

fn budget(limits: Limits, facts: &Metadata) -> Budget {
    let length = usize::try_from(facts.len()).unwrap_or(usize::MAX);
    Budget::holding(limits, length, 0)
}

fn is_still(before: &Metadata, now: &Metadata) -> Result<(), Fault> {
    let (length, other) = (before.len(), now.len());
    if length != other {
        return Err(changed(format!("it had {length} bytes, now {other}")));
    }
    // Some systems do not provide the modification time.
    let written = |facts: &Metadata| facts.modified().ok();
    if written(before) != written(now) {
        return Err(changed(format!("its {length} bytes were written again")));
    }
    Ok(())
}
