//! Products of 8-bit integers with unstructured nonzeros, SpMM (SDDMM: `sddmm::int8`). Every row of the table that
//! computes them, and the CPU, are compared with exact integers. Further tests: extremes, saturation, refusals.

use crate::support::einsum::{Given, agrees};
use crate::support::rows::{force, kernels_here};
use crate::support::runs::sampled_plan_of;
use crate::support::{Rng, assert_error, gpu, on_both, spread, stored};
use einsparse::error::Refusal;
use einsparse::formats::{Csr, CsrPattern, Dense, bf16, f16};
use einsparse::registry::{Operation, Row, Scalar, WalkKind};
use einsparse::{Context, Error, Operand, SparseTensor};

const SPMM: [&str; 3] = [
    "C[m,n] = s * A[m,k] * B[k,n]",
    "C[m,n] += s * A[m,k] * B[k,n]",
    "C[m,n] = relu(s * A[m,k] * B[k,n])",
];
pub(in crate::families) const FORMATS: [&str; 4] = ["csr", "coo", "ell", "groupcoo:3"];

fn spmm_rows() -> impl Iterator<Item = &'static Row> {
    kernels_here().filter(|row| row.operation == Operation::Narrow && row.walk == WalkKind::Vector)
}

/// Returns any 8-bit integer, more often the smallest and the largest.
pub(in crate::families) fn whole(rng: &mut Rng) -> i8 {
    match rng.word() >> 60 {
        0 => i8::MIN,
        1 => i8::MAX,
        _ => (rng.word() >> 33) as i8,
    }
}

/// A in CSR, and B `[k, n]`.
struct Product {
    a: Csr<i8>,
    b: Dense<i8>,
}

impl Product {
    fn new(pattern: CsrPattern, n: usize, mut value: impl FnMut() -> i8) -> Self {
        let k = pattern.cols();
        let values: Vec<i8> = (0..pattern.columns().len()).map(|_| value()).collect();
        let b: Vec<i8> = (0..k * n).map(|_| value()).collect();
        Product { a: Csr::new(pattern, values).unwrap(), b: Dense::new([k, n], b).unwrap() }
    }

    fn random(lens: &[usize], cols: usize, n: usize) -> Self {
        let mut rng = Rng((lens.len() * cols + n) as u64);
        Self::new(spread(lens, cols), n, || whole(&mut rng))
    }

    /// Computes the product into one output type, with rows of C that allow vectors and rows that do not.
    fn check<Out: Scalar>(
        &self,
        context: &Context,
        (row, format): (Option<&Row>, &str),
        (text, scale): (&str, f64),
    ) {
        let n = self.b.shape()[1];
        // The row stride of B is the minimum that the row requires.
        let of_b = match row.is_some_and(|row| row.vector == 16) {
            true => n.next_multiple_of(16),
            false => n + 1,
        };
        let given = [
            ("A", Given::Sparse(stored(self.a.clone(), format))),
            ("B", Given::Apart(self.b.clone(), of_b)),
            ("s", Given::Number(scale)),
        ];
        let options = row.map(force).unwrap_or_default();
        for shift in 0..2 {
            let leading = |n: usize| n.next_multiple_of(2) + 2 + shift;
            let what = (format, n, scale);
            let plan = agrees::<i8, Out>(context, text, &given, &options, (leading, &what));
            if let (Some(row), true) = (row, context.is_cuda()) {
                assert_eq!(plan.variant(), row.name);
            }
        }
    }
}

/// Lengths of rows: empty, around a step of sixteen vectors and around a ring of steps. The number of rows is not a
/// multiple of eight.
pub(in crate::families) const LENS: [usize; 21] =
    [0, 1, 2, 15, 16, 17, 31, 0, 33, 47, 48, 49, 5, 690, 64, 7, 0, 0, 3, 129, 700];
const WIDTHS: [usize; 8] = [1, 2, 15, 16, 33, 128, 130, 264];

fn products(context: &Context, row: Option<&Row>) {
    for n in WIDTHS {
        let small = Product::random(&LENS, 700, n);
        small.check::<i32>(context, (row, "csr"), (SPMM[0], 1.0));
        small.check::<i32>(context, (row, "csr"), (SPMM[1], -3.0));
        small.check::<f32>(context, (row, "csr"), (SPMM[2], 0.5));
    }
    let case = Product::random(&LENS, 700, 48);
    for format in FORMATS {
        case.check::<i32>(context, (row, format), (SPMM[0], 1.0));
    }
    // Sums are small enough that two roundings equal one.
    let mut rng = Rng(5);
    let case = Product::new(spread(&[3, 0, 9, 16, 40, 1], 60), 34, || (rng.word() >> 60) as i8 - 8);
    case.check::<f16>(context, (row, "csr"), (SPMM[1], 0.5));
    case.check::<bf16>(context, (row, "csr"), (SPMM[2], 1.0));
    // Columns beyond the range of 16 bits.
    let mut rng = Rng(6);
    let wide = CsrPattern::new(3, 70_001, vec![0, 2, 2, 4], vec![0, 70_000, 9, 69_999]).unwrap();
    let case = Product::new(wide, 17, || whole(&mut rng));
    case.check::<i32>(context, (row, "csr"), (SPMM[0], 1.0));
    for (lens, n) in [(&[][..], 16), (&[0; 9][..], 16), (&[4; 3][..], 0)] {
        let case = Product::random(lens, 20, n);
        case.check::<i32>(context, (row, "csr"), (SPMM[0], 1.0));
    }
}

on_both! {
    int8_times_entries_is_exact: cpu [|cpu| products(cpu, None)], gpu [|gpu| {
        for row in spmm_rows() {
            products(gpu, Some(row));
        }
    }];
}

