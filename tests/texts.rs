//! The README and the guide are understood at first reading: short sentences, terms of the field.

use crate::support::skipped;
use std::fs;
use std::path::Path;

/// Maximum number of words in a sentence.
const LONGEST: usize = 30;

/// Private words, with the field's term.
const ODD: [(&str, &str); 9] = [
    ("turned", "transposed"),
    ("strips", "tile schedule"),
    ("panes", "tile schedule"),
    ("shelves", "column partition"),
    ("slab", "shared-memory tile"),
    ("narrow operands", "8-bit operands"),
    ("found while running", "dynamic"),
    ("sums of indices", "affine indices"),
    ("features that turn", "rotation-equivariant features"),
];

/// README and guide, by name; none in a bundle, which has no sources.
fn pages() -> Vec<(String, String)> {
    if std::env::var_os("EINSPARSE_BUNDLE").is_some() {
        skipped("no sources in a bundle", "README and guide");
        return Vec::new();
    }
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = fs::read_dir(top.join("docs/guide")).unwrap();
    let guide = guide.map(|page| page.unwrap().path());
    std::iter::once(top.join("README.md"))
        .chain(guide)
        .map(|path| {
            let name = path.strip_prefix(top).unwrap().display().to_string();
            (name, fs::read_to_string(&path).unwrap())
        })
        .collect()
}

/// Sentences of a page, without code, tables and headings. Links are replaced by their text.
fn sentences(page: &str) -> Vec<String> {
    let (mut found, mut current, mut code) = (Vec::new(), String::new(), false);
    let mut close = |current: &mut String| {
        if !current.trim().is_empty() {
            found.push(std::mem::take(current).trim().to_owned());
        }
    };
    for line in page.lines().map(str::trim) {
        if line.starts_with("```") {
            code = !code;
        }
        let item = line.strip_prefix("- ");
        let other = ["```", "|", "#", "<!--", "!["];
        if code || line.is_empty() || item.is_some() || other.iter().any(|c| line.starts_with(c)) {
            close(&mut current);
        }
        if code || other.iter().any(|start| line.starts_with(start)) {
            continue;
        }
        for word in item.unwrap_or(line).split_whitespace() {
            current.push_str(word);
            current.push(' ');
            let bare = word.trim_end_matches(['*', ')', '`', '"']);
            if bare.ends_with(['.', '?', '!']) {
                close(&mut current);
            }
        }
    }
    close(&mut current);
    found
}

#[test]
fn sentences_of_readme_and_guide_are_short() {
    let long: Vec<String> = pages()
        .iter()
        .flat_map(|(name, page)| {
            let long = sentences(page).into_iter().filter_map(|sentence| {
                let words = sentence.split(' ').filter(|w| w.contains(char::is_alphanumeric));
                let words = words.count();
                (words > LONGEST).then(|| format!("{words} words: {sentence}"))
            });
            long.map(|line| format!("{name}: {line}")).collect::<Vec<_>>()
        })
        .collect();
    assert!(long.is_empty(), "{}", long.join("\n"));
}

#[test]
fn words_of_readme_and_guide_are_those_of_the_field() {
    let mut odd = Vec::new();
    for (name, page) in pages() {
        for (number, line) in page.lines().enumerate() {
            for (word, term) in ODD.iter().filter(|(word, _)| line.contains(word)) {
                odd.push(format!("{name}:{}: {word}: say {term}", number + 1));
            }
        }
    }
    assert!(odd.is_empty(), "{}", odd.join("\n"));
}

#[test]
fn readme_has_one_page() {
    for (name, page) in pages().iter().take(1) {
        let lines = page.lines().count();
        assert!(lines <= 150, "{name} has {lines} lines");
    }
}

/// Each page of the guide is in the table of contents, and its code runs.
#[test]
fn pages_of_the_guide_are_listed_and_run() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (name, page) in pages().iter().skip(1) {
        let contents = fs::read_to_string(top.join("docs/SUMMARY.md")).unwrap();
        let listed = name.strip_prefix("docs/").unwrap();
        assert!(contents.contains(&format!("({listed})")), "{name} is not in docs/SUMMARY.md");
        let library = fs::read_to_string(top.join("host/lib.rs")).unwrap();
        let run = library.contains(&format!("\"../{name}\""));
        assert!(run || !page.contains("```rust"), "the code of {name} does not run");
    }
}

#[test]
fn sentences_are_told_apart() {
    let page = "# Title\nOne two\nthree. Four `x.y`!\n\n- Five\n- **Six.** Seven\n```rust\nno. code\n```\n| a | b |\n";
    let wanted = ["One two three.", "Four `x.y`!", "Five", "**Six.**", "Seven"];
    assert_eq!(sentences(page), wanted);
}
