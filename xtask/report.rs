//! `cargo xtask report RECORD`: a bench record as a markdown table and a plot beside it.
//!
//! A ratio is the peer's time over ours, so above 1 we are faster; within 5 % is a tie. Where the peer is below 10 us
//! cold, most of that is launch, and the warm figures decide.

mod choice;
pub mod rows;

use plotters::prelude::*;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Ratios within this share of 1 are ties.
const TIE: f64 = 0.05;
/// Milliseconds cold below which the warm figure decides.
const LAUNCH_BOUND: f64 = 0.010;

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
    note: String,
}

/// Ours against one peer on one case.
struct Duel {
    op: String,
    family: String,
    workload: String,
    dtype: String,
    n: u64,
    peer: String,
    ours: Row,
    theirs: Row,
    warm: bool,
    ratio: f64,
}

/// Reads `record`, writes `<record>.md` and `<record>.svg` beside it, and returns the markdown.
///
/// # Errors
/// A readable line when the record cannot be read or the report cannot be written.
pub fn report(record: &Path) -> Result<String> {
    let rows = read(record)?;
    let (wrong, right): (Vec<Row>, Vec<Row>) =
        rows.into_iter().partition(|r| r.note.starts_with("WRONG"));
    let duels = duels(&right);
    let plot = record.with_extension("svg");
    let mut text = String::new();
    let written = header(&mut text, &right)
        .and_then(|()| summary(&mut text, &duels))
        .and_then(|()| losses(&mut text, &duels))
        .and_then(|()| choice::write(&mut text, &right))
        .and_then(|()| others(&mut text, &right, &wrong));
    written.map_err(|e| e.to_string())?;
    if !duels.is_empty() {
        draw(&plot, &duels)?;
        let name = plot.file_name().unwrap_or_default().to_string_lossy();
        text.push_str(&format!(
            "\n![peer's time over ours, case by case]({name})\n"
        ));
    }
    let page: PathBuf = record.with_extension("md");
    std::fs::write(&page, &text).map_err(|e| format!("{}: {e}", page.display()))?;
    Ok(text)
}

fn read(record: &Path) -> Result<Vec<Row>> {
    let fail = |e: csv::Error| format!("{}: {e}", record.display());
    let mut reader = csv::Reader::from_path(record).map_err(fail)?;
    reader
        .deserialize()
        .collect::<std::result::Result<_, _>>()
        .map_err(fail)
}

/// What the plan took against every peer with the same case: of A as it is (`auto`), and where it may keep A's values in another
/// form (`auto@kept`).
fn duels(rows: &[Row]) -> Vec<Duel> {
    let variants = ["auto", KEPT].into_iter();
    variants.flat_map(|v| duels_of(rows, v)).collect()
}

/// The variant of which A's values may be kept in another form.
const KEPT: &str = "auto@kept";

fn duels_of(rows: &[Row], variant: &str) -> Vec<Duel> {
    let case = |r: &Row| (r.op.clone(), r.workload.clone(), r.dtype.clone(), r.n);
    let ours = rows
        .iter()
        .filter(|r| r.engine == "einsparse" && r.variant == variant);
    let ours: BTreeMap<_, &Row> = ours.map(|r| (case(r), r)).collect();
    let mut duels = Vec::new();
    for theirs in rows.iter().filter(|r| r.engine != "einsparse") {
        let Some(&ours) = ours.get(&case(theirs)) else {
            continue;
        };
        let warm = theirs.ms < LAUNCH_BOUND && theirs.ms_warm.is_some() && ours.ms_warm.is_some();
        let time = |r: &Row| {
            if warm {
                r.ms_warm.unwrap_or(r.ms)
            } else {
                r.ms
            }
        };
        duels.push(Duel {
            op: theirs.op.clone(),
            family: format!("{}{}", family(&theirs.workload), said_of(variant)),
            workload: theirs.workload.clone(),
            dtype: theirs.dtype.clone(),
            n: theirs.n,
            peer: theirs.engine.clone(),
            ours: ours.clone(),
            theirs: theirs.clone(),
            warm,
            ratio: time(theirs) / time(ours),
        });
    }
    duels
}

/// What a set is called beside where it comes from.
fn said_of(variant: &str) -> &'static str {
    if variant == KEPT { ", kept" } else { "" }
}

impl Duel {
    fn kept(&self) -> &'static str {
        said_of(&self.ours.variant)
    }
}

/// The set that a workload belongs to.
fn family(workload: &str) -> &str {
    match workload {
        w if w.starts_with("dlmc/") => "dlmc",
        w if w.starts_with("block") => "block",
        w if w.starts_with("uniform-") => "uniform",
        w if w.starts_with("2048-") => "start",
        _ => "graph",
    }
}

