//! The table of kernels by compute capability in docs/guide/guarantees.md, compared with the rows of the kernels.

use crate::support::skipped;
use einsparse::cost::Machine;
use einsparse::kernels::abi::{A_COLUMNS, B_COLUMNS, C_COLUMNS};
use einsparse::kernels::table::GPUS;
use einsparse::registry::{MODULE_NAMES, Operation, Row, kernels};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Lines of the page, and the modules of each.
const LINES: [(&str, &[&str]); 7] = [
    (
        "SpMM and SDDMM with unstructured nonzeros",
        &[
            "spmm",
            "batched",
            "vectors",
            "staged",
            "sell",
            "bitmap",
            "dense_csr",
            "sddmm",
            "sddmm_staged",
            "sddmm_tiles",
        ],
    ),
    ("SpMM with blocks", &["block", "wgmma"]),
    ("dense operands, 2:4 weights", &["dense", "nm"]),
    (
        "attention, packed encoders, experts, dynamic sparsity, SDDMM at stored blocks",
        &[
            "attention",
            "decode",
            "masks",
            "live_rows",
            "dense_live",
            "dense_conv",
            "pit",
            "pit_tf32",
            "pit_conv",
            "pit_few",
            "pit_sampled",
            "grouped",
            "grouped_grad",
            "sampled",
        ],
    ),
    ("fp8 and int8 blocks, dense, 2:4", &["narrow", "nm_narrow", "quantize"]),
    (
        "softmax, sparse convolution, MTTKRP, tensor products, graphs, optimizers",
        &[
            "softmax",
            "conv",
            "conv_mma",
            "conv_grad",
            "conv_simt",
            "conv_pairs",
            "conv_steps",
            "mttkrp",
            "tensor_product",
            "graph",
            "einsum",
            "conv2d",
            "training",
        ],
    ),
    ("equivariant messages in one kernel", &["equivariant"]),
];

/// Modules that run in several operations: conversions, searches, elementwise layers; and the tutorial.
const SHARED: [&str; 6] = ["convert", "entries", "detect", "route", "elementwise", "levels"];

/// Compute capabilities for which the whole suite passed on an H200, with EINSPARSE_ARCH.
const TESTED: [(u32, u32); 2] = [(8, 0), (8, 6)];

/// State of an operation on a GPU. Two kernels that differ only in their requirements count as one.
fn state(modules: &[&str], (capability, shared): ((u32, u32), u32)) -> &'static str {
    let of_line = || kernels().iter().filter(|row| modules.contains(&row.module));
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

/// The table that the page must contain.
fn table() -> String {
    let names = GPUS.iter().map(|((major, minor), _)| format!("{major}.{minor}"));
    let names = names.collect::<Vec<_>>().join(" | ");
    let mut text = format!("| operation | {names} |\n|---|{}\n", "---|".repeat(GPUS.len()));
    for (line, modules) in LINES {
        let states = GPUS.iter().map(|gpu| state(modules, *gpu)).collect::<Vec<_>>().join(" | ");
        text += &format!("| {line} | {states} |\n");
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
    let text = fs::read_to_string(top.join(page)).unwrap();
    assert!(text.contains(&table()), "{page} lacks the table\n{}", table());
    let listed: Vec<&str> = LINES.iter().flat_map(|(_, modules)| modules.iter().copied()).collect();
    for module in MODULE_NAMES.iter() {
        let known = listed.contains(module) || SHARED.contains(module);
        assert!(known, "{module} is in no line");
    }
}
