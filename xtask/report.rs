//! `cargo xtask report RECORD`: writes a bench record (a file, or the directory of a GPU) as Markdown tables. For a
//! directory it also draws the charts and writes the measured sections of the guide and of the README.
//!
//! A speed-up is the baseline's time over einsparse's time. Within 5 % of 1 the two are equal. Rankings use cold times.

mod choice;
mod performance;
mod pictures;
pub mod rows;
pub mod times;
mod words;

use performance::Measured;
use pictures::Picture;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Speed-ups within this relative distance of 1 count as equal.
const EQUAL: f64 = 0.05;

/// An error is one line for the user.
type Result<T> = std::result::Result<T, String>;

/// The columns of a record that a report reads.
#[derive(Clone, Debug, Deserialize)]
struct Row {
    date: String,
    commit: String,
    gpu: String,
    driver: String,
    op: String,
    workload: String,
    n: u64,
    nnz: u64,
    dtype: String,
    engine: String,
    variant: String,
    ms: f64,
    ms_warm: Option<f64>,
    gflops: Option<f64>,
    gbps: Option<f64>,
    zeros: String,
    note: String,
    /// Index of the file of this row. Rows of different files are not compared, because their operands differ.
    #[serde(skip)]
    file: usize,
}

/// einsparse and one baseline on one case.
struct Comparison {
    set: String,
    ours: Row,
    baseline: Row,
    /// Speed-up with the L2 cache evicted before each run.
    cold: f64,
    /// Speed-up of runs back to back. NaN if either row has no warm time.
    warm: f64,
}

/// Reads `record` and returns the Markdown. For a file it writes `<record>.md` next to it. For a directory it writes
/// `report.md` and the charts into it. Pages that name the directory get their measured sections.
///
/// # Errors
/// A readable line if the record cannot be read or the report cannot be written.
pub fn report(record: &Path) -> Result<String> {
    let page = match record.is_dir() {
        true => record.join("report.md"),
        false => record.with_extension("md"),
    };
    let (right, wrong) = read(record)?;
    let comparisons = comparisons(&right, &wrong);
    let mut drawn = Vec::new();
    if record.is_dir() {
        drawn = pictures::pictures(&comparisons)?;
        pictures::write(record, &drawn)?;
    }
    let text = markdown(&right, &wrong, &comparisons, &drawn).map_err(|e| e.to_string())?;
    std::fs::write(&page, &text).map_err(|e| format!("{}: {e}", page.display()))?;
    let measured = Measured { rows: &right, comparisons: &comparisons, pictures: &drawn };
    performance::update(record, &measured)?;
    Ok(text)
}

fn markdown(
    rows: &[Row],
    wrong: &[Row],
    comparisons: &[Comparison],
    pictures: &[Picture],
) -> std::result::Result<String, std::fmt::Error> {
    let mut text = String::new();
    header(&mut text, rows)?;
    summary(&mut text, comparisons)?;
    slower_cases(&mut text, comparisons)?;
    choice::write(&mut text, rows)?;
    others(&mut text, rows, wrong)?;
    for Picture { file, alt, .. } in pictures {
        write!(text, "\n![{alt}]({file})\n")?;
    }
    Ok(text)
}

/// Rows of a file, or of all files of a directory in the order of their names: first rows with correct results, then
/// rows with wrong results.
fn read(record: &Path) -> Result<(Vec<Row>, Vec<Row>)> {
    let fail = |path: &Path, e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let mut files = vec![record.to_owned()];
    if record.is_dir() {
        let entries = std::fs::read_dir(record).map_err(|e| fail(record, &e))?;
        let paths = entries.map(|entry| entry.map(|e| e.path()));
        files = paths
            .collect::<std::result::Result<Vec<PathBuf>, _>>()
            .map_err(|e| fail(record, &e))?;
        files.retain(|path| path.extension().is_some_and(|e| e == "csv"));
        files.sort();
    }
    let mut rows = Vec::new();
    for (number, file) in files.into_iter().enumerate() {
        let mut reader = csv::Reader::from_path(&file).map_err(|e| fail(&file, &e))?;
        for row in reader.deserialize() {
            let row: Row = row.map_err(|e| fail(&file, &e))?;
            rows.push(Row { file: number, ..row });
        }
    }
    let right = |row: &Row| !row.note.starts_with("WRONG") && row.ms.is_finite();
    Ok(rows.into_iter().partition(right))
}

