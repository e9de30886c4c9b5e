//! Gradients of expressions, compared with a golden file. `random/gradients.rs` compares their values.

use std::path::Path;

use crate::support::skipped;
use einsparse::einsum::{Einsum, Mode};

use super::parse;

/// Each line has an expression, an operand, and the gradient or the error. `EINSPARSE_BLESS=1` overwrites the last
/// column.
#[test]
fn golden() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/gradients.txt");
    if !path.is_file() && std::env::var_os("EINSPARSE_BUNDLE").is_some() {
        return skipped("a bundle without sources", path.display());
    }
    let read = || std::fs::read_to_string(&path).unwrap().replace("\r\n", "\n");
    let lines = read();
    let mut shown = String::new();
    let (mut gradients, mut errors) = (0, 0);
    for line in lines.lines() {
        let [text, operand] = [0, 1].map(|at| line.split(" | ").nth(at).unwrap());
        let gradient = match parse(text).gradient(operand) {
            Ok(gradient) => {
                gradients += 1;
                gradient.to_string()
            }
            Err(error) => {
                errors += 1;
                format!("error: {error}")
            }
        };
        shown += &format!("{text} | {operand} | {gradient}\n");
    }
    if std::env::var_os("EINSPARSE_BLESS").is_some() {
        std::fs::write(&path, &shown).unwrap();
    }
    assert_eq!(shown, read(), "{}", path.display());
    assert!(gradients >= 30 && errors >= 6, "{} has lost lines", path.display());
}

/// Rules that are written here, and not in a file that a run may overwrite.
#[test]
fn rules() {
    for (text, operand, gradient) in [
        ("C[m,n] = A[m,k] * B[k,n]", "A", "dA[m,k] = dC[m,n] * B[k,n]"),
        ("C[m,n] = A[m,k] * B[K[k],n]", "B", "dB[K[k],n] = A[m,k] * dC[m,n]"),
        ("C[m] = A[m,k]", "A", "dA[m,k] = dC[m] * ones_k[k]"),
        (
            "C[m,n] = relu(A[m,k] * B[k,n] + b[n])",
            "b",
            "dC'[m,n] = relu_grad(dC[m,n], C[m,n]); db[n] = dC'[m,n]",
        ),
    ] {
        assert_eq!(parse(text).gradient(operand).unwrap().to_string(), gradient);
    }
}

/// Each step prints and parses to itself. The first term is assigned and the others are added.
#[test]
fn steps_are_expressions() {
    let gradient = parse("C[m,n] += relu(2 * s * A[m,k] * A[m,l] * B[k,n] + b[n])").gradient("A");
    let gradient = gradient.unwrap();
    assert_eq!((&gradient.seed[..], gradient.output(), gradient.terms.len()), ("dC", "dA", 2));
    let modes: Vec<Mode> = gradient.terms.iter().map(|term| term.mode).collect();
    assert_eq!(modes, [Mode::Assign, Mode::Accumulate]);
    for step in gradient.steps() {
        assert_eq!(Einsum::parse(&step.to_string()).unwrap(), step);
    }
}
