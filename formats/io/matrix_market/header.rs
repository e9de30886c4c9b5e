//! Banner and size line.

use super::super::{
    Fault,
    bytes::{Lines, words},
    fits_index, quote, whole_number,
};
use std::fmt;

/// Layout of the matrix in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// One line per stored entry: row, column, value.
    Coordinate,
    /// Every element, column by column.
    Array,
}

/// Type of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// Floating-point text.
    Real,
    /// Integers.
    Integer,
    /// Unsigned integers. SciPy writes this field for uint32 and uint64.
    UnsignedInteger,
    /// No values: every entry is one.
    Pattern,
}

/// Entries that the file omits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Symmetry {
    /// No entries are omitted.
    General,
    /// One half is omitted: `a[j,i] = a[i,j]`.
    Symmetric,
    /// One half and the zero diagonal are omitted: `a[j,i] = -a[i,j]`.
    SkewSymmetric,
}

/// Banner and size line of a Matrix Market file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Coordinate or array.
    pub layout: Layout,
    /// Real, integer, unsigned integer or pattern.
    pub field: Field,
    /// General, symmetric or skew-symmetric.
    pub symmetry: Symmetry,
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Number of entries in the file, before mirroring and summation. In the array layout, number of values in the
    /// file.
    pub entries: usize,
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layout = match self.layout {
            Layout::Coordinate => "coordinate",
            Layout::Array => "array",
        };
        let field = match self.field {
            Field::Real => "real",
            Field::Integer => "integer",
            Field::UnsignedInteger => "unsigned-integer",
            Field::Pattern => "pattern",
        };
        let symmetry = match self.symmetry {
            Symmetry::General => "general",
            Symmetry::Symmetric => "symmetric",
            Symmetry::SkewSymmetric => "skew-symmetric",
        };
        write!(
            f,
            "{layout} {field} {symmetry}, {} x {}, {} entries",
            self.rows, self.cols, self.entries
        )
    }
}

/// Lines after the size line.
pub(super) struct Body<'a> {
    pub(super) text: &'a [u8],
    /// Number of lines before the text.
    pub(super) lines_before: u64,
    /// Number of bytes before the text.
    pub(super) bytes_before: u64,
}

pub(super) fn read(text: &[u8]) -> Result<(Header, Body<'_>), Fault> {
    let mut search = Search::default();
    search.look(text)?.ok_or_else(|| search.missing())
}

/// Search for banner and size line in a text that is read in pieces of whole lines.
#[derive(Default)]
pub(super) struct Search {
    banner: Option<(Layout, Field, Symmetry)>,
    lines: u64,
}

impl Search {
    /// Returns the header and the rest of this piece, or `None` if the next piece is needed.
    pub(super) fn look<'a>(&mut self, text: &'a [u8]) -> Result<Option<(Header, Body<'a>)>, Fault> {
        let first = self.banner.is_none();
        let mark = if first && text.starts_with(b"\xEF\xBB\xBF") { 3 } else { 0 };
        let mut lines = Lines::new(&text[mark..]);
        lines.number = self.lines;
        let (layout, field, symmetry) = match self.banner {
            Some(banner) => banner,
            None => {
                let Some(banner) = lines.next() else {
                    return Ok(None);
                };
                let banner = read_banner(banner).map_err(|reason| Fault::line(1, reason))?;
                *self.banner.insert(banner)
            }
        };
        let size = lines.find(|line| words(line).next().is_some_and(|word| word[0] != b'%'));
        let number = lines.number;
        self.lines = number;
        let Some(size) = size else {
            return Ok(None);
        };
        let [rows, cols, entries] =
            read_size(size, layout, symmetry).map_err(|reason| Fault::line(number, reason))?;
        let header = Header { layout, field, symmetry, rows, cols, entries };
        let bytes_before = mark + lines.position;
        let body = Body {
            text: &text[bytes_before..],
            lines_before: number,
            bytes_before: bytes_before as u64,
        };
        Ok(Some((header, body)))
    }

    /// Error for a text that ends before the header is complete.
    pub(super) fn missing(&self) -> Fault {
        match self.banner {
            None => Fault::line(1, "empty file, Matrix Market banner expected"),
            Some(_) => Fault::line(self.lines, "size line missing at the end of the file"),
        }
    }
}

