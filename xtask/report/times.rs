//! `cargo xtask report --slower RECORD RECORD`: lists operations that take longer than in an earlier record.

use super::Result;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Max relative increase of the time of an operation (geometric mean), and of a case.
const LIMITS: [f64; 2] = [0.01, 0.03];

/// Columns of a record that are compared.
#[derive(Debug, Deserialize)]
struct Case {
    op: String,
    workload: String,
    m: u64,
    k: u64,
    n: u64,
    nnz: u64,
    dtype: String,
    engine: String,
    /// `None` if the result was wrong.
    ms: Option<f64>,
}

/// Milliseconds by operation, then by the rest of a case. The fastest row of a case counts.
type Times = BTreeMap<(String, String), f64>;

/// Compares einsparse's times. Returns an error if an operation or a case exceeds its limit, or if a case is missing
/// now.
pub fn compare(before: &Path, now: &Path) -> Result<String> {
    let (means, faults) = slower(&cases(before)?, &cases(now)?);
    match faults.is_empty() {
        true => Ok(means),
        false => Err(format!("{means}{}", faults.join("\n"))),
    }
}

fn cases(record: &Path) -> Result<Times> {
    let fail = |error: csv::Error| format!("{}: {error}", record.display());
    let mut reader = csv::Reader::from_path(record).map_err(fail)?;
    let mut times = Times::new();
    for case in reader.deserialize() {
        let Case { op, workload, m, k, n, nnz, dtype, engine, ms } = case.map_err(fail)?;
        let Some(ms) = ms.filter(|ms| *ms > 0.0) else { continue };
        if engine == "einsparse" {
            let least = times
                .entry((op, format!("{workload} {m} x {k} n={n} nnz={nnz} {dtype}")))
                .or_insert(ms);
            *least = least.min(ms);
        }
    }
    Ok(times)
}

/// Returns the geometric mean of each operation as a table, and the operations and cases that exceed a limit or are
/// missing.
fn slower(before: &Times, now: &Times) -> (String, Vec<String>) {
    let [mean_limit, case_limit] = LIMITS;
    let mut faults = Vec::new();
    let mut sums: BTreeMap<&str, (f64, usize)> = BTreeMap::new();
    for (case, then) in before {
        let (op, rest) = case;
        let Some(ms) = now.get(case) else {
            faults.push(format!("{op} {rest}: {then} ms before, not there now"));
            continue;
        };
        let sum = sums.entry(op).or_default();
        *sum = (sum.0 + (ms / then).ln(), sum.1 + 1);
        if ms / then > 1.0 + case_limit {
            faults.push(format!("{op} {rest}: {ms} ms, before {then}"));
        }
    }
    if sums.is_empty() {
        faults.push("the records have no case in common".to_owned());
    }
    let mut table =
        String::from("| operation | cases | time now over time before |\n|---|---|---|\n");
    for (op, (sum, count)) in sums {
        let mean = (sum / count as f64).exp();
        table += &format!("| {op} | {count} | {mean:.3} |\n");
        if mean > 1.0 + mean_limit {
            faults.push(format!("{op}: {mean:.3} of the time before, over {count} cases"));
        }
    }
    (table, faults)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slower_case_and_a_slower_operation_are_named() {
        let times = |ms: [f64; 2]| -> Times {
            let key = |case: &str| ("spmm".to_owned(), case.to_owned());
            [(key("a"), ms[0]), (key("b"), ms[1])].into()
        };
        let before = times([1.0, 2.0]);
        assert!(slower(&before, &times([1.02, 1.97])).1.is_empty());
        let (table, faults) = slower(&before, &times([1.04, 2.0]));
        assert!(table.contains("| spmm | 2 | 1.020 |"), "{table}");
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert_eq!(slower(&before, &Times::new()).1.len(), 3);
    }
}
