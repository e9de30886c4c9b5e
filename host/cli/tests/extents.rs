//! Files of a few bytes that declare many rows or columns. The command returns a result, or one line with the operand,
//! the axis and the numbers.

use std::fs;
use std::time::{Duration, Instant};

use crate::{fails, folder, works};

/// Writes a Matrix Market file without entries and with these numbers in its header.
fn claiming(name: &str, header: &str) -> (String, String) {
    let folder = folder("extents");
    let path = folder.join(format!("{name}.mtx"));
    let text = format!("%%MatrixMarket matrix coordinate real general\n{header}\n");
    fs::write(&path, text).expect("a file");
    let output = folder.join(format!("{name}-out.mtx"));
    (path.display().to_string(), output.display().to_string())
}

#[test]
fn sums_over_rows_without_entries_run_or_name_the_operand() {
    let (file, _) = claiming("rows", "4294967295 0 0");
    let a = format!("A={file}");
    for format in ["coo", "groupcoo", "csr", "sell"] {
        let error = fails(&["run", "s[] = A[m,k]", &a, "--format", format, "--device", "cpu"]);
        let words = ["operand `A`", "4294967295 rows", "64000000"];
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
    let out = works(&["run", "s[] = A[m,k]", &a, "--format", "groupcoo:2@1", "--device", "cpu"]);
    assert!(out.contains("[0.0000]"), "{out}");
    // Arrays that are allocated for a declared extent are bounded too.
    let error = fails(&["run", "y[m] = A[m,k]", &a, "--format", "groupcoo:2@1", "--device", "cpu"]);
    assert!(error.contains("operand `y`") && error.contains("4294967295"), "{error}");
    let spmm = "C[m,n] = A[k,m] * B[k,n]";
    let error =
        fails(&["run", spmm, &a, "B=random:_x64", "--format", "groupcoo:2@1", "--device", "cpu"]);
    assert!(error.contains("operand `B`") && error.contains("274877906880"), "{error}");
}

#[test]
fn conversions_of_claimed_extents_end() {
    let start = Instant::now();
    let (wide, out) = claiming("wide", "0 4294967295 0");
    for axes in ["rows", "columns", "both"] {
        let arguments = ["convert", &wide, &out, "--reorder", axes];
        if axes == "rows" {
            let error = fails(&arguments);
            assert!(error.contains("134217728 block columns"), "{error}");
        } else {
            let error = fails(&arguments);
            assert!(error.contains("4294967295 rows and columns to reorder"), "{error}");
        }
    }
    let (line, out) = claiming("line", "1 4294967295 0");
    for (format, words) in [
        ("bytemap", "33554432 columns of tiles"),
        ("bitmap", "67108864 columns of tiles"),
        ("csc", "4294967295 columns"),
    ] {
        let error = fails(&["convert", &line, &out, "--format", format]);
        assert!(error.contains(words), "{error}");
    }
    for format in ["coo", "csr", "groupcoo", "ell"] {
        works(&["convert", &line, &out, "--format", format]);
    }
    let array = folder("extents").join("array.npy");
    let header = "{'descr': '<f8', 'fortran_order': False, 'shape': (0, 1099511627776), }\n";
    let length = (header.len() as u16).to_le_bytes();
    let bytes = [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes()].concat();
    fs::write(&array, bytes).expect("a file");
    works(&["convert", &array.display().to_string(), &out]);
    let written = fs::read_to_string(&out).expect("the output");
    assert_eq!(written.lines().nth(1), Some("0 1099511627776"));
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn more_memory_is_allowed_by_option() {
    let (rows, out) = claiming("many", "17000000 2 0");
    let error = fails(&["convert", &rows, &out, "--format", "csr"]);
    assert!(error.contains("17000000 rows") && error.contains("--memory"), "{error}");
    works(&["convert", &rows, &out, "--format", "csr", "--memory", "100MB"]);
}
