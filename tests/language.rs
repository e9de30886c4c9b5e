//! The language: parsing, printing and checks. `language/rewrites.rs` tests its rewrites.

mod gradients;
mod rewrites;
mod sums;

use std::collections::BTreeMap;

use einsparse::Error;
use einsparse::einsum::{Access, Activation, Einsum, Epilogue, IndexExpr, Mode, Scalar, Term};
use proptest::prelude::*;

use crate::support::sized;

pub fn parse(text: &str) -> Einsum {
    Einsum::parse(text).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn parses_every_part() {
    let e = parse(" C [ m , n ]+=relu( 2*A[m,k] * alpha * B[AK[p,q],n]+bias[m] ) ");
    assert_eq!(e.mode, Mode::Accumulate);
    assert_eq!(e.scalars, [Scalar::Literal(2.0), Scalar::Name("alpha".into())]);
    assert_eq!(e.factors.len(), 2);
    assert_eq!(e.epilogue.bias.as_ref().unwrap().tensor, "bias");
    assert_eq!(e.epilogue.activation, Activation::Relu);
    assert_eq!(e.to_string(), "C[m,n] += relu(2 * alpha * A[m,k] * B[AK[p,q],n] + bias[m])");
    assert_eq!(parse(&e.to_string()), e);
    assert_eq!(parse("s = x[i]").out.indices, []);
    assert_eq!(parse("s = x[i]"), parse("s[] = x[i]"));
    assert_eq!(parse("y[i] = -1.5e-3 * x[i]").scalars, [Scalar::Literal(-0.0015)]);
    assert_eq!(parse("y[relu] = relu[relu]").factors[0].tensor, "relu");
    assert_eq!(parse("C[m',n] = A[m',n]").index_names(), ["m'", "n"]);
    assert_eq!(parse("é[ä] = ö[ä]").out.tensor, "é");
}

const FUNCTIONS: &str = "a factor: the functions are `relu(...)`, `gelu(...)` and `relu_grad(..., H[m,n])`, \
    around the whole sum";

const OUTSIDE: &str =
    "the end: a bias stands inside the function, as in `relu(A[m,k] * B[k,n] + bias[m])`";

const A_BIAS: &str = "a bias, as in `bias[m]`: `+` adds one along an axis of the output, behind the product, \
    and no number";

const NO_SUMS: &str = "the end: `+` adds a bias, one access, behind the product; a sum of products is two runs, \
    the second with `+=`";

/// Text, byte of the error, expected token, found token.
const PARSE_ERRORS: &[(&str, usize, &str, &str)] = &[
    ("", 0, "an output, as in `C[m,n]`", "the end"),
    ("= A[m]", 0, "an output, as in `C[m,n]`", "`=`"),
    ("C[m,n]", 6, "`=` or `+=`", "the end"),
    ("C m", 2, "`[`, `=` or `+=`", "the name `m`"),
    ("C[m,] = A[m]", 4, "an index", "`]`"),
    ("C[m n] = A[m]", 4, "`[`, `+`, `,` or `]`", "the name `n`"),
    ("C[m = A[m]", 4, "`[`, `+`, `,` or `]`", "`=`"),
    ("C[2] = A[m]", 2, "an index or `]`", "the number `2`"),
    ("C[m] = A[m] *", 13, "a factor", "the end"),
    ("C[m] = A[m] B[m]", 12, "`*`, `+ bias[m]` or the end", "the name `B`"),
    ("C[m] = 2x * A[m]", 7, "a number", "the number `2x`"),
    ("C[m] = 1e999 * A[m]", 7, "a number that f64 can hold", "the number `1e999`"),
    ("C[m] = - A[m]", 9, "a number", "the name `A`"),
    ("C[m] = A[m] + 2", 14, A_BIAS, "the number `2`"),
    ("C[m] = A[m] + 2 * B[m]", 14, A_BIAS, "the number `2`"),
    ("C[m] = A[m] + b", 15, "`[` after the bias: it has an index, as in `bias[m]`", "the end"),
    ("C[m] = A[m] + b[m] + c[m]", 19, NO_SUMS, "`+`"),
    ("C[m] = A[m] - b[m]", 12, NO_SUMS, "`-`"),
    ("C[m] = A[m] + B[m] * D[m]", 19, NO_SUMS, "`*`"),
    ("C[m] = A[m] + s * D[m]", 16, NO_SUMS, "`*`"),
    ("C[m] = tanh(A[m])", 7, FUNCTIONS, "the name `tanh`"),
    ("C[m] = 2 * relu(A[m])", 11, FUNCTIONS, "the name `relu`"),
    ("C[m] = relu(A[m]", 16, "`*`, `+ bias[m]` or `)`", "the end"),
    ("C[m] = relu(A[m]) + b[m]", 18, OUTSIDE, "`+`"),
    ("C[m] = relu_grad(A[m])", 21, "`*`, `+ bias[m]` or `,`", "`)`"),
    ("C[m] = relu_grad(A[m], h)", 24, "`[` after the gate", "`)`"),
    ("C[m] = A[B[m],C[n]", 18, "`,` or `]`", "the end"),
    ("C[m] = A[m] $", 12, "`*`, `+ bias[m]` or the end", "`$`"),
];

#[test]
fn parse_errors_name_the_place() {
    for &(text, place, wanted, seen) in PARSE_ERRORS {
        match Einsum::parse(text) {
            Err(Error::Parse { expression, at, expected, found }) => {
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
    assert!(shown.starts_with("C[m] = ö[m] $\n            ^\n"), "{shown}");
    let deep = format!("C[m] = {}m{}", "A[".repeat(40), "]".repeat(40));
    assert!(matches!(Einsum::parse(&deep), Err(Error::Parse { .. })));
}

pub fn shapes(text: &str) -> BTreeMap<String, Vec<usize>> {
    let all = sized(text).into_iter();
    all.map(|(name, shape)| (name.to_owned(), shape)).collect()
}

#[test]
fn check_finds_extents() {
    let e = parse("C[m,n] = alpha * A[m,k] * B[k,n] + bias[n]");
    let all = "A 2x3, B 3x4, bias 4, alpha";
    let found = e.check(&shapes(all)).unwrap();
    assert_eq!(found.out(), [2, 4]);
    assert_eq!(found.get("k"), Some(3));
    assert_eq!(found.iter().count(), 3);
    let scatter = parse("C[M[p],n] += V[p] * B[K[p],n]");
    let all = "C 9x4, M 7, K 7, V 7, B 5x4";
    assert_eq!(scatter.check(&shapes(all)).unwrap().out(), [9, 4]);
}

#[test]
fn canonical_forgets_index_names() {
    let a = parse("C[m,n] = A[m,k] * B[k,n] + bias[m]").canonical();
    let b = parse("C[row,col] = A[row,x] * B[x,col] + bias[row]").canonical();
    assert_eq!(a, b);
    assert_eq!(a.text, "C[i0,i1] = A[i0,i2] * B[i2,i1] + bias[i0]");
    assert_ne!(a, parse("C[m,n] = A[k,m] * B[k,n] + bias[m]").canonical());
}

fn access(depth: u32) -> BoxedStrategy<Access> {
    let name = "[A-Z][a-z0-9_]{0,3}'{0,1}";
    let word = "[a-z_][a-z0-9]{0,3}'{0,2}";
    let index = prop_oneof![4 => word.prop_map(IndexExpr::Name), 1 => sum(word)];
    let index = if depth == 0 {
        index.boxed()
    } else {
        prop_oneof![3 => index, 1 => access(depth - 1).prop_map(IndexExpr::Access)].boxed()
    };
    let indices = prop::collection::vec(index, 0..4);
    (name, indices).prop_map(|(tensor, indices)| Access { tensor, indices }).boxed()
}

/// An affine index of up to three distinct indices.
fn sum(word: &'static str) -> impl Strategy<Value = IndexExpr> {
    let names = prop::collection::btree_set(word, 1..4);
    let factors = prop::collection::vec(prop_oneof![Just(1usize), 2usize..=u32::MAX as usize], 3);
    (names, factors).prop_map(|(names, factors)| {
        let term = |(index, factor): (String, usize)| Term { factor, index };
        let mut terms: Vec<Term> = names.into_iter().zip(factors).map(term).collect();
        if let [Term { factor: factor @ 1, .. }] = &mut terms[..] {
            *factor = 2;
        }
        IndexExpr::Sum(terms)
    })
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
        gate in prop::option::of(access(1)),
        activation in prop::sample::select(vec![Activation::Identity, Activation::Relu, Activation::Gelu]),
    ) -> Einsum {
        let mode = if assign { Mode::Assign } else { Mode::Accumulate };
        let gate = gate.filter(|_| activation == Activation::Identity);
        Einsum { out, mode, scalars, factors, epilogue: Epilogue { bias, activation, gate }, text: String::new() }
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
