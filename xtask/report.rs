//! `cargo xtask report RECORD`: a bench record, a file or the folder of a GPU, as markdown tables. Of a GPU's record
//! also the pictures, and the guide's table.
//!
//! A ratio is the peer's time over ours, so above 1 we are faster; within 5 % is a tie. Cold figures decide, warm ones
//! stand beside.

mod choice;
mod performance;
mod pictures;
pub mod rows;

use pictures::Picture;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Ratios within this share of 1 are ties.
const TIE: f64 = 0.05;

/// A line for the user.
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
    /// The file that it is of: what stands in another was measured on other operands.
    #[serde(skip)]
    file: usize,
}

/// Ours against one peer on one case.
struct Duel {
    set: String,
    ours: Row,
    theirs: Row,
    cold: f64,
    /// NaN where one of both has no warm figure.
    warm: f64,
}

/// Reads `record`, a file or a folder of files, writes `<record>.md` beside or `report.md` in it, and returns the
/// markdown. A folder also gets the pictures; the record that the guide names also gets its table there.
///
/// # Errors
/// A readable line when the record cannot be read or the report cannot be written.
pub fn report(record: &Path) -> Result<String> {
    let page = match record.is_dir() {
        true => record.join("report.md"),
        false => record.with_extension("md"),
    };
    let (right, wrong) = read(record)?;
    let duels = duels(&right, &wrong);
    let mut drawn = Vec::new();
    if record.is_dir() {
        drawn = pictures::pictures(&duels)?;
        pictures::write(record, &drawn)?;
    }
    let text = markdown(&right, &wrong, &duels, &drawn).map_err(|e| e.to_string())?;
    std::fs::write(&page, &text).map_err(|e| format!("{}: {e}", page.display()))?;
    performance::update(record, &right, &duels)?;
    Ok(text)
}

fn markdown(
    rows: &[Row],
    wrong: &[Row],
    duels: &[Duel],
    pictures: &[Picture],
) -> std::result::Result<String, std::fmt::Error> {
    let mut text = String::new();
    header(&mut text, rows)?;
    summary(&mut text, duels)?;
    losses(&mut text, duels)?;
    choice::write(&mut text, rows)?;
    others(&mut text, rows, wrong)?;
    for Picture { file, title, .. } in pictures {
        write!(text, "\n![{title}]({file})\n")?;
    }
    Ok(text)
}

/// The rows of a file, or of all files of a folder by name: those that are right, and those that are not.
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
            rows.push(Row {
                file: number,
                ..row
            });
        }
    }
    let right = |row: &Row| !row.note.starts_with("WRONG") && row.ms.is_finite();
    Ok(rows.into_iter().partition(right))
}

/// Our name among the engines.
const OURS: &str = "einsparse";
/// The variant of which A's values may be kept in another form.
const PREPACKED: &str = "auto@prepacked";

/// Operations that are no comparison: levels of a tutorial, limits of the machine.
const APART: [&str; 4] = ["levels", "gemm", "launch", "copy"];

/// What a user gets against every peer with the same case: of A as it is (`auto`), and where it may keep A's values in
/// another form (`auto@prepacked`), of several formats the fastest. Operations without these names have it in their
/// first row of the case.
fn duels(rows: &[Row], wrong: &[Row]) -> Vec<Duel> {
    let case = |row: &Row| {
        (
            row.op.clone(),
            row.workload.clone(),
            row.dtype.clone(),
            row.n,
            row.file,
        )
    };
    let named =
        |row: &&Row| row.engine == OURS && ["auto", PREPACKED].contains(&row.variant.as_str());
    let mut cases: BTreeMap<_, Vec<&Row>> = BTreeMap::new();
    for row in rows.iter().filter(|row| !APART.contains(&row.op.as_str())) {
        cases.entry(case(row)).or_default().push(row);
    }
    let failed: BTreeSet<_> = wrong.iter().filter(named).map(case).collect();
    let mut duels = Vec::new();
    for (case, rows) in &cases {
        let (ours, others): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(|r| r.engine == OURS);
        let mut taken = fastest(ours.iter().copied().filter(named), |row| &row.variant);
        if taken.is_empty() && !failed.contains(case) {
            taken.extend(ours.first().map(|row| (row.variant.as_str(), *row)));
        }
        // A copy by the driver is a floor, and what a caller gets who chooses nothing is no peer's best.
        let is_peer = |r: &&Row| !["driver", "cusparse-default"].contains(&r.engine.as_str());
        let best = fastest(others.into_iter().filter(is_peer), |row| &row.engine);
        for ours in taken.values() {
            duels.extend(best.values().map(|theirs| Duel::new(ours, theirs)));
        }
    }
    duels
}

