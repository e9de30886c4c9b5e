//! The rewrite to indirect Einsums, compared with golden files.

use crate::support::assert_error;
use einsparse::Error;
use std::path::Path;

use crate::support::skipped;
use einsparse::einsum::{Activation, Mode};
use einsparse::formats::Format;
use einsparse::indirect::{BiasAxis, rewrite, rewrite_dense, rewrite_sampled};

use super::parse;

fn format(text: &str) -> Format {
    text.parse().unwrap()
}

const MATRIX: &[&str] = &[
    "coo",
    "csr",
    "csc",
    "ell",
    "groupcoo",
    "groupcoo@1",
    "groupcoo:hybrid",
    "bsr:32x32",
    "blockcoo:16x16",
    "blockgroupcoo:32x16",
    "nm:2:4",
    "bitmap",
    "bytemap",
    "sell",
];
const TENSOR3: &[&str] = &["coo", "groupcoo", "groupcoo@1", "groupcoo@2"];
/// The operand, its formats, and each expression after the name of its file.
const GOLDEN: &[(&str, &[&str], &[&str])] = &[
    (
        "A",
        MATRIX,
        &[
            "spmm: C[m,n] = A[m,k] * B[k,n]",
            "spmm_accumulate: C[m,n] += A[m,k] * B[k,n]",
            "spmm_transposed: C[m,n] = A[k,m] * B[k,n]",
            "spmm_output_transposed: C[n,m] = A[m,k] * B[k,n]",
            "spmm_bias_relu: C[m,n] = relu(A[m,k] * B[k,n] + bias[m])",
            "spmm_bias_columns: C[m,n] = A[m,k] * B[k,n] + bias[n]",
            "spmm_relu_grad: C[m,n] = relu_grad(A[m,k] * B[k,n], H[m,n])",
            "spmm_scaled: C[m,n] = 0.5 * A[m,k] * alpha * B[k,n]",
            "spmm_diagonal_scaled: C[m,n] = D[m] * A[m,k] * E[k] * B[k,n]",
            "spmm_batched: C[b,m,n] = A[m,k] * B[b,k,n]",
            "spmv: y[m] = A[m,k] * x[k]",
            "spmv_names_taken: y[u] = A[u,v] * x[v] * z[p] * w[q]",
            "array_names_taken: C[m,n] = A[m,k] * AK[k,n] * AV[m] * AP[n]",
            "case_of_indices: y[m] = A[m,M] * x[M]",
            "row_sums: r[m] = A[m,k]",
            "column_sums: r[k] = A[m,k]",
            "total: s = A[m,k]",
            "bilinear: s = x[m] * A[m,k] * y[k]",
            "diagonal: d[i] = A[i,i]",
            "densify: C[m,k] = A[m,k]",
            "gathered_rows: C[m,n] = A[m,k] * B[X[k],n]",
            "scattered_rows: C[X[m],n] += A[m,k] * B[k,n]",
            "outer_product: C[m,k,n] = A[m,k] * x[n]",
        ],
    ),
    ("B", MATRIX, &["spmm_second_factor: C[m,n] = A[m,k] * B[k,n]"]),
    ("Adj", MATRIX, &["spmv_long_names: y[row] = Adj[row,col] * x[col]"]),
    ("S", MATRIX, &["sddmm: D[m,n] = S[m,n] * X[m,k] * Y[n,k]"]),
    (
        "T",
        TENSOR3,
        &[
            "mttkrp: M[i,r] = T[i,j,k] * B[j,r] * C[k,r]",
            "mttkrp_second: M[j,r] = T[i,j,k] * B[i,r] * C[k,r]",
            "ttm: Y[i,j,r] = T[i,j,k] * U[k,r]",
        ],
    ),
    ("CG", TENSOR3, &["tensor_product: Out[b,k,w] = CG[i,j,k] * X[b,i,u] * Y[b,j] * W[b,u,w]"]),
    ("x", &["coo"], &["vector: s = x[i] * y[i]"]),
    ("A", &["coo", "csr", "ell", "groupcoo"], &["window: C[x,n] = A[x,i] * B[2*x+i,n]"]),
];

