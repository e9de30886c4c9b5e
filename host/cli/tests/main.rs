//! Tests of the built command: every subcommand on small inputs, and errors as one readable line with exit code 1.

mod extents;
mod memory;
mod model;
mod pages;
mod pictures;
mod refused;
mod shown;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

use einsparse::formats::{Csr, CsrPattern, Dense, io};

/// Path of the command.
fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_einsparse"))
}

/// Directory of real matrices: EINSPARSE_DATA, otherwise `data/` in the project. `None` and one printed line if it is
/// missing.
fn data() -> Option<PathBuf> {
    let named = env::var_os("EINSPARSE_DATA").map(PathBuf::from);
    let folder = named.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data"));
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("skipped: no folder {}", folder.display());
    None
}

/// Creates a separate directory for each test.
fn folder(test: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("command").join(test);
    fs::create_dir_all(&path).expect("a folder for temporary files");
    path
}

fn run(arguments: &[&str]) -> Output {
    let command = Command::new(program()).args(arguments).output();
    command.expect("the command starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// Runs the command on the CPU and returns its output.
fn works(arguments: &[&str]) -> String {
    let output = run(arguments);
    let (out, error) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{arguments:?}\n{out}\n{error}");
    out
}

/// Like [`works`], with the arguments `rest` after `command "C[m,n] = A[m,k] * B[k,n]"`.
fn works_spmm(command: &str, rest: &str) -> String {
    let rest: Vec<&str> = rest.split_whitespace().collect();
    works(&[&[command, SPMM], &rest[..]].concat())
}

/// Returns the single line of an error.
fn fails(arguments: &[&str]) -> String {
    let output = run(arguments);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}\n{error}");
    let line = error.strip_prefix("error: ").unwrap_or_else(|| panic!("{arguments:?}: {error}"));
    let one = line.strip_suffix('\n').filter(|line| !line.contains('\n') && line.len() > 10);
    one.unwrap_or_else(|| panic!("{arguments:?}: not one line: {error}")).to_string()
}

const SPMM: &str = "C[m,n] = A[m,k] * B[k,n]";

/// Writes [ 1 0 2 ; 0 0 0 ; 0 3 0 ] to a file.
fn small(folder: &Path) -> String {
    let pattern = CsrPattern::new(3, 3, vec![0, 2, 2, 3], vec![0, 2, 1]).expect("a pattern");
    let matrix = Csr::new(pattern, vec![1.0f32, 2.0, 3.0]).expect("a matrix");
    let path = folder.join("small.mtx");
    io::write_matrix_market(&path, &matrix).expect("a file");
    path.display().to_string()
}

#[test]
fn run_reads_multiplies_checks_and_saves() {
    let folder = folder("run");
    let (a, b, c) = (small(&folder), folder.join("b.npy"), folder.join("c.npy"));
    let dense = Dense::new([3, 2], vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).expect("a matrix");
    io::write_npy(&b, &dense).expect("a file");
    let operands = [format!("A={a}"), format!("B={}", b.display())];
    let formats = "auto csr coo csc ell sell groupcoo groupcoo:2 groupcoo:2@1 bsr:2x2 blockcoo:2x2 \
                   blockgroupcoo:2x2:2 nm:2:4 bitmap bytemap";
    for format in formats.split(' ') {
        for dtype in ["f32", "f64", "f16", "bf16"] {
            let file = c.display().to_string();
            let options = [
                "--device", "cpu", "--check", "--format", format, "--dtype", dtype, "--save", &file,
            ];
            let out = works(&[&["run", SPMM, &operands[0], &operands[1]], &options[..]].concat());
            assert!(
                ["Einsum", "Indirect", "Plan", "0 of 6 elements past"]
                    .iter()
                    .all(|w| out.contains(w)),
                "{out}"
            );
            let c = io::read_npy::<f32>(&c).expect("the saved output");
            assert_eq!(c.values(), &[11.0, 14.0, 0.0, 0.0, 9.0, 12.0], "{format} {dtype}");
        }
    }
}

#[test]
fn run_takes_what_the_grammar_of_operands_offers() {
    let sources = "uniform:40x30:0.2 pruned:40x30:0.2 blocks:40x30:16x16:0.5 rmat:5 rmat:5:4 \
                   banded:30:5 poisson2d:6x5 karate random:9x8";
    for source in sources.split_whitespace() {
        let rest = format!("A={source} B=random:_x17 --device cpu --check --repeat 1");
        let out = works_spmm("run", &rest);
        assert!(out.contains("past it") && out.contains("17]"), "{source}: {out}");
    }
}

#[test]
fn run_takes_every_kind_of_expression() {
    let bias = "C[m,n] += relu(-2 * x * A[m,k] * B[k,n] + bias[n])";
    let operands = ["C=random:8x9", "x=0.5", "A=uniform:8x7:0.5", "B=random:_x_", "bias=random:9"];
    works(&[&["run", bias], &operands[..], &["--check", "--device", "cpu"]].concat());
    let by_hand = "C[R[p],n] += V[p] * B[K[p],n]";
    let operands = ["C=zeros:3x2", "R=list:0,0,2", "K=list:0,2,1", "V=list:1,2,3", "B=ones:3x2"];
    let out = works(&[&["run", by_hand], &operands[..], &["--check", "--device", "cpu"]].concat());
    assert!(out.contains("[3.0000, 3.0000, 0.0000, 0.0000"), "{out}");
    let tensor = "out[i,j,k] = T[i,j,k] * x[k]";
    works(&["run", tensor, "T=clebsch-gordan:1x1x2", "x=random:_", "--check", "--device", "cpu"]);
}

#[test]
fn explain_prints_the_chain_and_why() {
    let out = works_spmm("explain", "A=blocks:128x128:32x32:0.3 B=random:_x64 --dtype f16");
    for word in ["Einsum", "Indirect", "Plan", "Formats", "->", "spmm_csr_f16_n32", "refused"] {
        assert!(out.contains(word), "{word}: {out}");
    }
    let strict = works_spmm("explain", "A=blocks:128x128:32x32:0.3 B=random:_x64 --strict-zeros");
    assert!(strict.contains("Strict") && !strict.contains("zeros = Dense"), "{strict}");
    let blocks =
        works_spmm("explain", "A=blocks:256x256:32x32:0.1 B=random:_x64 --dtype f16 --device cpu");
    let best = |line: &str| line.starts_with("-> ") && line.contains(":32x32");
    assert!(blocks.lines().any(best), "{blocks}");
    assert!(blocks.contains("\n   dense "), "{blocks}");
    let gradient =
        works_spmm("explain", "A=uniform:64x64:0.1 B=random:_x32 --format csr --gradient B");
    assert!(gradient.contains("dB[k,n] = A[m,k] * dC[m,n]"), "{gradient}");
    assert!(
        gradient.contains("dB[AK[p],n] += AV[p] * dC[m,n], AP[m] <= p < AP[m+1]"),
        "{gradient}"
    );
    let forms = works(&["explain", SPMM, "--gradient", "A"]);
    assert!(forms.contains("dA[m,k] = dC[m,n] * B[k,n]"), "{forms}");
    let forms = works(&["explain", SPMM]);
    assert!(forms.contains("C[AM[p],n] += AV[p,q] * B[AK[p,q],n]"), "{forms}");
}

#[test]
fn convert_and_inspect() {
    let folder = folder("convert");
    let a = small(&folder);
    let place = |name: &str| folder.join(name).display().to_string();
    let (npz, smtx, back) = (place("a.npz"), place("a.smtx"), place("back.mtx"));
    assert!(
        works(&["convert", &a, &npz, "--format", "bsr:2x2", "--dtype", "f32"]).contains("bsr:2x2")
    );
    works(&["convert", &npz, &back]);
    works(&["convert", &a, &smtx]);
    let matrix = |file: &str| io::read_any::<f32>(file).and_then(|m| m.to_csr()).expect(file);
    assert_eq!(matrix(&a), matrix(&back));
    assert_eq!(matrix(&a).pattern(), matrix(&smtx).pattern());
    for plot in ["spy.png", "spy.svg"] {
        let out = works(&["inspect", &a, "--spy", &place(plot)]);
        for word in ["3 x 3", "2 of 3 non-empty", "groupcoo", "bsr:64x64", "advice   by the cost"] {
            assert!(out.contains(word), "{word}: {out}");
        }
        assert!(fs::metadata(place(plot)).expect("the plot").len() > 100);
    }
    let moved = place("moved.mtx");
    let out = works(&["convert", &a, &moved, "--reorder", "both", "--block", "1x2"]);
    assert!(out.contains("blocks of 1x2: 50.0 % full before, 75.0 % after"), "{out}");
    let order = |name: &str| io::read_npy::<f64>(place(name)).expect(name).into_values();
    let (rows, columns) = (order("moved.rows.npy"), order("moved.columns.npy"));
    let (old, new) = (matrix(&a), matrix(&moved));
    let dense = |m: &Csr<f32>| einsparse::formats::convert::csr_to_dense(m).expect("memory");
    let (old, new) = (dense(&old), dense(&new));
    for (i, &row) in rows.iter().enumerate() {
        for (j, &column) in columns.iter().enumerate() {
            assert_eq!(new.get(&[i, j]), old.get(&[row as usize, column as usize]));
        }
    }
    assert!(fails(&["inspect", &a, "--spy", &place("spy.gif")]).contains(".png"));
    assert!(fails(&["convert", &a, &place("a.txt")]).contains("extension"));
    assert!(fails(&["convert", &a, &npz, "--format", "bsr"]).contains("block size"));
}

#[test]
fn doctor_demo_bench_and_kernels() {
    assert!(works(&["doctor"]).contains("result"));
    assert!(works(&["demo", "--columns", "32"]).contains("all results are within the bounds"));
    let folder = folder("demo");
    let demo = works(&["demo", &small(&folder), "--device", "cpu"]);
    assert!(demo.contains("[3, 128]"), "{demo}");
    let bench = works_spmm("bench", "A=uniform:64x64:0.2 B=random:_x32 --repeat 2 --device cpu");
    assert!(bench.contains("groupcoo") && bench.contains("cargo bench"), "{bench}");
    assert!(works(&["kernels", "block_f16"]).contains("block_f16_b64_any"));
    assert!(works(&["--version"]).contains(env!("CARGO_PKG_VERSION")));
    assert!(works(&["--help"]).contains("doctor"));
}

/// Arguments after `run "C[m,n] = A[m,k] * B[k,n]" A=uniform:4x5:0.5`, and a word of the error.
const WRONG_RUNS: &[(&str, &str)] = &[
    ("", "`B`"),
    ("B=random:6x3", "`k`"),
    ("B=random:5x3 D=2", "`D`"),
    ("A=karate B=random:5x3", "twice"),
    ("B", "NAME=SOURCE"),
    ("B=nothing", "nothing"),
    ("B=nowhere.npy", "nowhere.npy"),
    ("B=random:5y3", "5y3"),
    ("B=random:_x_", "`B`"),
    ("B=random:4294967295x4294967295x4294967295", "`B`"),
    ("B=uniform:5x3:7", "density"),
    ("B=random:5x3 --format abc", "abc"),
    ("B=random:5x3 --variant abc", "abc"),
    ("B=random:5x3 --device abc", "abc"),
    ("B=random:5x3 --device 4000", "CUDA"),
    ("B=random:5x3 --tf32 --dtype f16", "--tf32"),
    ("B=random:5x3 --save /nowhere/c.npy", "/nowhere/c.npy"),
    ("B=random:5x3 --frobnicate", "--frobnicate"),
];

/// Complete command lines that must fail, and a word of each error.
const WRONG: &[(&[&str], &str)] = &[
    (&["run", "C[m] += A[m]", "A=ones:3"], "C"),
    (&["run", "C[R[p]] += V[p]", "C=zeros:2", "R=list:0.5", "V=list:1"], "0.5"),
    (&["run", "C[R[p]] += V[p]", "C=zeros:2", "R=list:7", "V=list:1"], "7"),
    (&["inspect", "nowhere.mtx"], "nowhere.mtx"),
    (&["demo", "nowhere.mtx"], "nowhere.mtx"),
    (&["frobnicate"], "frobnicate"),
    (&["run"], "EXPRESSION"),
];

/// The command runs two sparse factors. It prints the position lists, and the result equals that of one sparse and one
/// dense factor.
#[test]
fn two_sparse_factors_run() {
    let rest = "A=uniform:40x50:0.2 B=uniform:50x30:0.2 --device cpu --check";
    let out = works_spmm("run", rest);
    assert!(out.contains("C[M[p],N[p]]") && out.contains("rows of positions"), "{out}");
    let out = works_spmm(
        "explain",
        "A=uniform:40x50:0.2 B=random:50x30 --format groupcoo:hybrid --device cpu",
    );
    assert!(out.contains("gathers") && out.contains("padding"), "{out}");
}

#[test]
fn errors_are_one_line() {
    for (rest, word) in WRONG_RUNS {
        let rest: Vec<&str> = rest.split_whitespace().collect();
        let error = fails(&[&["run", SPMM, "A=uniform:4x5:0.5"], &rest[..]].concat());
        assert!(error.contains(word), "{rest:?}: {error}");
    }
    for (arguments, word) in WRONG {
        let error = fails(arguments);
        assert!(error.contains(word), "{arguments:?}: {error}");
    }
}
