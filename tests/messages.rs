//! Texts of errors: each states what was wrong, what was expected, what was found, and how to fix it. Other tests match
//! the kinds and fields of errors.

use std::io::ErrorKind;

use einsparse::formats::{Csr, CsrPattern, Dense};
use einsparse::{Context, Error, Operand};

use crate::language::{parse, shapes};

fn text(name: &str) -> String {
    name.to_owned()
}

#[test]
fn errors_of_expressions_and_shapes() {
    let parse = Error::Parse {
        expression: text("C[m,n] = A[m,k * B[k,n]"),
        at: 15,
        expected: text("`,` or `]`"),
        found: text("`*`"),
    };
    let (line, caret) = ("C[m,n] = A[m,k * B[k,n]", "               ^");
    assert_eq!(parse.to_string(), format!("{line}\n{caret}\nexpected `,` or `]`, found `*`"));
    let (index, left, right) = (text("k"), text("3 in `A[m,k]`"), text("4 in `B[k,n]`"));
    let shape = Error::Shape { index, left, right };
    assert_eq!(shape.to_string(), "index `k`: 3 in `A[m,k]` but 4 in `B[k,n]`");
    let (array, of) = (text("I"), text("axis 0 of `B[I[p],n]`"));
    let index = Error::InvalidIndex { array, position: 1, value: 9, of, bound: 3 };
    assert_eq!(index.to_string(), "I[1] = 9 is past axis 0 of `B[I[p],n]`, which has 3");
    let (what, value, limit) = (text("rows"), 1 << 33, u128::from(u32::MAX));
    let overflow = Error::Overflow { what, value, limit };
    assert_eq!(overflow.to_string(), "rows is 8589934592, over the limit of 4294967295");
}

#[test]
fn errors_of_kernels_and_machines() {
    let tried = vec![(text("spmm_csr_f32_n32"), text("moves 4 elements at once"))];
    let none = Error::NoKernel { indirect: text("C[m,n] += AV[p] * B[AK[p],n]"), tried };
    assert_eq!(
        none.to_string(),
        "no kernel for C[m,n] += AV[p] * B[AK[p],n]\n  spmm_csr_f32_n32: moves 4 elements at once"
    );
    let memory = Error::OutOfMemory { wanted: 64, free: 8 };
    assert_eq!(memory.to_string(), "out of device memory: 64 bytes wanted, 8 free");
    let reason = text("an illegal address was accessed (700)");
    let cuda = Error::Cuda { call: text("cuStreamSynchronize"), code: Some(700), reason };
    let said = "CUDA: cuStreamSynchronize: an illegal address was accessed (700)";
    assert_eq!(cuda.to_string(), said);
    let rank = Error::Rank { rank: 2, reason: text("did not join within 1 s") };
    assert_eq!(rank.to_string(), "rank 2: did not join within 1 s");
    let (path, kind, reason) = (text("a.mtx"), ErrorKind::UnexpectedEof, text("ends early"));
    let file = Error::Io { path, line: Some(17), kind, reason };
    assert_eq!(file.to_string(), "a.mtx:17: ends early");
}

