//! Affine indices: parsing, printing, extents computed by hand, and errors.

use super::{parse, shapes};
use einsparse::Error;
use einsparse::einsum::{Einsum, IndexExpr, Term};

fn sum(terms: &[(usize, &str)]) -> IndexExpr {
    let term = |&(factor, index): &(usize, &str)| Term { factor, index: index.into() };
    IndexExpr::Sum(terms.iter().map(term).collect())
}

#[test]
fn sums_parse_and_print() {
    let e = parse("C[n,x] = A[ n , 2 * x + i , 03*n, 1*n , 1*x+4*i+n ] * B[i]");
    assert_eq!(
        e.factors[0].indices[1..],
        [
            sum(&[(2, "x"), (1, "i")]),
            sum(&[(3, "n")]),
            IndexExpr::Name("n".into()),
            sum(&[(1, "x"), (4, "i"), (1, "n")]),
        ]
    );
    let shown = "C[n,x] = A[n,2*x+i,3*n,n,x+4*i+n] * B[i]";
    assert_eq!(e.to_string(), shown);
    assert_eq!(parse(shown), e);
    assert_eq!(e.index_names(), ["n", "x", "i"]);
}

#[test]
fn sums_hold_no_index_arrays() {
    let nested = parse("C[p] = A[M[p+2*q]] * B[q]");
    assert_eq!(nested.to_string(), "C[p] = A[M[p+2*q]] * B[q]");
    assert_eq!(nested.with_arrays().to_string(), "C[p] = A[M[(p+2*q)[p,q]]] * B[q]");
}

#[test]
fn canonical_forms_tell_factors_apart() {
    let canonical = |text: &str| parse(text).canonical();
    let one = canonical("C[x] = A[2*x+i] * B[i]");
    assert_eq!(one, canonical("C[p] = A[2*p+q] * B[q]"));
    assert_eq!(one.text, "C[i0] = A[2*i0+i1] * B[i1]");
    assert_ne!(one, canonical("C[x] = A[x+i] * B[i]"));
    assert_ne!(one, canonical("C[x] = A[x+2*i] * B[i]"));
}

const NO_CONSTANTS: &str = "an index, with a factor as in `2*x` or without: constants are no part of a sum, \
    pad the operand";
const WHOLE: &str = "a positive whole factor, as in `2*x`";

