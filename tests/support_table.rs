//! The table of kernels by compute capability in docs/guide/guarantees.md, compared with the rows of the kernels. It has
//! a line for each family, under its title in docs/kernels.md. The page also lists the element types.

use crate::support::skipped;
use einsparse::cost::Machine;
use einsparse::kernels::abi::{A_COLUMNS, B_COLUMNS, C_COLUMNS};
use einsparse::kernels::table::{GPUS, ON_DEMAND};
use einsparse::registry::{Dtype, Operation, Row, kernels};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Compute capabilities for which the whole suite passed on an H200, with EINSPARSE_ARCH.
const TESTED: [(u32, u32); 2] = [(8, 0), (8, 6)];

/// State of a family on a GPU. Two kernels that differ only in their requirements count as one.
fn state(family: &str, (capability, shared): ((u32, u32), u32)) -> &'static str {
    let of_line = || kernels().iter().filter(|row| row.family == family);
    let key = |row: &Row| {
        let params = (row.operation == Operation::Own).then_some(row.params);
        let order = row.order & (A_COLUMNS | B_COLUMNS | C_COLUMNS);
        (row.operation, params, row.step, row.dtype, row.walk, order)
    };
    let here: BTreeSet<_> = of_line()
        .filter(|row| row.runs_on(capability) && row.shared_bytes <= shared)
        .map(key)
        .collect();
    match of_line().all(|row| here.contains(&key(row))) {
        false => "partly",
        true if capability == Machine::H200.capability => "measured",
        true if TESTED.contains(&capability) => "tested",
        true => "built",
    }
}

/// The table that the page must contain. Plans select no kernels of modules on demand.
fn table(overview: &str) -> String {
    let names = GPUS.iter().map(|((major, minor), _)| format!("{major}.{minor}"));
    let names = names.collect::<Vec<_>>().join(" | ");
    let mut text = format!("| kernels | {names} |\n|---|{}\n", "---|".repeat(GPUS.len()));
    let mut seen = BTreeSet::new();
    let selected = kernels().iter().filter(|row| !ON_DEMAND.contains(&row.module));
    for family in selected.map(|row| row.family).filter(|family| seen.insert(*family)) {
        let link = format!("| [{family}](families/{family}.md) | ");
        let line = overview.lines().find_map(|line| line.strip_prefix(&link));
        let title = line.and_then(|line| line.split(" |").next());
        let title = title.unwrap_or_else(|| panic!("docs/kernels.md has no line {link}"));
        let states = GPUS.iter().map(|gpu| state(family, *gpu)).collect::<Vec<_>>().join(" | ");
        text += &format!("| {title} | {states} |\n");
    }
    text
}

#[test]
fn kernels_by_compute_capability_follow_the_rows() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = "docs/guide/guarantees.md";
    if std::env::var_os("EINSPARSE_BUNDLE").is_some() {
        return skipped("no sources in a bundle", page);
    }
    let read = |page: &str| fs::read_to_string(top.join(page)).unwrap();
    let table = table(&read("docs/kernels.md"));
    assert!(read(page).contains(&table), "{page} lacks the table\n{table}");
}

#[test]
fn element_types_are_listed_with_their_accumulators() {
    let page = "docs/guide/guarantees.md";
    if std::env::var_os("EINSPARSE_BUNDLE").is_some() {
        return skipped("no sources in a bundle", page);
    }
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).unwrap();
    for dtype in Dtype::ALL {
        let line = format!("\n| {} | {} | `", dtype.name(), dtype.accumulator().name());
        assert!(text.contains(&line), "{page} has no line {line}");
    }
}