/// Of rows with the same name the fastest.
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

impl Duel {
    fn new(ours: &Row, theirs: &Row) -> Self {
        let warm = theirs.ms_warm.zip(ours.ms_warm);
        Duel {
            set: set(&ours.workload).to_owned(),
            cold: theirs.ms / ours.ms,
            warm: warm.map_or(f64::NAN, |(theirs, ours)| theirs / ours),
            ours: ours.clone(),
            theirs: theirs.clone(),
        }
    }

    /// The operation, with what is allowed to ours.
    fn what(&self) -> String {
        match self.ours.variant == PREPACKED {
            true => format!("{}, prepacked", self.ours.op),
            false => self.ours.op.clone(),
        }
    }
}

/// The set that a workload belongs to.
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

/// Ratios of several cases together.
struct Group<'a>(Vec<&'a Duel>);

impl Group<'_> {
    fn cold(&self) -> Vec<f64> {
        self.0.iter().map(|d| d.cold).collect()
    }

    fn warm(&self) -> f64 {
        let warm = self.0.iter().map(|d| d.warm);
        geomean(&warm.filter(|r| r.is_finite()).collect::<Vec<_>>())
    }

    fn least(&self) -> f64 {
        self.cold().into_iter().fold(f64::INFINITY, f64::min)
    }

    fn most(&self) -> f64 {
        self.cold().into_iter().fold(0.0, f64::max)
    }

    /// Won, tied, lost.
    fn outcomes(&self) -> [usize; 3] {
        let won = self.0.iter().filter(|d| d.cold > 1.0 + TIE).count();
        let lost = self.0.iter().filter(|d| d.cold < 1.0 - TIE).count();
        [won, self.0.len() - won - lost, lost]
    }

    /// In how many cases zeros beside entries are multiplied, by ours and by the peer.
    fn zeros(&self) -> String {
        let of = |row: fn(&Duel) -> &Row| self.0.iter().filter(|d| row(d).zeros == "dense").count();
        format!("{} / {}", of(|d| &d.ours), of(|d| &d.theirs))
    }
}

/// The commits of the rows: that of most of them, and the others.
fn commits(rows: &[Row]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for row in rows {
        *counts.entry(&row.commit).or_default() += 1;
    }
    let mut all: Vec<(&str, usize)> = counts.into_iter().collect();
    all.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let names: Vec<&str> = all.iter().map(|(commit, _)| *commit).collect();
    match names.split_first() {
        Some((most, others)) if !others.is_empty() => {
            format!("commit {most} (parts of {})", others.join(", "))
        }
        _ => format!("commit {}", names.join("")),
    }
}