#[test]
fn parse_errors_in_sums_name_the_place() {
    for (inside, at, expected, found) in [
        ("x+", 2, NO_CONSTANTS, "`]`"),
        ("2*", 2, "an index after the factor", "`]`"),
        ("0*x", 0, WHOLE, "the number `0`"),
        ("x+00*i", 2, WHOLE, "the number `00`"),
        ("1.5*x", 0, WHOLE, "the number `1.5`"),
        ("x+1", 2, NO_CONSTANTS, "the number `1`"),
        ("1+x", 0, NO_CONSTANTS, "the number `1`"),
        ("2x", 0, "an index or `]`", "the number `2x`"),
        ("x,2", 2, "an index", "the number `2`"),
        ("x-i", 1, "`[`, `+`, `,` or `]`", "`-`"),
        ("x+i-j", 3, "`+`, `,` or `]`", "`-`"),
        ("x+-i", 2, NO_CONSTANTS, "`-`"),
        ("x*2", 1, "`[`, `+`, `,` or `]`", "`*`"),
        ("2*3*x", 2, "an index after the factor", "the number `3`"),
        ("x+2*x", 4, "an index that the sum does not have yet", "the name `x`"),
        ("x+M[i]", 3, "`+`, `,` or `]`", "`[`"),
        ("2*M[i]", 3, "`+`, `,` or `]`", "`[`"),
        ("4294967296*x", 0, "a factor that 32 bits hold", "the number `4294967296`"),
    ] {
        let text = format!("C[x] = A[{inside}] * B[i]");
        match Einsum::parse(&text) {
            Err(Error::Parse { at: own, expected: wanted, found: seen, .. }) => assert_eq!(
                (own, wanted.as_str(), seen.as_str()),
                (9 + at, expected, found),
                "{text}"
            ),
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn extents_of_sums_worked_by_hand() {
    let cases = [
        ("C[x] = A[x+i] * B[i]", "A 30, B 3", "x 28"),
        ("C[x] = A[2*x+i] * B[i]", "A 30, B 3", "x 14"),
        ("C[x] = A[2*x+i] * B[i]", "A 31, B 3", "x 15"),
        ("C[x] = A[x+2*i] * B[i]", "A 30, B 3", "x 26"),
        ("C[x] = A[7*x+2*i] * B[i]", "A 30, B 3", "x 4"),
        ("C[x] = A[x+i] * B[i]", "A 3, B 3", "x 1"),
        ("C[x] = A[9*x+i] * B[i]", "A 3, B 3", "x 1"),
        ("C[x] = A[3*x]", "A 9", "x 3"),
        ("C[x] = A[3*x]", "A 10", "x 4"),
        ("C[x] = A[3*x]", "A 0", "x 0"),
        // The extent of the window index is the unknown one.
        ("C[x] = A[x+i] * B[x]", "A 10, B 4", "i 7"),
        // The output determines x. Then both extents are given, and A may be larger than required.
        ("C[x] = A[x+i]", "A 10, C 4", "i 7"),
        ("C[x] = A[x+i] * B[i]", "A 10, B 3, C 4", "x 4"),
        ("C[x] = A[x+i] * B[i]", "A 6, B 3, C 4", "x 4"),
        // The smallest axis determines the extent. An extent from one axis restricts another axis.
        ("C[x] = A[x+i,x+j] * B[i,j]", "A 8x7, B 3x3", "x 5"),
        ("C[x] = A[x+i,y+x] * B[i]", "A 8x9, B 3", "x 6, y 4"),
        // Windows and axes without elements.
        ("C[x] = A[x+i] * B[i]", "A 5, B 0", "x 0, i 0"),
        ("C[x] = A[x+i] * B[i]", "A 0, B 3", "x 0, i 3"),
        ("C[x] = A[x+i] * B[i]", "A 2, B 3, C 0", "x 0"),
    ];
    for (text, given, wanted) in cases {
        let found = parse(text).check(&shapes(given));
        let found = found.unwrap_or_else(|error| panic!("{text}: {error}"));
        for (index, extent) in shapes(wanted) {
            assert_eq!(found.get(&index), Some(extent[0]), "{text} {given}: {index}");
        }
    }
}

/// An axis without elements leaves an extent of 0 for the window.
#[test]
fn empty_axes_leave_empty_windows() {
    let e = parse("C[x] = A[x+i] * B[x]");
    let found = e.check(&shapes("A 0, B 1, C 1")).unwrap();
    assert_eq!(found.get("i"), Some(0), "{e}");
}

/// Affine indices that no text can express.
#[test]
fn sums_made_by_hand_are_checked() {
    for terms in [&[][..], &[(1, "x")], &[(0, "x"), (1, "i")], &[(1, "x"), (2, "x")]] {
        let mut e = parse("C[x] = A[2*x] * B[i]");
        e.factors[0].indices = vec![sum(terms)];
        let refused = e.check(&shapes("A 9, B 3"));
        assert!(
            matches!(&refused, Err(Error::Operand { name, .. }) if name == "A"),
            "{terms:?}: {refused:?}"
        );
    }
    let mut e = parse("C[x] = A[2*x+i] * B[i]");
    e.factors[0].indices = vec![sum(&[(usize::MAX, "x"), (usize::MAX, "i")])];
    let refused = e.check(&shapes("A 9, B 3"));
    assert!(matches!(refused, Err(Error::Shape { .. })));
    let found = e.check(&shapes("A 9, B 1")).unwrap();
    assert_eq!((found.get("x"), found.out()), (Some(1), &[1][..]));
    assert_eq!(e.sum_arrays(&found).unwrap()[0].slots, [0]);
}

#[test]
fn arrays_hold_every_value_of_a_sum() {
    let e = parse("C[x] = A[2*x+i+5*j,2*x] * B[i,j] * D[2*x+i+5*j]");
    assert!(e.has_sums() && !e.with_arrays().has_sums());
    let extents = e.check(&shapes("A 12x9, B 2x2, D 10")).unwrap();
    assert_eq!(extents.out(), [2]);
    let arrays = e.sum_arrays(&extents).unwrap();
    assert_eq!(arrays.len(), 2, "each once");
    assert_eq!(
        (arrays[0].name.as_str(), &arrays[0].shape[..], &arrays[0].slots[..]),
        ("(2*x+i+5*j)", &[2, 2, 2][..], &[0, 5, 1, 6, 2, 7, 3, 8][..])
    );
    assert_eq!((arrays[1].name.as_str(), &arrays[1].slots[..]), ("(2*x)", &[0, 2][..]));
    let mut far = e.clone();
    far.factors[0].indices.truncate(1);
    let large = 1u64 << 40;
    let given = format!("A {large}, B 1x1, D {large}");
    let extents = far.check(&shapes(&given)).unwrap();
    assert!(matches!(far.sum_arrays(&extents), Err(Error::Overflow { .. })));
}
