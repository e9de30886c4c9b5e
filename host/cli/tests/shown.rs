//! The command prints what a file contains and which code runs.

use std::fs;
use std::path::Path;

use einsparse::formats::{Csr, CsrPattern, Dense, io};

use crate::{SPMM, folder, run, text, works, works_spmm};

/// A matrix with a stored zero at a position where B has a NaN.
fn with_zero(folder: &Path) -> [String; 2] {
    let pattern = CsrPattern::new(3, 4, vec![0, 2, 3, 4], vec![0, 1, 2, 3]).expect("sound");
    let a = Csr::new(pattern, vec![1.0_f32, 0.0, 2.0, 3.0]).expect("sound");
    let mut b = Dense::new([4, 2], vec![1.0_f32; 8]).expect("sound");
    b.values_mut()[2] = f32::NAN;
    let places = ["a.npz", "b.npy"].map(|name| folder.join(name));
    io::write_npz(&places[0], &a).expect("a file");
    io::write_npy(&places[1], &b).expect("a file");
    places.map(|place| place.display().to_string())
}

/// Blocks and 2:4 are filled with zeros, so a stored zero does not count as a nonzero in them.
#[test]
fn stored_zeros_are_checked_as_the_format_has_them() {
    let [a, b] = with_zero(&folder("stored_zeros"));
    for format in [
        "csr",
        "coo",
        "csc",
        "ell",
        "sell",
        "bitmap",
        "bytemap",
        "groupcoo:2",
        "bsr:2x2",
        "blockcoo:2x2",
        "blockgroupcoo:2x2",
        "nm:2:4",
    ] {
        let rest = format!("A={a} B={b} --format {format} --device cpu --check --repeat 0");
        let out = works_spmm("run", &rest);
        let blocks = format.contains('x') || format == "nm:2:4";
        let wanted = if blocks { "[1.0000," } else { "[NaN," };
        assert!(out.contains(wanted), "{format}: {out}");
    }
}

/// Only positions where all factors have a nonzero are terms: infinity times an implicit zero is not a term.
#[test]
fn several_sparse_factors_are_checked_by_their_entries() {
    let folder = folder("several");
    let place = |name: &str| folder.join(name).display().to_string();
    let pattern = CsrPattern::new(3, 3, vec![0, 1, 2, 3], vec![0, 1, 2]).expect("sound");
    let a = Csr::new(pattern, vec![f32::INFINITY, 2.0, 3.0]).expect("sound");
    io::write_npz(place("a.npz"), &a).expect("a file");
    let pattern = CsrPattern::new(3, 2, vec![0, 0, 1, 2], vec![0, 1]).expect("sound");
    let s = Csr::new(pattern, vec![1.0_f32, 2.0]).expect("sound");
    io::write_npz(place("s.npz"), &s).expect("a file");
    let (a, s) = (format!("A={}", place("a.npz")), format!("S={}", place("s.npz")));
    let rest = ["--format", "csr", "--device", "cpu", "--check", "--repeat", "0"];
    for (text, operands, wanted) in [
        ("C[m,n] = A[m,k] * S[k,n]", &[&a, &s][..], "[0.0000, 0.0000, 2.0000"),
        ("s[] = 2 * A[m,k] * A[m,k]", &[&a], "[inf]"),
        ("c[n] = A[m,k] * S[k,n] * x[m]", &[&a, &s, &"x=ones:_".to_owned()], "[2.0000, 6.0000]"),
    ] {
        let operands: Vec<&str> = operands.iter().map(|text| text.as_str()).collect();
        let out = works(&[&["run", text], &operands[..], &rest].concat());
        assert!(out.contains(wanted), "{text}: {out}");
    }
}