fn header(text: &mut String, rows: &[Row]) -> std::fmt::Result {
    let Some(first) = rows.first() else {
        return writeln!(text, "The record is empty.");
    };
    writeln!(
        text,
        "# {} ({}), {}, {}\n",
        first.gpu,
        first.driver,
        first.date,
        commits(rows)
    )?;
    writeln!(
        text,
        "Ratio = peer's time over ours: above 1 we are faster, within 5 % is a tie. Cold: L2 is evicted before each \
         run. Warm: back to"
    )?;
    writeln!(
        text,
        "back. Zeros: in how many cases ours and the peer multiply zeros beside entries.\n"
    )?;
    for row in rows
        .iter()
        .filter(|r| matches!(r.op.as_str(), "launch" | "copy" | "gemm"))
    {
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

/// By operation, set, element type, N and peer, and over every N.
fn summary(text: &mut String, duels: &[Duel]) -> std::fmt::Result {
    let mut groups: BTreeMap<_, Vec<&Duel>> = BTreeMap::new();
    for duel in duels {
        let (peer, dtype) = (&duel.theirs.engine, &duel.ours.dtype);
        let key = |n| (duel.what(), peer, dtype, duel.set.as_str(), n);
        groups.entry(key(Some(duel.ours.n))).or_default().push(duel);
        groups.entry(key(None)).or_default().push(duel);
    }
    if groups.is_empty() {
        return Ok(());
    }
    writeln!(text, "\n## Against the peers\n")?;
    writeln!(
        text,
        "| op | peer | dtype | set | N | cases | cold, geomean | least | most | won | tied | lost | warm, geomean | \
         zeros, ours / peer |"
    )?;
    writeln!(
        text,
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    )?;
    for ((op, peer, dtype, set, n), group) in groups {
        let group = Group(group);
        let n = n.map_or("all".into(), |n| n.to_string());
        let [won, tied, lost] = group.outcomes();
        let (cases, mean) = (group.0.len(), geomean(&group.cold()));
        let (least, most, warm, zeros) = (group.least(), group.most(), group.warm(), group.zeros());
        writeln!(
            text,
            "| {op} | {peer} | {dtype} | {set} | {n} | {cases} | **{mean:.2}** | {least:.2} | {most:.2} | {won} | \
             {tied} | {lost} | {warm:.2} | {zeros} |"
        )?;
    }
    Ok(())
}

/// Every case that is lost, the widest gap first.
fn losses(text: &mut String, duels: &[Duel]) -> std::fmt::Result {
    let mut lost: Vec<&Duel> = duels.iter().filter(|d| d.cold < 1.0 - TIE).collect();
    if duels.is_empty() {
        return Ok(());
    }
    lost.sort_by(|a, b| a.cold.total_cmp(&b.cold));
    writeln!(text, "\n## Lost: {} of {}\n", lost.len(), duels.len())?;
    if lost.is_empty() {
        return Ok(());
    }
    writeln!(
        text,
        "| cold | warm | op | workload | N | nnz | dtype | peer | its us cold (warm) | ours us cold (warm) |"
    )?;
    writeln!(text, "|---|---|---|---|---|---|---|---|---|---|")?;
    for duel in lost {
        let both = |r: &Row| {
            let warm = r.ms_warm.unwrap_or(f64::NAN);
            format!("{:.1} ({:.1})", r.ms * 1e3, warm * 1e3)
        };
        let (what, ours, theirs) = (duel.what(), &duel.ours, &duel.theirs);
        writeln!(
            text,
            "| {:.2} | {:.2} | {what} | {} | {} | {} | {} | {} {} | {} | {} |",
            duel.cold,
            duel.warm,
            ours.workload,
            ours.n,
            ours.nnz,
            ours.dtype,
            theirs.engine,
            theirs.variant,
            both(theirs),
            both(ours)
        )?;
    }
    Ok(())
}

/// Host operations, and what was wrong.
fn others(text: &mut String, rows: &[Row], wrong: &[Row]) -> std::fmt::Result {
    let host: Vec<&Row> = rows
        .iter()
        .filter(|r| matches!(r.op.as_str(), "convert" | "read" | "first_result"))
        .collect();
    if !host.is_empty() {
        writeln!(
            text,
            "\n## On the host\n\n| op | workload | engine | ms | note |\n|---|---|---|---|---|"
        )?;
    }
    for row in host {
        writeln!(
            text,
            "| {} | {} | {} | {:.1} | {} |",
            row.op, row.workload, row.engine, row.ms, row.note
        )?;
    }
    if !wrong.is_empty() {
        writeln!(text, "\n## Wrong results, left out above\n")?;
    }
    for r in wrong {
        let (op, workload, n, dtype) = (&r.op, &r.workload, r.n, &r.dtype);
        writeln!(
            text,
            "- {} {} {op} {workload} N {n} {dtype}: {}",
            r.engine, r.variant, r.note
        )?;
    }
    Ok(())
}

fn geomean(values: &[f64]) -> f64 {
    (values.iter().map(|v| v.ln()).sum::<f64>() / values.len() as f64).exp()
}
