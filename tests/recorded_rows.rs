//! Every kernel that competes with others has a case in the record that needs it (benches/record/rows/cases.csv).

use crate::support::skipped;
use einsparse::registry::{Operation, kernels};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Rows that `--rows` does not time. A plan selects them by a rule, and no other row computes the same.
const BY_RULE: [&str; 9] = [
    "block_tf32_",
    "einsum_",
    "mttkrp_",
    "pit_bf16_sampled",
    "pit_f16_sampled",
    "pit_conv_",
    "sell_",
    "tensor_product_",
    "conv_tf32_turned_",
];

/// Rows that no case of the record needs by 3 %, and that stay: for operands of any alignment, for weights in the other
/// order, as examples of the pages, or because only one GPU was measured.
const STAY: [&str; 16] = [
    "bitmap_f16_128x64",
    "bitmap_bf16_128x64",
    "bitmap_f16_256x8_warps6",
    "bitmap_bf16_256x8_warps6",
    "conv_f16_turned_",
    "conv_bf16_turned_",
    "conv_simt_f32_any_64x128",
    "dense_f16_128x256_k2",
    "dense_bf16_128x256_k2",
    "dense_tf32_128x128_k4",
    "pit_f16_32x1",
    "pit_bf16_32x1",
    "spmm_csr_f32_n32",
    "spmm_csr_f32_n64",
    "spmm_csr_f32_n128",
    "mttkrp_f16_g3_any32",
];

/// Whether plans choose between this operation's rows by their times.
fn competes(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::Product
            | Operation::Narrow
            | Operation::Sampled
            | Operation::SampledNarrow
            | Operation::Rows
            | Operation::Einsum
            | Operation::TensorProduct
            | Operation::Convolution
            | Operation::Dynamic
            | Operation::Grouped
    )
}

#[test]
fn rows_that_compete_have_a_case() {
    let file = "benches/record/rows/cases.csv";
    if std::env::var_os("EINSPARSE_BUNDLE").is_some() {
        return skipped("no records in a bundle", file);
    }
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    let known: BTreeSet<&str> = kernels().iter().map(|row| row.name).collect();
    let mut needed = BTreeSet::new();
    for line in text.lines().skip(1) {
        let (row, case) = line.split_once(',').unwrap();
        assert!(known.contains(row), "{file}: the table has no {row}; write the file again");
        if !case.trim_matches(',').is_empty() {
            needed.insert(row);
        }
    }
    assert!(needed.len() > 400, "{} rows have a case", needed.len());
    let excepted = |name: &str| BY_RULE.iter().chain(&STAY).any(|start| name.starts_with(start));
    // The record is of a Hopper GPU. Steps of a convolution do not compete.
    let rows = kernels().iter().filter(|row| {
        competes(row.operation)
            && !row.stands_in
            && !row.name.starts_with("conv_grad")
            && row.step == 0
    });
    let without: Vec<&str> =
        rows.map(|row| row.name).filter(|name| !needed.contains(name) && !excepted(name)).collect();
    assert!(
        without.is_empty(),
        "no case of {file} needs {without:?}: measure them (`--rows`), or delete them"
    );
}
