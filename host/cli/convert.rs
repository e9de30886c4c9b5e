//! `einsparse convert`: converts a matrix file to another file type or format.

use std::borrow::Cow;
use std::path::PathBuf;

use einsparse::formats::fill::block_fills;
use einsparse::formats::io::{self, Loaded, write_any, write_npy};
use einsparse::formats::{AnySparse, Csr, Dense, Element, Format, reorder};
use einsparse::registry::block_of;

use super::problem::{Dtype, for_dtype, warn_overflow};
use super::{Result, load};

/// Convert a matrix file.
#[derive(clap::Args)]
pub struct Convert {
    /// .mtx, .smtx, .npz, .npy, or a tensor of a file: model.safetensors:layer.weight
    input: PathBuf,
    /// .mtx, .smtx (the pattern alone), .npz or .npy
    output: PathBuf,
    /// Format on the way: .npz keeps csr, csc, coo and bsr:RxC; others are written as csr
    #[arg(long)]
    format: Option<String>,
    /// Round the values to this element type; without it that of the file, and f64 for text and integers
    #[arg(long, value_enum)]
    dtype: Option<Dtype>,
    /// Reorder rows, columns or both so that blocks fill, and write the orders beside the output as
    /// NAME.rows.npy and NAME.columns.npy: element i is the old place of row (column) i
    #[arg(long, value_enum)]
    reorder: Option<Axes>,
    /// Block to fill with --reorder, rows x columns; by default that of --format, or 32x32
    #[arg(long, requires = "reorder")]
    block: Option<String>,
}

/// What is reordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Axes {
    Rows,
    Columns,
    Both,
}

impl Convert {
    /// Reads, converts and writes the file.
    pub fn execute(&self) -> Result<()> {
        let own = match io::float_type(&self.input) {
            Some("f16") => Dtype::F16,
            Some("bf16") => Dtype::Bf16,
            Some("f32") => Dtype::F32,
            _ => Dtype::F64,
        };
        for_dtype!(self.dtype.unwrap_or(own), T => self.typed::<T>())
    }

    fn typed<T: Element>(&self) -> Result<()> {
        let format: Option<Format> = self.format.as_deref().map(str::parse).transpose()?;
        let name = self.input.display().to_string();
        let read = load::file(&self.input)?;
        let read = match self.reorder {
            Some(axes) => self.reordered(axes, read.to_csr()?, format)?,
            None => read,
        };
        let loaded = match (read, format) {
            (Loaded::Dense(dense), Some(format)) => Loaded::Sparse(dense.convert(format)?),
            (Loaded::Sparse(sparse), Some(format)) => Loaded::Sparse(sparse.convert(format)?),
            (loaded, None) => loaded,
        };
        let narrow = match &loaded {
            Loaded::Sparse(sparse) => {
                let narrow = sparse.map_values(T::from_f64);
                warn_overflow(&name, sparse.values(), narrow.values());
                Loaded::Sparse(narrow)
            }
            Loaded::Dense(dense) => {
                let narrow = dense.map(T::from_f64);
                warn_overflow(&name, dense.values(), narrow.values());
                Loaded::Dense(narrow)
            }
        };
        let kept = self.kept(narrow)?;
        write_any(&self.output, &kept)?;
        say!("{name} -> {}: {}", self.output.display(), self.what(&kept));
        Ok(())
    }

    fn extension(&self) -> String {
        let extension = self.output.extension().unwrap_or_default();
        extension.to_string_lossy().to_ascii_lowercase()
    }

    /// Converts the matrix to a format that the output file supports.
    fn kept<T: Element>(&self, loaded: Loaded<T>) -> Result<Loaded<T>> {
        use AnySparse::{Bsr, Coo, Csc};
        Ok(match (self.extension().as_str(), loaded) {
            ("npy", loaded) => Loaded::Dense(loaded.into_dense()?),
            ("mtx" | "npz", Loaded::Sparse(Coo(coo))) => Loaded::Sparse(Coo(coo)),
            ("npz", Loaded::Sparse(own @ (Csc(_) | Bsr(_)))) => Loaded::Sparse(own),
            ("mtx", Loaded::Dense(dense)) => Loaded::Dense(dense),
            ("mtx" | "smtx" | "npz", loaded) => Loaded::Sparse(loaded.into_csr()?.into()),
            (_, loaded) => loaded,
        })
    }

    /// Type, format and size of the matrix in the output file.
    fn what<T: Element>(&self, kept: &Loaded<T>) -> String {
        let stored = match self.extension().as_str() {
            "mtx" => "real",
            "smtx" => "pattern",
            // NumPy does not support bf16.
            _ if T::NAME == "bf16" => "f32",
            _ => T::NAME,
        };
        match kept {
            Loaded::Sparse(sparse) => {
                let (shape, entries) = (sparse.shape(), super::run::entries(sparse));
                let format = match stored {
                    "real" => "coordinate".to_owned(),
                    _ => sparse.format().to_string(),
                };
                let slots = match sparse.slots() {
                    slots if slots == entries => String::new(),
                    slots => format!(" in {slots} slots"),
                };
                format!("{stored} {format} {shape:?}, {entries} entries{slots}")
            }
            Loaded::Dense(dense) if stored == "real" => format!("real array {:?}", dense.shape()),
            Loaded::Dense(dense) => format!("{stored} dense {:?}", dense.shape()),
        }
    }

    /// Reorders the matrix to fill blocks. Writes the orders next to the output.
    fn reordered(&self, axes: Axes, csr: Csr<f64>, format: Option<Format>) -> Result<Loaded<f64>> {
        let block = match (&self.block, format) {
            (Some(text), _) => block_of(&format!("bsr:{text}").parse()?),
            (None, Some(format)) if block_of(&format) != (1, 1) => block_of(&format),
            _ => (32, 32),
        };
        let (options, pattern) = (reorder::Options::default(), csr.pattern());
        let (rows, columns) = match axes {
            Axes::Both => {
                let (rows, columns) = reorder::reorder_both(pattern, block, &options)?;
                (Some(rows), Some(columns))
            }
            Axes::Rows => (Some(reorder::reorder_rows(pattern, block, &options)?), None),
            Axes::Columns => {
                let columns = reorder::reorder_columns(pattern, block, &options)?;
                (None, Some(columns))
            }
        };
        let mut moved = Cow::Borrowed(&csr);
        if let Some(rows) = &rows {
            moved = Cow::Owned(rows.rows(&moved)?);
        }
        if let Some(columns) = &columns {
            moved = Cow::Owned(columns.columns(&moved)?);
        }
        let fill = |csr: &Csr<f64>| -> Result<f64> {
            let fills = block_fills(csr.pattern(), &[block])?;
            Ok(100.0 * fills.first().map_or(1.0, |f| f.fill()))
        };
        say!(
            "blocks of {}x{}: {:.1} % full before, {:.1} % after",
            block.0,
            block.1,
            fill(&csr)?,
            fill(&moved)?
        );
        for (name, order) in [("rows", &rows), ("columns", &columns)] {
            let Some(order) = order else { continue };
            let path = self.output.with_extension(format!("{name}.npy"));
            let order: Vec<f64> = order.order().iter().map(|&o| f64::from(o)).collect();
            write_npy(&path, &Dense::new([order.len()], order)?)?;
            say!("order of {name}: {}", path.display());
        }
        Ok(Loaded::Sparse(moved.into_owned().into()))
    }
}
