//! `einsparse inspect` for a file with several tensors: one line per tensor.

use std::path::Path;

use einsparse::formats::io::{Loaded, Safetensors};
use einsparse::formats::stats::slots;
use einsparse::formats::{Dense, Element, Format, FormatError};
use einsparse::registry::block_of;

use super::inspect::advised;
use super::{Result, load};

/// Lists the tensors: type, shape and fraction of nonzeros. For matrices also: whether they are 2:4, the format with
/// the lowest predicted cost, and the best block size. An error of a tensor is printed in its line.
pub fn execute(path: &Path) -> Result<()> {
    let name = path.display();
    let mut file = Safetensors::open_within(path, load::limits())?;
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
    for (at, tensor) in tensors.iter().enumerate() {
        let bytes = tensor.bytes.end - tensor.bytes.start;
        let found = match tensor.dtype.as_str() {
            // f32 takes half the memory of f64.
            "F32" | "F16" | "BF16" => file.read_at::<f32>(at).and_then(|all| facts(all, bytes)),
            _ => file.read_at::<f64>(at).and_then(|all| facts(all, bytes)),
        };
        let found = found.unwrap_or_else(|error| match error {
            FormatError::Io { reason, .. } => reason,
            error => error.to_string().replace('\n', "; "),
        });
        // Names come from the file and may contain control characters.
        let (name, dtype) = (tensor.name.escape_debug(), tensor.dtype.escape_debug());
        let shape = format!("{:?}", tensor.shape);
        say!("{:wide$}  {:8} {shape:>20} {found}", name.to_string(), dtype.to_string());
    }
    Ok(())
}

/// Text of a line about the values, which take `bytes` bytes in the file.
fn facts<T: Element>(dense: Dense<T>, bytes: u64) -> Result<String, FormatError> {
    let len = dense.len();
    let density = |filled: usize| filled as f64 / len.max(1) as f64;
    let &[rows, cols] = dense.shape() else {
        let filled = dense.values().iter().filter(|x| **x != T::ZERO).count();
        return Ok(format!("{:>9.2e}  {:4} -", density(filled), "-"));
    };
    if let Some(reason) = load::too_many_rows(rows, cols, bytes) {
        return Ok(reason);
    }
    let (pattern, values) = Loaded::Dense(dense).into_csr()?.into_parts();
    drop(values);
    let is_nm = slots(&pattern, Format::Nm { n: 2, m: 4 }).is_ok();
    let nm = if is_nm { "yes" } else { "no" };
    let advice = advised(&pattern).map_err(|error| FormatError::Unsupported {
        what: "advice".into(),
        reason: error.to_string(),
    })?;
    let best = advice.iter().find(|offer| offer.kernel().is_some());
    let best = best.map_or("-".into(), |offer| match offer.format {
        Some(format) => format.to_string(),
        None => "dense".into(),
    });
    let blocks = advice.iter().find_map(|offer| {
        let format = offer.format.filter(|format| block_of(format) != (1, 1))?;
        Some(format!("{format} {:.1} % full", 100.0 / offer.values_per_entry))
    });
    let blocks = blocks.unwrap_or_default();
    Ok(format!("{:>9.2e}  {nm:4} {:14} {blocks}", density(pattern.columns().len()), best))
}
