//! Compares the variant that a plan chose with the fastest variant of the same record.

use super::{Row, geomean};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Choices of two plans on one case, and the fastest variant that each could have chosen.
#[derive(Default)]
struct Choices {
    /// Kernels that read A in its own format.
    plain: Shares,
    /// All kernels, including those that read A in another form.
    kept: Shares,
}

/// Time of the choice, and the min time.
#[derive(Default)]
struct Shares {
    taken: Option<f64>,
    best: Option<f64>,
}

impl Shares {
    fn add(&mut self, ms: f64, taken: bool) {
        if taken {
            self.taken = Some(ms);
        }
        // The choice is also a measurement of a variant, so it bounds the min time.
        self.best = Some(self.best.map_or(ms, |best| best.min(ms)));
    }

    fn share(&self) -> Option<f64> {
        Some(self.best? / self.taken?)
    }
}

/// Writes the min time over the time of the plan's choice, by operation.
pub fn write(text: &mut String, rows: &[Row]) -> std::fmt::Result {
    let ours = || rows.iter().filter(|r| r.engine == "einsparse");
    let mut cases: BTreeMap<_, Choices> = BTreeMap::new();
    for row in ours() {
        let case = (&row.op, &row.workload, &row.dtype, row.n);
        let (name, form) = row.variant.split_once('@').unwrap_or((&row.variant, ""));
        // A plan with CSR cannot use a kernel for another format.
        if !(form.is_empty() || form == "prepacked") || row.note.contains(" on groupcoo") {
            continue;
        }
        let all = cases.entry(case).or_default();
        if form.is_empty() {
            all.plain.add(row.ms, name == "auto");
        }
        all.kept.add(row.ms, name == "auto" && form == "prepacked");
    }
    let forced: BTreeSet<_> = ours()
        .filter(|r| !r.variant.starts_with("auto"))
        .map(|r| (&r.op, &r.workload, &r.dtype, r.n))
        .collect();
    let mut groups: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (case, all) in &cases {
        if !forced.contains(case) {
            continue;
        }
        let (op, workload, dtype, n) = *case;
        for (name, shares) in [("auto", &all.plain), ("auto@prepacked", &all.kept)] {
            if let Some(share) = shares.share() {
                let group = groups.entry((op, dtype, name)).or_default();
                group.push((share, format!("{workload} N {n}")));
            }
        }
    }
    if groups.is_empty() {
        return Ok(());
    }
    writeln!(text, "\n## The plan's choice compared with the fastest variant\n")?;
    writeln!(
        text,
        "| operation | type | plan | cases | geometric mean | min | case of the min |\n|---|---|---|---|---|---|---|"
    )?;
    for ((op, dtype, name), shares) in groups {
        let worst = shares.iter().min_by(|a, b| a.0.total_cmp(&b.0));
        let (min, at) = worst.map_or((f64::NAN, ""), |(share, at)| (*share, at));
        let mean = geomean(&shares.iter().map(|s| s.0).collect::<Vec<_>>());
        let cases = shares.len();
        writeln!(text, "| {op} | {dtype} | {name} | {cases} | {mean:.3} | {min:.2} | {at} |")?;
    }
    Ok(())
}
