//! `einsparse inspect`: prints the properties of a matrix, and its cost in each format.

use std::path::PathBuf;

use einsparse::cost::Machine;
use einsparse::einsum::Mode;
use einsparse::formats::fill::{BLOCKS, block_fills};
use einsparse::formats::io::{Loaded, Safetensors};
use einsparse::formats::stats::{RowStats, slots};
use einsparse::formats::{AnySparse, CsrPattern, Format};
use einsparse::plan::{Target, advice};
use einsparse::registry::Dtype;
use einsparse::{FormatAdvice, Options};

use super::{Result, load, operand, picture, spy, storage};

/// Sizes, row histogram, padding in each format, fill of blocks, and the formats that should pay.
#[derive(clap::Args)]
#[command(after_help = operand::GRAMMAR)]
pub struct Inspect {
    /// A file, a tensor of one or a source as below; of model.safetensors each tensor in a line
    #[arg(value_name = "SOURCE")]
    source: PathBuf,
    /// Write a spy plot here (.png or .svg)
    #[arg(long, value_name = "FILE")]
    spy: Option<PathBuf>,
    /// Print the arrays that this format stores, and nothing else; for matrices of up to 32 x 32
    #[arg(long, value_name = "FORMAT", conflicts_with = "spy")]
    storage: Option<Format>,
    /// Seed of a made-up matrix
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Inspect {
    /// Prints the properties.
    pub fn execute(&self) -> Result<()> {
        if let Some((file, None)) = Safetensors::split(&self.source) {
            let option = match (&self.spy, self.storage) {
                (Some(_), _) => "--spy",
                (None, Some(_)) => "--storage",
                (None, None) => return super::model::execute(file),
            };
            let name = file.display();
            return Err(format!("{name}: {option} draws one tensor: name it, {name}:TENSOR").into());
        }
        let (loaded, bytes) = load::source(&self.source, self.seed)?;
        if let Some(format) = self.storage {
            storage::check(loaded.shape())?;
            if loaded.shape().len() == 2 {
                storage::check_slots(&slots(loaded.to_csr()?.pattern(), format)?)?;
            }
            return storage::print(&loaded.into_sparse()?.convert(format)?);
        }
        say!("{}", self.source.display());
        let &[rows, cols] = loaded.shape() else {
            match &loaded {
                Loaded::Dense(dense) => say!("dense array {:?}", dense.shape()),
                Loaded::Sparse(sparse) => {
                    let (shape, entries) = (sparse.shape(), sparse.nnz());
                    say!("size     {} {shape:?}, {entries} entries", sparse.format());
                    values(sparse.values());
                }
            }
            return Ok(());
        };
        if let Some(reason) = load::too_many_rows(rows, cols, bytes) {
            return few_entries(loaded, &reason);
        }
        let csr = loaded.into_csr()?;
        size(csr.shape(), csr.nnz());
        values(csr.values());
        let (pattern, values) = csr.into_parts();
        drop(values);
        let stats = RowStats::of_rows(&pattern);
        rows_of(&stats);
        padding(&pattern)?;
        super::grouping::compare(&pattern)?;
        blocks(&pattern)?;
        if let Some(path) = &self.spy {
            let name = self.source.file_name().unwrap_or(self.source.as_os_str());
            let plot = spy::Spy::new(&pattern, &name.to_string_lossy());
            picture::save(&plot, path)?;
            say!("spy      {}", path.display());
        }
        Ok(())
    }
}

/// Prints the properties that need no array over all rows.
fn few_entries(loaded: Loaded<f64>, reason: &str) -> Result<()> {
    match loaded {
        Loaded::Dense(dense) => say!("size     dense array {:?}", dense.shape()),
        Loaded::Sparse(sparse) => {
            size(sparse.shape(), sparse.nnz());
            values(sparse.values());
            if let AnySparse::Coo(coo) = &sparse
                && let Some(stats) = RowStats::of_axis(coo.pattern(), 0)
            {
                rows_of(&stats);
            }
        }
    }
    say!("formats  {reason}");
    Ok(())
}

fn size(shape: &[usize], entries: usize) {
    let area: f64 = shape.iter().map(|extent| *extent as f64).product();
    let density = if area > 0.0 { entries as f64 / area } else { 0.0 };
    say!("size     {} x {}, {entries} entries, density {density:.3e}", shape[0], shape[1]);
}

/// Prints statistics of row lengths.
fn rows_of(stats: &RowStats) {
    say!(
        "rows     {} of {} non-empty, {} to {} entries, mean {:.2}, standard deviation {:.2}",
        stats.non_empty,
        stats.rows,
        stats.min,
        stats.max,
        stats.mean,
        stats.std
    );
    histogram(stats);
}

fn values(values: &[f64]) {
    let finite = || values.iter().copied().filter(|x| x.is_finite());
    let zeros = values.iter().filter(|x| **x == 0.0).count();
    let past_half = finite().filter(|x| x.abs() >= 65_520.0).count();
    let odd = values.len() - finite().count();
    let (low, high) =
        finite().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), x| (l.min(x), h.max(x)));
    if low <= high {
        say!(
            "values   {low:e} to {high:e}; {zeros} stored zeros, {odd} NaN or infinite, {past_half} past the range of \
             f16"
        );
    }
}

