//! Memory of plans on the device in addition to the operands. Lists and partial sums take at most 2 % of A and 16 MB.
//! Forms derived from A take at most 1.1 times A; those with its values and lists of equal length take four times A. A
//! dense form takes its elements and half of A.

use crate::support::gpu;
use crate::support::rows::{force, products_here};
use crate::support::runs::sampled_plan_of;
use einsparse::formats::{Csr, CsrPattern, Dense, FormatError, f16, generate};
use einsparse::registry::{Row, Scalar, WalkKind, find};
use einsparse::{Context, Error, Operand, Plan, SparseTensor};

/// Uniform rows, hubs, bands, many short rows, and one row with all nonzeros.
fn patterns() -> Vec<(&'static str, CsrPattern)> {
    let one = CsrPattern::new(1, 1 << 20, vec![0, 1 << 20], (0..1 << 20).collect());
    vec![
        ("uniform", generate::uniform(4096, 4096, 0.05, 1).unwrap()),
        ("rmat", generate::rmat(16, 16, 2).unwrap()),
        ("band", generate::banded(1 << 17, 9).unwrap()),
        ("short", generate::uniform(1 << 19, 1 << 19, 2.0 / (1 << 19) as f64, 3).unwrap()),
        ("one", one.unwrap()),
    ]
}

/// Bytes of A in CSR.
fn bytes_of<T>(pattern: &CsrPattern) -> usize {
    pattern.columns().len() * (4 + size_of::<T>()) + pattern.offsets().len() * 4
}

/// Maximum size of a plan of this row with this form. `a`, `dense`: bytes of A and of its dense form.
fn limit(row: &Row, form: Option<&str>, [a, dense]: [usize; 2]) -> usize {
    let lists = a / 50 + (16 << 20);
    match (form, row.walk) {
        // First nonzeros of groups are included: 4 bytes for 512 of the matrix.
        (Some("dense"), _) => lists + dense + dense / 64 + a / 2,
        (Some(_), _) => lists + 4 * a,
        // Vectors are a form of A without its values.
        (None, WalkKind::Vector) => lists + a + a / 10,
        // Lists of equal length, as long as the longest one. If they would be larger than this limit, they are not
        // used.
        (None, WalkKind::Filled) => lists + 4 * a,
        (None, _) => lists,
    }
}

fn small_enough(what: &str, row: &Row, form: Option<&str>, bytes: [usize; 2], held: usize) {
    let limit = limit(row, form, bytes);
    assert!(
        held <= limit,
        "{} on {what} as {form:?}: {held} bytes beside the {bytes:?} of A and of its dense form, {limit} allowed",
        row.name
    );
}

fn spmm<T: Scalar>(context: &Context, what: &str, pattern: &CsrPattern) {
    let values = vec![T::ONE; pattern.columns().len()];
    let a: SparseTensor<T> = context.upload(Csr::new(pattern.clone(), values).unwrap()).unwrap();
    let dense = pattern.rows() * pattern.cols().next_multiple_of(16) * size_of::<T>();
    let bytes = [bytes_of::<T>(pattern), dense];
    let held = |plan: &Plan<T>, row: &Row| {
        let form = plan.prepacked();
        small_enough(what, row, form.as_deref(), bytes, plan.workspace_bytes());
    };
    for n in [1, 32, 128, 256, 1024] {
        // Planning needs only the shape of B. Untouched pages of zeros take no memory.
        let b = Dense::<T>::zeros(vec![pattern.cols(), n]).unwrap();
        let operands: [(&str, Operand<'_, T>); 2] = [("A", (&a).into()), ("B", (&b).into())];
        let text = "C[m,n] = A[m,k] * B[k,n]";
        let plan = context.plan(text).operands(&operands).build().unwrap();
        let row = find(plan.variant()).unwrap();
        held(&plan, row);
        if n != 128 {
            continue;
        }
        for row in products_here().filter(|row| row.dtype == T::DTYPE && row.is_plain()) {
            match context.plan(text).operands(&operands).options(&force(row)).build() {
                // A prepacked form is made on request only, so its size is not limited here.
                Ok(plan) if plan.prepacked().is_none() => held(&plan, row),
                Ok(_) => {}
                // A single long row would be padded beyond the limit of conversions.
                Err(Error::NoKernel { .. } | Error::Format(FormatError::Limit { .. })) => {}
                Err(other) => panic!("{}: {other}", row.name),
            }
        }
    }
}

fn sddmm<T: Scalar>(context: &Context, what: &str, pattern: &CsrPattern) {
    let values = vec![T::ZERO; pattern.columns().len()];
    let s = context.upload(Csr::new(pattern.clone(), values).unwrap()).unwrap();
    let [x, y] = [pattern.rows(), pattern.cols()].map(|rows| Dense::<T>::zeros(vec![rows, 64]));
    let (x, y) = (x.unwrap(), y.unwrap());
    let operands = [("X", (&x).into()), ("Y", (&y).into())];
    let text = "S[m,n] = X[m,k] * Y[n,k]";
    let plan = sampled_plan_of::<T, _>(context, text, &operands, &s);
    let row = find(plan.variant()).unwrap();
    // Dense tiles select their nonzeros by a list: a form of the pattern.
    if row.module != "sddmm_tiles" {
        let bytes = [bytes_of::<T>(pattern), 0];
        small_enough(what, row, None, bytes, plan.workspace_bytes());
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