#[test]
fn errors_of_operands() {
    let name = || text("B");
    let missing = |reason| Error::MissingOperand { name: name(), reason: text(reason) };
    let alignment = |part, found, fix| Error::Alignment {
        name: name(),
        part: text(part),
        found,
        required: 16,
        fix: text(fix),
    };
    let pattern = |found| Error::OtherPattern {
        name: name(),
        planned: text("csr [2, 3] with 3 slots"),
        found: text(found),
    };
    for (error, wanted) in [
        (missing(""), "operand `B`: was not given"),
        (missing("`B[k,n]` reads it"), "operand `B`: was not given; `B[k,n]` reads it"),
        (
            Error::UnknownOperand { name: name(), expression: text("y[m] = A[m,k] * x[k]") },
            "operand `B`: is given, but `y[m] = A[m,k] * x[k]` does not name it",
        ),
        (
            Error::OperandKind {
                name: name(),
                expected: text("a number"),
                found: text("a sparse tensor of shape [2, 3]"),
            },
            "operand `B`: a number expected, found a sparse tensor of shape [2, 3]",
        ),
        (
            Error::ElementType { name: name(), expected: text("f16 or bf16"), found: text("f32") },
            "operand `B`: elements must be f16 or bf16, found f32",
        ),
        (
            Error::StorageFormat { name: name(), expected: text("csr"), found: text("coo") },
            "operand `B`: is stored as coo, expected csr",
        ),
        (
            alignment("address", 0x7f02, ""),
            "operand `B`: address 0x7f02 must be a multiple of 16 bytes",
        ),
        (
            alignment("row stride", 40, "required by spmm_f32: plan with `Options::alignment` = 1"),
            "operand `B`: row stride of 40 bytes must be a multiple of 16 bytes; required by spmm_f32: plan with \
             `Options::alignment` = 1",
        ),
        (
            Error::RowStride { name: name(), expected: text("at least 40"), found: 36 },
            "operand `B`: row stride is 36 elements, expected at least 40",
        ),
        (
            Error::OutOfRange { name: text("epsilon"), value: text("-1"), allowed: text(">= 0") },
            "`epsilon` must be >= 0, got -1",
        ),
        (
            Error::OtherContext { name: name(), expected: text("GPU 0"), found: text("GPU 1") },
            "operand `B`: is in GPU 1, expected GPU 0",
        ),
        (
            pattern("coo [2, 3] with 4 slots"),
            "operand `B`: has another pattern than planned: expected csr [2, 3] with 3 slots, found coo [2, 3] with 4 \
             slots",
        ),
        (
            pattern("csr [2, 3] with 3 slots"),
            "operand `B`: has another pattern than planned: both are csr [2, 3] with 3 slots, but their indices differ",
        ),
        (
            Error::NotPlanned {
                name: text("layer"),
                fix: text("create it with `Moe::for_training`"),
            },
            "operand `layer`: was not planned for this call; create it with `Moe::for_training`",
        ),
        (
            Error::Capture { name: text("map"), reason: text("is rebuilt by a CUDA graph") },
            "operand `map`: is rebuilt by a CUDA graph",
        ),
        (
            Error::Operand { name: name(), reason: text("is given twice") },
            "operand `B`: is given twice",
        ),
    ] {
        assert_eq!(error.to_string(), wanted);
    }
}

/// The name of the operand can be replaced, and errors without a name are returned unchanged.
#[test]
fn names_of_operands_are_replaced() {
    let missing = Error::MissingOperand { name: text("values"), reason: String::new() };
    assert_eq!(missing.name(), Some("values"));
    assert_eq!(missing.with_name("A").to_string(), "operand `A`: was not given");
    let memory = Error::OutOfMemory { wanted: 64, free: 8 };
    assert_eq!(memory.name(), None);
    assert_eq!(memory.clone().with_name("A"), memory);
}

