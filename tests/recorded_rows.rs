//! Every kernel that competes with others has a case in the record that needs it (benches/record/rows/cases.csv).

use crate::support::skipped;
use einsparse::registry::{Operation, Row, kernels};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// First and inner parts of the names of rows that `--rows` does not time.
const NOT_TIMED: [(&str, &str); 8] = [
    ("block_tf32_b32", ""),
    ("block_tf32_b64", ""),
    ("einsum_", "_wide"),
    ("mttkrp_", "_dots1_any"),
    ("mttkrp_", "_mean_"),
    ("pit_", "_sampled"),
    ("pit_conv_", ""),
    ("tensor_product_", ""),
];

/// Rows that no timed case needs by 3 %. They read operands of any alignment or in another order, the pages use them as
/// examples, or only GPUs other than the measured one may need them.
const NOT_NEEDED: [&str; 13] = [
    "block_tf32_b16_any",
    "conv_f16_turned_n64",
    "conv_bf16_turned_n64",
    "conv_f16_turned_n128",
    "conv_bf16_turned_n128",
    "conv_simt_f32_any_64x128",
    "mttkrp_f16_g3_any32",
    "mttkrp_bf16_g3_any32",
    "pit_f16_32x1",
    "pit_bf16_32x1",
    "spmm_csr_f32_n32",
    "spmm_csr_f32_n64",
    "spmm_csr_f32_n128",
];

/// Whether plans choose this row by its time. The record is of a Hopper GPU, which runs no rows that replace others.
fn competes(row: &Row) -> bool {
    let by_time = matches!(
        row.operation,
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
    );
    // Each further step of a convolution has one form.
    let is_step = row.operation == Operation::Convolution && row.step != 0;
    by_time && !row.stands_in && !is_step
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
    for record in csv::Reader::from_reader(text.as_bytes()).records().map(Result::unwrap) {
        let row = known.get(&record[0]);
        let row =
            row.unwrap_or_else(|| panic!("{file}: the table does not contain {}", &record[0]));
        if !record[1].is_empty() {
            needed.insert(*row);
        }
    }
    let competing = kernels().iter().filter(|row| competes(row)).map(|row| row.name);
    let without: BTreeSet<&str> = competing.filter(|name| !needed.contains(name)).collect();
    let of =
        |name: &str, (start, part): &(&str, &str)| name.starts_with(start) && name.contains(part);
    for kind in &NOT_TIMED {
        assert!(
            without.iter().any(|name| of(name, kind)),
            "{kind:?}: all of these rows have a case"
        );
    }
    let timed = without.into_iter().filter(|name| !NOT_TIMED.iter().any(|kind| of(name, kind)));
    assert_eq!(
        timed.collect::<BTreeSet<_>>(),
        NOT_NEEDED.into_iter().collect(),
        "rows that no case of {file} needs: measure them (`--rows`), or delete them"
    );
}
