//! What plans hold on the device beside the operands: lists and partial sums are at most 2 % of A and 16 MB, forms that
//! are made of A at most 1.1 times A.

use crate::support::gpu;
use crate::support::rows::force;
use einsparse::formats::{Csr, CsrPattern, Dense, f16, generate};
use einsparse::registry::{Row, Scalar, WalkKind, find, products};
use einsparse::{Context, Error, Operand, SparseTensor};

/// Uniform rows, hubs, bands, many short rows, and one row with everything.
fn patterns() -> Vec<(&'static str, CsrPattern)> {
    let one = CsrPattern::new(1, 1 << 20, vec![0, 1 << 20], (0..1 << 20).collect());
    vec![
        ("uniform", generate::uniform(4096, 4096, 0.05, 1).unwrap()),
        ("rmat", generate::rmat(16, 16, 2).unwrap()),
        ("band", generate::banded(1 << 17, 9).unwrap()),
        (
            "short",
            generate::uniform(1 << 19, 1 << 19, 2.0 / (1 << 19) as f64, 3).unwrap(),
        ),
        ("one", one.unwrap()),
    ]
}

/// Bytes of A in CSR.
fn bytes_of<T>(pattern: &CsrPattern) -> usize {
    pattern.columns().len() * (4 + size_of::<T>()) + pattern.offsets().len() * 4
}

/// A holds so much; what may a plan of this row hold beside it?
fn limit(row: &Row, a: usize) -> usize {
    let lists = a / 50 + (16 << 20);
    match row.walk {
        // Vectors are a form of A, without its values.
        WalkKind::Vector => lists + a + a / 10,
        _ => lists,
    }
}

fn small_enough(what: &str, row: &Row, a: usize, held: usize) {
    let limit = limit(row, a);
    assert!(
        held <= limit,
        "{} on {what}: {held} bytes beside the {a} of A, {limit} allowed",
        row.name
    );
}

fn spmm<T: Scalar>(context: &Context, what: &str, pattern: &CsrPattern) {
    let values = vec![T::ONE; pattern.columns().len()];
    let a: SparseTensor<T> = context
        .upload(Csr::new(pattern.clone(), values).unwrap())
        .unwrap();
    let bytes = bytes_of::<T>(pattern);
    for n in [1, 32, 128, 256, 1024] {
        // Only the shape of B is planned with; pages that nobody writes are none.
        let b = Dense::<T>::zeros(vec![pattern.cols(), n]).unwrap();
        let operands: [(&str, Operand<'_, T>); 2] = [("A", (&a).into()), ("B", (&b).into())];
        let text = "C[m,n] = A[m,k] * B[k,n]";
        let plan = context.plan(text).operands(&operands).build().unwrap();
        let row = find(plan.variant()).unwrap();
        small_enough(what, row, bytes, plan.workspace_bytes());
        if n != 128 {
            continue;
        }
        for row in products().filter(|row| row.dtype == T::DTYPE && row.is_plain()) {
            match context
                .plan(text)
                .operands(&operands)
                .options(&force(row))
                .build()
            {
                Ok(plan) => small_enough(what, row, bytes, plan.workspace_bytes()),
                Err(Error::NoKernel { .. }) => {}
                Err(other) => panic!("{}: {other}", row.name),
            }
        }
    }
}

fn sddmm<T: Scalar>(context: &Context, what: &str, pattern: &CsrPattern) {
    let values = vec![T::ZERO; pattern.columns().len()];
    let s = context
        .upload(Csr::new(pattern.clone(), values).unwrap())
        .unwrap();
    let [x, y] = [pattern.rows(), pattern.cols()].map(|rows| Dense::<T>::zeros(vec![rows, 64]));
    let (x, y) = (x.unwrap(), y.unwrap());
    let operands = [("X", (&x).into()), ("Y", (&y).into())];
    let text = "S[m,n] = X[m,k] * Y[n,k]";
    let plan = context
        .plan::<T>(text)
        .operands(&operands)
        .sparse_output(&s)
        .build()
        .unwrap();
    let row = find(plan.variant()).unwrap();
    // Dense tiles pick their entries by a list of them: a form of the pattern.
    if row.module != "sddmm_tiles" {
        small_enough(what, row, bytes_of::<T>(pattern), plan.workspace_bytes());
    }
}

#[test]
fn plans_hold_little_beside_their_operands_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    for (what, pattern) in patterns() {
        spmm::<f32>(&gpu, what, &pattern);
        spmm::<f16>(&gpu, what, &pattern);
        sddmm::<f32>(&gpu, what, &pattern);
        sddmm::<f16>(&gpu, what, &pattern);
    }
}