/// One file for each expression, one line for each format; `EINSPARSE_BLESS=1` overwrites them.
#[test]
fn golden() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let bless = std::env::var_os("EINSPARSE_BLESS").is_some();
    if !folder.is_dir() && std::env::var_os("EINSPARSE_BUNDLE").is_some() {
        return skipped("a bundle has no sources", folder.display());
    }
    let named = |line: &&'static str| line.split_once(": ").unwrap();
    for &(operand, formats, lines) in GOLDEN {
        for (name, text) in lines.iter().map(named) {
            let e = parse(text);
            let mut shown = format!("{e}\n");
            for f in formats {
                let indirect =
                    rewrite(&e, operand, &format(f)).unwrap_or_else(|e| panic!("{name} {f}: {e}"));
                shown += &format!("{operand} {f:20} {indirect}\n");
            }
            let path = folder.join(format!("{name}.txt"));
            if bless {
                std::fs::write(&path, &shown).unwrap();
            }
            let wanted = std::fs::read_to_string(&path)
                .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            assert_eq!(shown, wanted.replace("\r\n", "\n"), "{}", path.display());
        }
    }
}

/// The notation of the paper, written here and not in a file that a run may overwrite.
#[test]
fn notation_of_the_paper() {
    let e = parse("C[m,n] = A[m,k] * B[k,n]");
    for (f, text) in [
        ("coo", "C[AM[p],n] += AV[p] * B[AK[p],n]"),
        ("csr", "C[m,n] += AV[p] * B[AK[p],n], AP[m] <= p < AP[m+1]"),
        ("csc", "C[AM[p],n] += AV[p] * B[k,n], AP[k] <= p < AP[k+1]"),
        ("ell", "C[m,n] += AV[m,q] * B[AK[m,q],n]"),
        ("groupcoo:8", "C[AM[p],n] += AV[p,q] * B[AK[p,q],n]"),
        ("blockcoo:4x4", "C[AM[p],bm,n] += AV[p,bm,bk] * B[AK[p],bk,n]"),
        ("blockgroupcoo:4x4", "C[AM[p],bm,n] += AV[p,q,bm,bk] * B[AK[p,q],bk,n]"),
        ("bitmap", "C[AM[p],n] += AV[p] * B[AK[p],n]"),
        ("bytemap", "C[AM[p],n] += AV[p] * B[AK[p],n]"),
        ("nm:2:4", "C[m,n] += AV[m,g,q] * B[g,AK[m,g,q],n]"),
        ("bsr:4x4", "C[m',bm,n] += AV[p,bm,bk] * B[AK[p],bk,n], AP[m'] <= p < AP[m'+1]"),
    ] {
        assert_eq!(rewrite(&e, "A", &format(f)).unwrap().to_string(), text);
    }
    let hand = parse("C[AM[p],n] += AV[p,q] * B[AK[p,q],n]");
    assert_eq!(rewrite_dense(&hand).unwrap().to_string(), hand.to_string());
}

