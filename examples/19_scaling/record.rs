//! Reader of the times that `cargo bench --bench gpu -- --op ranks` records.

use std::path::Path;

#[derive(serde::Deserialize)]
struct Row {
    workload: String,
    n: f64,
    variant: String,
    ms: f64,
}

/// Returns the variants and their milliseconds for a graph and `n` columns of B.
pub fn read(path: impl AsRef<Path>, graph: &str, n: f64) -> Result<Vec<(String, f64)>, csv::Error> {
    let rows = csv::Reader::from_path(path)?.into_deserialize();
    let mut rows = rows.collect::<Result<Vec<Row>, _>>()?;
    rows.retain(|row| row.workload == graph && row.n == n);
    Ok(rows.into_iter().map(|row| (row.variant, row.ms)).collect())
}
