//! Checks that the suite ran every kernel.

use std::collections::BTreeSet;

use einsparse::module::MODULES;

use crate::support::rows::kernels_here;
use crate::support::skipped;

/// Runs after the whole suite with EINSPARSE_TEST_ROWS=FILE: the file must name every row of the table that this build
/// contains and this GPU supports.
#[test]
fn every_row_of_the_table_ran() {
    let Ok(file) = std::env::var("EINSPARSE_TEST_ROWS_RAN") else {
        skipped("no list of kernels that ran", "`run.sh tests` makes one");
        return;
    };
    let ran = std::fs::read_to_string(file).unwrap();
    let ran: BTreeSet<&str> = ran.lines().collect();
    let built = |family: &str| MODULES.iter().any(|module| module.name == family);
    let all = kernels_here().filter(|row| built(row.module));
    let all: Vec<&str> = all.map(|row| row.name).collect();
    let idle: Vec<_> = all.iter().filter(|name| !ran.contains(*name)).collect();
    println!("{} of {} rows ran", all.len() - idle.len(), all.len());
    assert!(idle.is_empty(), "{} rows never ran: {idle:?}", idle.len());
}
