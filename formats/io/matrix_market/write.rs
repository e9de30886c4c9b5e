//! Writer of Matrix Market files: general, sorted by row. Values have the fewest digits that read back to the same
//! bits.

use super::super::{Fault, Source, replace_file, write_file};
use crate::convert::{bsr_to_csr, csc_to_csr};
use crate::{CsrPattern, Element, FormatError, Pattern};
use std::{
    fs::File,
    io::{BufWriter, Result, Write},
    path::Path,
};

/// Writes a sparse matrix in the coordinate layout, or a dense matrix in the array layout.
///
/// Values read back as the same bits in the same element type (a NaN as any NaN).
///
/// # Errors
/// Returns [`FormatError::Io`] if the file cannot be written, and the errors of the conversion of CSC and BSR to CSR.
pub fn write_matrix_market<'a, T: Element>(
    path: impl AsRef<Path>,
    matrix: impl Into<Source<'a, T>>,
) -> std::result::Result<(), FormatError> {
    let path = path.as_ref();
    let name = path.display().to_string();
    let matrix = matrix.into();
    let written = replace_file(path, |beside| {
        let file = File::create(beside)?;
        write_matrix_market_to(file, &name, matrix).map_err(Failed::Format)
    });
    written.map_err(|failed| match failed {
        Failed::File(error) => Fault::from(error).at(&name),
        Failed::Format(error) => error,
    })
}

/// Reason why a file was not written.
enum Failed {
    File(std::io::Error),
    Format(FormatError),
}

impl From<std::io::Error> for Failed {
    fn from(error: std::io::Error) -> Self {
        Self::File(error)
    }
}

/// [`write_matrix_market`] to any writer. Messages use `name` as the file path.
pub fn write_matrix_market_to<'a, T: Element>(
    writer: impl Write,
    name: &str,
    matrix: impl Into<Source<'a, T>>,
) -> std::result::Result<(), FormatError> {
    let mut out = BufWriter::with_capacity(1 << 16, writer);
    write_source(&mut out, name, matrix.into())?;
    out.flush().map_err(|error| Fault::from(error).at(name))
}

fn write_source<T: Element>(
    out: &mut dyn Write,
    name: &str,
    matrix: Source<'_, T>,
) -> std::result::Result<(), FormatError> {
    let not_a_matrix = || Fault::whole("Matrix Market holds matrices only").at(name);
    let written = match matrix {
        Source::Coo(coo) => {
            let [row_index, col_index] = coo.pattern().coords() else {
                return Err(not_a_matrix());
            };
            let places = row_index.iter().zip(col_index).map(|(row, col)| (*row, *col));
            coordinate(out, coo.shape(), places.zip(coo.values().iter().copied()))
        }
        Source::Csr(csr) => {
            coordinate(out, csr.shape(), places(csr.pattern()).zip(csr.values().iter().copied()))
        }
        Source::Csc(csc) => return write_source(out, name, Source::Csr(&csc_to_csr(csc)?)),
        Source::Bsr(bsr) => return write_source(out, name, Source::Csr(&bsr_to_csr(bsr)?)),
        Source::Dense(dense) => {
            let &[rows, cols] = dense.shape() else {
                return Err(not_a_matrix());
            };
            array(out, rows, cols, dense.values())
        }
    };
    written.map_err(|error| Fault::from(error).at(name))
}

/// Writes a pattern with the field `pattern`, without values.
///
/// # Errors
/// Returns [`FormatError::Io`] if the file cannot be written.
pub fn write_matrix_market_pattern(
    path: impl AsRef<Path>,
    pattern: &CsrPattern,
) -> std::result::Result<(), FormatError> {
    write_file(path.as_ref(), |out| {
        writeln!(out, "%%MatrixMarket matrix coordinate pattern general")?;
        writeln!(out, "{} {} {}", pattern.rows(), pattern.cols(), pattern.nnz())?;
        for (row, col) in places(pattern) {
            writeln!(out, "{} {}", u64::from(row) + 1, u64::from(col) + 1)?;
        }
        Ok(())
    })
}

/// Row and column of every entry.
fn places(pattern: &CsrPattern) -> impl ExactSizeIterator<Item = (u32, u32)> {
    let mut row = 0;
    pattern.columns().iter().enumerate().map(move |(at, col)| {
        while pattern.offsets()[row + 1] as usize <= at {
            row += 1;
        }
        (row as u32, *col)
    })
}

fn coordinate<T: Element>(
    out: &mut dyn Write,
    shape: &[usize],
    entries: impl ExactSizeIterator<Item = ((u32, u32), T)>,
) -> Result<()> {
    writeln!(out, "%%MatrixMarket matrix coordinate real general")?;
    writeln!(out, "{} {} {}", shape[0], shape[1], entries.len())?;
    for ((row, col), value) in entries {
        write!(out, "{} {} ", u64::from(row) + 1, u64::from(col) + 1)?;
        number(out, value)?;
    }
    Ok(())
}

fn array<T: Element>(out: &mut dyn Write, rows: usize, cols: usize, values: &[T]) -> Result<()> {
    writeln!(out, "%%MatrixMarket matrix array real general")?;
    writeln!(out, "{rows} {cols}")?;
    // An array without elements may have one extent of any size.
    let cols = if values.is_empty() { 0 } else { cols };
    for col in 0..cols {
        for row in 0..rows {
            number(out, values[row * cols + col])?;
        }
    }
    Ok(())
}

/// Writes a value and a line end. Types shorter than f64 are exact in f32, whose shortest representation has fewer
/// digits.
fn number<T: Element>(out: &mut dyn Write, value: T) -> Result<()> {
    let wide = value.to_f64();
    // Plain digits in the common range, and an exponent for numbers that would need many digits.
    let plain = wide == 0.0 || (1e-5..1e16).contains(&wide.abs()) || wide.is_infinite();
    match (T::NAME, plain) {
        _ if wide.is_nan() => writeln!(out, "nan"),
        ("f64", true) => writeln!(out, "{wide}"),
        ("f64", false) => writeln!(out, "{wide:e}"),
        (_, true) => writeln!(out, "{}", wide as f32),
        (_, false) => writeln!(out, "{:e}", wide as f32),
    }
}
