//! Checks every place that allocates without reporting an error. `tests/allocations.txt` lists all of them with the
//! bound of their size. New code uses `allocate`, or is added to the list with its bound.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::skipped;

const BOUNDS: [&str; 8] =
    ["entries", "order", "constant", "compared", "operands", "device", "ranks", "asked"];

/// Whether a line allocates a number of elements that depends on a value, and aborts if memory is exhausted.
fn allocates(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    let repeated = code.split("vec![").skip(1).any(|rest| {
        let own = rest.split(']').next().unwrap_or_default();
        own.contains(';')
    });
    let reserved = code.contains("with_capacity(") && !code.contains("BufWriter::with_capacity(");
    repeated || reserved || code.contains(".resize(") || code.contains(".reserve(")
}

/// Collects the Rust files of a directory and its subdirectories.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true if path.ends_with("tests") => {}
            true => sources(&path, found),
            false if path.extension().is_some_and(|kind| kind == "rs") => found.push(path),
            false => {}
        }
    }
}

/// Lines of a file that allocate, without its unit tests.
fn places(text: &str) -> Vec<String> {
    let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    code.lines().map(str::trim).filter(|line| allocates(line)).map(str::to_owned).collect()
}

fn listed(text: &str) -> BTreeMap<String, usize> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let entries = lines.map(|line| {
        let [file, count, bound] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}: a file, a number and a bound");
        };
        assert!(BOUNDS.contains(&bound), "{line}: bounds are {BOUNDS:?}");
        (file.to_owned(), count.parse().expect(line))
    });
    entries.collect()
}

#[test]
fn allocations_that_cannot_fail_are_listed_with_their_bound() {
    if std::env::var_os("EINSPARSE_BUNDLE").is_some() {
        return skipped("no sources in a bundle", "allocations");
    }
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut listed = listed(&fs::read_to_string(top.join("tests/allocations.txt")).unwrap());
    let mut files = Vec::new();
    for folder in ["formats", "host"] {
        sources(&top.join(folder), &mut files);
    }
    assert!(files.len() > 400, "{} files", files.len());
    let mut wrong = Vec::new();
    for file in files {
        let name = file.strip_prefix(top).unwrap().display().to_string();
        let found = places(&fs::read_to_string(&file).unwrap());
        let known = listed.remove(&name).unwrap_or(0);
        if found.len() != known {
            let lines = found.join("\n    ");
            wrong.push(format!("{name}: {} places, {known} listed\n    {lines}", found.len()));
        }
    }
    wrong.extend(listed.keys().map(|name| format!("{name}: listed, and not there")));
    let help = "use `formats/allocate.rs`, or add file, number and bound to tests/allocations.txt";
    assert!(wrong.is_empty(), "{help}\n{}", wrong.join("\n"));
}

#[test]
fn places_are_told_from_other_lines() {
    for line in [
        "let a = vec![0; rows];",
        "Vec::with_capacity(n)",
        "all.resize(n, 0);",
        "let b = [vec![1; 2], vec![f(a, b); n + 1]];",
    ] {
        assert!(allocates(line), "{line}");
    }
    for line in [
        "let a = vec![rows, cols];",
        "// vec![0; rows]",
        "BufWriter::with_capacity(1 << 16, file)",
        "allocate::zeroed(\"rows\", rows)?",
    ] {
        assert!(!allocates(line), "{line}");
    }
    let text = "vec![0; n]\n#[cfg(test)]\nmod tests {\n    vec![0; n]\n}\n";
    assert_eq!(places(text), ["vec![0; n]"]);
}