#[test]
fn a_conversion_says_what_the_file_has() {
    let folder = folder("converted");
    let place = |name: &str| folder.join(name).display().to_string();
    let mut values = vec![0.0_f32; 16];
    (0..9).for_each(|i| values[i / 3 * 4 + i % 3] = 1.5);
    let dense = Dense::new([4, 4], values).expect("sound");
    let a = place("a.npy");
    io::write_npy(&a, &dense).expect("a file");
    for (output, format, wanted) in [
        ("a.npz", "bsr:4x4", ": f32 bsr:4x4 [4, 4], 9 entries in 16 slots"),
        ("b.npz", "ell", ": f32 csr [4, 4], 9 entries"),
        ("c.mtx", "bsr:4x4", ": real coordinate [4, 4], 9 entries"),
        ("d.smtx", "csc", ": pattern csr [4, 4], 9 entries"),
        ("e.npy", "csr", ": f32 dense [4, 4]"),
    ] {
        let out = works(&["convert", &a, &place(output), "--format", format]);
        assert!(out.trim_end().ends_with(wanted), "{out}");
    }
    let out = works(&["convert", &place("a.npz"), &place("f.npz"), "--dtype", "bf16"]);
    assert!(out.contains(": f32 bsr:4x4"), "{out}");
    for (name, float) in [("a.npz", Some("f32")), ("e.npy", Some("f32")), ("c.mtx", None)] {
        assert_eq!(io::float_type(place(name)), float, "{name}");
    }
    let out = works(&["convert", &place("c.mtx"), &place("g.npz")]);
    assert!(out.contains(": f64 coo [4, 4], 9 entries"), "{out}");
    let out = works_spmm(
        "run",
        &format!("A={} B=ones:_x1 --device cpu --format bsr:4x4", place("b.npz")),
    );
    assert!(out.contains("9 entries, 16 slots"), "{out}");
}

#[test]
fn small_and_large_numbers_are_shown() {
    let folder = folder("numbers");
    let pattern = CsrPattern::new(2, 3, vec![0, 3, 5], vec![0, 1, 2, 0, 2]).expect("sound");
    let a = Csr::new(pattern, vec![1e-7, 0.0, 1.0, 1e300, 0.99999]).expect("sound");
    let path = folder.join("a.npz").display().to_string();
    io::write_npz(&path, &a).expect("a file");
    let out = works(&["inspect", &path, "--storage", "csr"]);
    let rows: Vec<Vec<&str>> = out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(rows.contains(&vec!["1e-7", "0", "1"]), "{out}");
    assert!(rows.contains(&vec!["1e300", ".", "0.99999"]), "{out}");
    assert!(rows.contains(&vec!["1e-7", "0", "1", "1e300", "0.99999"]), "{out}");
}

/// A general kernel multiplies blocks of f64. The advice predicts the time of the kernel that the plan selects.
#[test]
fn advice_and_plan_are_one() {
    let rest = "A=uniform:100x100:0.1 B=random:_x64 --dtype f64 --device cpu";
    let out = works_spmm("explain", rest);
    assert!(!out.contains("no kernel"), "{out}");
    assert!(out.contains("predicted for an H200"), "{out}");
    let line = out.lines().find(|line| line.contains("bsr:16x16")).expect("a line");
    let words: Vec<&str> = line.split_whitespace().collect();
    let plan = works_spmm("explain", &format!("{rest} --format bsr:16x16"));
    let first = format!("{}        {} us", words[5].trim_end_matches(','), words[3]);
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(squeezed(&plan).contains(&squeezed(&first)), "{first}\n{plan}");
}

#[test]
fn values_past_the_range_are_counted() {
    let folder = folder("overflow");
    let path = folder.join("large.mtx");
    let values = "%%MatrixMarket matrix coordinate real general\n2 2 2\n1 1 1e5\n2 2 7.0\n";
    fs::write(&path, values).expect("a file");
    let a = format!("A={}", path.display());
    let output = run(&["run", SPMM, &a, "B=ones:2x2", "--dtype", "f16", "--device", "cpu"]);
    let warning = text(&output.stderr);
    assert!(output.status.success() && warning.lines().count() == 1, "{warning}");
    assert!(warning.contains("1 values of `A`") && warning.contains("f16"), "{warning}");
}