/// The name of einsparse in the column `engine`.
const OURS: &str = "einsparse";
/// The variant whose plan may store A's values in another form.
const PREPACKED: &str = "auto@prepacked";

/// Operations without a comparison: levels of the tutorial and limits of the machine.
const APART: [&str; 4] = ["levels", "gemm", "launch", "copy"];

/// Compares a plan with each baseline of the same case. `auto` is a plan that reads A in its own format.
/// `auto@prepacked` is a plan that may store A's values in another form. Of several formats the fastest counts. An
/// operation without these variants has its plan in the first row of the case.
fn comparisons(rows: &[Row], wrong: &[Row]) -> Vec<Comparison> {
    let case =
        |row: &Row| (row.op.clone(), row.workload.clone(), row.dtype.clone(), row.n, row.file);
    let named =
        |row: &&Row| row.engine == OURS && ["auto", PREPACKED].contains(&row.variant.as_str());
    let mut cases: BTreeMap<_, Vec<&Row>> = BTreeMap::new();
    for row in rows.iter().filter(|row| !APART.contains(&row.op.as_str())) {
        cases.entry(case(row)).or_default().push(row);
    }
    let failed: BTreeSet<_> = wrong.iter().filter(named).map(case).collect();
    let mut comparisons = Vec::new();
    for (case, rows) in &cases {
        let (ours, others): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|r| r.engine == OURS);
        let mut taken = fastest(ours.iter().copied().filter(named), |row| &row.variant);
        if taken.is_empty() && !failed.contains(case) {
            taken.extend(ours.first().map(|row| (row.variant.as_str(), *row)));
        }
        // A driver copy is a lower bound, not a baseline. The default algorithm is not the best setting of a baseline.
        let is_baseline = |r: &&Row| !["driver", "cusparse-default"].contains(&r.engine.as_str());
        let best = fastest(others.into_iter().filter(is_baseline), |row| &row.engine);
        for ours in taken.values() {
            comparisons.extend(best.values().map(|baseline| Comparison::new(ours, baseline)));
        }
    }
    comparisons
}

/// The fastest row of each name.
fn fastest<'r>(
    rows: impl Iterator<Item = &'r Row>,
    name: fn(&Row) -> &String,
) -> BTreeMap<&'r str, &'r Row> {
    let mut all: BTreeMap<&str, &Row> = BTreeMap::new();
    for row in rows {
        let best = all.entry(name(row)).or_insert(row);
        if row.ms < best.ms {
            *best = row;
        }
    }
    all
}

impl Comparison {
    fn new(ours: &Row, baseline: &Row) -> Self {
        let warm = baseline.ms_warm.zip(ours.ms_warm);
        Comparison {
            set: set(&ours.workload).to_owned(),
            cold: baseline.ms / ours.ms,
            warm: warm.map_or(f64::NAN, |(baseline, ours)| baseline / ours),
            ours: ours.clone(),
            baseline: baseline.clone(),
        }
    }

    /// Whether einsparse is slower by more than the margin.
    fn is_slower(&self) -> bool {
        self.cold < 1.0 - EQUAL
    }

    /// Name of the operation, with `, prepacked` for a plan that may store A's values in another form.
    fn what(&self) -> String {
        match self.ours.variant == PREPACKED {
            true => format!("{}, prepacked", self.ours.op),
            false => self.ours.op.clone(),
        }
    }
}

/// The data set of a workload.
fn set(workload: &str) -> &str {
    const SETS: [(&str, &str); 10] = [
        ("dlmc/", "DLMC"),
        ("graph/", "graphs"),
        ("rmat", "graphs"),
        ("uniform1M", "graphs"),
        ("banded", "graphs"),
        ("block", "blocks"),
        ("uniform-", "uniform"),
        ("lstm", "LSTM"),
        ("mobilenet", "MobileNetV1"),
        ("decode", "decode"),
    ];
    let known = SETS.iter().find(|(start, _)| workload.starts_with(start));
    known.map_or("", |(_, set)| set)
}

