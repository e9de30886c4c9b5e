//! docs/levels.md against what it quotes: code against the sources, figures against the record.

use crate::support::skipped;
use std::path::Path;

const PAGE: &str = "docs/levels.md";

/// A file of the project; none in a bundle, which has no sources.
fn file(path: &str) -> Option<String> {
    if std::env::var_os("EINSPARSE_BUNDLE").is_some() {
        skipped("no sources in a bundle", path);
        return None;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let text = std::fs::read_to_string(&path);
    Some(text.unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

/// Fenced blocks that name a file after the language: the file and the lines.
fn quotations(page: &str) -> Vec<(&str, Vec<&str>)> {
    let mut found = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(path) = line.strip_prefix("```rust ") {
            let block = lines.by_ref().take_while(|line| *line != "```");
            found.push((path, block.collect()));
        }
    }
    found
}

/// Whether the lines stand in the source one after the other, all of them further to the right by as much.
fn holds(source: &str, block: &[&str]) -> bool {
    let source: Vec<&str> = source.lines().collect();
    source.windows(block.len().max(1)).any(|window| {
        let indent = window[0].len() - window[0].trim_start().len();
        window.iter().zip(block).all(|(line, quoted)| {
            let (margin, rest) = line.split_at(indent.min(line.len()));
            margin.trim().is_empty() && rest == *quoted
        })
    })
}

#[test]
fn quoted_code_is_in_the_sources() {
    let Some(page) = file(PAGE) else { return };
    let quotations = quotations(&page);
    assert!(quotations.len() >= 7, "a level without its code");
    for (path, block) in quotations {
        let source = file(path).unwrap();
        assert!(
            holds(&source, &block),
            "{PAGE} quotes what {path} does not hold:\n{}",
            block.join("\n")
        );
    }
}

#[test]
fn quoted_figures_are_in_the_record() {
    let Some(page) = file(PAGE) else { return };
    let start = page.find("benches/record/").expect("no record is named");
    let end = start + page[start..].find(')').unwrap();
    let record = file(&page[start..end]).unwrap();
    let mut reader = csv::Reader::from_reader(record.as_bytes());
    let headers = reader.headers().unwrap().clone();
    let column = |name: &str| headers.iter().position(|header| header == name).unwrap();
    let (op, k, variant, ms) = (column("op"), column("k"), column("variant"), column("ms"));
    let rows: Vec<_> = reader.records().map(Result::unwrap).collect();
    let rows = rows
        .iter()
        .filter(|row| &row[op] == "levels" && &row[k] == "4096");
    let figures: Vec<(&str, f64)> = rows
        .map(|row| (&row[variant], row[ms].parse().unwrap()))
        .collect();
    let best = figures.iter().find(|(name, _)| *name == "dense").unwrap().1;
    for (name, ms) in &figures {
        let name = if *name == "dense" { "cuBLAS" } else { name };
        let rate = 2.0 * 4096f64.powi(3) / ms / 1e9;
        let wanted = format!("| {name} | {rate:.1} | {:.1} % |", best / ms * 100.0);
        assert!(page.contains(&wanted), "{PAGE} has no `{wanted}`");
    }
}

#[test]
fn another_quotation_is_found_out() {
    let source = "fn f() {\n    one();\n\n    two();\n}\n";
    for (block, there) in [
        (vec!["one();", "", "two();"], true),
        (vec!["fn f() {", "    one();"], true),
        (vec!["one();", "two();"], false),
        (vec!["one();", "", "  two();"], false),
    ] {
        assert_eq!(holds(source, &block), there, "{block:?}");
    }
    let page = "text\n```rust a/b.rs\nlet x;\n```\n```sh\nls\n```\n";
    assert_eq!(quotations(page), [("a/b.rs", vec!["let x;"])]);
}
