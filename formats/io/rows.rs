//! Files that are read in parts of rows.

use super::{Fault, Limits, extension, limits::Budget, matrix_market, npz, unknown_extension};
use crate::{Csr, Element, FormatError};
use std::fs::{File, Metadata};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A matrix in a file that is read in parts of rows, for matrices larger than the memory of one process: Matrix Market
/// (`.mtx`, coordinate layout) or SciPy's CSR (`.npz`).
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
/// Rows are what [`read_any`](super::read_any) and `to_csr` give for the whole file, to the bit, with its policies.
///
/// # Memory
/// 4 bytes for each row of the file while it is open. Reading a part takes at most 32 bytes for each of its entries and
/// 8 for each of its rows. Text comes in pieces of 4 MiB, which take some 40 MB with what they hold. Nothing is taken
/// because a header claims it. A line of text longer than [`Limits::bytes`] is refused.
///
/// # Work
/// Of Matrix Market, opening and each part read the whole text and check every line of it, so that all processes of a
/// group find the same fault. Only a place of a symmetric matrix that is given with its mirror is found by those alone
/// that read its rows. Files that store both halves are read once more for this.
///
/// Of an archive, opening reads the row offsets, and a part its own entries: by a seek where they are stored as they
/// are; where they are deflated all before them is inflated. The checksum of a member is compared where all rows are
/// read at once.
#[derive(Debug)]
pub struct RowFile {
    path: PathBuf,
    limits: Limits,
    /// `.npz`, or else `.mtx`.
    archive: bool,
    /// Length, and when it was written.
    facts: Metadata,
    counted: Counted,
}

/// What opening a file finds out.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) shape: [usize; 2],
    /// Entries of each row.
    pub(super) counts: Vec<u32>,
    /// Of the text, or of the checksums of an archive.
    pub(super) checksum: u32,
}

impl Counted {
    /// Positions of the entries of these rows.
    pub(super) fn entries(&self, rows: &Range<usize>) -> Range<usize> {
        let sum = |rows: &[u32]| rows.iter().map(|count| *count as usize).sum::<usize>();
        let first = sum(&self.counts[..rows.start]);
        first..first + sum(&self.counts[rows.clone()])
    }

    /// Positions of all entries.
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
    /// [`FormatError::Io`] as of [`read_any`](super::read_any); also for the array layout, for archives that are not
    /// CSR, and for more rows than 64 MB and 16 bytes for each byte of the file have room to count.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, FormatError> {
        Self::open_within(path, Limits::default())
    }

    /// [`RowFile::open`] with another limit of memory, for opening and for each part.
    ///
    /// # Errors
    /// As [`RowFile::open`].
    pub fn open_within(path: impl AsRef<Path>, limits: Limits) -> Result<Self, FormatError> {
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

    /// Rows and columns.
    pub fn shape(&self) -> [usize; 2] {
        self.counted.shape
    }

    /// Entries of each row, mirrored ones too: what a split by cost needs. Entries at one place, which are added up
    /// when they are read, count each.
    pub fn row_counts(&self) -> &[u32] {
        &self.counted.counts
    }

    /// Reads the rows of this range: `[rows.len(), columns]`, row `rows.start` of the file first.
    ///
    /// # Errors
    /// [`FormatError::Shape`] for a range that is not within the rows, [`FormatError::Overflow`] for one of more than
    /// 2^32 - 1 entries, and [`FormatError::Io`]: a value that is no number or not in the range of `T`, a column index
    /// out of range, a file that is cut off, over the limit of memory, or changed since it was opened.
    pub fn read<T: Element>(&self, rows: Range<usize>) -> Result<Csr<T>, FormatError> {
        let count = self.counted.counts.len();
        if rows.start > rows.end || rows.end > count {
            return Err(FormatError::Shape {
                what: "range of rows",
                found: format!("{rows:?}"),
                expected: format!("one within 0..{count}"),
            });
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
    // Not every system knows when.
    let written = |facts: &Metadata| facts.modified().ok();
    if written(before) != written(now) {
        return Err(changed(format!("its {length} bytes were written again")));
    }
    Ok(())
}
