//! Real matrices with integer values, by the plan that the library selects: exact.

use std::path::{Path, PathBuf};

use crate::support::dense::upload;
use crate::support::runs::plan_and_run;
use crate::support::{Problem, assert_matrix, data, on_both, small};
use einsparse::formats::{CsrPattern, generate, io};
use einsparse::{Context, Operand, Options};

const N: usize = 64;

/// Collects all `.smtx` and `.mtx` files below a directory, in order. `malformed/` is left to the tests of readers.
fn matrices(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() && !path.ends_with("malformed") {
            matrices(&path, found);
        } else if path.extension().is_some_and(|end| end == "smtx" || end == "mtx") {
            found.push(path);
        }
    }
}

fn patterns() -> Vec<(String, CsrPattern)> {
    let Some(folder) = data() else {
        return generated();
    };
    let mut files = Vec::new();
    matrices(&folder, &mut files);
    assert!(!files.is_empty(), "no matrices in {}", folder.display());
    let keep = if small() { 4 } else { files.len() };
    let read = |path: &PathBuf| {
        let csr = io::read_any::<f32>(path).and_then(|loaded| loaded.to_csr());
        let csr = csr.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        (path.display().to_string(), (**csr.pattern()).clone())
    };
    files.iter().step_by(files.len() / keep).map(read).collect()
}

fn generated() -> Vec<(String, CsrPattern)> {
    vec![
        ("karate".into(), generate::karate()),
        ("pruned".into(), generate::pruned(512, 1024, 0.1, 60.0, 0.04, 1).unwrap()),
        ("rmat".into(), generate::rmat(12, 8, 1).unwrap()),
        ("uniform".into(), generate::uniform(3000, 2000, 0.002, 1).unwrap()),
    ]
}

fn every_file(context: &Context) {
    for (i, (name, pattern)) in patterns().into_iter().enumerate() {
        let problem = Problem::<f32>::integers(pattern, i as u64, 128);
        let format = ["csr", "groupcoo", "coo"][i % 3];
        let n = [N, 17, 128][i / 3 % 3];
        let a = context.upload(problem.sparse(format)).unwrap();
        let [b] = upload(context, [&problem.b(n)]);
        let operands: [(&str, Operand<'_, f32>); 2] = [("A", (&a).into()), ("B", (&b).into())];
        let text = "C[m,n] = A[m,k] * B[k,n]";
        let (plan, c) = plan_and_run(context, text, &operands, &Options::default());
        let found = c.to_storage().unwrap();
        assert_matrix(&(name, format, plan.variant()), &found, (problem.m(), n, n), |r, c| {
            problem.exact(r, c)
        });
    }
}

on_both! {
    real_matrices: cpu [|_| every_file(&Context::cpu())], gpu [every_file];
}
