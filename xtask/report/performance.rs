//! The guide's table of figures, out of the record that it names.

use super::{Duel, Group, Result, Row, geomean};
use crate::cargo::root;
use std::fmt::Write;
use std::path::Path;

const START: &str = "<!-- measured: written by `cargo xtask report` -->";
const END: &str = "<!-- /measured -->";

/// The page, and the way from there to the top of the project.
const PAGE: &str = "docs/guide/performance.md";
const UP: &str = "../../";

/// What is shown: operation, set and element types, those that lose among them. `, prepacked`: A's values may be kept
/// in another form.
const SHOWN: &[(&str, &str, &[&str])] = &[
    ("spmm", "DLMC", &["f32", "f16"]),
    ("spmm, prepacked", "DLMC", &["f32", "f16"]),
    ("spmm", "graphs", &["f32", "f16"]),
    ("spmm", "decode", &["f16"]),
    ("block_spmm", "blocks", &["f16", "tf32"]),
    ("layer_backward", "blocks", &["f16"]),
    ("nm_spmm", "", &["f16"]),
    ("dense", "", &["f16"]),
    ("sddmm", "DLMC", &["f32", "f16"]),
    ("conv", "", &["f16"]),
    ("pit_matmul", "", &["f16"]),
    ("pit_conv", "", &["f16"]),
    ("ffn", "", &["f16"]),
    ("training", "blocks", &["f16"]),
    ("moe", "", &["bf16"]),
    ("encoder", "", &["f16"]),
];

/// Each line of the table with its name.
pub fn groups(duels: &[Duel]) -> Vec<(String, Group<'_>)> {
    let mut all = Vec::new();
    for &(what, set, dtypes) in SHOWN {
        for &dtype in dtypes {
            let own = |d: &&Duel| d.what() == what && d.set == set && d.ours.dtype == dtype;
            let own: Vec<&Duel> = duels.iter().filter(own).collect();
            let mut peers: Vec<&str> = own.iter().map(|d| d.theirs.engine.as_str()).collect();
            peers.sort_unstable();
            peers.dedup();
            // Nobody makes a graph dense.
            peers.retain(|peer| set != "graphs" || !peer.starts_with("cublas"));
            for peer in peers {
                let of_peer = own.iter().copied().filter(|d| d.theirs.engine == peer);
                let name = [what, set, dtype].map(str::to_owned).to_vec();
                let name: Vec<String> = name.into_iter().filter(|part| !part.is_empty()).collect();
                all.push((
                    format!("{} / {peer}", name.join(" ")),
                    Group(of_peer.collect()),
                ));
            }
        }
    }
    all
}

/// What stands between the marks.
fn section(
    record: &str,
    rows: &[Row],
    duels: &[Duel],
) -> std::result::Result<String, std::fmt::Error> {
    let mut text = String::new();
    let Some(first) = rows.first() else {
        return Ok(text);
    };
    let lost = duels.iter().filter(|d| d.cold < 1.0 - super::TIE).count();
    writeln!(
        text,
        "{}, driver {}, {}: [record]({UP}{record}) of {}, [report]({UP}{record}/report.md) of all {} comparisons with \
         every one of the\n\
         {lost} that are lost. A ratio is the peer's time over ours, a geometric mean; L2 is evicted before each run \
         (cold), and warm\n\
         stands beside. Zeros: in how many cases ours and the peer multiply zeros beside entries.\n",
        first.gpu,
        first.driver,
        first.date,
        super::commits(rows),
        duels.len()
    )?;
    writeln!(
        text,
        "| ours / peer | cases | cold | least | most | won | lost | warm | zeros |\n\
         |---|---|---|---|---|---|---|---|---|"
    )?;
    for (name, group) in groups(duels) {
        let [won, _, lost] = group.outcomes();
        writeln!(
            text,
            "| {name} | {} | **{:.2}** | {:.2} | {:.2} | {won} | {lost} | {:.2} | {} |",
            group.0.len(),
            geomean(&group.cold()),
            group.least(),
            group.most(),
            group.warm(),
            group.zeros()
        )?;
    }
    Ok(text)
}

/// The page with the section of this record, if that is the one it names.
fn with_section(page: &str, record: &Path, rows: &[Row], duels: &[Duel]) -> Result<Option<String>> {
    let inside = |path: &Path| {
        let (path, root) = (path.canonicalize().ok()?, root().canonicalize().ok()?);
        Some(path.strip_prefix(root).ok()?.to_owned())
    };
    let Some(path) = inside(record) else {
        return Ok(None);
    };
    let path = path.display().to_string();
    let (Some(start), Some(end)) = (page.find(START), page.find(END)) else {
        return Err(format!("{PAGE} has no lines `{START}` and `{END}`"));
    };
    let from = start + START.len();
    if !record.is_dir() || !page[from..end].contains(&format!("({UP}{path})")) {
        return Ok(None);
    }
    let section = section(&path, rows, duels).map_err(|e| e.to_string())?;
    Ok(Some(format!(
        "{}\n{section}{}",
        &page[..from],
        &page[end..]
    )))
}

/// Writes it.
pub fn update(record: &Path, rows: &[Row], duels: &[Duel]) -> Result<()> {
    let path = root().join(PAGE);
    let fail = |e: std::io::Error| format!("{}: {e}", path.display());
    let page = std::fs::read_to_string(&path).map_err(fail)?;
    match with_section(&page, record, rows, duels)? {
        Some(text) => std::fs::write(&path, text).map_err(fail),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::pictures::{QUESTIONS, pictures};
    use super::super::{duels, markdown, read};
    use super::*;

    /// The guide and the report say what the record says.
    #[test]
    fn guide_and_report_follow_the_record() {
        let guide = std::fs::read_to_string(root().join(PAGE)).unwrap();
        let (_, own) = guide.split_once(START).unwrap();
        let (_, path) = own.split_once(&format!("[record]({UP}")).unwrap();
        let record = root().join(path.split_once(')').unwrap().0);
        let told = format!("run `cargo xtask report {}`", record.display());
        let (rows, wrong) = read(&record).unwrap();
        let duels = duels(&rows, &wrong);
        for (what, set, dtypes) in SHOWN {
            let is = |d: &&Duel| d.what() == *what && d.set == *set && d.ours.dtype == dtypes[0];
            assert!(
                duels.iter().find(is).is_some(),
                "nothing is measured of {what} {set}"
            );
        }
        let wanted = with_section(&guide, &record, &rows, &duels).unwrap();
        assert!(wanted.as_deref() == Some(&guide), "{PAGE}: {told}");
        let page = std::fs::read_to_string(record.join("report.md")).unwrap();
        let pictures = pictures(&duels).unwrap();
        let wanted = markdown(&rows, &wrong, &duels, &pictures).unwrap();
        assert!(wanted == page, "report.md: {told}");
        assert_eq!(pictures.len(), QUESTIONS.len(), "a question has no answer");
        for picture in pictures {
            assert!(guide.contains(picture.file), "{PAGE}: {}", picture.file);
            let drawn = std::fs::read_to_string(record.join(picture.file)).unwrap();
            assert!(drawn == picture.svg, "{}: {told}", picture.file);
            assert!(drawn.len() <= 60_000, "{}: {}", picture.file, drawn.len());
        }
    }
}
