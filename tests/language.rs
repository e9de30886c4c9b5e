//! The language: parsing, printing, checks, and the rewrite held by golden files.

use std::collections::BTreeMap;
use std::path::Path;

use einsparse::Error;
use einsparse::einsum::{Access, Einsum, Epilogue, IndexExpr, Mode, Scalar};
use einsparse::formats::Format;
use einsparse::indirect::{BiasAxis, rewrite, rewrite_dense};
use proptest::prelude::*;

fn parse(text: &str) -> Einsum {
    Einsum::parse(text).unwrap_or_else(|e| panic!("{e}"))
}

fn format(text: &str) -> Format {
    text.parse().unwrap()
}

#[test]
fn parses_every_part() {
    let e = parse(" C [ m , n ]+=relu( 2*A[m,k] * alpha * B[AK[p,q],n]+bias[m] ) ");
    assert_eq!(e.mode, Mode::Accumulate);
    assert_eq!(
        e.scalars,
        [Scalar::Literal(2.0), Scalar::Name("alpha".into())]
    );
    assert_eq!(e.factors.len(), 2);
    assert_eq!(e.epilogue.bias.as_ref().unwrap().tensor, "bias");
    assert!(e.epilogue.relu);
    assert_eq!(
        e.to_string(),
        "C[m,n] += relu(2 * alpha * A[m,k] * B[AK[p,q],n] + bias[m])"
    );
    assert_eq!(parse(&e.to_string()), e);
    assert_eq!(parse("s = x[i]").out.indices, []);
    assert_eq!(parse("s = x[i]"), parse("s[] = x[i]"));
    assert_eq!(
        parse("y[i] = -1.5e-3 * x[i]").scalars,
        [Scalar::Literal(-0.0015)]
    );
    assert_eq!(parse("y[relu] = relu[relu]").factors[0].tensor, "relu");
    assert_eq!(parse("C[m',n] = A[m',n]").index_names(), ["m'", "n"]);
    assert_eq!(parse("é[ä] = ö[ä]").out.tensor, "é");
}

