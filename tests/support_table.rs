//! The table of kernels by compute capability in docs/guide/guarantees.md, compared with the rows of the kernels.

use crate::support::skipped;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The lines of the page, and the modules of each.
const LINES: [(&str, &[&str]); 7] = [
    (
        "SpMM and SDDMM with unstructured nonzeros",
        &[
            "spmm",
            "batched",
            "vectors",
            "vectors_narrow",
            "staged",
            "sell",
            "bitmap",
            "relaxed",
            "dense_csr",
            "sddmm",
            "sddmm_narrow",
            "sddmm_staged",
            "sddmm_tiles",
        ],
    ),
    ("SpMM with blocks", &["block", "wgmma"]),
    ("dense operands, 2:4 weights", &["dense", "nm", "marked"]),
    (
        "attention, packed encoders, experts, dynamic sparsity, SDDMM at stored blocks",
        &[
            "attention",
            "decode",
            "key_blocks",
            "masks",
            "live_rows",
            "dense_live",
            "dense_conv",
            "pit",
            "pit_turned",
            "pit_right",
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
            "edge_geometry",
            "message",
            "join",
            "einsum",
            "conv2d",
            "optimizer",
            "cross_entropy",
            "weight_gradient",
        ],
    ),
    ("equivariant messages in one kernel", &["equivariant"]),
];

/// Modules that run under several operations: conversions, searches, elementwise layers; and the tutorial.
const SHARED: [&str; 20] = [
    "prune",
    "convert",
    "scatter",
    "expand",
    "lists",
    "slicing",
    "entries",
    "detect",
    "channels",
    "sample",
    "transpose",
    "route",
    "router",
    "rms_norm",
    "norm_gradient",
    "rotary",
    "activation",
    "gated",
    "tokens",
    "levels",
];

/// The lowest architecture of each module, as `rows.rs` of its family states it.
fn modules(families: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for family in fs::read_dir(families).unwrap() {
        let Ok(rows) = fs::read_to_string(family.unwrap().path().join("rows.rs")) else {
            continue;
        };
        for line in rows.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let [_, module, _, arch, ..] = words[..]
                && module.starts_with('"')
                && arch.starts_with("sm_")
            {
                found.insert(module.trim_matches('"').to_owned(), arch.to_owned());
            }
        }
    }
    found
}

#[test]
fn kernels_by_compute_capability_follow_the_rows() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = "docs/guide/guarantees.md";
    if std::env::var_os("EINSPARSE_BUNDLE").is_some() {
        return skipped("no sources in a bundle", page);
    }
    let text = fs::read_to_string(top.join(page)).unwrap();
    let mut modules = modules(&top.join("kernels-gpu/families"));
    assert!(modules.len() > 70, "{} modules", modules.len());
    for (line, own) in LINES {
        let archs = own.iter().map(|module| {
            let arch = modules.remove(*module);
            arch.unwrap_or_else(|| panic!("no module `{module}`"))
        });
        let everywhere = archs.filter(|arch| arch == "sm_80").count() > 0;
        let start = format!("| {line} | yes | ");
        let cell = text.lines().find_map(|l| l.strip_prefix(&start));
        let cell = cell.unwrap_or_else(|| panic!("{page} lacks the line `{start}`"));
        let states = !(cell.starts_with("none") || cell.starts_with("general kernels only"));
        assert_eq!(states, everywhere, "{page}: {line}: {cell}");
    }
    modules.retain(|module, _| !SHARED.contains(&module.as_str()));
    assert!(modules.is_empty(), "modules without a line: {modules:?}");
}
