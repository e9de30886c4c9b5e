//! Dependencies between modules and between families that the compiler does not check, and the links of the pages.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use einsparse::registry::kernels;
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{ItemMod, ItemUse, Macro, UseTree};

use crate::support::skipped;

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

/// Paths of a file that start with `crate`, without that segment: of `use` items, of code, and in the arguments of macros.
/// Unit tests are left out.
struct Paths(Vec<Vec<String>>);

impl Paths {
    fn of(text: &str) -> Vec<Vec<String>> {
        let mut paths = Paths(Vec::new());
        paths.visit_file(&syn::parse_file(text).expect("Rust"));
        paths.0
    }

    fn add(&mut self, path: impl IntoIterator<Item = String>) {
        let mut path = path.into_iter();
        let is_of_crate = path.next().is_some_and(|first| first == "crate");
        let rest: Vec<String> = path.collect();
        if is_of_crate && !rest.is_empty() {
            self.0.push(rest);
        }
    }

    fn add_tree(&mut self, before: &[String], tree: &UseTree) {
        let with = |name: String| [before, &[name]].concat();
        match tree {
            UseTree::Path(path) => self.add_tree(&with(path.ident.to_string()), &path.tree),
            UseTree::Name(name) => self.add(with(name.ident.to_string())),
            UseTree::Rename(name) => self.add(with(name.ident.to_string())),
            UseTree::Glob(_) => self.add(with("*".into())),
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.add_tree(before, tree))
            }
        }
    }

    /// Paths among the tokens of a macro.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let (mut path, mut colons) = (Vec::<String>::new(), 0);
        for token in tokens {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.add(std::mem::take(&mut path));
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                other => {
                    self.add(std::mem::take(&mut path));
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.add_tokens(group.stream());
                    }
                }
            }
        }
        self.add(path);
    }
}

impl<'a> Visit<'a> for Paths {
    fn visit_item_mod(&mut self, item: &'a ItemMod) {
        if item.ident != "tests" {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'a ItemUse) {
        self.add_tree(&[], &item.tree);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        self.add(path.segments.iter().map(|segment| segment.ident.to_string()));
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, called: &'a Macro) {
        self.add_tokens(called.tokens.clone());
    }
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
        for other in Paths::of(&text).iter().filter(|other| other[0] == "families") {
            let allowed = own.is_some_and(|(own, _)| {
                let constant = |name: &String| {
                    name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
                };
                let of_abi = other.get(2).is_some_and(|module| module == "abi");
                let is_own = other.get(1).is_none_or(|name| name == own);
                is_own || of_abi && other.get(3).is_some_and(constant)
            });
            if !allowed {
                wrong.push(format!("{path}: {}", other.join("::")));
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

/// Modules of `host/core` from the bottom up: each uses only those before it. The compiler orders the crates.
const MODULES: [&str; 18] = [
    "registry",
    "values",
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
    "raw",
];

/// Families of the host from the bottom up: each uses only those before it.
const FAMILIES: [&str; 12] = [
    "convert",
    "spmm",
    "gemm",
    "discover",
    "sddmm",
    "gather_gemm",
    "attention",
    "softmax",
    "tensor",
    "elementwise",
    "optimizer",
    "conv2d",
];

/// Items that `host/core` exports at its top, and the module of each.
const EXPORTED: [(&str, &str); 4] =
    [("Context", "context"), ("Operand", "tensor"), ("Scalar", "registry"), ("Tensor", "tensor")];

#[test]
fn modules_and_families_of_the_host_use_those_below() {
    let level = |list: &[&str], name: &str| list.iter().position(|other| *other == name);
    let mut wrong = Vec::new();
    let (all, mut seen) = (sources("host/core"), 0);
    let in_bundle = all.is_empty();
    for (path, text) in all {
        let parts: Vec<&str> = path.split(['/', '.']).collect();
        if parts[0] == "lib" {
            continue;
        }
        let own =
            level(&MODULES, parts[0]).unwrap_or_else(|| panic!("{path} has no place in MODULES"));
        let family = (parts[0] == "families").then(|| level(&FAMILIES, parts[1])).flatten();
        for other in Paths::of(&text) {
            seen += 1;
            let exported = EXPORTED.iter().find(|(name, _)| *name == other[0]);
            let module = exported.map_or(&*other[0], |(_, module)| module);
            // Other names are modules of the crates below.
            let above = level(&MODULES, module).is_some_and(|level| level > own);
            let beside = family.zip(other.get(1)).is_some_and(|(family, name)| {
                module == "families" && level(&FAMILIES, name).is_none_or(|level| level > family)
            });
            if above || beside {
                wrong.push(format!("host/core/{path}: {}", other.join("::")));
            }
        }
    }
    assert!(in_bundle || seen > 1000, "{seen} paths read");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A family of the table has one name for its kernels, tests and benches. Except for the tutorial, its launches and its
/// page in the table of contents have that name too.
#[test]
fn families_have_one_name_everywhere() {
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
    for folder in ["host/core/families", "docs/families"] {
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
    let text = "use crate::a::b::*; // crate::c\nfn f() { x(crate::d::E); m!(y, crate::f::g(1)); }\n\
        use crate::h::{I,\n    j::K,\n};\nmod tests {\n use crate::l;\n}";
    let found: Vec<String> = Paths::of(text).iter().map(|path| path.join("::")).collect();
    assert_eq!(found, ["a::b::*", "d::E", "f::g", "h::I", "h::j::K"]);
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