/// Nearly the max number of values of eight rows, each the smallest integer times itself: the largest sums, up to twice
/// the range of i32. Sums beyond i32 are saturated.
fn extremes(context: &Context, row: Option<&Row>) {
    let k = (1 << 16) - 4;
    for (other, scales) in [(i8::MIN, [1.0, 3.0]), (i8::MAX, [1.0, 3.0])] {
        let pattern = spread(&[1, k, 3], k);
        let entries = pattern.columns().len();
        let mut left = entries;
        let case = Product::new(pattern, 18, || {
            let of_a = left > 0;
            left = left.saturating_sub(1);
            if of_a { i8::MIN } else { other }
        });
        for scale in scales {
            case.check::<i32>(context, (row, "csr"), (SPMM[0], scale));
            case.check::<i32>(context, (row, "csr"), (SPMM[1], scale));
        }
    }
}

#[test]
fn largest_sums_of_int8_are_exact_and_saturate() {
    extremes(&Context::unchecked_cpu(), None);
    let Some(gpu) = gpu() else { return };
    for row in spmm_rows() {
        extremes(&gpu, Some(row));
    }
}

#[test]
fn longer_rows_of_int8_are_refused_on_the_gpu() {
    let Some(gpu) = gpu() else { return };
    let k = 1 << 17;
    let case = Product::new(spread(&[k], k), 16, || 1);
    let a = gpu.upload(&case.a).unwrap();
    let b = gpu.upload_dense(&case.b).unwrap();
    let operands = [("A", (&a).into()), ("B", (&b).into())];
    let text = "C[m,n] = A[m,k] * B[k,n]";
    let plan = gpu.plan::<i8>(text).operands(&operands).output::<i32>();
    assert_error!(plan.build().unwrap_err(), Error::NoKernel { .. });
    let mut s: SparseTensor<i32> = gpu.upload(Csr::new(spread(&[1], 1), vec![0]).unwrap()).unwrap();
    let x = gpu.upload_dense(&Dense::<i8>::zeros(vec![1, k]).unwrap());
    let x = x.unwrap();
    let operands = [("X", (&x).into()), ("Y", (&x).into())];
    let text = "S[m,n] = X[m,k] * Y[n,k]";
    let plan = gpu.plan::<i8>(text).operands(&operands).sparse_output(&s);
    let error = plan.build().unwrap_err();
    assert_error!(error, Error::Overflow { .. });
    // Nothing was written.
    s.set_values(&[7]).unwrap();
    assert_eq!(s.to_host().unwrap().values(), [7]);
}

/// The default plan selects an int8 kernel, and the one that loads single bytes only if rows of B are not aligned.
#[test]
fn plans_choose_kernels_of_int8() {
    let cpu = Context::unchecked_cpu();
    for (n, bytes) in [(64, false), (50, true)] {
        let case = Product::random(&[5; 100], 200, n);
        let a = cpu.upload(&case.a).unwrap();
        let b = cpu.upload_dense(&case.b).unwrap();
        let operands = [("A", (&a).into()), ("B", (&b).into())];
        let text = "C[m,n] = A[m,k] * B[k,n]";
        let plan = cpu.plan::<i8>(text).operands(&operands).output::<i32>();
        let plan = plan.build().unwrap();
        let first = plan.choice().candidates[0].name;
        assert!(first.starts_with("vectors_int8"), "{}", plan.choice());
        assert_eq!(first.ends_with("any"), bytes, "{}", plan.choice());
    }
    let s = cpu.upload(Csr::new(spread(&[5; 100], 200), vec![0i32; 500]).unwrap()).unwrap();
    for (k, name) in [(64, "sddmm_csr_int8_k64"), (77, "sddmm_csr_int8_any32")] {
        let [x, y] = [100, 200].map(|rows| Dense::<i8>::zeros(vec![rows, k]).unwrap());
        let operands = [("X", (&x).into()), ("Y", (&y).into())];
        let text = "S[m,n] = X[m,k] * Y[n,k]";
        let plan = sampled_plan_of::<i8, _>(&cpu, text, &operands, &s);
        assert_eq!(plan.choice().candidates[0].name, name, "{}", plan.choice());
    }
}

#[test]
fn kernels_of_int8_say_what_they_refuse() {
    let cpu = Context::unchecked_cpu();
    let case = Product::random(&[5; 32], 32, 32);
    let a = cpu.upload(&case.a).unwrap();
    let b = cpu.upload_dense(&case.b).unwrap();
    let bias = Dense::new(vec![32], vec![1i8; 32]).unwrap();
    let said = |text: &str, whole: bool| {
        let mut operands: Vec<(&str, Operand<'_, i8>)> =
            vec![("A", (&a).into()), ("B", (&b).into())];
        if text.contains("bias") {
            operands.push(("bias", (&bias).into()));
        }
        let plan = cpu.plan::<i8>(text).operands(&operands);
        match whole {
            true => plan.output::<i32>().build().unwrap().choice().refused.clone(),
            false => plan.build().unwrap().choice().refused.clone(),
        }
    };
    for (reason, found) in [
        ("no int8 output", said("C[m,n] = A[m,k] * B[k,n]", false)),
        ("adds no bias", said("C[m,n] = A[m,k] * B[k,n] + bias[m]", true)),
        ("no activation of an int32", said("C[m,n] = relu(A[m,k] * B[k,n])", true)),
        ("computes", said("C[m,n] = A[m,k] * B[n,k]", true)),
    ] {
        let here = |r: &&Refusal| r.name.contains("vectors_int8") && r.reason.contains(reason);
        assert_eq!(found.iter().filter(here).count(), spmm_rows().count(), "{reason}: {found:?}");
    }
}