#[test]
fn parse_errors_name_the_place() {
    let cases: &[(&str, usize, &str, &str)] = &[
        ("", 0, "an output, as in `C[m,n]`", "the end"),
        ("= A[m]", 0, "an output, as in `C[m,n]`", "`=`"),
        ("C[m,n]", 6, "`=` or `+=`", "the end"),
        ("C m", 2, "`[`, `=` or `+=`", "the name `m`"),
        ("C[m,] = A[m]", 4, "an index", "`]`"),
        ("C[m n] = A[m]", 4, "`[`, `,` or `]`", "the name `n`"),
        ("C[m = A[m]", 4, "`[`, `,` or `]`", "`=`"),
        ("C[2] = A[m]", 2, "an index or `]`", "the number `2`"),
        ("C[m] = A[m] *", 13, "a factor", "the end"),
        (
            "C[m] = A[m] B[m]",
            12,
            "`*`, `+` or the end",
            "the name `B`",
        ),
        ("C[m] = 2x * A[m]", 7, "a number", "the number `2x`"),
        (
            "C[m] = 1e999 * A[m]",
            7,
            "a number that f64 can hold",
            "the number `1e999`",
        ),
        ("C[m] = - A[m]", 9, "a number", "the name `A`"),
        (
            "C[m] = A[m] + 2",
            14,
            "a bias, as in `bias[m]`",
            "the number `2`",
        ),
        ("C[m] = A[m] + b", 15, "`[` after the bias", "the end"),
        ("C[m] = A[m] + b[m] + c[m]", 19, "the end", "`+`"),
        ("C[m] = relu(A[m]", 16, "`*`, `+` or `)`", "the end"),
        ("C[m] = relu(A[m]) + b[m]", 18, "the end", "`+`"),
        ("C[m] = A[B[m],C[n]", 18, "`,` or `]`", "the end"),
        ("C[m] = A[m] $", 12, "`*`, `+` or the end", "`$`"),
    ];
    for &(text, place, wanted, seen) in cases {
        match Einsum::parse(text) {
            Err(Error::Parse {
                expression,
                at,
                expected,
                found,
            }) => {
                assert_eq!(
                    (at, expected.as_str(), found.as_str()),
                    (place, wanted, seen),
                    "{text}"
                );
                assert_eq!(expression, text);
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    let shown = Einsum::parse("C[m] = ö[m] $").unwrap_err().to_string();
    assert!(
        shown.starts_with("C[m] = ö[m] $\n            ^\n"),
        "{shown}"
    );
    let deep = format!("C[m] = {}m{}", "A[".repeat(40), "]".repeat(40));
    assert!(matches!(Einsum::parse(&deep), Err(Error::Parse { .. })));
}

fn shapes(list: &[(&str, &[usize])]) -> BTreeMap<String, Vec<usize>> {
    list.iter()
        .map(|(n, s)| (n.to_string(), s.to_vec()))
        .collect()
}

#[test]
fn check_finds_extents() {
    let e = parse("C[m,n] = alpha * A[m,k] * B[k,n] + bias[n]");
    let all = [
        ("A", &[2, 3][..]),
        ("B", &[3, 4]),
        ("bias", &[4]),
        ("alpha", &[]),
    ];
    let found = e.check(&shapes(&all)).unwrap();
    assert_eq!(found.out(), [2, 4]);
    assert_eq!(found.get("k"), Some(3));
    assert_eq!(found.iter().count(), 3);
    let scatter = parse("C[M[p],n] += V[p] * B[K[p],n]");
    let all = [
        ("C", &[9, 4][..]),
        ("M", &[7]),
        ("K", &[7]),
        ("V", &[7]),
        ("B", &[5, 4]),
    ];
    assert_eq!(scatter.check(&shapes(&all)).unwrap().out(), [9, 4]);
}

#[test]
fn check_errors_name_both_sides() {
    let cases: &[(&str, &[(&str, &[usize])], &[&str])] = &[
        (
            "C[m,n] = A[m,k] * B[k,n]",
            &[("A", &[2, 3]), ("B", &[4, 5])],
            &["`k`", "3 in axis 1 of `A[m,k]`", "4 in axis 0 of `B[k,n]`"],
        ),
        (
            "C[m,n] = A[m,k] * B[k,n]",
            &[("A", &[2, 3, 4]), ("B", &[3, 5])],
            &["`A`", "2 indices", "3 axes"],
        ),
        (
            "C[m,n] = A[m,k] * B[k,n]",
            &[("A", &[2, 3])],
            &["`B`", "not given"],
        ),
        (
            "C[m] = A[m,k]",
            &[("A", &[2, 3]), ("X", &[1])],
            &["`X`", "does not name"],
        ),
        (
            "C[m,n] = A[m,k]",
            &[("A", &[2, 3])],
            &["`n`", "1 on the left", "0 in the 1 factors"],
        ),
        (
            "C[m] = A[m,m]",
            &[("A", &[2, 3])],
            &["`m`", "2 in axis 0", "3 in axis 1"],
        ),
        (
            "C[m] = A[m,k]",
            &[("A", &[2, 3]), ("C", &[4])],
            &["`m`", "2 in", "4 in axis 0 of `C[m]`"],
        ),
        (
            "C[m] = A[m,k] + b[k]",
            &[("A", &[2, 3]), ("b", &[3])],
            &["`k`", "bias", "output `C[m]`"],
        ),
        ("C[m] = C[m] * A[m]", &[("A", &[2])], &["`C`", "output"]),
        (
            "C[m] = a * A[m]",
            &[("A", &[2]), ("a", &[2])],
            &["`a`", "0 indices", "1 axes"],
        ),
        ("C[m] = A * A[m]", &[("A", &[2])], &["`A`", "scalar"]),
        (
            "C[M[p]] = A[p]",
            &[("A", &[2]), ("M", &[2])],
            &["`C`", "axis 0", "`M[p]`"],
        ),
    ];
    for (text, given, words) in cases {
        let shown = parse(text).check(&shapes(given)).unwrap_err().to_string();
        for word in *words {
            assert!(shown.contains(word), "{text}: {shown} lacks {word}");
        }
    }
}

#[test]
fn canonical_forgets_index_names() {
    let a = parse("C[m,n] = A[m,k] * B[k,n] + bias[m]").canonical();
    let b = parse("C[row,col] = A[row,x] * B[x,col] + bias[row]").canonical();
    assert_eq!(a, b);
    assert_eq!(a.text, "C[i0,i1] = A[i0,i2] * B[i2,i1] + bias[i0]");
    assert_ne!(a, parse("C[m,n] = A[k,m] * B[k,n] + bias[m]").canonical());
}

const MATRIX: &[&str] = &[
    "coo",
    "csr",
    "csc",
    "ell",
    "groupcoo",
    "groupcoo@1",
    "bsr:32x32",
    "blockcoo:16x16",
    "blockgroupcoo:32x16",
];
const TENSOR3: &[&str] = &["coo", "groupcoo", "groupcoo@1", "groupcoo@2"];
const GOLDEN: &[(&str, &str, &str, &[&str])] = &[
    ("spmm", "C[m,n] = A[m,k] * B[k,n]", "A", MATRIX),
    ("spmm_accumulate", "C[m,n] += A[m,k] * B[k,n]", "A", MATRIX),
    ("spmm_transposed", "C[m,n] = A[k,m] * B[k,n]", "A", MATRIX),
    (
        "spmm_output_transposed",
        "C[n,m] = A[m,k] * B[k,n]",
        "A",
        MATRIX,
    ),
    (
        "spmm_second_factor",
        "C[m,n] = A[m,k] * B[k,n]",
        "B",
        MATRIX,
    ),
    (
        "spmm_bias_relu",
        "C[m,n] = relu(A[m,k] * B[k,n] + bias[m])",
        "A",
        MATRIX,
    ),
    (
        "spmm_bias_columns",
        "C[m,n] = A[m,k] * B[k,n] + bias[n]",
        "A",
        MATRIX,
    ),
    (
        "spmm_scaled",
        "C[m,n] = 0.5 * A[m,k] * alpha * B[k,n]",
        "A",
        MATRIX,
    ),
    (
        "spmm_diagonal_scaled",
        "C[m,n] = D[m] * A[m,k] * E[k] * B[k,n]",
        "A",
        MATRIX,
    ),
    ("spmm_batched", "C[b,m,n] = A[m,k] * B[b,k,n]", "A", MATRIX),
    ("spmv", "y[m] = A[m,k] * x[k]", "A", MATRIX),
    (
        "spmv_long_names",
        "y[row] = Adj[row,col] * x[col]",
        "Adj",
        MATRIX,
    ),
    (
        "spmv_names_taken",
        "y[u] = A[u,v] * x[v] * z[p] * w[q]",
        "A",
        MATRIX,
    ),
    (
        "array_names_taken",
        "C[m,n] = A[m,k] * AK[k,n] * AV[m] * AP[n]",
        "A",
        MATRIX,
    ),
    ("case_of_indices", "y[m] = A[m,M] * x[M]", "A", MATRIX),
    ("sddmm", "D[m,n] = S[m,n] * X[m,k] * Y[n,k]", "S", MATRIX),
    ("row_sums", "r[m] = A[m,k]", "A", MATRIX),
    ("column_sums", "r[k] = A[m,k]", "A", MATRIX),
    ("total", "s = A[m,k]", "A", MATRIX),
    ("bilinear", "s = x[m] * A[m,k] * y[k]", "A", MATRIX),
    ("diagonal", "d[i] = A[i,i]", "A", MATRIX),
    ("densify", "C[m,k] = A[m,k]", "A", MATRIX),
    ("gathered_rows", "C[m,n] = A[m,k] * B[X[k],n]", "A", MATRIX),
    (
        "scattered_rows",
        "C[X[m],n] += A[m,k] * B[k,n]",
        "A",
        MATRIX,
    ),
    ("outer_product", "C[m,k,n] = A[m,k] * x[n]", "A", MATRIX),
    (
        "mttkrp",
        "M[i,r] = T[i,j,k] * B[j,r] * C[k,r]",
        "T",
        TENSOR3,
    ),
    (
        "mttkrp_second",
        "M[j,r] = T[i,j,k] * B[i,r] * C[k,r]",
        "T",
        TENSOR3,
    ),
    ("ttm", "Y[i,j,r] = T[i,j,k] * U[k,r]", "T", TENSOR3),
    (
        "tensor_product",
        "Out[b,k,w] = CG[i,j,k] * X[b,i,u] * Y[b,j] * W[b,u,w]",
        "CG",
        TENSOR3,
    ),
    ("vector", "s = x[i] * y[i]", "x", &["coo"]),
];

/// One file for each expression, one line for each format; `EINSPARSE_BLESS=1` writes them anew.
#[test]
fn golden() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let bless = std::env::var_os("EINSPARSE_BLESS").is_some();
    for &(name, text, operand, formats) in GOLDEN {
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
        let wanted =
            std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert_eq!(shown, wanted.replace("\r\n", "\n"), "{}", path.display());
    }
}

/// The notation of the paper, written out here and not in a file that a run may overwrite.
#[test]
fn notation_of_the_paper() {
    let e = parse("C[m,n] = A[m,k] * B[k,n]");
    for (f, text) in [
        ("coo", "C[AM[p],n] += AV[p] * B[AK[p],n]"),
        ("csr", "C[m,n] += AV[p] * B[AK[p],n], AP[m] <= p < AP[m+1]"),
        ("csc", "C[AM[p],n] += AV[p] * B[k,n], AP[k] <= p < AP[k+1]"),
        ("ell", "C[m,n] += AV[m,q] * B[AK[m,q],n]"),
        ("groupcoo:8", "C[AM[p],n] += AV[p,q] * B[AK[p,q],n]"),
        (
            "blockcoo:4x4",
            "C[AM[p],bm,n] += AV[p,bm,bk] * B[AK[p],bk,n]",
        ),
        (
            "blockgroupcoo:4x4",
            "C[AM[p],bm,n] += AV[p,q,bm,bk] * B[AK[p,q],bk,n]",
        ),
        (
            "bsr:4x4",
            "C[m',bm,n] += AV[p,bm,bk] * B[AK[p],bk,n], AP[m'] <= p < AP[m'+1]",
        ),
    ] {
        assert_eq!(rewrite(&e, "A", &format(f)).unwrap().to_string(), text);
    }
    let hand = parse("C[AM[p],n] += AV[p,q] * B[AK[p,q],n]");
    assert_eq!(rewrite_dense(&hand).unwrap().to_string(), hand.to_string());
}

#[test]
fn rewrite_refuses_with_a_reason() {
    for (text, operand, f, word) in [
        ("C[m,n] = A[m,k] * B[k,n]", "X", "csr", "not named"),
        ("C[m,n] = A[m,k] * A[k,n]", "A", "csr", "2 times"),
        ("C[m,n] = A[m,k] * B[k,n]", "C", "csr", "not a factor"),
        (
            "C[m,n] = A[m,k] * B[k,n] + b[m]",
            "b",
            "coo",
            "not a factor",
        ),
        (
            "C[m,n] = A[X[m],k] * B[k,n] * D[m]",
            "A",
            "csr",
            "through `X[m]`",
        ),
        (
            "M[i,r] = T[i,j,k] * B[j,r] * C[k,r]",
            "T",
            "csr",
            "order 3, and csr wants 2",
        ),
        (
            "M[i,r] = T[i,j,k] * B[j,r] * C[k,r]",
            "T",
            "groupcoo@3",
            "order 3",
        ),
        ("s = x[i]", "x", "groupcoo", "at least 2"),
        ("s = x[]", "x", "coo", "at least 1"),
    ] {
        let shown = rewrite(&parse(text), operand, &format(f))
            .unwrap_err()
            .to_string();
        assert!(shown.contains(word), "{text}: {shown}");
    }
}

#[test]
fn spmm_is_told_by_structure() {
    for f in MATRIX {
        let is = |text: &str, operand: &str| {
            rewrite(&parse(text), operand, &format(f))
                .unwrap()
                .as_spmm()
        };
        let form = is("Y[r,c] += relu(2 * a * X[j,c] * S[r,j] + b[c])", "S").unwrap();
        assert_eq!(
            (
                form.sparse.as_str(),
                form.dense.as_str(),
                form.output.as_str()
            ),
            ("S", "X", "Y")
        );
        assert_eq!(form.bias, Some(("b".into(), BiasAxis::Cols)));
        assert_eq!(
            (form.relu, form.mode, form.scalars.len(), form.format),
            (true, Mode::Accumulate, 2, format(f))
        );
        for (text, operand) in [
            ("C[m,n] = A[k,m] * B[k,n]", "A"),
            ("C[n,m] = A[m,k] * B[k,n]", "A"),
            ("C[m,n] = A[m,k] * B[n,k]", "A"),
            ("C[m,n] = A[m,k] * B[k,n]", "B"),
            ("C[m,n] = A[m,k] * B[k,n] * D[m]", "A"),
            ("C[m,n] = A[m,n] * B[m,n]", "A"),
            ("C[m,n] = A[m,k] * B[k,n] + b[m,n]", "A"),
            ("C[m,n] = A[m,k] * B[X[k],n]", "A"),
            ("y[m] = A[m,k] * x[k]", "A"),
        ] {
            assert_eq!(is(text, operand), None, "{text} {f}");
        }
    }
    assert_eq!(
        rewrite_dense(&parse("C[m,n] = A[m,k] * B[k,n]"))
            .unwrap()
            .as_spmm(),
        None
    );
}

fn access(depth: u32) -> BoxedStrategy<Access> {
    let name = "[A-Z][a-z0-9_]{0,3}'{0,1}";
    let index = "[a-z_][a-z0-9]{0,3}'{0,2}".prop_map(IndexExpr::Name);
    let index = if depth == 0 {
        index.boxed()
    } else {
        prop_oneof![3 => index, 1 => access(depth - 1).prop_map(IndexExpr::Access)].boxed()
    };
    let indices = prop::collection::vec(index, 0..4);
    (name, indices)
        .prop_map(|(tensor, indices)| Access { tensor, indices })
        .boxed()
}

prop_compose! {
    fn einsum()(
        out in access(2),
        assign: bool,
        scalars in prop::collection::vec(prop_oneof![
            any::<f64>().prop_filter("finite", |v| v.is_finite()).prop_map(Scalar::Literal),
            "[a-z]{1,3}".prop_map(Scalar::Name),
        ], 0..3),
        factors in prop::collection::vec(access(2), 1..4),
        bias in prop::option::of(access(1)),
        relu: bool,
    ) -> Einsum {
        let mode = if assign { Mode::Assign } else { Mode::Accumulate };
        Einsum { out, mode, scalars, factors, epilogue: Epilogue { bias, relu }, text: String::new() }
    }
}

proptest! {
    #[test]
    fn display_parses_back(e in einsum()) {
        let again = Einsum::parse(&e.to_string());
        prop_assert_eq!(again, Ok(e));
    }

    #[test]
    fn no_text_panics(text in "[A-Ca-c\\[\\],=+*()0-9. 'é]{0,40}") {
        if let Ok(e) = Einsum::parse(&text) {
            prop_assert_eq!(Einsum::parse(&e.to_string()), Ok(e));
        }
    }
}
