//! Errors of the command for expressions and files that it does not support.

use std::fs;

use crate::{data, fails, run, text, works};

#[test]
fn a_parse_error_keeps_its_caret() {
    let output = run(&["run", "C[m,n = A[m,k]"]);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    let lines: Vec<&str> = error.lines().collect();
    assert_eq!(lines[1..3], ["C[m,n = A[m,k]", "      ^"], "{error}");
}

/// Every file of the malformed set is either read or refused with one line that names it. The README of the set lists
/// the expected outcome.
#[test]
fn malformed_files_are_refused_in_one_line() {
    let Some(data) = data() else { return };
    let folder = data.join("malformed");
    let table = fs::read_to_string(folder.join("README.md")).expect("the table of malformed files");
    let mut seen = 0;
    for row in table.lines() {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let (file, should) = match cells[..] {
            [_, file, _, should, ..] if folder.join(file).is_file() => (file, should),
            _ => continue,
        };
        seen += 1;
        let path = folder.join(file).display().to_string();
        match should {
            "accept" => {
                works(&["inspect", &path]);
            }
            "error" => {
                let error = fails(&["inspect", &path]);
                assert!(error.contains(file), "{file}: {error}");
            }
            _ => assert!(matches!(run(&["inspect", &path]).status.code(), Some(0 | 1)), "{file}"),
        }
    }
    assert!(seen > 50, "{seen} files of the table");
}