#[test]
fn rewrite_refuses_with_a_reason() {
    let refused = |text: &str, operand: &str, f: &str| {
        rewrite(&parse(text), operand, &format(f)).unwrap_err()
    };
    let unknown = refused("C[m,n] = A[m,k] * B[k,n]", "X", "csr");
    assert_error!(unknown, Error::UnknownOperand { name, .. } if name == "X");
    for (text, operand, f, word) in [
        ("C[m,n] = A[m,k] * A[k,n]", "A", "csr", "2 times"),
        ("C[m,n] = A[m,k] * B[k,n]", "C", "csr", "not a factor"),
        ("C[m,n] = A[m,k] * B[k,n] + b[m]", "b", "coo", "not a factor"),
        ("C[m,n] = A[X[m],k] * B[k,n] * D[m]", "A", "csr", "through `X[m]`"),
    ] {
        let error = refused(text, operand, f);
        assert_error!(
            error,
            Error::Operand { name, reason } if name == operand && reason.contains(word)
        );
    }
    for (text, operand, f, order, required) in [
        ("M[i,r] = T[i,j,k] * B[j,r] * C[k,r]", "T", "csr", "order 3", "csr requires 2"),
        ("M[i,r] = T[i,j,k] * B[j,r] * C[k,r]", "T", "groupcoo@3", "order 3", "grouped axis"),
        ("s = x[i]", "x", "groupcoo", "order 1", "at least 2"),
        ("s = x[]", "x", "coo", "order 0", "at least 1"),
    ] {
        let error = refused(text, operand, f);
        assert_error!(
            error,
            Error::Shape { index, left, right }
                if index == operand && left == order && right.contains(required)
        );
    }
}

#[test]
fn spmm_is_told_by_structure() {
    for f in MATRIX {
        let is = |text: &str, operand: &str| {
            rewrite(&parse(text), operand, &format(f)).unwrap().as_spmm()
        };
        let form = is("Y[r,c] += relu(2 * a * X[j,c] * S[r,j] + b[c])", "S").unwrap();
        assert_eq!(
            (form.sparse.as_str(), form.dense.as_str(), form.output.as_str()),
            ("S", "X", "Y")
        );
        assert_eq!(form.bias, Some(("b".into(), BiasAxis::Cols)));
        assert_eq!(
            (form.activation, form.mode, form.scalars.len(), form.format),
            (Activation::Relu, Mode::Accumulate, 2, Some(format(f)))
        );
        assert!(form.order.is_plain());
        let form = is("C[m,n] = A[k,m] * B[k,n]", "A").unwrap();
        assert!(form.order.transposed && form.dense == "B");
        let order = |text: &str, operand: &str| is(text, operand).unwrap().order.to_string();
        for (text, operand, wanted) in [
            ("C[n,m] = A[m,k] * B[k,n]", "A", "C[n,m] = A[m,k] * B[k,n]"),
            ("C[m,n] = A[m,k] * B[n,k]", "A", "C[m,n] = A[m,k] * B[n,k]"),
            ("C[m,n] = A[m,k] * B[k,n]", "B", "C[n,m] = A[k,m] * B[n,k]"),
            ("Y[t,o] = X[t,i] * W[o,i]", "W", "C[n,m] = A[m,k] * B[n,k]"),
        ] {
            assert_eq!(order(text, operand), wanted, "{text}");
        }
        for (text, operand) in [
            ("C[m,n] = A[m,k] * B[k,n] * D[m]", "A"),
            ("C[m,n] = A[m,n] * B[m,n]", "A"),
            ("C[m,n] = A[m,k] * B[k,n] + b[m,n]", "A"),
            ("C[m,n] = A[m,k] * B[X[k],n]", "A"),
            ("y[m] = A[m,k] * x[k]", "A"),
        ] {
            assert_eq!(is(text, operand), None, "{text} {f}");
        }
    }
    assert_eq!(rewrite_dense(&parse("C[m,n] = A[m,k] * B[k,n]")).unwrap().as_spmm(), None);
}

#[test]
fn epilogues_of_sparse_outputs_are_refused() {
    for (text, name) in [
        ("S[m,n] = X[m,k] * Y[n,k] + bias[n]", "bias"),
        ("S[m,n] += gelu(X[m,k] * Y[n,k] + bias[m])", "bias"),
        ("S[m,n] = relu_grad(X[m,k] * Y[n,k], gate[m,n])", "gate"),
    ] {
        for f in MATRIX {
            let error = rewrite_sampled(&parse(text), &format(f), None).unwrap_err();
            assert_error!(error, Error::Operand { name: found, .. } if found == name);
        }
    }
}