/// Prints a histogram of row lengths in powers of two.
fn histogram(stats: &RowStats) {
    let mut bins = [0usize; 65];
    for &(len, rows) in &stats.histogram {
        bins[(usize::BITS - len.leading_zeros()) as usize] += rows;
    }
    let most = bins.iter().copied().max().unwrap_or(0).max(1);
    for (bin, &rows) in bins.iter().enumerate().filter(|(_, rows)| **rows > 0) {
        let range = match bin {
            0 => "0".to_string(),
            1 => "1".to_string(),
            _ => format!("{} to {}", 1u64 << (bin - 1), (1u128 << bin) - 1),
        };
        say!(
            "   {range:>20} {rows:>9} {}",
            "#".repeat((rows as u128 * 40).div_ceil(most as u128) as usize)
        );
    }
}

/// Prints slots and bytes of each format.
fn padding(pattern: &CsrPattern) -> Result<()> {
    let grouped = |group| Format::GroupCoo { axis: 0, group };
    let block = (32, 32);
    let formats = [
        Format::Csr,
        Format::Coo,
        Format::Csc,
        Format::Ell,
        grouped(None),
        grouped(Some(4)),
        grouped(Some(8)),
        Format::HybridGroupCoo,
        Format::Bsr { block },
        Format::BlockCoo { block },
        Format::BlockGroupCoo { block, group: None },
        Format::Nm { n: 2, m: 4 },
        Format::Bitmap,
        Format::Bytemap,
        Format::SlicedEll,
    ];
    say!(
        "formats  {:22} {:>12} {:>12} {:>14} {:>12}",
        "",
        "index slots",
        "value slots",
        "values/entry",
        "bytes (f32)"
    );
    for format in formats {
        match slots(pattern, format) {
            Ok(s) => say!(
                "         {:22} {:>12} {:>12} {:>14.2} {:>12}",
                s.format.to_string(),
                s.index,
                s.values,
                s.ratio(),
                s.bytes(4)
            ),
            Err(error) => say!("         {:22} {error}", format.to_string()),
        }
    }
    Ok(())
}

/// Prints the fill of blocks of each size, and the predicted cost of a product in each format.
fn blocks(pattern: &CsrPattern) -> Result<()> {
    say!("blocks   {:14} {:>12} {:>8} {:>14}", "", "blocks", "fill", "elements");
    for found in block_fills(pattern, &BLOCKS)? {
        say!(
            "         {:14} {:>12} {:>6.1} % {:>14}",
            Format::Bsr { block: found.block }.to_string(),
            found.blocks,
            100.0 * found.fill(),
            found.stored()
        );
    }
    say!(
        "advice   by the cost of the cheapest kernel, f16 times {COLUMNS} columns, predicted for an H200"
    );
    for (i, offer) in advised(pattern)?.iter().enumerate() {
        let mark = if i == 0 && offer.kernel().is_some() { "->" } else { "  " };
        say!("      {mark} {offer}");
    }
    Ok(())
}

/// Columns of the dense matrix for predictions without a given matrix.
const COLUMNS: usize = 512;

/// Formats for a product in f16, cheapest first. `explain` uses the actual types, columns and options.
pub fn advised(pattern: &CsrPattern) -> Result<Vec<FormatAdvice>> {
    let of = (COLUMNS, Mode::Assign);
    let options = Options::default();
    Ok(advice(pattern, of, Dtype::F16, &options, Target::Gpu(&Machine::H200))?)
}