/// Comparisons of several cases.
struct Group<'a>(Vec<&'a Comparison>);

impl Group<'_> {
    fn cold(&self) -> Vec<f64> {
        self.0.iter().map(|d| d.cold).collect()
    }

    fn warm(&self) -> f64 {
        let warm = self.0.iter().map(|d| d.warm);
        geomean(&warm.filter(|r| r.is_finite()).collect::<Vec<_>>())
    }

    fn min(&self) -> f64 {
        self.cold().into_iter().fold(f64::INFINITY, f64::min)
    }

    fn max(&self) -> f64 {
        self.cold().into_iter().fold(0.0, f64::max)
    }

    /// Numbers of cases in which einsparse is faster, equal and slower.
    fn outcomes(&self) -> [usize; 3] {
        let faster = self.0.iter().filter(|d| d.cold > 1.0 + EQUAL).count();
        let slower = self.0.iter().filter(|d| d.is_slower()).count();
        [faster, self.0.len() - faster - slower, slower]
    }

    /// Numbers of cases in which einsparse and the baseline multiply implicit zeros.
    fn zeros(&self) -> String {
        let of = |row: fn(&Comparison) -> &Row| {
            self.0.iter().filter(|d| row(d).zeros == "dense").count()
        };
        format!("{} / {}", of(|d| &d.ours), of(|d| &d.baseline))
    }
}

/// Commits of the rows, the most frequent one first.
fn commits(rows: &[Row]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for row in rows {
        *counts.entry(&row.commit).or_default() += 1;
    }
    let mut all: Vec<(&str, usize)> = counts.into_iter().collect();
    all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let names: Vec<&str> = all.iter().map(|(commit, _)| *commit).collect();
    match names.split_first() {
        Some((first, others)) if !others.is_empty() => {
            format!("commit {first} (parts of {})", others.join(", "))
        }
        _ => format!("commit {}", names.join("")),
    }
}

fn header(text: &mut String, rows: &[Row]) -> std::fmt::Result {
    let Some(first) = rows.first() else {
        return writeln!(text, "The record is empty.");
    };
    writeln!(text, "# {} ({}), {}, {}\n", first.gpu, first.driver, first.date, commits(rows))?;
    writeln!(
        text,
        "A speed-up is the baseline's time over einsparse's time: above 1 einsparse is faster. Within 5 % of 1 both are \
         equal. Means\nare geometric. Cold: the L2 cache is evicted before each run. Warm: runs follow back to back. \
         Zeros: in how many cases\neinsparse and the baseline multiply implicit zeros. Prepacked: the plan may store \
         the values of A in another form.\n"
    )?;
    for row in rows.iter().filter(|r| matches!(r.op.as_str(), "launch" | "copy" | "gemm")) {
        let rate = match (row.gflops, row.gbps) {
            (Some(rate), _) => format!("{:.1} TFLOP/s", rate / 1e3),
            (_, Some(rate)) => format!("{:.2} TB/s", rate / 1e3),
            _ => "-".into(),
        };
        let (cold, warm) = (row.ms * 1e3, row.ms_warm.unwrap_or(f64::NAN) * 1e3);
        writeln!(
            text,
            "- {} {} {} {}: {rate}, {cold:.1} us cold, {warm:.1} us warm",
            row.op, row.workload, row.dtype, row.engine
        )?;
    }
    Ok(())
}

