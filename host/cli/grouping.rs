//! Costs of grouped formats: gathers, scatters, padding.

use einsparse::Scalar;
use einsparse::formats::stats::{RowStats, slots};
use einsparse::formats::{AnySparse, CsrPattern, Format};

use super::Result;

/// Prints one line per group size of a grouped tensor.
pub fn print<T: Scalar>(tensor: &AnySparse<T>) {
    let classes: Vec<(usize, usize)> = match tensor {
        AnySparse::GroupCoo(a) => vec![(a.pattern().group(), a.pattern().groups())],
        AnySparse::HybridGroupCoo(a) => {
            let classes = a.pattern().classes().iter();
            classes.map(|c| (c.group, c.groups)).collect()
        }
        _ => return,
    };
    for (group, groups) in &classes {
        say!("   groups of {group}: {} gathers, {groups} scatters", group * groups);
    }
    let (all, own) = (tensor.slots(), tensor.nnz());
    let share = 100.0 * (all - own) as f64 / all.max(1) as f64;
    say!("   padding {} of {all} slots, {share:.1} %", all - own);
}

/// Prints the costs of single group sizes and of size classes relative to CSR.
pub fn compare(pattern: &CsrPattern) -> Result<()> {
    let stats = RowStats::of_rows(pattern);
    let csr = slots(pattern, Format::Csr)?.bytes(4).max(1) as f64;
    let chosen = stats.group();
    say!(
        "groups   {:22} {:>12} {:>12} {:>10} {:>12}",
        "",
        "gathers",
        "scatters",
        "padding",
        "bytes / csr"
    );
    let line = |format: Format, mark: &str| -> Result<()> {
        let own = slots(pattern, format)?;
        let padding = 100.0 * own.padding as f64 / own.values.max(1) as f64;
        let (name, scatters) = (own.format.to_string(), own.index - own.values);
        say!(
            "      {mark} {name:22} {:>12} {scatters:>12} {padding:>8.1} % {:>12.3}",
            own.values,
            own.bytes(4) as f64 / csr
        );
        Ok(())
    };
    let ideal = (stats.nnz as f64 / stats.non_empty.max(1) as f64).sqrt();
    let mut sizes = vec![4, 8, 16, (ideal.round() as usize).max(1), chosen];
    sizes.sort_unstable();
    sizes.dedup();
    for group in sizes {
        let mark = if group == chosen { "->" } else { "  " };
        let group = Some(group);
        line(Format::GroupCoo { axis: 0, group }, mark)?;
    }
    line(Format::HybridGroupCoo, "  ")?;
    let classes = stats.group_classes();
    let classes: Vec<String> = classes.iter().map(usize::to_string).collect();
    say!("         hybrid: rows in groups of {}", classes.join(", "));
    Ok(())
}
