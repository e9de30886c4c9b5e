//! Measured sections of the guide and of the README, written from the record that they name.

use super::pictures::Picture;
use super::{Comparison, Group, Result, Row, geomean, words};
use crate::cargo::root;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

const START: &str = "<!-- measured: written by `cargo xtask report` -->";
const END: &str = "<!-- /measured -->";

/// A page with a measured section.
struct Page {
    path: &'static str,
    /// Relative path from the page to the project's root.
    up: &'static str,
    section: fn(&Measured, &str) -> std::result::Result<String, std::fmt::Error>,
}

const PAGES: [Page; 2] = [
    Page { path: "docs/guide/performance.md", up: "../../", section: every_group },
    Page { path: "README.md", up: "", section: summary },
];

/// A record, and the comparisons and pictures that were made from it.
pub struct Measured<'r> {
    pub rows: &'r [Row],
    pub comparisons: &'r [Comparison],
    pub pictures: &'r [Picture],
}

/// Operation, set, element type and baseline of the README's lines, as a record names them. Groups in which einsparse
/// is slower are included.
const README: [[&str; 4]; 14] = [
    ["spmm", "DLMC", "f32", "cusparse"],
    ["spmm", "DLMC", "f16", "cusparse"],
    ["spmm", "DLMC", "f32", "cublas"],
    ["spmm", "DLMC", "f32", "cublas-tf32"],
    ["spmm", "DLMC", "f16", "cublas"],
    ["spmm, prepacked", "DLMC", "f16", "cublas"],
    ["spmm", "decode", "f16", "cublas"],
    ["spmm", "graphs", "f32", "cusparse"],
    ["block_spmm", "blocks", "f16", "cublas"],
    ["block_spmm", "blocks", "tf32", "cublas-tf32"],
    ["nm_spmm", "", "f16", "cusparselt"],
    ["sddmm", "DLMC", "f32", "cusparse"],
    ["gated_moe", "", "bf16", "torch"],
    ["attention_decode", "", "bf16", "torch"],
];

/// The picture of the README.
const README_PICTURE: &str = "spmm.svg";

/// Sort key of a line: topic, index in the topic, set, type, baseline.
type Key<'r> = (usize, usize, &'r str, &'r str, &'r str);

/// Comparisons by line.
fn groups(comparisons: &[Comparison]) -> BTreeMap<Key<'_>, Group<'_>> {
    let mut all: BTreeMap<Key, Group> = BTreeMap::new();
    for comparison in comparisons {
        let (dtype, engine) = (&comparison.ours.dtype, &comparison.baseline.engine);
        if let Some((topic, at)) = words::operation(&comparison.what()) {
            let key = (topic, at, comparison.set.as_str(), dtype.as_str(), engine.as_str());
            all.entry(key).or_insert(Group(Vec::new())).0.push(comparison);
        }
    }
    all
}

/// The first cells of a line: operation, data, type, baseline.
fn names((topic, at, set, dtype, engine): Key, what: &str) -> String {
    let (operation, data) = (words::TOPICS[topic].name(at), words::data(set));
    let baseline = words::baseline(what, engine);
    format!("| {operation} | {data} | {dtype} | {baseline} |")
}

/// Pictures, and a table of every group for each topic.
fn every_group(measured: &Measured, folder: &str) -> std::result::Result<String, std::fmt::Error> {
    let mut text = String::new();
    let Some(first) = measured.rows.first() else {
        return Ok(text);
    };
    let lost = measured.comparisons.iter().filter(|c| c.is_slower()).count();
    let total = measured.comparisons.len();
    writeln!(
        text,
        "{}, driver {}. einsparse is slower in {lost} of {total} comparisons. The [report]({folder}/report.md) lists \
         each of them.\nThe [record]({folder}) has every time.\n",
        first.gpu, first.driver
    )?;
    for picture in measured.pictures {
        writeln!(text, "![{}]({folder}/{})\n", picture.alt, picture.file)?;
    }
    let groups = groups(measured.comparisons);
    for (number, topic) in words::TOPICS.iter().enumerate() {
        let own: Vec<_> = groups.iter().filter(|(key, _)| key.0 == number).collect();
        if own.is_empty() {
            continue;
        }
        writeln!(
            text,
            "### {}\n\n| operation | data | type | baseline | cases | speed-up | min | max | faster / equal / slower | \
             warm | zeros |\n|---|---|---|---|---|---|---|---|---|---|---|",
            topic.heading
        )?;
        for (key, group) in own {
            let [faster, equal, slower] = group.outcomes();
            let warm = match group.warm() {
                warm if warm.is_finite() => format!("{warm:.2}"),
                _ => "-".into(),
            };
            writeln!(
                text,
                "{} {} | **{:.2}** | {:.2} | {:.2} | {faster} / {equal} / {slower} | {warm} | {} |",
                names(*key, &group.0[0].ours.op),
                group.0.len(),
                geomean(&group.cold()),
                group.min(),
                group.max(),
                group.zeros()
            )?;
        }
        writeln!(text)?;
    }
    Ok(text)
}