/// Writes the table by operation, baseline, element type, set and N, and over all N.
fn summary(text: &mut String, comparisons: &[Comparison]) -> std::fmt::Result {
    let mut groups: BTreeMap<_, Vec<&Comparison>> = BTreeMap::new();
    for comparison in comparisons {
        let (engine, dtype) = (&comparison.baseline.engine, &comparison.ours.dtype);
        let key = |n| (comparison.what(), engine, dtype, comparison.set.as_str(), n);
        groups.entry(key(Some(comparison.ours.n))).or_default().push(comparison);
        groups.entry(key(None)).or_default().push(comparison);
    }
    if groups.is_empty() {
        return Ok(());
    }
    writeln!(text, "\n## Comparisons with baselines\n")?;
    writeln!(
        text,
        "| operation | baseline | type | set | N | cases | cold | min | max | faster | equal | slower | warm | \
         zeros, einsparse / baseline |"
    )?;
    writeln!(text, "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")?;
    for ((op, engine, dtype, set, n), group) in groups {
        let group = Group(group);
        let n = n.map_or("all".into(), |n| n.to_string());
        let [faster, equal, slower] = group.outcomes();
        let (cases, mean) = (group.0.len(), geomean(&group.cold()));
        let (min, max, warm, zeros) = (group.min(), group.max(), group.warm(), group.zeros());
        writeln!(
            text,
            "| {op} | {engine} | {dtype} | {set} | {n} | {cases} | **{mean:.2}** | {min:.2} | {max:.2} | {faster} | \
             {equal} | {slower} | {warm:.2} | {zeros} |"
        )?;
    }
    Ok(())
}

/// Writes every case in which einsparse is slower, the lowest speed-up first.
fn slower_cases(text: &mut String, comparisons: &[Comparison]) -> std::fmt::Result {
    let mut slower: Vec<&Comparison> = comparisons.iter().filter(|d| d.is_slower()).collect();
    if comparisons.is_empty() {
        return Ok(());
    }
    slower.sort_by(|a, b| a.cold.total_cmp(&b.cold));
    writeln!(text, "\n## einsparse is slower: {} of {}\n", slower.len(), comparisons.len())?;
    if slower.is_empty() {
        return Ok(());
    }
    writeln!(
        text,
        "| cold | warm | operation | workload | N | nonzeros | type | baseline | its us cold (warm) | einsparse us cold (warm) |"
    )?;
    writeln!(text, "|---|---|---|---|---|---|---|---|---|---|")?;
    for comparison in slower {
        let both = |r: &Row| {
            let warm = r.ms_warm.unwrap_or(f64::NAN);
            format!("{:.1} ({:.1})", r.ms * 1e3, warm * 1e3)
        };
        let (what, ours, baseline) = (comparison.what(), &comparison.ours, &comparison.baseline);
        writeln!(
            text,
            "| {:.2} | {:.2} | {what} | {} | {} | {} | {} | {} {} | {} | {} |",
            comparison.cold,
            comparison.warm,
            ours.workload,
            ours.n,
            ours.nnz,
            ours.dtype,
            baseline.engine,
            baseline.variant,
            both(baseline),
            both(ours)
        )?;
    }
    Ok(())
}

/// Writes the table of host operations, and the wrong results.
fn others(text: &mut String, rows: &[Row], wrong: &[Row]) -> std::fmt::Result {
    let host: Vec<&Row> = rows
        .iter()
        .filter(|r| matches!(r.op.as_str(), "call" | "convert" | "read" | "first_result"))
        .collect();
    if !host.is_empty() {
        writeln!(
            text,
            "\n## Operations on the host\n\n| operation | workload | engine | ms | note |\n|---|---|---|---|---|"
        )?;
    }
    for row in host {
        writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            row.op,
            row.workload,
            row.engine,
            if row.ms < 1.0 { format!("{:.4}", row.ms) } else { format!("{:.1}", row.ms) },
            row.note
        )?;
    }
    if !wrong.is_empty() {
        writeln!(text, "\n## Wrong results, excluded from the tables\n")?;
    }
    for r in wrong {
        let (op, workload, n, dtype) = (&r.op, &r.workload, r.n, &r.dtype);
        writeln!(text, "- {} {} {op} {workload} N {n} {dtype}: {}", r.engine, r.variant, r.note)?;
    }
    Ok(())
}

fn geomean(values: &[f64]) -> f64 {
    (values.iter().map(|v| v.ln()).sum::<f64>() / values.len() as f64).exp()
}
