//! Pictures of matrices and of the chain, and the arrays that a format stores.

use std::fs;

use crate::{SPMM, fails, folder, works, works_spmm};

#[test]
fn a_spy_plot_says_what_it_is_of() {
    let folder = folder("spy");
    let file = |name: &str| folder.join(name).display().to_string();
    let large = file("large.svg");
    works(&["inspect", "uniform:1000x3000:0.01", "--spy", &large]);
    let drawn = fs::read_to_string(&large).expect("the plot");
    for words in [
        "uniform:1000x3000:0.01",
        "1000 x 3000, ",
        "of all places",
        "rows",
        "columns",
        "2000",
        "fill of",
        "8 x 8",
    ] {
        assert!(drawn.contains(words), "{words}: {}", &drawn[..2000]);
    }
    // Every nonzero is drawn, so the picture has no color scale.
    let small = file("small.svg");
    works(&["inspect", "example", "--spy", &small]);
    let drawn = fs::read_to_string(&small).expect("the plot");
    assert!(drawn.contains("4 x 8, 8 entries") && !drawn.contains("fill of"));
    let pixels = file("karate.PNG");
    works(&["inspect", "karate", "--spy", &pixels]);
    assert!(fs::read(&pixels).expect("the plot").starts_with(b"\x89PNG"));
}

#[test]
fn inspect_takes_the_sources_of_run() {
    for (source, words) in [
        ("blocks:64x64:16x16:0.5", "64 x 64"),
        ("random:4x5", "4 x 5, 20 entries"),
        ("rmat:5", "32 x 32"),
        ("clebsch-gordan:1x1x2", "[3, 3, 5]"),
        ("list:1,2", "[2]"),
    ] {
        let out = works(&["inspect", source]);
        assert!(out.contains(words), "{source}: {out}");
    }
    let other = |seed| works(&["inspect", "uniform:50x50:0.1", "--seed", seed]);
    assert_ne!(other("1"), other("2"));
    assert!(fails(&["inspect", "random:_x5"]).contains('_'));
    assert!(fails(&["inspect", "2.5"]).contains("number"));
    assert!(fails(&["inspect", "frobnicate"]).contains("frobnicate"));
}

#[test]
fn explain_draws_the_chain() {
    let folder = folder("chain");
    for name in ["chain.svg", "chain.png"] {
        let file = folder.join(name).display().to_string();
        let rest = format!("A=blocks:128x128:32x32:0.3 B=random:_x64 --dtype f16 --svg {file}");
        let out = works_spmm("explain", &rest);
        assert!(out.contains(&format!("picture  {file}")), "{out}");
        let drawn = fs::read(&file).expect("the picture");
        assert!(drawn.len() > 2000, "{} bytes", drawn.len());
        if name.ends_with("svg") {
            let drawn = String::from_utf8(drawn).expect("UTF-8");
            for words in ["Einsum", "Indirect", "Plan", "Kernels", "_f16_", " us"] {
                assert!(drawn.contains(words), "{words}");
            }
        }
    }
    assert!(fails(&["explain", SPMM, "--svg", "chain.svg"]).contains("operands"));
    let wrong = ["explain", SPMM, "A=karate", "B=random:_x4", "--svg", "a.txt"];
    assert!(fails(&wrong).contains(".svg"));
}

#[test]
fn every_format_prints_its_arrays() {
    let formats = "csr coo csc ell sell groupcoo groupcoo:2@1 groupcoo:hybrid bsr:2x2 blockcoo:2x2 \
                   blockgroupcoo:2x2:2 nm:2:4 bitmap bytemap";
    for format in formats.split_whitespace() {
        let out = works(&["inspect", "example", "--storage", format]);
        assert!(out.starts_with("A   ") && out.contains("\nAV  values ["), "{format}: {out}");
        assert!(out.lines().count() < 60, "{format}: {out}");
    }
    let tensor = works(&["inspect", "clebsch-gordan:1x1x1", "--storage", "coo"]);
    assert!(tensor.contains("axis 2"), "{tensor}");
    let large = fails(&["inspect", "uniform:33x4:0.5", "--storage", "csr"]);
    assert!(large.contains("32 x 32") && large.contains("33 x 4"), "{large}");
    let long = fails(&["inspect", "example", "--storage", "bsr:500x500"]);
    assert!(long.contains("8192"), "{long}");
    assert!(fails(&["inspect", "example", "--storage", "bsr"]).contains("bsr"));
}