fn read_banner(banner: &[u8]) -> Result<(Layout, Field, Symmetry), String> {
    const SHAPE: &str =
        "not a Matrix Market banner: `%%MatrixMarket matrix <layout> <field> <symmetry>` expected";
    let found: Vec<String> =
        words(banner).map(|word| String::from_utf8_lossy(word).to_ascii_lowercase()).collect();
    if found.first().is_none_or(|word| word != "%%matrixmarket") || found.len() != 5 {
        return Err(SHAPE.to_owned());
    }
    if found[1] != "matrix" {
        return Err(format!("object {} is not supported, only matrix", quote(found[1].as_bytes())));
    }
    let layout = match found[2].as_str() {
        "coordinate" => Layout::Coordinate,
        "array" => Layout::Array,
        other => {
            return Err(format!("layout {} is not coordinate or array", quote(other.as_bytes())));
        }
    };
    let field = match found[3].as_str() {
        "real" | "double" => Field::Real,
        "integer" => Field::Integer,
        "unsigned-integer" => Field::UnsignedInteger,
        "pattern" if layout == Layout::Array => {
            return Err("an array has no pattern field".to_owned());
        }
        "pattern" => Field::Pattern,
        "complex" => return Err("field complex is not supported".to_owned()),
        other => {
            return Err(format!(
                "field {} is not real, integer, unsigned-integer or pattern",
                quote(other.as_bytes())
            ));
        }
    };
    Ok((layout, field, read_symmetry(&found[4], field)?))
}

fn read_symmetry(word: &str, field: Field) -> Result<Symmetry, String> {
    Ok(match word {
        "general" => Symmetry::General,
        "symmetric" => Symmetry::Symmetric,
        "skew-symmetric" if field == Field::Pattern => {
            return Err("a pattern cannot be skew-symmetric: it has no signs".to_owned());
        }
        "skew-symmetric" if field == Field::UnsignedInteger => {
            let reason =
                "unsigned integers cannot be skew-symmetric: half of them would be negative";
            return Err(reason.to_owned());
        }
        "skew-symmetric" => Symmetry::SkewSymmetric,
        "hermitian" => return Err("symmetry hermitian is not supported".to_owned()),
        other => {
            return Err(format!(
                "symmetry {} is not general, symmetric or skew-symmetric",
                quote(other.as_bytes())
            ));
        }
    })
}

fn read_size(line: &[u8], layout: Layout, symmetry: Symmetry) -> Result<[usize; 3], String> {
    let found: Vec<&[u8]> = words(line).collect();
    let (names, wanted): (&[&str], _) = match layout {
        Layout::Coordinate => {
            (&["row", "column", "entry"], "rows, columns and entry count expected")
        }
        Layout::Array => (&["row", "column"], "rows and columns expected"),
    };
    if found.len() != names.len() {
        return Err(format!("{wanted}, {} numbers found", found.len()));
    }
    let mut counts = [0_u64; 3];
    for ((count, name), word) in counts.iter_mut().zip(names).zip(&found) {
        *count = read_count(word, name)?;
    }
    let [rows, cols, entries] = counts;
    if symmetry != Symmetry::General && rows != cols {
        let kind = if symmetry == Symmetry::Symmetric { "symmetric" } else { "skew-symmetric" };
        return Err(format!("a {kind} matrix must be square, this one is {rows} x {cols}"));
    }
    // Both extents are below 2^32, so the products fit u64.
    let (area, half) = (rows * cols, rows * (rows + 1) / 2);
    if layout == Layout::Coordinate {
        if entries > area {
            return Err(format!(
                "{entries} entries are more entries than {rows} x {cols} can hold"
            ));
        }
        fits_index("entry", entries)?;
        return Ok([rows as usize, cols as usize, entries as usize]);
    }
    let values = match symmetry {
        Symmetry::General => area,
        Symmetry::Symmetric => half,
        Symmetry::SkewSymmetric => half - rows,
    };
    Ok([rows as usize, cols as usize, usize::try_from(values).unwrap_or(usize::MAX)])
}

/// Parses a count. Rows and columns must fit the index type.
fn read_count(word: &[u8], name: &str) -> Result<u64, String> {
    let count = whole_number(word, &format!("{name} count"), i64::MAX as u64)?;
    if name != "entry" {
        fits_index(name, count)?;
    }
    Ok(count)
}
