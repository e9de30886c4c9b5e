//! `einsparse kernels`: prints the table of kernels, one row per kernel.

use einsparse::module::MODULES;
use einsparse::registry::kernels;

use super::Result;

/// The table of kernels.
#[derive(clap::Args)]
pub struct Kernels {
    /// Only kernels whose name contains this
    filter: Option<String>,
}

impl Kernels {
    /// Prints the table.
    pub fn execute(&self) -> Result<()> {
        let wanted = self.filter.as_deref().unwrap_or("");
        say!(
            "{:28} {:8} {:5} {:7} {:7} {:>7} {:>7} {:>6} {:>5} {:>8}",
            "name",
            "walk",
            "type",
            "zeros",
            "module",
            "block",
            "columns",
            "vector",
            "items",
            "shared"
        );
        let mut shown = 0;
        for row in kernels().iter().filter(|row| row.name.contains(wanted)) {
            shown += 1;
            say!(
                "{:28} {:8} {:5} {:7} {:7} {:>7} {:>7} {:>6} {:>5} {:>8}",
                row.name,
                format!("{:?}", row.walk),
                row.dtype.name(),
                format!("{:?}", row.zeros),
                row.module,
                format!("{}x{}", row.block.0, row.block.1),
                row.columns,
                row.vector,
                row.items,
                row.shared_bytes
            );
        }
        let built = if MODULES.is_empty() {
            "; this build holds none of them, see `einsparse doctor`"
        } else {
            ""
        };
        say!("{shown} kernels{built}");
        Ok(())
    }
}
