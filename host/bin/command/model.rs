//! `einsparse inspect` of a file of named tensors: each in a line.

use std::fs::File;
use std::path::Path;

use einsparse::formats::advice::{Offer, Rates, Storage, advise};
use einsparse::formats::io::{Loaded, Safetensors};
use einsparse::formats::stats::slots;
use einsparse::formats::{Dense, Format, FormatError};

use super::{Result, load};

/// Lists the tensors: type, shape, share of nonzeros; of matrices whether they are 2:4, the storage that should cost
/// least, and of block sizes the best.
pub fn execute(path: &Path) -> Result<()> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(|error| format!("{name}: {error}"))?;
    let mut file = Safetensors::within(file, &name, load::limits())?;
    let tensors = file.tensors().to_vec();
    let bytes = tensors.last().map_or(0, |last| last.bytes.end);
    say!("{name}: {} tensors, {bytes} bytes", tensors.len());
    let widest = tensors.iter().map(|t| t.name.chars().count());
    let wide = widest.max().unwrap_or(0).clamp(6, 60);
    say!(
        "{:wide$}  {:8} {:>20} {:>9}  {:4} {:14} best blocks",
        "tensor",
        "type",
        "shape",
        "density",
        "2:4",
        "best"
    );
    for tensor in tensors {
        let found = match file.read::<f64>(&tensor.name) {
            Ok(dense) => facts(dense)?,
            Err(FormatError::Io { reason, .. }) => reason,
            Err(error) => error.to_string(),
        };
        // Names come from the file.
        let (name, dtype) = (tensor.name.escape_debug(), tensor.dtype.escape_debug());
        let shape = format!("{:?}", tensor.shape);
        say!(
            "{:wide$}  {:8} {shape:>20} {found}",
            name.to_string(),
            dtype.to_string()
        );
    }
    Ok(())
}

/// What a line says of the values.
fn facts(dense: Dense<f64>) -> Result<String> {
    let filled = dense.values().iter().filter(|x| **x != 0.0).count();
    let density = filled as f64 / dense.len().max(1) as f64;
    if dense.shape().len() != 2 {
        return Ok(format!("{density:>9.2e}  {:4} -", "-"));
    }
    let (pattern, values) = Loaded::Dense(dense).into_csr()?.into_parts();
    drop(values);
    let is_nm = slots(&pattern, Format::Nm { n: 2, m: 4 }).is_ok();
    let nm = if is_nm { "yes" } else { "no" };
    let advice = advise(&pattern, &Rates::default())?;
    let best = advice.best().storage;
    let blocks = |offer: &&Offer| matches!(offer.storage, Storage::Blocks { .. });
    let cost = |offer: &&Offer| offer.cost.unwrap_or(f64::INFINITY);
    let mut blocks = advice.offers.iter().filter(blocks).collect::<Vec<_>>();
    blocks.sort_by(|a, b| cost(a).total_cmp(&cost(b)));
    let blocks = blocks.first().map_or(String::new(), |offer| {
        format!("{} {:.1} % full", offer.storage, 100.0 * offer.fill)
    });
    Ok(format!(
        "{density:>9.2e}  {nm:4} {:14} {blocks}",
        best.to_string()
    ))
}