/// The README's lines and its picture.
fn summary(measured: &Measured, folder: &str) -> std::result::Result<String, std::fmt::Error> {
    let mut text = String::from(
        "| operation | data | type | baseline | speed-up | min - max | faster / equal / slower |\n\
         |---|---|---|---|---|---|---|\n",
    );
    let groups = groups(measured.comparisons);
    for [what, set, dtype, engine] in README {
        let place = words::operation(what).map(|(topic, at)| (topic, at, set, dtype, engine));
        let Some((key, group)) = place.and_then(|key| groups.get_key_value(&key)) else {
            continue;
        };
        let [faster, equal, slower] = group.outcomes();
        writeln!(
            text,
            "{} **{:.2}** | {:.2} - {:.2} | {faster} / {equal} / {slower} |",
            names(*key, &group.0[0].ours.op),
            geomean(&group.cold()),
            group.min(),
            group.max()
        )?;
    }
    if let Some(picture) = measured.pictures.iter().find(|p| p.file == README_PICTURE) {
        writeln!(text, "\n![{}]({folder}/{})", picture.alt, picture.file)?;
    }
    Ok(text)
}

/// Returns the page with the section of this record, if the page names this record.
fn with_section(
    page: &Page,
    text: &str,
    record: &Path,
    measured: &Measured,
) -> Result<Option<String>> {
    let inside = |path: &Path| {
        let (path, root) = (path.canonicalize().ok()?, root().canonicalize().ok()?);
        Some(path.strip_prefix(root).ok()?.to_owned())
    };
    let Some(path) = inside(record).filter(|_| record.is_dir()) else {
        return Ok(None);
    };
    let (Some(start), Some(end)) = (text.find(START), text.find(END)) else {
        return Err(format!("{}: the lines `{START}` and `{END}` are missing", page.path));
    };
    let (from, folder) = (start + START.len(), format!("{}{}", page.up, path.display()));
    if !text[from..end].contains(&format!("({folder}/")) {
        return Ok(None);
    }
    let section = (page.section)(measured, &folder).map_err(|e| e.to_string())?;
    Ok(Some(format!("{}\n{section}{}", &text[..from], &text[end..])))
}

/// Writes the sections of the pages that name this record.
pub fn update(record: &Path, measured: &Measured) -> Result<()> {
    let unnamed: BTreeSet<String> = measured.comparisons.iter().map(Comparison::what).collect();
    if let Some(what) = unnamed.iter().find(|what| words::operation(what).is_none()) {
        return Err(format!(
            "xtask/report/words.rs lacks a name for the operation `{what}`: add one"
        ));
    }
    for page in &PAGES {
        let path = root().join(page.path);
        let fail = |e: std::io::Error| format!("{}: {e}", path.display());
        let text = std::fs::read_to_string(&path).map_err(fail)?;
        if let Some(text) = with_section(page, &text, record, measured)? {
            std::fs::write(&path, text).map_err(fail)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::pictures::{QUESTIONS, pictures};
    use super::super::{comparisons, markdown, read};
    use super::*;

    /// Checks that README, guide, report and pictures agree with the record.
    #[test]
    fn pages_and_pictures_follow_the_record() {
        for page in &PAGES {
            let text = std::fs::read_to_string(root().join(page.path)).unwrap();
            let (_, own) = text.split_once(START).unwrap();
            let (_, path) = own.split_once(&format!("]({}benches/record/", page.up)).unwrap();
            let record = root().join("benches/record").join(path.split_once('/').unwrap().0);
            let told = format!("run `cargo xtask report {}`", record.display());
            let (rows, wrong) = read(&record).unwrap();
            let comparisons = comparisons(&rows, &wrong);
            let pictures = pictures(&comparisons).unwrap();
            let measured = Measured { rows: &rows, comparisons: &comparisons, pictures: &pictures };
            let wanted = with_section(page, &text, &record, &measured).unwrap();
            assert!(wanted.as_deref() == Some(&text), "{}: {told}", page.path);
            let report = std::fs::read_to_string(record.join("report.md")).unwrap();
            let wanted = markdown(&rows, &wrong, &comparisons, &pictures).unwrap();
            assert!(wanted == report, "report.md: {told}");
            assert_eq!(pictures.len(), QUESTIONS.len(), "a question without an answer");
            for picture in &pictures {
                let drawn = std::fs::read_to_string(record.join(picture.file)).unwrap();
                assert!(drawn == picture.svg, "{}: {told}", picture.file);
                assert!(drawn.len() <= 60_000, "{}: {}", picture.file, drawn.len());
            }
            let groups = groups(&comparisons);
            let shown: usize = groups.values().map(|group| group.0.len()).sum();
            assert_eq!(shown, comparisons.len(), "an operation without a name in words.rs");
            for [what, set, dtype, engine] in README {
                let (topic, at) = words::operation(what).unwrap();
                let key = (topic, at, set, dtype, engine);
                assert!(groups.contains_key(&key), "no group {what} {set} {dtype} {engine}");
            }
        }
    }
}
