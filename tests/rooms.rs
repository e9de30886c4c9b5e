//! Compares ARCHITECTURE.md with the sources: the allowed dependencies between modules. Also checks the links of the
//! pages.

use crate::support::skipped;
use einsparse::registry::kernels;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Rust files below a directory of the project, by their relative paths; none in a bundle, which has no sources.
fn sources(folder: &str) -> Vec<(String, String)> {
    if std::env::var_os("EINSPARSE_BUNDLE").is_some() {
        skipped("no sources in a bundle", folder);
        return Vec::new();
    }
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let (mut folders, mut found) = (vec![top.clone()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
            let path: PathBuf = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let name = path.strip_prefix(&top).unwrap().to_str().unwrap();
                found.push((name.replace('\\', "/"), fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found
}

/// Names that follow `start` in a file: the path, and each name of a list in braces separately. Comments and tests are
/// left out.
fn named(text: &str, start: &str) -> Vec<String> {
    let text = text.split("mod tests {").next().unwrap_or("");
    let code = text.lines().map(|line| line.split("//").next().unwrap_or(""));
    let code: String = code.flat_map(|line| [line, "\n"]).collect();
    let part_of_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let mut found = Vec::new();
    for (at, _) in code.match_indices(start) {
        let rest = &code[at + start.len()..];
        let end = rest.find(|c| !part_of_path(c)).unwrap_or(rest.len());
        let (path, behind) = rest.split_at(end);
        let list = behind.strip_prefix('{').and_then(|list| list.split_once('}'));
        match list {
            Some((list, _)) => found.extend(
                list.split(',')
                    .map(str::trim)
                    .filter(|name| !name.is_empty())
                    .map(|name| format!("{path}{name}")),
            ),
            None if behind.starts_with('*') => found.push(format!("{path}*")),
            None => found.push(path.to_owned()),
        }
    }
    found
}

/// Shared kernel code names no family; a family uses only constants in the `abi` of another one.
#[test]
fn families_of_kernels_do_not_know_each_other() {
    let mut wrong = Vec::new();
    for (path, text) in sources("kernels-gpu") {
        let of_crate = ["compile", "prebuilt", "table", "tests", "lib.rs"];
        // The expanded table: its rows name tiles of all families.
        if of_crate.iter().any(|start| path.starts_with(start)) || path == "device/entry.rs" {
            continue;
        }
        let own = path.strip_prefix("families/").and_then(|path| path.split_once('/'));
        for other in named(&text, "crate::families::") {
            let allowed = own.is_some_and(|(own, _)| {
                let constant = other.split_once("::abi::").is_some_and(|(_, name)| {
                    name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
                });
                other.split("::").next() == Some(own) || constant
            });
            if !allowed {
                wrong.push(format!("{path}: {other}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Steps of a conversion read its input through the non-coherent cache. Only the first step follows a launch of another
/// operation, and it starts after that launch has ended.
const CONVERSIONS: [&str; 2] = ["convert/convert", "convert/entries"];

/// `ld.global.nc` requires that the memory is not written while the kernel runs. A kernel that starts before the
/// preceding launch has ended must not use it for its operands, and neither must code that all kernels share.
#[test]
fn kernels_that_wait_for_a_launch_read_operands_coherently() {
    let module = |path: &str| {
        let path = path.strip_prefix("families/")?.strip_suffix(".rs")?;
        let mut parts = path.split('/');
        Some(format!("{}/{}", parts.next()?, parts.next()?))
    };
    let all = sources("kernels-gpu");
    let waits: BTreeSet<_> = all
        .iter()
        .filter(|(_, text)| text.contains("grid::wait_dependency()"))
        .filter_map(|(path, _)| module(path))
        .collect();
    let loads = |text: &str| text.contains("E::load::<") || text.contains("S::load::<");
    let wrong: Vec<_> = all
        .iter()
        .filter(|(path, text)| loads(text) && !path.starts_with("tests/"))
        .filter(|(path, _)| module(path).is_none_or(|own| waits.contains(&own)))
        .filter(|(path, _)| !CONVERSIONS.iter().any(|own| path.contains(own)))
        .map(|(path, _)| path)
        .collect();
    assert!(all.is_empty() || waits.len() > 20, "{waits:?}");
    assert!(wrong.is_empty(), "not coherent: {wrong:?}");
}

/// Modules of the host from the bottom up: each may use those before it.
const HOST: [&str; 27] = [
    "parallel",
    "registry",
    "values",
    "machine",
    "driver",
    "module",
    "device",
    "kernel",
    "context",
    "worklist",
    "tensor",
    "cost",
    "cpu",
    "launch",
    "offer",
    "families",
    "operator",
    "plan",
    "converter",
    "convert",
    "entries",
    "dynamic",
    "ops",
    "nn",
    "group",
    "raw",
    "lib",
];

/// Names exported at the top of the library, and the module of each.
const EXPORTED: [(&str, &str); 6] = [
    ("Context", "context"),
    ("Device", "device"),
    ("Operand", "tensor"),
    ("Options", "offer"),
    ("Scalar", "registry"),
    ("Tensor", "tensor"),
];

/// Modules of other crates, and their items that the library exports at its top.
const OTHER_CRATES: [&str; 7] =
    ["formats", "kernels", "einsum", "indirect", "error", "Error", "Result"];

#[test]
fn rooms_of_the_host_know_only_those_below() {
    let level = |room: &str| HOST.iter().position(|name| *name == room);
    let mut wrong = Vec::new();
    for (path, text) in sources("host") {
        // The command and the language are separate crates.
        if path.starts_with("bin/") || path.starts_with("lang/") {
            continue;
        }
        let room = path.split(['/', '.']).next().unwrap();
        let own = level(room)
            .unwrap_or_else(|| panic!("host/{path}: a room without a place in the order"));
        for other in named(&text, "crate::") {
            let first = other.split("::").next().unwrap();
            if OTHER_CRATES.contains(&first) {
                continue;
            }
            let of = EXPORTED.iter().find(|(name, _)| *name == first);
            let other = of.map_or(first, |(_, room)| room);
            let Some(level) = level(other) else {
                wrong.push(format!("host/{path}: {first} is of no known room"));
                continue;
            };
            if level > own {
                wrong.push(format!("host/{path}: {other}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A family of the table has one name for its kernels, tests and benches. Except for the tutorial, its launches and its
/// page in the table of contents have that name too.
#[test]
fn families_have_their_rooms() {
    if std::env::var_os("EINSPARSE_BUNDLE").is_some() {
        return skipped("no sources in a bundle", "families");
    }
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let names = |folder: &str| -> Vec<String> {
        let entries = fs::read_dir(top.join(folder)).unwrap();
        let stem = |path: PathBuf| path.file_stem().unwrap().to_str().unwrap().to_owned();
        let mut all: Vec<String> = entries.map(|e| stem(e.unwrap().path())).collect();
        all.retain(|name| name != "mod");
        all.sort();
        all.dedup();
        all
    };
    let families: BTreeSet<String> = kernels().iter().map(|row| row.family.into()).collect();
    let families: Vec<String> = families.into_iter().collect();
    for folder in ["kernels-gpu/families", "tests/families", "benches/families"] {
        assert_eq!(names(folder), families, "{folder}");
    }
    let of_plans: Vec<String> = families.into_iter().filter(|name| name != "tutorial").collect();
    for folder in ["host/families", "docs/families"] {
        assert_eq!(names(folder), of_plans, "{folder}");
    }
    let contents = fs::read_to_string(top.join("docs/SUMMARY.md")).unwrap();
    for family in &of_plans {
        let link = format!("(families/{family}.md)");
        assert!(contents.contains(&link), "docs/SUMMARY.md has no {link}");
    }
}

#[test]
fn paths_are_read_as_written() {
    let text = "use crate::families::spmm::abi::*; // crate::families::a\n  x(crate::families::gemm::abi::HALF);\n\
        use crate::families::gemm::abi::{A,\n    Tile,\n};\n#[cfg(test)]\nmod tests {\n use crate::families::b;\n}";
    assert_eq!(
        named(text, "crate::families::"),
        ["spmm::abi::*", "gemm::abi::HALF", "gemm::abi::A", "gemm::abi::Tile"]
    );
}

/// Whether a link is valid in a fresh clone too: git stores no empty directory.
fn leads(path: &Path) -> bool {
    match fs::read_dir(path) {
        Ok(mut entries) => entries.next().is_some(),
        Err(_) => path.exists(),
    }
}

/// Links of the pages lead to files.
#[test]
fn links_lead_somewhere() {
    if std::env::var_os("EINSPARSE_BUNDLE").is_some() {
        return skipped("no sources in a bundle", "docs");
    }
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pages = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|end| end == "md")).collect()
    };
    let mut wrong = Vec::new();
    for folder in [".", "docs", "docs/families", "docs/guide"] {
        let found = pages(&top.join(folder));
        assert!(!found.is_empty(), "no page in {folder}");
        for page in found {
            let text = fs::read_to_string(&page).unwrap();
            for (at, _) in text.match_indices("](") {
                let link = text[at + 2..].split(')').next().unwrap_or("");
                let file = link.split('#').next().unwrap_or("");
                let local = !file.is_empty() && !file.contains(':') && !file.contains(' ');
                if local && !leads(&page.parent().unwrap().join(file)) {
                    wrong.push(format!("{}: {link}", page.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
