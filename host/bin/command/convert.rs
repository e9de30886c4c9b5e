//! `einsparse convert`: one kind of file, or one format, into another.

use std::path::PathBuf;

use einsparse::formats::io::{Loaded, write_any};
use einsparse::formats::{Element, Format};

use super::problem::{Dtype, for_dtype, warn_overflow};
use super::{Result, load};

/// Convert a matrix file.
#[derive(clap::Args)]
pub struct Convert {
    /// .mtx, .smtx, .npz or .npy
    input: PathBuf,
    /// .mtx, .smtx (the pattern alone), .npz or .npy
    output: PathBuf,
    /// Format on the way: .npz keeps csr, csc, coo and bsr:RxC; others are written as csr
    #[arg(long)]
    format: Option<String>,
    /// Round the values to this element type
    #[arg(long, value_enum, default_value_t = Dtype::F64)]
    dtype: Dtype,
}

impl Convert {
    /// Reads, converts, writes.
    pub fn execute(&self) -> Result<()> {
        for_dtype!(self.dtype, T => self.typed::<T>())
    }

    fn typed<T: Element>(&self) -> Result<()> {
        let format: Option<Format> = self.format.as_deref().map(str::parse).transpose()?;
        let name = self.input.display().to_string();
        let read = load::file(&self.input)?;
        let entries = match &read {
            Loaded::Sparse(sparse) => sparse.nnz(),
            Loaded::Dense(dense) => dense.len(),
        };
        let loaded = match (read, format) {
            (loaded, Some(format)) => Loaded::Sparse(loaded.into_sparse()?.convert(format)?),
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
        write_any(&self.output, &narrow)?;
        let what = match &narrow {
            Loaded::Sparse(sparse) => {
                format!(
                    "{} {:?}, {entries} entries in {} slots",
                    sparse.format(),
                    sparse.shape(),
                    sparse.slots()
                )
            }
            Loaded::Dense(dense) => format!("dense {:?}", dense.shape()),
        };
        say!("{name} -> {}: {} {what}", self.output.display(), T::NAME);
        Ok(())
    }
}