/// Errors of plans contain the names, the expression and the numbers of the user.
#[test]
fn errors_of_plans_name_what_the_user_wrote() {
    let cpu = Context::cpu();
    let pattern = CsrPattern::new(2, 3, vec![0, 1, 3], vec![2, 0, 1]).unwrap();
    let a = Csr::new(pattern, vec![2.0f32, 3.0, 4.0]).unwrap();
    let [b, wide, x] = [[3, 2], [4, 2], [2, 2]].map(|shape| Dense::<f32>::zeros(shape).unwrap());
    let product = "C[m,n] = A[m,k] * B[k,n]";
    let said = |text: &str, operands: &[(&str, Operand<'_, f32>)]| {
        let plan = cpu.plan(text).operands(operands).build();
        plan.map(|plan| plan.to_string()).unwrap_err().to_string()
    };
    let with = |text: &str, own: &Dense<f32>| said(text, &[("A", (&a).into()), ("B", own.into())]);
    let broken = with("C[m,n] = A[m,k * B[k,n]", &b);
    assert!(broken.contains("\n               ^\n") && broken.ends_with("found `*`"), "{broken}");
    let extents = with(product, &wide);
    assert!(["`k`", "3", "4", "A", "B"].iter().all(|part| extents.contains(part)), "{extents}");
    let missing = said(product, &[("A", (&a).into())]);
    assert_eq!(missing, "operand `B`: was not given; `B[k,n]` reads it");
    let more = [("A", (&a).into()), ("B", (&b).into()), ("D", (&b).into())];
    let unknown = said(product, &more);
    assert_eq!(unknown, format!("operand `D`: is given, but `{product}` does not name it"));
    let sparse = [("A", (&a).into()), ("X", (&x).into()), ("Y", (&b).into())];
    let sparse = said("A[m,k] = X[m,n] * Y[k,n]", &sparse);
    assert!(sparse.contains("`A`") && sparse.contains("sparse_output"), "{sparse}");
}

/// Text, shapes, words of the error.
type Refused = (&'static str, &'static str, &'static [&'static str]);
const SHAPE_ERRORS: &[Refused] = &[
    (
        "C[m,n] = A[m,k] * B[k,n]",
        "A 2x3, B 4x5",
        &["`k`", "3 in axis 1 of `A[m,k]`", "4 in axis 0 of `B[k,n]`"],
    ),
    ("C[m,n] = A[m,k] * B[k,n]", "A 2x3x4, B 3x5", &["`A`", "2 indices", "3 axes"]),
    ("C[m,n] = A[m,k] * B[k,n]", "A 2x3", &["`B`", "not given"]),
    ("C[m] = A[m,k]", "A 2x3, X 1", &["`X`", "does not name"]),
    ("C[m,n] = A[m,k]", "A 2x3", &["`n`", "1 on the left", "0 in the 1 factors"]),
    ("C[m] = A[m,m]", "A 2x3", &["`m`", "2 in axis 0", "3 in axis 1"]),
    ("C[m] = A[m,k]", "A 2x3, C 4", &["`m`", "2 in", "4 in axis 0 of `C[m]`"]),
    ("C[m] = A[m,k] + b[k]", "A 2x3, b 3", &["`k`", "bias", "output `C[m]`"]),
    ("C[m] = relu_grad(A[m,k], h[k])", "A 2x3, h 3", &["`h`", "gate is `h[k]`", "output `C[m]`"]),
    ("C[m] = relu_grad(A[m,k], h[m])", "A 2x3, h 4", &["`m`", "2 in", "4 in axis 0 of `h[m]`"]),
    ("C[m] = C[m] * A[m]", "A 2", &["`C`", "output"]),
    ("C[m] = a * A[m]", "A 2, a 2", &["`a`", "0 indices", "1 axes"]),
    ("C[m] = A * A[m]", "A 2", &["`A`", "scalar"]),
    ("C[M[p]] = A[p]", "A 2, M 2", &["`C`", "axis 0", "`M[p]`"]),
    (
        "C[x] = A[x+i] * B[i]",
        "A 2, B 3",
        &["`x+i`", "a window of 3 elements (`i` 3)", "2 in axis 0 of `A[x+i]`"],
    ),
    (
        "C[n,x] = A[n,x+4*i] * B[i]",
        "A 5x8, B 3",
        &["`x+4*i`", "a window of 9 elements (`i` 3)", "8 in axis 1 of `A[n,x+4*i]`"],
    ),
    (
        "C[x] = A[2*x+i] * B[i]",
        "A 9, B 3, C 5",
        &["`2*x+i`", "up to index 10 (`x` 5, `i` 3)", "requires 11 elements", "9 in axis 0"],
    ),
    ("C[x] = A[x+i]", "A 9", &["`x+i`", "the extents of `x` and `i` are unknown", "9 in axis 0"]),
    ("C[x+i] = A[x] * B[i]", "A 9, B 3", &["`C`", "axis 0", "`x+i`", "give its shape"]),
    (
        "C[x+i] = A[x] * B[i]",
        "A 9, B 3, C 10",
        &[
            "`x+i`",
            "up to index 10 (`x` 9, `i` 3)",
            "requires 11 elements",
            "10 in axis 0 of `C[x+i]`",
        ],
    ),
    ("C[x] = A[x] + b[2*x]", "A 9, b 18", &["`2*x`", "in the bias `b[2*x]`", "not a plain index"]),
    ("C[x] = relu_grad(A[x], h[2*x])", "A 9, h 18", &["`h`", "the gate is `h[2*x]`"]),
];

/// Errors of extents name both sides, with the axes of the expression.
#[test]
fn errors_of_extents_name_both_sides() {
    for (text, given, words) in SHAPE_ERRORS {
        let shown = parse(text).check(&shapes(given)).unwrap_err().to_string();
        assert!(words.iter().all(|word| shown.contains(word)), "{text}: {shown}");
    }
}