fn header(text: &mut String, rows: &[Row]) -> std::fmt::Result {
    let Some(first) = rows.first() else {
        return writeln!(text, "The record is empty.");
    };
    writeln!(
        text,
        "# {} ({}), {}, commit {}\n",
        first.gpu, first.driver, first.date, first.commit
    )?;
    writeln!(
        text,
        "Ratio = peer's time over ours: above 1 we are faster, within 5 % is a tie. Cold figures; where the"
    )?;
    writeln!(
        text,
        "peer is below 10 us cold the warm ones decide (marked w).\n"
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

/// Geomeans by op, family, element type, N and peer, and over every N.
fn summary(text: &mut String, duels: &[Duel]) -> std::fmt::Result {
    let mut groups: BTreeMap<_, Vec<&Duel>> = BTreeMap::new();
    for duel in duels {
        let key = |n| (&duel.op, &duel.peer, &duel.dtype, duel.family.as_str(), n);
        groups.entry(key(Some(duel.n))).or_default().push(duel);
        groups.entry(key(None)).or_default().push(duel);
        if duel.op == "spmm" && matches!(duel.family.as_str(), "dlmc" | "graph") {
            groups
                .entry((&duel.op, &duel.peer, &duel.dtype, "dlmc+graph", None))
                .or_default()
                .push(duel);
        }
    }
    if groups.is_empty() {
        return Ok(());
    }
    writeln!(text, "\n## Against the peers\n")?;
    writeln!(
        text,
        "| op | peer | dtype | set | N | cases | geomean | least | most | won | tied | lost |"
    )?;
    writeln!(text, "|---|---|---|---|---|---|---|---|---|---|---|---|")?;
    for ((op, peer, dtype, family, n), group) in groups {
        let ratios: Vec<f64> = group.iter().map(|d| d.ratio).collect();
        let n = n.map_or("all".into(), |n| n.to_string());
        let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
        let most = ratios.iter().copied().fold(0.0, f64::max);
        let won = ratios.iter().filter(|&&r| r > 1.0 + TIE).count();
        let lost = ratios.iter().filter(|&&r| r < 1.0 - TIE).count();
        let (cases, mean) = (ratios.len(), geomean(&ratios));
        let tied = cases - won - lost;
        writeln!(
            text,
            "| {op} | {peer} | {dtype} | {family} | {n} | {cases} | **{mean:.2}** | {least:.2} | {most:.2} | {won} | {tied} | {lost} |"
        )?;
    }
    Ok(())
}

/// Every case that is lost, the widest gap first.
fn losses(text: &mut String, duels: &[Duel]) -> std::fmt::Result {
    let mut lost: Vec<&Duel> = duels.iter().filter(|d| d.ratio < 1.0 - TIE).collect();
    if duels.is_empty() {
        return Ok(());
    }
    lost.sort_by(|a, b| a.ratio.total_cmp(&b.ratio));
    writeln!(text, "\n## Lost: {} of {}\n", lost.len(), duels.len())?;
    if lost.is_empty() {
        return Ok(());
    }
    writeln!(
        text,
        "| ratio | op | workload | N | nnz | dtype | peer | its us cold (warm) | ours us cold (warm) |"
    )?;
    writeln!(text, "|---|---|---|---|---|---|---|---|---|")?;
    for duel in lost {
        let mark = if duel.warm { " w" } else { "" };
        let both = |r: &Row| {
            format!(
                "{:.1} ({:.1})",
                r.ms * 1e3,
                r.ms_warm.unwrap_or(f64::NAN) * 1e3
            )
        };
        let (op, workload, n, nnz, dtype) =
            (&duel.op, &duel.workload, duel.n, duel.ours.nnz, &duel.dtype);
        let (peer, variant) = (&duel.peer, &duel.theirs.variant);
        let kept = duel.kept();
        let (theirs, ours) = (both(&duel.theirs), both(&duel.ours));
        let ratio = format!("{:.2}{mark}", duel.ratio);
        writeln!(
            text,
            "| {ratio} | {op} | {workload}{kept} | {n} | {nnz} | {dtype} | {peer} {variant} | {theirs} | {ours} |"
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

/// One curve for each op, element type and peer: its ratios in ascending order.
fn draw(path: &Path, duels: &[Duel]) -> Result<()> {
    let mut curves: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for duel in duels {
        curves
            .entry(format!(
                "{} {} / {}{}",
                duel.op,
                duel.dtype,
                duel.peer,
                duel.kept()
            ))
            .or_default()
            .push(duel.ratio);
    }
    let low = duels.iter().map(|d| d.ratio).fold(0.5, f64::min) / 1.2;
    let high = duels.iter().map(|d| d.ratio).fold(2.0, f64::max) * 1.2;
    let fail = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let area = SVGBackend::new(path, (1000, 600)).into_drawing_area();
    area.fill(&WHITE).map_err(|e| fail(&e))?;
    let mut chart = ChartBuilder::on(&area)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..1.0, (low..high).log_scale())
        .map_err(|e| fail(&e))?;
    chart
        .configure_mesh()
        .x_desc("share of the cases")
        .y_desc("peer's time / ours")
        .draw()
        .map_err(|e| fail(&e))?;
    let even = LineSeries::new([(0.0, 1.0), (1.0, 1.0)], BLACK.stroke_width(1));
    chart.draw_series(even).map_err(|e| fail(&e))?;
    for (i, (name, mut ratios)) in curves.into_iter().enumerate() {
        ratios.sort_by(f64::total_cmp);
        let last = (ratios.len() - 1).max(1) as f64;
        let points = ratios
            .iter()
            .enumerate()
            .map(|(i, &ratio)| (i as f64 / last, ratio));
        let colour = Palette99::pick(i).to_rgba();
        let curve = LineSeries::new(points, colour.stroke_width(2));
        let drawn = chart.draw_series(curve).map_err(|e| fail(&e))?;
        drawn
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2)));
    }
    let legend = chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE)
        .draw();
    legend.map_err(|e| fail(&e))?;
    area.present().map_err(|e| fail(&e))
}
