//! Writer of archives that `scipy.sparse.load_npz` reads.

use super::super::{
    Fault, Source,
    npy::{write_header, write_values},
    replace_file,
};
use crate::error::*;
use crate::{AnySparse, Element, Pattern, Sparse, io::Loaded};
use std::{fs::File, io::Write, path::Path};
use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

/// Writes an uncompressed archive. COO of any order, CSR, CSC and BSR are written in their format, dense arrays as
/// their nonzeros in COO. bf16, which NumPy lacks, is stored as float32.
///
/// # Errors
/// Returns [`FormatError::Io`] if the file cannot be written.
pub fn write_npz<'a, T: Element>(
    path: impl AsRef<Path>,
    matrix: impl Into<Source<'a, T>>,
) -> Result<()> {
    write(path.as_ref(), matrix.into(), CompressionMethod::Stored)
}

/// [`write_npz`] with compression.
pub fn write_npz_compressed<'a, T: Element>(
    path: impl AsRef<Path>,
    matrix: impl Into<Source<'a, T>>,
) -> Result<()> {
    write(path.as_ref(), matrix.into(), CompressionMethod::Deflated)
}

/// Contents of one `.npy` member.
enum Member<'a, T> {
    Text(&'a str),
    Shape(&'a [usize]),
    Indices(&'a [u32]),
    Coords(&'a [Vec<u32>]),
    True,
    Values(Vec<usize>, &'a [T]),
}

fn write<T: Element>(path: &Path, matrix: Source<'_, T>, method: CompressionMethod) -> Result<()> {
    let name = path.display().to_string();
    let members = match matrix {
        Source::Coo(coo) => {
            let mut members = match coo.pattern().coords() {
                [row_index, col_index] => {
                    vec![("row", Member::Indices(row_index)), ("col", Member::Indices(col_index))]
                }
                // A SciPy matrix has two axes, a SciPy array any number.
                coords => vec![("coords", Member::Coords(coords)), ("_is_array", Member::True)],
            };
            let values = Member::Values(vec![coo.values().len()], coo.values());
            members.extend([
                ("format", Member::Text("coo")),
                ("shape", Member::Shape(coo.shape())),
                ("data", values),
            ]);
            members
        }
        Source::Csr(a) => compressed("csr", a, a.pattern().offsets(), a.pattern().columns()),
        Source::Csc(a) => compressed("csc", a, a.pattern().offsets(), a.pattern().rows_idx()),
        Source::Bsr(a) => compressed("bsr", a, a.pattern().offsets(), a.pattern().columns()),
        Source::Dense(dense) => match Loaded::Dense(dense.clone()).into_sparse()? {
            AnySparse::Coo(coo) => return write(path, Source::Coo(&coo), method),
            other => return write(path, Source::Csr(&other.to_csr()?), method),
        },
    };
    let written = replace_file(path, |beside| write_members(beside, &members, method));
    written.map_err(|error| Fault::from(error).at(&name))
}

fn compressed<'a, P: Pattern, T: Element>(
    format: &'a str,
    matrix: &'a Sparse<P, T>,
    offsets: &'a [u32],
    indices: &'a [u32],
) -> Vec<(&'a str, Member<'a, T>)> {
    let values = Member::Values(matrix.pattern().value_shape(), matrix.values());
    vec![
        ("indices", Member::Indices(indices)),
        ("indptr", Member::Indices(offsets)),
        ("format", Member::Text(format)),
        ("shape", Member::Shape(matrix.shape())),
        ("data", values),
    ]
}

fn write_members<T: Element>(
    path: &Path,
    members: &[(&str, Member<'_, T>)],
    method: CompressionMethod,
) -> std::io::Result<()> {
    let mut zip = ZipWriter::new(File::create(path)?);
    // Members over 4 GiB need the 64-bit header from the start.
    let options = SimpleFileOptions::default().compression_method(method).large_file(true);
    for (name, member) in members {
        zip.start_file(format!("{name}.npy"), options)?;
        let mut bytes = Vec::new();
        match member {
            Member::Text(text) => {
                write_header(&mut bytes, &format!("|S{}", text.len()), &[])?;
                bytes.extend_from_slice(text.as_bytes());
            }
            Member::Shape(extents) => {
                write_header(&mut bytes, "<i8", &[extents.len()])?;
                extents
                    .iter()
                    .for_each(|extent| bytes.extend_from_slice(&(*extent as i64).to_le_bytes()));
            }
            Member::Indices(indices) => {
                write_indices(&mut bytes, &[indices.len()], &[indices])?;
            }
            Member::Coords(axes) => {
                let entries = axes.first().map_or(0, Vec::len);
                let axes: Vec<&[u32]> = axes.iter().map(Vec::as_slice).collect();
                write_indices(&mut bytes, &[axes.len(), entries], &axes)?;
            }
            Member::True => {
                write_header(&mut bytes, "|b1", &[])?;
                bytes.push(1);
            }
            Member::Values(shape, values) => write_values(&mut bytes, shape, values)?,
        }
        zip.write_all(&bytes)?;
    }
    zip.finish()?;
    Ok(())
}

/// Writes 32-bit indices if all of them fit, as SciPy does.
fn write_indices(out: &mut Vec<u8>, shape: &[usize], arrays: &[&[u32]]) -> std::io::Result<()> {
    let indices = || arrays.iter().copied().flatten();
    if indices().all(|index| i32::try_from(*index).is_ok()) {
        write_header(out, "<i4", shape)?;
        indices().for_each(|index| out.extend_from_slice(&index.to_le_bytes()));
    } else {
        write_header(out, "<i8", shape)?;
        indices().for_each(|index| out.extend_from_slice(&i64::from(*index).to_le_bytes()));
    }
    Ok(())
}
